//! Call trees for other programs: callgrind's format, pprof's and speedscope's.
//!
//! Sources: Valgrind 3.19, callgrind-format; google/pprof, proto/profile.proto; speedscope, file-format-spec.ts.

use super::{
    super::{protobuf::Message, visitors::Unit},
    tree::FlameTree,
};
use crate::symbols::crc32;
use miniz_oxide::deflate::compress_to_vec;
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
};

/// Returns the word for what is counted, as events of profiles are named.
const fn event(unit: Unit) -> &'static str {
    match unit {
        Unit::Instructions => "Ir",
        Unit::Nanoseconds => "ns",
        Unit::Ticks => "ticks",
    }
}

/// Writes the tree in callgrind's format, which callgrind_annotate and KCachegrind read. As there, a function that was
/// called by itself is another one, with `'2` after its name.
pub(super) fn callgrind(tree: &FlameTree, unit: Unit, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    let totals = tree.totals();
    let mut names = vec![String::new(); totals.len()];
    let mut costs = BTreeMap::<String, u64>::new();
    let mut calls = BTreeMap::<String, BTreeMap<String, (u64, u64)>>::new();
    tree.chains(|path| {
        let Some((&node, callers)) = path.split_last() else { return Ok(()) };
        let name = tree.name(node).replace(char::is_control, " ");
        let is_inner = callers.iter().any(|caller| tree.name(*caller) == tree.name(node));
        names[node] = if is_inner { name + "'2" } else { name };
        *costs.entry(names[node].clone()).or_default() += tree.own(node);
        if let Some(caller) = callers.last() {
            let called = calls.entry(names[*caller].clone()).or_default();
            let (count, cost) = called.entry(names[node].clone()).or_default();
            (*count, *cost) = (*count + tree.calls(node).max(1), *cost + totals[node]);
        }
        Ok(())
    })?;
    writeln!(
        out,
        "# callgrind format\nversion: 1\ncreator: pugmark\npositions: line\nevents: {}\n\nfl=???",
        event(unit)
    )?;
    for (name, cost) in costs {
        writeln!(out, "\nfn={name}\n0 {cost}")?;
        for (callee, (count, cost)) in calls.get(&name).into_iter().flatten() {
            writeln!(out, "cfn={callee}\ncalls={count} 0\n0 {cost}")?;
        }
    }
    writeln!(out, "\ntotals: {}", tree.total())
}

/// Writes the tree as speedscope's JSON: functions are opened and closed as if each chain of calls were executed once,
/// for as long as its cost. Its size follows the number of chains, not their length.
pub(super) fn speedscope(tree: &FlameTree, unit: Unit, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    let (mut numbers, mut frames) = (HashMap::<&str, usize>::new(), vec![]);
    let (mut events, mut open, mut at) = (vec![], vec![], 0);
    tree.chains(|path| {
        let Some(&node) = path.last() else { return Ok(()) };
        close(&mut events, open.drain(path.len() - 1..), at);
        let name = tree.name(node);
        let frame = *numbers.entry(name).or_insert_with(|| {
            frames.push(json!({ "name": name }));
            frames.len() - 1
        });
        events.push(format!(r#"{{"type":"O","frame":{frame},"at":{at}}}"#));
        open.push(frame);
        at += tree.own(node);
        Ok(())
    })?;
    close(&mut events, open.drain(..), at);
    let unit = if unit == Unit::Nanoseconds { "nanoseconds" } else { "none" };
    let creator = concat!("pugmark ", env!("CARGO_PKG_VERSION"));
    write!(
        out,
        r#"{{"$schema":"https://www.speedscope.app/file-format-schema.json","exporter":"{creator}",
"shared":{{"frames":{}}},
"profiles":[{{"type":"evented","name":"pugmark","unit":"{unit}","startValue":0,"endValue":{at},"events":[
{}
]}}]}}
"#,
        json!(frames),
        events.join(",\n")
    )
}

/// Adds the ends of open functions, the innermost first.
fn close(events: &mut Vec<String>, open: std::vec::Drain<'_, usize>, at: u64) {
    events.extend(open.rev().map(|frame| format!(r#"{{"type":"C","frame":{frame},"at":{at}}}"#)));
}

/// Returns the tree as a profile of pprof: each chain of calls is a sample with its cost. A protocol buffer in gzip's
/// format.
pub(super) fn pprof(tree: &FlameTree, unit: Unit) -> Vec<u8> {
    let mut strings = Strings::default();
    strings.number("");
    let (kind, unit) = match unit {
        Unit::Instructions => ("instructions", "count"),
        Unit::Nanoseconds => ("time", "nanoseconds"),
        Unit::Ticks => ("time", "ticks"),
    };
    let mut profile = Message::default().bytes(1, &strings.value_type(kind, unit).0);
    // A location and a function for each name, with the name's number for both.
    let mut locations = BTreeMap::new();
    let chain = |path: &[usize]| {
        if let Some(&node) = path.last()
            && tree.own(node) > 0
        {
            let number = |node: &usize| strings.number(tree.name(*node));
            let numbers: Vec<u64> = path.iter().rev().map(number).collect();
            locations.extend(numbers.iter().map(|number| (*number, ())));
            let at = |sample: Message, number| sample.number(1, number);
            let sample = numbers.into_iter().fold(Message::default(), at).number(2, tree.own(node));
            profile = std::mem::take(&mut profile).bytes(2, &sample.0);
        }
        Ok(())
    };
    // Nothing is written, so nothing fails.
    let _ = tree.chains(chain);
    for number in locations.into_keys() {
        let line = Message::default().number(1, number);
        let location = Message::default().number(1, number).bytes(4, &line.0);
        let function = Message::default().number(1, number).number(2, number).number(3, number);
        profile = profile.bytes(4, &location.0).bytes(5, &function.0);
    }
    let add = |profile: Message, text: &String| profile.bytes(6, text.as_bytes());
    gzip(&strings.all.iter().fold(profile, add).0)
}

/// The strings of a profile, each with its number.
#[derive(Default)]
struct Strings {
    numbers: HashMap<String, u64>,
    all: Vec<String>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u64 {
        *self.numbers.entry(text.to_owned()).or_insert_with(|| {
            self.all.push(text.to_owned());
            self.all.len() as u64 - 1
        })
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> Message {
        Message::default().number(1, self.number(kind)).number(2, self.number(unit))
    }
}

/// Compresses bytes as a file of gzip (RFC 1952).
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    file.extend(compress_to_vec(bytes, 6));
    file.extend(crc32(bytes).to_le_bytes());
    file.extend((bytes.len() as u32).to_le_bytes());
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tree in which each of `depth` functions calls the next one.
    fn chain(depth: u64) -> FlameTree {
        let mut tree = FlameTree::new();
        (1..=depth).fold(FlameTree::ROOT, |caller, own| {
            let node = tree.child(caller, &format!("f{own}"));
            tree.add(node, own);
            node
        });
        tree
    }

    #[test]
    fn speedscopes_file_grows_with_the_chains_not_with_their_square() {
        let size = |depth| {
            let mut file = vec![];
            speedscope(&chain(depth), Unit::Instructions, &mut file).unwrap();
            file.len() as u64
        };
        assert!(size(4000) < 5 * size(1000), "{} {}", size(1000), size(4000));
    }
}
