//! The results: as lines, as a table of ratios, as JSON, as a plot.

use super::{load::Load, plot, race::Speed};
use anyhow::Result;
use pugmark_decoder_core::block_cache::WORDS_PER_BLOCK;
use serde_json::{Value, json};
use std::{
    fmt::{self, Display, Formatter},
    fs, iter,
    time::SystemTime,
};

/// The memory that the block cache needs for each block.
pub(super) const BYTES_PER_BLOCK: usize = 4 * WORDS_PER_BLOCK;

/// The decoders at one layer of one trace; ours comes first.
pub(super) struct Row<'a> {
    pub(super) load: &'a str,
    pub(super) bytes: usize,
    pub(super) layer: &'static str,
    pub(super) speeds: Vec<Speed>,
}

impl Row<'_> {
    fn mb_per_s(&self, speed: &Speed) -> f64 {
        self.bytes as f64 / 1e6 / speed.seconds_min
    }
}

impl Display for Row<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Some((own, others)) = self.speeds.split_first() else { return Ok(()) };
        let each = own.seconds_min * 1e9 / own.decoded.count.max(1) as f64;
        write!(
            formatter,
            "{:>11} {:>8.1} MB/s {:>9} {each:>6.2} ns each",
            self.layer,
            self.mb_per_s(own),
            own.decoded.count
        )?;
        for other in others {
            let ([low, _, high], ratio) = (other.ratios, other.ratio(own));
            write!(formatter, "   {} {:.1} MB/s × {ratio:.2}", other.name, self.mb_per_s(other))?;
            write!(formatter, " ({low:.2} to {high:.2})")?;
        }
        Ok(())
    }
}

/// All rows so far.
pub(super) struct Report {
    rows: Vec<Entry>,
}

/// A decoder at one layer of one trace.
struct Entry {
    load: String,
    layer: &'static str,
    decoder: &'static str,
    mb_per_s: f64,
    ratio: f64,
    json: Value,
}

impl Report {
    pub(super) fn new() -> Self {
        Self { rows: vec![] }
    }

    pub(super) fn add(&mut self, row: &Row<'_>) {
        let Some(own) = row.speeds.first() else { return };
        for speed in &row.speeds {
            let (mb_per_s, ratio) = (row.mb_per_s(speed), speed.ratio(own));
            let json = json!({
                "recording": row.load,
                "bytes": row.bytes,
                "layer": row.layer,
                "decoder": speed.name,
                "seconds_min": speed.seconds_min,
                "seconds_median": speed.seconds_median,
                "mb_per_s": mb_per_s,
                "count": speed.decoded.count,
                "sum": format!("{:#018x}", speed.decoded.sum),
                "times_pugmark": ratio,
                "times_pugmark_quartiles": speed.ratios,
            });
            let (load, layer, decoder) = (row.load.to_owned(), row.layer, speed.name);
            self.rows.push(Entry { load, layer, decoder, mb_per_s, ratio, json });
        }
    }

    /// Returns the layers that were measured with any other decoder, with that decoder.
    fn comparisons(&self) -> Vec<(&'static str, &'static str)> {
        let mut comparisons = vec![];
        for Entry { layer, decoder, .. } in self.rows.iter().filter(|entry| entry.decoder != "pugmark") {
            if !comparisons.contains(&(*layer, *decoder)) {
                comparisons.push((*layer, *decoder));
            }
        }
        comparisons
    }

    fn entry(&self, load: &str, layer: &str, decoder: &str) -> Option<&Entry> {
        self.rows.iter().find(|entry| entry.load == load && entry.layer == layer && entry.decoder == decoder)
    }

    /// Prints a table in Markdown: the speed of ours relative to the others, with a column for each trace.
    pub(super) fn print_ratios(&self, loads: &[Load]) {
        let line = |first: String, cells: Vec<String>| {
            println!("| {} |", iter::once(first).chain(cells).collect::<Vec<_>>().join(" | "));
        };
        println!("\nHow many times as fast as the other decoder:\n");
        line("layer, decoder".into(), loads.iter().map(|load| load.name.clone()).collect());
        line("---".into(), loads.iter().map(|_| "---".into()).collect());
        for (layer, decoder) in self.comparisons() {
            let cell = |load: &Load| match self.entry(&load.name, layer, decoder) {
                Some(entry) => format!("{:.2}", entry.ratio),
                None => "-".into(),
            };
            line(format!("{layer}, {decoder}"), loads.iter().map(cell).collect());
        }
    }

    /// Returns all numbers, with the date and the machine.
    pub(super) fn json(&self) -> Result<String> {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let rows: Vec<_> = self.rows.iter().map(|entry| &entry.json).collect();
        let report = json!({
            "unix": unix,
            "processor": processor(),
            "bytes_per_block": BYTES_PER_BLOCK,
            "rows": rows,
        });
        Ok(serde_json::to_string_pretty(&report)? + "\n")
    }

    /// Returns a plot with bars of MB/s for each layer of one trace.
    pub(super) fn speed_plot(&self, load: &str) -> String {
        let mut decoders: Vec<&str> = vec![];
        let mut layers: Vec<&str> = vec![];
        for entry in self.rows.iter().filter(|entry| entry.load == load) {
            if !decoders.contains(&entry.decoder) {
                decoders.push(entry.decoder);
            }
            if !layers.contains(&entry.layer) {
                layers.push(entry.layer);
            }
        }
        let speed = |layer: &str, decoder: &&str| Some(self.entry(load, layer, decoder)?.mb_per_s);
        let bars = |layer: &str| decoders.iter().map(|decoder| speed(layer, decoder)).collect();
        let groups: Vec<_> = layers.iter().map(|layer| ((*layer).to_owned(), bars(layer))).collect();
        plot::bars(&format!("{load}: MB of trace a second"), "MB/s", &decoders, &groups)
    }
}

/// Returns the system's name of the processor.
fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
