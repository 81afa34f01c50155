//! A profile for the Firefox profiler.
//!
//! The stack chart is made of samples. A sample holds until the next one, and each change of the stack makes one, so
//! that the chart shows each call from begin to end. For the call tree, a sample's weight is its duration.
//!
//! Source: Firefox Profiler, docs-developer/processed-profile-format.md and src/profile-logic/stack-timing.ts.

use super::{Change, Drawing, MarkKind, MarkRow, Track, Unit};
use anyhow::{Context, Result};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameHandle, FrameInfo, MarkerFieldFlags,
    MarkerFieldFormat, MarkerLocations, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp,
    SamplingInterval, StackHandle, StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle,
    Timestamp, WeightType,
};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The function shown for lost parts of the trace.
const LOST: &str = "[lost]";

/// Returns the profile as JSON. Its times count from the first function's begin.
pub(super) fn profile(drawing: &Drawing) -> Result<Vec<u8>> {
    // The profiler's maximum zoom shows one interval.
    let interval = SamplingInterval::from_nanos(1);
    let product = match drawing.unit {
        Unit::Nanoseconds => "pugmark".into(),
        unit => format!("pugmark; a nanosecond is one of the {}", unit.name()),
    };
    let mut profile = Profile::new(&product, ReferenceTimestamp::from_millis_since_unix_epoch(0.0), interval);
    profile.set_symbolicated(true);
    let mut writer = ProfileWriter {
        first: drawing.tracks.iter().filter_map(Track::begin).min().unwrap_or_default(),
        traced: profile.add_category("traced", CategoryColor::Blue),
        lost: profile.add_category("lost", CategoryColor::Red),
        profile,
        drawing,
        processes: HashMap::new(),
    };
    drawing.tracks.iter().for_each(|track| writer.track(track));
    let mut value = serde_json::to_value(&writer.profile).context("the profile cannot be written")?;
    value["threads"].as_array_mut().into_iter().flatten().for_each(weigh);
    Ok(value.to_string().into_bytes())
}

/// Sets the weight of each sample of a thread to the time up to the next sample, in milliseconds, and its processor
/// time to the time in functions since the sample before, in microseconds. The crate takes only whole numbers for both.
fn weigh(thread: &mut Value) {
    let samples = &mut thread["samples"];
    let [stacks, deltas] = ["stack", "timeDeltas"]
        .map(|column| samples[column].as_array().map(Vec::as_slice).unwrap_or_default());
    let weights: Vec<Value> = deltas.iter().skip(1).cloned().chain([json!(0)]).take(deltas.len()).collect();
    let busy = [false].into_iter().chain(stacks.iter().map(|stack| !stack.is_null()));
    let worked = deltas.iter().zip(busy).map(|(delta, busy)| match (busy, delta.as_f64()) {
        (true, Some(delta)) => json!(delta * 1000.0),
        _ => json!(0),
    });
    let worked: Vec<Value> = worked.collect();
    samples["weight"] = weights.into();
    samples["threadCPUDelta"] = worked.into();
}

/// A marker for a note or a loss: a row of the marker chart, and a text.
struct Note {
    row: StringHandle,
    text: StringHandle,
    category: CategoryHandle,
}

impl StaticSchemaMarker for Note {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Note";
    const LOCATIONS: MarkerLocations = MarkerLocations::MARKER_CHART
        .union(MarkerLocations::MARKER_TABLE)
        .union(MarkerLocations::TIMELINE_OVERVIEW);
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "text",
        label: "What",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.row
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.text
    }

    /// Returns no number: the schema has no field of that type.
    fn number_field_value(&self, _: u32) -> f64 {
        f64::NAN
    }
}

struct ProfileWriter<'a> {
    drawing: &'a Drawing,
    profile: Profile,
    first: u64,
    traced: CategoryHandle,
    lost: CategoryHandle,
    /// The processes by their numbers.
    processes: HashMap<i32, ProcessHandle>,
}

impl ProfileWriter<'_> {
    fn since(&self, at: u64) -> Timestamp {
        Timestamp::from_nanos_since_reference(at.saturating_sub(self.first))
    }

    fn track(&mut self, track: &Track) {
        let begin = self.since(track.begin().unwrap_or(self.first));
        let id = |number: i32| number.unsigned_abs();
        // The first thread of a process names the process.
        let known = self.processes.get(&track.pid).copied();
        let process = known.unwrap_or_else(|| self.profile.add_process(&track.name, id(track.pid), begin));
        self.processes.insert(track.pid, process);
        let thread = self.profile.add_thread(process, id(track.tid), begin, known.is_none());
        self.profile.set_thread_name(thread, &track.name);
        self.profile.set_thread_samples_weight_type(thread, WeightType::TracingMs);
        self.profile.set_thread_show_markers_in_timeline(thread, true);
        self.samples(thread, track);
        for loss in &track.losses {
            let timing = MarkerTiming::Interval(self.since(loss.from), self.since(loss.to));
            self.note(thread, timing, "LOST", &loss.why, self.lost);
        }
        for mark in &track.marks {
            let at = self.since(mark.at);
            let (timing, row) = match mark.row {
                MarkRow::Of(MarkKind::Written) => (MarkerTiming::Instant(at), "PTWRITE"),
                MarkRow::Of(MarkKind::Power) => (MarkerTiming::Instant(at), "power"),
                MarkRow::Of(MarkKind::Frequency) => (MarkerTiming::Instant(at), "frequency"),
                MarkRow::Off => (MarkerTiming::IntervalStart(at), "not traced"),
                MarkRow::On => (MarkerTiming::IntervalEnd(at), "not traced"),
            };
            self.note(thread, timing, row, &mark.text, self.traced);
        }
    }

    fn note(
        &mut self,
        thread: ThreadHandle,
        timing: MarkerTiming,
        row: &str,
        text: &str,
        category: CategoryHandle,
    ) {
        let [row, text] = [row, text].map(|text| self.profile.intern_string(text));
        self.profile.add_marker(thread, timing, Note { row, text, category });
    }

    fn frame(&mut self, thread: ThreadHandle, name: &str, category: CategoryHandle) -> FrameHandle {
        let frame = Frame::Label(self.profile.intern_string(name));
        let info = FrameInfo { frame, category_pair: category.into(), flags: FrameFlags::empty() };
        self.profile.intern_frame(thread, info)
    }

    /// Adds a sample wherever the stack changes.
    fn samples(&mut self, thread: ThreadHandle, track: &Track) {
        let drawing = self.drawing;
        let mut frames: HashMap<usize, FrameHandle> = HashMap::new();
        // The stacks of the open functions, the innermost one last.
        let mut stacks: Vec<StackHandle> = vec![];
        for change in track.changes() {
            let at = match change {
                Change::Begin(slice) => {
                    let frame = *frames
                        .entry(slice.name)
                        .or_insert_with(|| self.frame(thread, &drawing.names[slice.name], self.traced));
                    stacks.push(self.profile.intern_stack(thread, stacks.last().copied(), frame));
                    slice.from
                }
                Change::End(slice) => {
                    stacks.pop();
                    slice.to
                }
                Change::Lost(loss) => {
                    let frame = self.frame(thread, LOST, self.lost);
                    let lost = self.profile.intern_stack(thread, None, frame);
                    self.sample(thread, loss.from, Some(lost));
                    loss.to
                }
            };
            self.sample(thread, at, stacks.last().copied());
        }
    }

    /// Adds a sample, without a weight: [`weigh`] sets it when the next sample is known.
    fn sample(&mut self, thread: ThreadHandle, at: u64, stack: Option<StackHandle>) {
        let at = self.since(at);
        self.profile.add_sample(thread, at, stack, CpuDelta::ZERO, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pugmark::timeline::{Slice, TrackLoss, TrackMark};

    fn slice(from: u64, to: u64, depth: usize, order: usize) -> Slice {
        Slice { from, to, depth, order, name: depth, call: None, insns: 0 }
    }

    fn track(pid: i32, tid: i32, slices: Vec<Slice>) -> Track {
        Track { name: format!("{pid}/{tid}"), pid, tid, slices, ..Track::default() }
    }

    fn written(tracks: Vec<Track>) -> Value {
        let names = vec!["main".into(), "leaf".into()];
        let drawing = Drawing { unit: Unit::Nanoseconds, names, places: vec![], tracks };
        serde_json::from_slice(&profile(&drawing).unwrap()).unwrap()
    }

    #[test]
    fn a_sample_holds_until_the_stack_changes_and_a_loss_stands_between_what_it_parts() {
        // The second loss takes no time, and must not be confused with the functions that continue then.
        let mut one =
            track(7, 7, vec![slice(1002, 1004, 1, 1), slice(1000, 1010, 0, 0), slice(1030, 1040, 0, 2)]);
        let loss = |from, to, order| TrackLoss { from, to, why: "a loss".into(), order };
        one.losses = vec![loss(1010, 1025, 2), loss(1030, 1030, 2)];
        let samples = &written(vec![one])["threads"][0]["samples"];
        // Stack 0 is main, 1 leaf, 2 the loss.
        assert_eq!(samples["stack"], json!([0, 1, 0, null, 2, null, 2, null, 0, null]));
        let millis = |column: &str, unit: f64| -> Vec<i64> {
            let values = samples[column].as_array().unwrap();
            values.iter().map(|value| (value.as_f64().unwrap() * unit).round() as i64).collect()
        };
        assert_eq!(millis("timeDeltas", 1e6), [0, 2, 2, 6, 0, 15, 5, 0, 0, 10]);
        assert_eq!(millis("weight", 1e6), [2, 2, 6, 0, 15, 5, 0, 0, 10, 0]);
        // Nothing was executed from 1025 to 1030.
        assert_eq!(millis("threadCPUDelta", 1e3), [0, 2, 2, 6, 0, 15, 0, 0, 0, 10]);
    }

    #[test]
    fn each_kind_of_mark_has_a_row() {
        let mut one = track(7, 7, vec![slice(1000, 1010, 0, 0)]);
        let rows = [
            (MarkRow::Of(MarkKind::Written), "PTWRITE", 0),
            (MarkRow::Of(MarkKind::Power), "power", 0),
            (MarkRow::Of(MarkKind::Frequency), "frequency", 0),
            // A period without tracing is one marker, from its begin to its end.
            (MarkRow::Off, "not traced", 2),
            (MarkRow::On, "not traced", 3),
        ];
        one.marks = rows.map(|(row, ..)| TrackMark { at: 1001, row, text: format!("{row:?}") }).to_vec();
        let thread = &written(vec![one])["threads"][0];
        let string = |index: &Value| &thread["stringArray"][index.as_u64().unwrap() as usize];
        for (number, (row, name, phase)) in rows.into_iter().enumerate() {
            let column = |column: &str| &thread["markers"][column][number];
            assert_eq!((string(column("name")), column("phase")), (&json!(name), &json!(phase)), "{row:?}");
            assert_eq!(string(&column("data")["text"]), &json!(format!("{row:?}")));
        }
    }

    #[test]
    fn threads_of_a_process_are_together_and_all_times_begin_with_the_first() {
        let tracks = [(7, 7, 1000), (9, 9, 1500), (7, 8, 1200), (7, 8, 1300)];
        let profile =
            written(tracks.map(|(pid, tid, at)| track(pid, tid, vec![slice(at, at + 1, 0, 0)])).to_vec());
        let threads = profile["threads"].as_array().unwrap().iter();
        let shown: Vec<_> = threads
            .map(|thread| {
                let text = |key: &str| thread[key].as_str().unwrap();
                let at = thread["samples"]["timeDeltas"][0].as_f64().unwrap() * 1e6;
                (text("processName"), text("name"), text("tid"), thread["isMainThread"] == true, at.round())
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("7/7", "7/7", "7", true, 0.0),
                ("7/7", "7/8", "8", false, 200.0),
                // A second track of the same thread.
                ("7/7", "7/8", "8.1", false, 300.0),
                ("9/9", "9/9", "9", true, 500.0),
            ]
        );
    }
}
