//! Sampled memory accesses: Linux's decoding of the registers of IBS, as perf prints it, and Pugmark's decoding of the
//! same registers in raw samples.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

/// The columns of perf that are compared.
pub(super) const COLUMNS: &str = "addr,weight,data_src";

/// Numbers of accesses by name.
type CountsByName = BTreeMap<String, u64>;

/// The compared data.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compared {
    sources: CountsByName,
    translations: CountsByName,
    lines: CountsByName,
    locked: u64,
    latency: u64,
}

/// The sources of data, in perf's words and in ours.
const LEVELS: [(&str, &str); 10] = [
    ("N/A", "unknown"),
    ("L1 hit", "L1"),
    ("LFB/MAB hit", "line buffer"),
    ("L2 hit", "L2"),
    ("L3 hit", "L3"),
    ("Remote Cache (1 hop) hit", "other core's cache"),
    ("Remote Cache (2 hops) hit", "remote cache"),
    ("Local RAM hit", "memory"),
    ("Remote RAM (1 hop) hit", "remote memory"),
    ("Uncached hit", "uncached"),
];

/// The results of address translations, in perf's words and in ours.
const TRANSLATIONS: [(&str, &str); 4] =
    [("N/A", "unknown"), ("L1 hit", "L1 TLB"), ("L2 hit", "L2 TLB"), ("L2 miss", "page walk")];

/// Checks that both find the same accesses. Returns their number.
pub(super) fn check(printed: &str, report: &str) -> Result<u64> {
    let [perf, ours] = [by_perf(printed)?, by_pugmark(&serde_json::from_str(report)?)?];
    ensure!(perf == ours, "perf finds {perf:#?}, pugmark finds {ours:#?}");
    Ok(ours.sources.values().sum())
}

/// Reads lines such as `ffff888  29080144 |OP STORE|LVL L1 hit|SNP N/A|TLB L1 hit|LCK N/A|BLK  N/A   0`.
fn by_perf(text: &str) -> Result<Compared> {
    let mut compared = Compared::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('|').collect();
        let [before, operation, level, snoop, tlb, lock, rest] = fields[..] else {
            anyhow::bail!("perf prints no data source: {line:?}");
        };
        let word = |field: &str, name: &str| field.strip_prefix(name).map(|word| word.trim().to_owned());
        let word = |field, name| word(field, name).with_context(|| format!("no {name}: {line:?}"));
        let ours = |known: &[(&str, &'static str)], theirs: &str| {
            let found = known.iter().find(|(name, _)| *name == theirs);
            found.map(|(_, ours)| *ours).with_context(|| format!("perf prints {theirs:?}"))
        };
        let operation = word(operation, "OP ")?.to_lowercase();
        if operation == "n/a" {
            continue;
        }
        let level = ours(&LEVELS, &word(level, "LVL ")?)?;
        let modified = if word(snoop, "SNP ")? == "HitM" { ", modified" } else { "" };
        *compared.sources.entry(format!("{operation} {level}{modified}")).or_default() += 1;
        let translation = ours(&TRANSLATIONS, &word(tlb, "TLB ")?)?;
        *compared.translations.entry(translation.into()).or_default() += 1;
        let address = before.split_whitespace().next().context("no address")?;
        let address = u64::from_str_radix(address, 16)?;
        if address != 0 {
            *compared.lines.entry(format!("{:#x}", address & !63)).or_default() += 1;
        }
        compared.locked += u64::from(word(lock, "LCK ")? == "Yes");
        let weight = rest.split_whitespace().last().context("no weight")?;
        compared.latency += weight.parse::<u64>()?;
    }
    Ok(compared)
}

fn by_pugmark(report: &Value) -> Result<Compared> {
    let counts = |table: &str, key: &str| -> Result<CountsByName> {
        let mut counts = CountsByName::new();
        for row in report[table].as_array().with_context(|| format!("no {table}"))? {
            let name = row[key].as_str().with_context(|| format!("no {key} in {table}"))?;
            *counts.entry(name.into()).or_default() += row["count"].as_u64().context("no count")?;
        }
        Ok(counts)
    };
    let mut sources = CountsByName::new();
    for (name, count) in counts("sources", "name")? {
        // Linux calls an access that loads and stores a load.
        *sources.entry(name.replace("load+store", "load")).or_default() += count;
    }
    Ok(Compared {
        sources,
        translations: counts("translations", "name")?,
        lines: counts("lines", "address")?,
        locked: report["locked"].as_u64().context("no locked")?,
        latency: report["latency"]["sum"].as_u64().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
        0          5080021 |OP N/A|LVL N/A|SNP N/A|TLB N/A|LCK N/A|BLK  N/A               0\n\
        7048      29080144 |OP STORE|LVL L1 hit|SNP N/A|TLB L1 hit|LCK Yes|BLK  N/A       0\n\
        ff007044  51800842 |OP LOAD|LVL L3 hit|SNP HitM|TLB L2 miss|LCK N/A|BLK  N/A     40\n";

    fn report(latency: u64, modified: &str) -> String {
        serde_json::json!({
            "locked": 1,
            "latency": { "sum": latency },
            "sources": [{ "name": format!("load+store L3{modified}"), "count": 1 }, { "name": "store L1", "count": 1 }],
            "translations": [{ "name": "L1 TLB", "count": 1 }, { "name": "page walk", "count": 1 }],
            "lines": [{ "address": "0x7040", "count": 1 }, { "address": "0xff007040", "count": 1 }],
        })
        .to_string()
    }

    #[test]
    fn a_difference_is_told() {
        assert_eq!(check(PRINTED, &report(40, ", modified")).unwrap(), 2);
        for (report, text) in [(report(41, ", modified"), "latency: 41"), (report(40, ""), "load L3\"")] {
            let error = check(PRINTED, &report).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        assert!(check("0 5080021\n", &report(0, "")).is_err());
        assert!(check(&PRINTED.replace("L3 hit", "L9 hit"), &report(0, "")).is_err());
    }
}
