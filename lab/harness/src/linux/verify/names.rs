//! The names that perf and Pugmark give to executed code, one line for each instruction and branch, and summed up.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

/// Instructions by the file's name and the function.
type Counts = BTreeMap<(String, String), u64>;

/// The name of code without a name.
const UNKNOWN: &str = "[unknown]";
/// Interrupts are disabled, which perf reports for every branch on a processor with event trace. Unless events are
/// traced, the trace does not have this state.
const DISABLED: &str = "(D)";
/// The suffix of names of entries of procedure linkage tables.
const LINKAGE: &str = "@plt";

/// Checks that `pugmark script` prints the same as `perf script`, for instructions and for branches, and that `pugmark
/// report` has the counts of `perf report`. Each closure runs its program with these arguments and returns the output.
pub(super) fn check(
    perf: &dyn Fn(&[&str]) -> Result<String>,
    pugmark: &dyn Fn(&[&str]) -> Result<String>,
) -> Result<()> {
    for (kind, synthesized, fields) in [
        ("--insns", "--itrace=i1i", "ip,sym,symoff,dso"),
        ("--branches", "--itrace=b", "flags,ip,sym,symoff,dso,addr"),
    ] {
        let theirs = perf(&["script", synthesized, "-F", &format!("cpu,{fields}")])?;
        let ours = pugmark(&["script", kind, "-F", fields])?;
        same_lines(&by_cpu(&theirs)?, &ours).with_context(|| format!("pugmark script {kind}"))?;
    }
    let theirs = perf(&["report", "--stdio", "--itrace=i1i", "-F", "sample,dso,sym", "-t", "|"])?;
    let ours = pugmark(&["report", "--by", "object,function", "--json"])?;
    let (theirs, ours) = (perf_counts(&theirs)?, pugmark_counts(&ours)?);
    let wrong = theirs.iter().find(|(name, count)| ours.get(name) != Some(count));
    ensure!(
        wrong.is_none(),
        "perf report has {wrong:?}, pugmark {:?}",
        wrong.map(|(name, _)| ours.get(name))
    );
    let more = ours.iter().find(|(name, _)| !theirs.contains_key(name));
    ensure!(more.is_none(), "perf report does not have {more:?}");
    Ok(())
}

/// Returns the lines of each CPU, one CPU after another, without the leading CPU: `[001]`.
fn by_cpu(text: &str) -> Result<Vec<&str>> {
    let mut by_cpu: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let (cpu, rest) = line.trim().split_once(']').with_context(|| format!("no CPU: {line:?}"))?;
        by_cpu.entry(cpu).or_default().push(rest);
    }
    Ok(by_cpu.into_values().flatten().collect())
}

/// Checks that the lines have the same words.
fn same_lines(theirs: &[&str], ours: &str) -> Result<()> {
    let mut lines = ours.lines();
    for (number, theirs) in theirs.iter().enumerate() {
        let ours = lines.next().with_context(|| format!("it ends before line {number}: {theirs:?}"))?;
        let known = theirs.split_whitespace().filter(|word| *word != DISABLED);
        let mut pairs = known.clone().zip(ours.split_whitespace());
        ensure!(
            known.count() == ours.split_whitespace().count()
                && pairs.all(|(theirs, ours)| same_word(theirs, ours)),
            "line {number} is {ours:?}, perf has {theirs:?}"
        );
    }
    let more = lines.next();
    ensure!(more.is_none(), "perf does not have {more:?}");
    Ok(())
}

/// Compares two words. perf 6.1 gives wrong names, or none, to entries of procedure linkage tables: it expects
/// relocations in the order of the entries, but those of functions that are chosen at run time are at the end.
fn same_word(theirs: &str, ours: &str) -> bool {
    theirs == ours || ours.contains(LINKAGE)
}

/// Returns the counts in lines such as ` 39310 |libc.so.6 |[.] free`.
fn perf_counts(text: &str) -> Result<Counts> {
    let mut counts = Counts::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let row = || -> Option<_> {
            let mut words = line.splitn(3, '|').map(str::trim);
            let (count, object, name) = (words.next()?.parse::<u64>().ok()?, words.next()?, words.next()?);
            // After `[k]` or `[.]`.
            Some((count, object, name.get(3..)?.trim()))
        };
        let (count, object, name) = row().with_context(|| format!("no row: {line:?}"))?;
        *counts.entry(key(object, name)).or_default() += count;
    }
    Ok(counts)
}

/// Returns the counts in the JSON of `pugmark report`.
fn pugmark_counts(text: &str) -> Result<Counts> {
    let mut counts = Counts::new();
    let json: Value = serde_json::from_str(text)?;
    for row in json["rows"].as_array().context("no rows")? {
        let text = |name: &str| row[name].as_str().with_context(|| format!("no {name}: {row}"));
        let count = row["instructions"].as_u64().context("no count")?;
        if count > 0 {
            *counts.entry(key(text("object")?, text("function")?)).or_default() += count;
        }
    }
    Ok(counts)
}

/// Returns the file's name without its folder, and the function. Code without a name has its address in perf's report,
/// and in ours that of the function's first instruction where it was called: all of it is treated alike, and so are
/// entries of procedure linkage tables, see [`same_word`].
fn key(object: &str, name: &str) -> (String, String) {
    let is_unnamed = name.ends_with(LINKAGE) || name.starts_with(UNKNOWN) || name.starts_with("0x");
    let name = if is_unnamed { UNKNOWN } else { name };
    (object.rsplit('/').next().unwrap_or(object).into(), name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the output of a program for these arguments.
    fn answers<'a>(lines: &'a [(&str, &str)]) -> impl Fn(&[&str]) -> Result<String> + 'a {
        move |arguments: &[&str]| {
            let known =
                lines.iter().find(|(word, _)| arguments.contains(word)).context("nobody asks that")?;
            Ok(known.1.to_owned())
        }
    }

    const INSNS: &str = "[001]  2 g+0x1 (/b)\n[000]  1 f+0x0 (/a)\n[001]  3 z@plt+0x16 (/b)\n";
    const BRANCHES: &str = "[000]   tr strt (D)   0 [unknown] ([unknown]) =>   1 f+0x0 (/a)\n";
    const REPORT: &str = "# x\n\n 1 |a |[.] f\n 2|[kernel.kallsyms]|[k] 0x01\n\
        1|[kernel.kallsyms]|[k] 0x02\n3|b|[.] @plt\n1|b|[.] 0x12\n";
    const OUR_INSNS: &str = " 1 f+0x0 (/a)\n 2 g+0x1 (/b)\n 3 x@plt+0x6 (/b)\n";
    const OUR_BRANCHES: &str = "tr strt 0 [unknown] ([unknown]) => 1 f+0x0 (/a)\n";

    fn our_report(count: u64) -> String {
        format!(
            r#"{{"rows": [{{"instructions": 1, "object": "/x/a", "function": "f"}},
            {{"instructions": 0, "object": "/x/a", "function": "g"}},
            {{"instructions": 1, "object": "[kernel.kallsyms]", "function": "[unknown] in [kernel.kallsyms]"}},
            {{"instructions": 2, "object": "[kernel.kallsyms]", "function": "0x1"}},
            {{"instructions": 1, "object": "/b", "function": "y@plt"}},
            {{"instructions": {count}, "object": "/b", "function": "x@plt"}}]}}"#
        )
    }

    #[test]
    fn what_is_the_same_passes_and_each_difference_is_named() {
        let found = |insns: &str, branches: &str, report: &str| {
            let perf = [("--itrace=b", BRANCHES), ("report", REPORT), ("script", INSNS)];
            let ours = [("--branches", branches), ("report", report), ("--insns", insns)];
            check(&answers(&perf), &answers(&ours)).map_err(|error| format!("{error:#}"))
        };
        let report = our_report(3);
        assert_eq!(found(OUR_INSNS, OUR_BRANCHES, &report), Ok(()));
        let wrong = |insns: &str, branches: &str, report: &str| found(insns, branches, report).unwrap_err();
        for (from, to, said) in [
            ("2 g+0x1", "2 g+0x2", "line 1 is"),
            ("1 f+0x0", "2 f+0x0", "line 0 is"),
            ("x@plt+0x6", "x+0x6", "line 2 is"),
            ("3 x@plt+0x6", "4 x@plt+0x6", "line 2 is"),
            ("1 f+0x0 (/a)", "1 f+0x0", "line 0 is"),
            ("1 f+0x0 (/a)", "1 f+0x0 (/a) more", "line 0 is"),
            (" 3 x@plt+0x6 (/b)\n", "", "it ends before line 2"),
            ("(/b)\n 3", "(/b)\n 4 more\n 3", "line 2 is"),
            ("3 x@plt+0x6 (/b)\n", "3 x@plt+0x6 (/b)\n 4", "perf does not have"),
        ] {
            let error = wrong(&OUR_INSNS.replace(from, to), OUR_BRANCHES, &report);
            assert!(error.contains("--insns") && error.contains(said), "{to}: {error}");
        }
        assert!(wrong(OUR_INSNS, "", &report).contains("--branches"));
        assert!(wrong(OUR_INSNS, OUR_BRANCHES, &our_report(2)).contains("perf report has"));
        let more = report.replace("\"g\"", "\"h\"").replace("\"instructions\": 0", "\"instructions\": 9");
        assert!(wrong(OUR_INSNS, OUR_BRANCHES, &more).contains("perf report does not have"));
    }

    #[test]
    fn lines_that_are_no_answer_are_refused() {
        assert!(
            by_cpu("401234 f").is_err() && perf_counts("x|y|[.] z").is_err() && perf_counts("1|y").is_err()
        );
        assert!(
            pugmark_counts("{}").is_err() && pugmark_counts(r#"{"rows": [{"instructions": 1}]}"#).is_err()
        );
    }
}
