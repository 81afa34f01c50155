//! The results of perf and Pugmark for a recording.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

use crate::truth::hash;

/// The number of instructions, and the hash of their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) count: u64,
    pub(super) hash: u64,
}

impl Found {
    pub(super) fn of(addresses: &[u64]) -> Self {
        Self { count: addresses.len() as u64, hash: hash(addresses) }
    }
}

/// Returns the standard output of `perf script`, with these arguments, for a recording of a guest with these files.
pub(super) fn perf_script(perf: &Path, data: &Path, root: &Path, arguments: &[&str]) -> Result<String> {
    self::perf(perf, data, root, &[&["script"], arguments].concat())
}

/// Returns the standard output of perf, as [`perf_script`].
pub(super) fn perf(perf: &Path, data: &Path, root: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(perf);
    command.args(arguments).arg("--symfs").arg(root).arg("--input").arg(data);
    let output = command.output().context("cannot start perf")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf {}: {text}", arguments[0]);
    ensure!(!text.contains("AUX data lost"), "perf {}: {text}", arguments[0]);
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the standard output of Pugmark, as [`perf_script`].
pub(super) fn pugmark_text(pugmark: &Path, data: &Path, root: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(pugmark);
    let output = command.args(arguments).arg("--symfs").arg(root).arg(data).output();
    let output = output.context("cannot start pugmark")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pugmark {}: {text}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the addresses that perf prints, one or `columns` a line.
pub(super) fn addresses(text: &str) -> Result<Vec<u64>> {
    let addresses = text.split_whitespace().map(|word| u64::from_str_radix(word, 16));
    addresses.collect::<Result<_, _>>().context("perf script prints something else than addresses")
}

/// Returns the addresses of the samples that our decoder finds in the trace of Intel PT.
pub(super) fn traced_samples(pugmark: &Path, data: &Path) -> Result<Vec<u64>> {
    let output =
        Command::new(pugmark).args(["pebs", "--json"]).arg(data).output().context("cannot start pugmark")?;
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    ensure!(output.status.success(), "pugmark pebs: {errors}{text}");
    let ip = |line: &str| -> Result<u64> {
        let json: Value = serde_json::from_str(line)?;
        let ip = json["ip"].as_str().and_then(|text| text.strip_prefix("0x")).context("no address")?;
        Ok(u64::from_str_radix(ip, 16)?)
    };
    text.lines().map(ip).collect()
}

/// Returns the results of our decoder: of the whole trace, or of each CPU's.
pub(super) fn pugmark(pugmark: &Path, data: &Path, root: &Path) -> Result<Vec<Found>> {
    let json: Value = serde_json::from_str(&pugmark_text(pugmark, data, root, &["decode", "--json"])?)?;
    let found = |json: &Value| -> Result<Found> {
        let hash = json["hash"].as_str().and_then(|text| text.strip_prefix("0x")).context("no hash")?;
        Ok(Found {
            count: json["instructions"].as_u64().context("no count")?,
            hash: u64::from_str_radix(hash, 16)?,
        })
    };
    match json["parts"].as_array() {
        Some(parts) => parts.iter().map(found).collect(),
        None => Ok(vec![found(&json)?]),
    }
}
