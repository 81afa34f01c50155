//! `cargo xtask bench --instructions`: the number of machine instructions of each layer, counted by callgrind.
//!
//! This program runs itself in callgrind, which counts everything from the program's start. So each layer decodes a
//! trace zero times, once and twice. The differences are the cost of the first decode and of the second, for which all
//! blocks are cached.

use super::{
    layers::{self, CACHE_WORDS},
    load::Load,
    record,
};
use anyhow::{Context, Result, ensure};
use pugmark_decoder_core::{
    block::Block,
    block_cache::{BlockCache, ExecutionSink, edges::EDGES},
    event::Event,
    image::Image,
};
use std::{hint::black_box, process::Command};

/// The number of bytes of each trace that are decoded.
const BYTES: usize = 256 << 10;

/// The recordings that are counted if none is named.
const RECORDINGS: [&str; 2] = ["python3", "python3-timing"];

/// A layer: its name, its items, and a decode, which returns the number of items.
struct CountedLayer {
    name: &'static str,
    item: &'static str,
    decode: fn(&[u8], Image<'_>, &mut BlockCache<'_>, &mut [u8; EDGES]) -> u64,
}

const LAYERS: [CountedLayer; 6] = [
    CountedLayer { name: "packets", item: "a packet", decode: |trace, _, _, _| layers::packets(trace).count },
    CountedLayer {
        name: "query",
        item: "an outcome or target",
        decode: |trace, _, _, _| layers::query(trace).count,
    },
    CountedLayer {
        name: "query-slices",
        item: "an outcome or target",
        decode: |trace, _, _, _| layers::query_slices(trace).count,
    },
    CountedLayer {
        name: "insns",
        item: "an instruction",
        decode: |trace, image, cache, _| layers::insns(trace, image, cache).count,
    },
    CountedLayer {
        name: "blocks",
        item: "a block",
        decode: |trace, image, cache, _| {
            let mut blocks = BlockCount(0);
            layers::visit(trace, image, cache, &mut blocks);
            blocks.0
        },
    },
    CountedLayer {
        name: "edges",
        item: "an edge",
        decode: |trace, image, cache, map| layers::edges(trace, image, cache, map).count,
    },
];

/// A sink that counts blocks as they are in the block cache.
struct BlockCount(u64);

impl ExecutionSink for BlockCount {
    const BLOCKS: bool = true;

    #[inline]
    fn block(&mut self, block: &Block) {
        black_box(block);
        self.0 += 1;
    }

    fn event(&mut self, event: &Event) {
        black_box(event);
    }
}

/// Counts the layers of the recordings that are wanted, and prints a table for each.
pub(super) fn count(only: &[String], is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    let default = RECORDINGS.map(String::from);
    for load in record::recordings(if only.is_empty() { &default } else { only }, false)? {
        // All names of Python's recordings contain `python3`.
        if only.is_empty() && !RECORDINGS.contains(&&*load.name) {
            continue;
        }
        println!("\n{}: the first {} bytes", load.name, load.trace.len().min(BYTES));
        println!("| layer | items | instructions | for each | the first time |");
        println!("| --- | --- | --- | --- | --- |");
        for layer in LAYERS.iter().filter(|layer| is_wanted(layer.name)) {
            let items = decode(&load, layer, 1);
            let [none, once, twice] = [0, 1, 2].map(|times| counted(&load.name, layer.name, times));
            let (none, once, twice) = (none?, once?, twice?);
            let (first, second) = (once.saturating_sub(none), twice.saturating_sub(once));
            println!(
                "| {}, {} | {items} | {second} | {:.1} | {:.1} |",
                layer.name,
                layer.item,
                second as f64 / items as f64,
                first as f64 / items as f64
            );
        }
    }
    Ok(())
}

/// Decodes in callgrind; `what` names the recording, the layer and the number of times.
pub(super) fn decode_in_callgrind(what: &str) -> Result<()> {
    let [name, layer, times] =
        what.split(',').collect::<Vec<_>>().try_into().ok().context("not three parts")?;
    let loads = record::recordings(&[name.into()], false)?;
    let load = loads.iter().find(|load| load.name == name).context("no such recording")?;
    let layer = LAYERS.iter().find(|known| known.name == layer).context("no such layer")?;
    decode(load, layer, times.parse()?);
    Ok(())
}

/// Decodes the beginning of a trace that many times. Returns the number of items of the last decode.
fn decode(load: &Load, layer: &CountedLayer, times: u32) -> u64 {
    let trace = load.trace.get(..BYTES).unwrap_or(&load.trace);
    let sections = load.sections();
    let (mut memory, mut map) = (vec![0; CACHE_WORDS], Box::new([0; EDGES]));
    let mut cache = BlockCache::new(&mut memory);
    (0..times).fold(0, |_, _| (layer.decode)(black_box(trace), Image::new(&sections), &mut cache, &mut map))
}

/// Returns the number of machine instructions of this program when it decodes that many times.
fn counted(recording: &str, layer: &str, times: u32) -> Result<u64> {
    let mut callgrind = Command::new("valgrind");
    callgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(std::env::current_exe()?);
    callgrind.args(["bench", "--decode", &format!("{recording},{layer},{times}")]);
    let output = callgrind.output().context("valgrind is not installed")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{recording}, {layer}, in callgrind: {text}");
    collected(&text).with_context(|| format!("callgrind does not say how much it counted: {text}"))
}

/// Returns the count that callgrind reports.
fn collected(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("Collected :")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrind_says_how_many_instructions_it_counted() {
        let text =
            "==7== Events    : Ir\n==7== Collected : 1842517\n==7== \n==7== I   refs:      1,842,517\n";
        assert_eq!(collected(text), Some(1_842_517));
        assert_eq!(collected("==7== Command: true\n"), None);
    }
}
