//! Reads a page's calls.

use miniz_oxide::inflate::decompress_to_vec_zlib;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Returns the data of a page: that of its head, with the slices of each track (begin, end, depth, name, instructions,
/// place of the call) in the order of their begins, its periods without a trace, and its runs (begin, end, depth, name,
/// calls) by level.
pub(crate) fn data(page: &str) -> Value {
    let line = page.lines().find_map(|line| line.strip_prefix("const data = ")).unwrap();
    let mut data: Value = serde_json::from_str(line.strip_suffix(';').unwrap()).unwrap();
    let text = page.split_once("id=\"chunks\">").unwrap().1.split_once('<').unwrap().0;
    let untraced = data["names"].as_array().unwrap().len() as u64 - data["untraced"].as_u64().unwrap();
    let tracks = data["tracks"].as_array().unwrap().len();
    let (mut slices, mut periods) = (vec![vec![]; tracks], vec![vec![]; tracks]);
    let mut runs: Vec<BTreeMap<String, Vec<Value>>> = vec![BTreeMap::new(); tracks];
    let mut rest = text;
    for chunk in data["chunks"].as_array().unwrap() {
        let number = |index: usize| chunk[index].as_u64().unwrap();
        let (own, after) = rest.split_at(number(7) as usize);
        rest = after;
        let (track, kind) = (number(0) as usize, number(3));
        let bars = bars(&decompress_to_vec_zlib(&base64(own)).unwrap(), number(6) as usize, number(4));
        assert_eq!(bars.iter().map(|bar| bar[1]).max(), chunk[5].as_u64());
        for [from, to, depth, site, amount, _] in bars {
            let (site, depth) = (&data["sites"][site as usize], depth + 64 * number(1));
            let level = (63 - (to - from).max(1).leading_zeros()) / 2;
            match kind {
                1 => {
                    assert!(amount == 1 || to - from <= 1 << (2 * number(2)), "{from} to {to}");
                    let run = json!([from, to, depth, site[0], amount]);
                    runs[track].entry(number(2).to_string()).or_default().push(run);
                }
                _ if site[0].as_u64().unwrap() >= untraced => periods[track].push(json!([from, to, depth])),
                _ => {
                    assert_eq!(u64::from(level), number(2), "{from} to {to}");
                    slices[track].push(json!([from, to, depth, site[0], amount, site[1]]));
                }
            }
        }
    }
    assert_eq!(rest, "");
    let order = |slice: &Value| [0, 2].map(|index| slice[index].as_u64());
    for (track, (mut slices, (periods, runs))) in
        slices.into_iter().zip(periods.into_iter().zip(runs)).enumerate()
    {
        slices.sort_by_key(order);
        let track = &mut data["tracks"][track];
        (track["slices"], track["untraced"]) = (slices.into(), periods.into());
        track["runs"] = json!(runs);
    }
    data
}

/// Returns the bars of a chunk: begin, end, depth in the group, site, amount, time of what it called.
fn bars(bytes: &[u8], count: usize, first: u64) -> Vec<[u64; 6]> {
    let mut bytes = bytes.iter();
    let mut number = || {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = *bytes.next().unwrap();
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    };
    let mut bars = vec![[0; 6]; count];
    for column in 0..6 {
        bars.iter_mut().for_each(|bar| bar[column] = number());
    }
    let mut before = first;
    for bar in &mut bars {
        before += bar[0];
        (bar[0], bar[1]) = (before, before + bar[1]);
    }
    assert_eq!(bytes.next(), None);
    bars
}

/// Returns the bytes of a text in base64.
fn base64(text: &str) -> Vec<u8> {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let values: Vec<u32> =
        text.trim_end_matches('=').chars().map(|letter| LETTERS.find(letter).unwrap() as u32).collect();
    let mut bytes = vec![];
    for four in values.chunks(4) {
        let all = four.iter().enumerate().fold(0, |all, (index, value)| all | value << (18 - 6 * index));
        bytes.extend_from_slice(&all.to_be_bytes()[1..four.len()]);
    }
    bytes
}
