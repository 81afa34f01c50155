//! A web page that works without a network: the calls in compressed chunks, and a program that shows them.

use super::{
    Drawing, DrawnCall, DrawnCallSink, MarkRow, NOTHING, Slice, SourceLine, TimelineWalk, Track, TrackLoss,
    TrackMark, Unit,
    chunks::{Chunk, ChunkKind, EndedChunks, PageChunks},
    levels::{Bar, LaneRuns},
};
use crate::output;
use crate::pugmark::{progress::Progress, visitors::not_traced};
use anyhow::{Result, ensure};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::{borrow::Cow, cell::RefCell};

const PAGE: &str = include_str!("page/page.html");
/// The places of the data in the page.
const CHUNKS: &str = "/*CHUNKS*/";
const DATA: &str = "/*DATA*/null";
/// The places in the page, in their order, and what stands there besides data.
const PARTS: [(&str, &str); 7] = [
    ("/*STYLE*/", include_str!("page/page.css")),
    (CHUNKS, ""),
    (DATA, ""),
    ("/*CALLS*/", include_str!("page/calls.js")),
    ("/*DRAWING*/", include_str!("page/drawing.js")),
    ("/*FINDING*/", include_str!("page/finding.js")),
    ("/*HANDS*/", include_str!("page/hands.js")),
];
/// The most marks, and the most losses, of a page.
const MOST_MARKS: usize = 1 << 16;

/// The meaning of a bar.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum CallSite {
    /// A call of a function.
    Call {
        /// The number of its name.
        name: usize,
        /// The number of the place of the call.
        place: Option<usize>,
        /// True if another call of the function had not returned.
        is_inner: bool,
    },
    /// A period without a trace, because of this system call if it is known.
    Untraced(Option<&'static str>),
}

/// The calls of all tracks.
struct PageCalls {
    chunks: PageChunks,
    /// Each site, with its number and the number of its calls. That of bars that nothing is known of is 0.
    sites: FxHashMap<CallSite, (u32, u64)>,
}

impl PageCalls {
    /// Counts a call of a site. Returns the site's number.
    fn count(&mut self, site: CallSite) -> u32 {
        let next = self.sites.len() as u32;
        let (number, count) = self.sites.entry(site).or_insert((next, 0));
        *count += 1;
        *number
    }
}

/// The calls of a track.
struct PageTrack<'c> {
    calls: &'c RefCell<PageCalls>,
    lane: usize,
    runs: LaneRuns,
}

impl DrawnCallSink for PageTrack<'_> {
    fn wants(&mut self, _: u64) -> bool {
        true
    }

    fn call(&mut self, DrawnCall { slice, inner, is_inner }: DrawnCall) {
        let calls = &mut *self.calls.borrow_mut();
        let Slice { from, to, depth, name, call: place, insns, .. } = slice;
        let site = calls.count(CallSite::Call { name, place, is_inner });
        self.runs.call(Bar { from, to, depth, site, amount: insns, inner }, &mut calls.chunks);
    }

    fn untraced(&mut self, from: u64, to: u64, depth: usize, call: Option<&'static str>) {
        let calls = &mut *self.calls.borrow_mut();
        let site = calls.count(CallSite::Untraced(call));
        self.runs.call(Bar { from, to, depth, site, ..Bar::default() }, &mut calls.chunks);
    }
}

/// Makes the page of all traces. Returns the number of calls, and the page.
pub(super) fn page(walk: &mut TimelineWalk<'_>, progress: &mut Progress) -> Result<(u64, Vec<u8>)> {
    let most = walk.options.megabytes.saturating_mul(1_000_000);
    let own: usize = PARTS.iter().map(|(_, part)| part.len()).sum();
    let chunks = PageChunks::new(most.saturating_sub(own as u64) / 4 * 3);
    let sites = FxHashMap::from_iter([(CallSite::Untraced(None), (0, 0))]);
    let calls = RefCell::new(PageCalls { chunks, sites });
    let mut lanes = vec![];
    let sink = |lane| PageTrack { calls: &calls, lane, runs: LaneRuns::new(lane) };
    walk.walk(progress, sink, |mut sink, _| {
        sink.runs.end(&mut calls.borrow_mut().chunks);
        lanes.push((sink.lane, sink.runs.rows()));
    })?;
    let PageCalls { chunks, sites } = calls.into_inner();
    let ended = chunks.finish();
    let untraced = sites.iter().filter(|(site, _)| matches!(site, CallSite::Untraced(_)));
    let drawn = ended.calls - untraced.map(|(_, (_, count))| count).sum::<u64>();
    ensure!(drawn > 0, NOTHING);
    let mut warnings = thin_out(&mut walk.drawing.tracks);
    warnings.extend(merged(walk.drawing.unit, &ended));
    for warning in &warnings {
        output::tell(format_args!("pugmark: warning: {warning}"));
    }
    let mut data = head(&walk.drawing, walk.end, &ended, &lanes);
    add_sites(&mut data, &walk.drawing, sites);
    data["calls"] = drawn.into();
    data["warnings"] = warnings.into();
    Ok((drawn, assembled(&data, &ended.chunks)))
}

/// Returns the head of the page's data: tracks and chunks. `lanes` are the lane and the number of rows of each track.
fn head(drawing: &Drawing, end: u64, ended: &EndedChunks, lanes: &[(usize, usize)]) -> Value {
    let losses = drawing.tracks.iter().flat_map(|track| track.losses.first().map(|loss| loss.from));
    let first = ended.chunks.iter().map(|chunk| chunk.from).chain(losses).min().unwrap_or_default();
    let chunk = |Chunk { key, from, to, count, bytes }: &Chunk| {
        // The lanes are in order.
        let track = lanes.binary_search_by_key(&key.lane, |(lane, _)| *lane).unwrap_or_default();
        let runs = u8::from(key.kind == ChunkKind::Runs);
        let letters = bytes.len().div_ceil(3) * 4;
        json!([track, key.group, key.level, runs, from - first, to - first, count, letters])
    };
    let track = |(track, (_, rows)): (&Track, &(usize, usize))| track.json(first, *rows);
    json!({
        "unit": drawing.unit.name(),
        "end": end.saturating_sub(first).max(1),
        "levels": ended.levels,
        "tracks": drawing.tracks.iter().zip(lanes).map(track).collect::<Vec<_>>(),
        "chunks": ended.chunks.iter().map(chunk).collect::<Vec<_>>(),
    })
}

/// Adds names, places and sites, and the number of calls by name. The last names are those of periods without a trace.
fn add_sites(data: &mut Value, drawing: &Drawing, sites: FxHashMap<CallSite, (u32, u64)>) {
    let mut sites: Vec<_> = sites.into_iter().collect();
    sites.sort_unstable_by_key(|(_, (number, _))| *number);
    let mut names: Vec<Cow<'_, str>> = drawing.names.iter().map(Cow::from).collect();
    let mut counts = vec![0; names.len()];
    let mut entry = |(site, (_, count)): (CallSite, (u32, u64))| match site {
        CallSite::Call { name, place, is_inner } => {
            counts[name] += count;
            json!([name, place, u8::from(is_inner)])
        }
        CallSite::Untraced(call) => {
            names.push(format!("({})", not_traced(call)).into());
            counts.push(count);
            json!([names.len() - 1, null, 0])
        }
    };
    data["sites"] = sites.into_iter().map(&mut entry).collect();
    data["untraced"] = (names.len() - drawing.names.len()).into();
    data["names"] = names.into();
    data["counts"] = counts.into();
    data["places"] = drawing.places.iter().map(SourceLine::to_string).collect();
}

/// Says which calls are only in runs, if there are any.
fn merged(unit: Unit, ended: &EndedChunks) -> Option<String> {
    let EndedChunks { calls, merged, levels, .. } = ended;
    let shortest = 1_u64 << (2 * levels.first()?);
    (*merged > 0).then(|| {
        format!(
            "{merged} of {calls} calls, those shorter than {shortest} {}, are merged with their neighbours; for all of \
             them a larger --megabytes, or record less with --start",
            unit.name()
        )
    })
}

/// Keeps one of several marks and losses where there are too many, and says so.
fn thin_out(tracks: &mut [Track]) -> Vec<String> {
    fn every<T>(of: &mut Vec<T>, step: usize) {
        let mut number = 0;
        of.retain(|_| {
            number += 1;
            (number - 1) % step == 0
        });
    }
    let marks: usize = tracks.iter().map(|track| track.marks.len()).sum();
    let losses: usize = tracks.iter().map(|track| track.losses.len()).sum();
    let mut warnings = vec![];
    for (all, what) in [(marks, "marks"), (losses, "losses")] {
        let step = all.div_ceil(MOST_MARKS);
        if step > 1 {
            warnings.push(format!("one of {step} {what} is drawn: there are {all}"));
        }
    }
    for track in tracks {
        every(&mut track.marks, marks.div_ceil(MOST_MARKS).max(1));
        every(&mut track.losses, losses.div_ceil(MOST_MARKS).max(1));
    }
    warnings
}

/// Puts the page together: the data's head as JSON, the chunks one after another in base64, and the program.
fn assembled(data: &Value, chunks: &[Chunk]) -> Vec<u8> {
    // A name must not end the script that contains it.
    let data = data.to_string().replace('<', "\\u003c");
    let (mut page, mut rest) = (vec![], PAGE);
    for (name, part) in PARTS {
        let (before, after) = rest.split_once(name).unwrap_or((rest, ""));
        page.extend_from_slice(before.as_bytes());
        match name {
            CHUNKS => chunks.iter().for_each(|chunk| add_base64(&mut page, &chunk.bytes)),
            DATA => page.extend_from_slice(data.as_bytes()),
            _ => page.extend_from_slice(part.as_bytes()),
        }
        rest = after;
    }
    page.extend_from_slice(rest.as_bytes());
    page
}

/// Adds bytes as base64 (RFC 4648), padded.
fn add_base64(text: &mut Vec<u8>, bytes: &[u8]) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or_default());
        let all = byte(0) << 16 | byte(1) << 8 | byte(2);
        for letter in 0..4 {
            let is_there = letter <= three.len();
            text.push(if is_there { LETTERS[(all >> (18 - 6 * letter) & 63) as usize] } else { b'=' });
        }
    }
}

impl Track {
    fn json(&self, first: u64, rows: usize) -> Value {
        let since = |at: u64| at.saturating_sub(first);
        let loss = |loss: &TrackLoss| json!([since(loss.from), since(loss.to), loss.why]);
        let mark = |mark: &TrackMark| json!([since(mark.at), mark.text]);
        // Where tracing goes off and on is a bar.
        let is_mark = |mark: &&TrackMark| matches!(mark.row, MarkRow::Of(_));
        json!({
            "name": self.name,
            "rows": rows,
            "losses": self.losses.iter().map(loss).collect::<Vec<_>>(),
            "marks": self.marks.iter().filter(is_mark).map(mark).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::visitors::MarkKind;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648, "Test Vectors".
        let rows = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (bytes, text) in rows {
            let mut written = vec![];
            add_base64(&mut written, bytes.as_bytes());
            assert_eq!(String::from_utf8(written).unwrap(), text);
        }
    }

    #[test]
    fn every_part_stands_in_the_page_once() {
        let page = String::from_utf8(assembled(&json!("<data>"), &[])).unwrap();
        for (name, part) in PARTS {
            assert!(PAGE.matches(name).count() == 1 && !page.contains(name), "{name}");
            assert!(part.is_empty() || page.matches(part).count() == 1, "{name}");
        }
        assert!(page.contains("const data = \"\\u003cdata>\";"), "{page}");
    }

    #[test]
    fn marks_and_losses_are_thinned_out_where_a_page_could_not_hold_them() {
        let mark = |at| TrackMark { at, row: MarkRow::Of(MarkKind::Written), text: String::new() };
        let loss = |from| TrackLoss { from, to: from, why: String::new(), order: 0 };
        let marks = (0..3 * MOST_MARKS as u64 - 1).map(mark).collect();
        let mut tracks = [Track { marks, losses: vec![loss(1), loss(2)], ..Track::default() }];
        assert_eq!(thin_out(&mut tracks), ["one of 3 marks is drawn: there are 196607"]);
        assert_eq!((tracks[0].marks.len(), tracks[0].losses.len()), (MOST_MARKS, 2));
        assert_eq!((tracks[0].marks[1].at, thin_out(&mut tracks)), (3, vec![]));
    }
}
