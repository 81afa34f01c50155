//! A web page that works without a network: the drawing as JSON inside a program that shows it.

use super::{Drawing, Slice, SourceLine, Track, TrackLoss, TrackMark};
use serde_json::{Value, json};

const PAGE: &str = include_str!("page.html");

/// Returns the page.
pub(super) fn page(drawing: &Drawing) -> String {
    let first = drawing.tracks.iter().filter_map(Track::begin).min().unwrap_or_default();
    let tracks: Vec<Value> = drawing.tracks.iter().map(|track| track.json(first)).collect();
    let places: Vec<String> = drawing.places.iter().map(SourceLine::to_string).collect();
    let data =
        json!({ "unit": drawing.unit.name(), "names": drawing.names, "places": places, "tracks": tracks })
            .to_string();
    // A name must not end the script that contains the data.
    PAGE.replace("/*DATA*/null", &data.replace('<', "\\u003c"))
}

impl Track {
    fn json(&self, first: u64) -> Value {
        let since = |at: u64| at.saturating_sub(first);
        let mut slices: Vec<&Slice> = self.slices.iter().collect();
        slices.sort_by_key(|slice| slice.order);
        let slice = |slice: &&Slice| {
            json!([since(slice.from), since(slice.to), slice.depth, slice.name, slice.insns, slice.call])
        };
        let loss = |loss: &TrackLoss| json!([since(loss.from), since(loss.to), loss.why]);
        let mark = |mark: &TrackMark| json!([since(mark.at), mark.text]);
        json!({
            "name": self.name,
            "slices": slices.iter().map(slice).collect::<Vec<_>>(),
            "losses": self.losses.iter().map(loss).collect::<Vec<_>>(),
            "marks": self.marks.iter().map(mark).collect::<Vec<_>>(),
        })
    }
}
