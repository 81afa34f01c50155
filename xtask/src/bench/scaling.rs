//! What the cost depends on: the trace's length, the image's size, the cache's size, the slices' size.

use super::{
    clock::thread_time,
    layers::{GRAPH_WORDS, blocks, blocks_of_slices, query, query_of_slices},
    load::Load,
};
use pugmark_decoder_core::{
    graph::{Graph, WORDS_PER_BLOCK},
    image::{AddressSpace, Image, Section},
};
use pugmark_qemu_tests::libipt_speed::TimedDecode;
use std::{hint::black_box, time::Duration};

/// A curve: points of x and y.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// The fastest of some runs in seconds.
fn fastest(mut run: impl FnMut() -> TimedDecode) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..7 {
        let start = thread_time();
        black_box(run());
        best = best.min((thread_time() - start).max(Duration::from_nanos(1)).as_secs_f64());
    }
    best
}

/// Milliseconds against the trace's length in kilobytes: a line through the origin if the cost is linear.
pub(super) fn by_length(load: &Load) -> Vec<Curve> {
    let sections = load.sections();
    let image = Image::new(&sections);
    let mut memory = vec![0; GRAPH_WORDS];
    let mut graph = Graph::new(&mut memory);
    blocks(&load.trace, image, &mut graph);
    let (mut of_blocks, mut of_query) = (vec![], vec![]);
    for eighth in 1..=8 {
        let part = &load.trace[..load.trace.len() * eighth / 8];
        let kilobytes = part.len() as f64 / 1e3;
        let time = fastest(|| blocks(part, image, &mut graph));
        of_blocks.push((kilobytes, time * 1e3));
        of_query.push((kilobytes, fastest(|| query(part)) * 1e3));
    }
    vec![
        Curve { name: format!("{} blocks", load.name), points: of_blocks },
        Curve { name: format!("{} query", load.name), points: of_query },
    ]
}

/// Milliseconds against the number of sections that are not executed: flat if their number does not matter.
pub(super) fn by_image(load: &Load) -> Vec<Curve> {
    let filler = vec![0xcc; 4096];
    let mut points = vec![];
    for count in [0, 16, 64, 256, 1024, 4096] {
        let mut sections = load.sections();
        // Far from all code, in the half of the addresses that belongs to the kernel.
        let base = |index: u64| 0xffff_9000_0000_0000 + index * 0x1_0000;
        sections.extend((0..count).map(|index| Section {
            base: base(index),
            bytes: &filler,
            space: AddressSpace::Any,
        }));
        let image = Image::new(&sections);
        let mut memory = vec![0; GRAPH_WORDS];
        let time = fastest(|| blocks(&load.trace, image, &mut Graph::new(&mut memory)));
        points.push((sections.len() as f64, time * 1e3));
    }
    vec![Curve { name: format!("{} blocks, cold", load.name), points }]
}

/// Milliseconds against the cache's size in blocks.
pub(super) fn by_cache(load: &Load) -> Vec<Curve> {
    let sections = load.sections();
    let image = Image::new(&sections);
    let mut points = vec![];
    for shift in 10..=16 {
        let mut memory = vec![0; WORDS_PER_BLOCK << shift];
        let mut graph = Graph::new(&mut memory);
        let time = fastest(|| blocks(&load.trace, image, &mut graph));
        points.push((f64::from(1 << shift), time * 1e3));
    }
    vec![Curve { name: format!("{} blocks", load.name), points }]
}

/// Milliseconds against the size of the slices that the trace comes in; the last point is the whole trace.
pub(super) fn by_slice(load: &Load) -> Vec<Curve> {
    let sections = load.sections();
    let image = Image::new(&sections);
    let mut memory = vec![0; GRAPH_WORDS];
    let mut graph = Graph::new(&mut memory);
    let expected = blocks(&load.trace, image, &mut graph);
    let (mut of_blocks, mut of_query) = (vec![], vec![]);
    for slice in [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10] {
        let of_slices = blocks_of_slices(&load.trace, image, &mut graph, slice);
        assert_eq!(of_slices.count, expected.count, "{} in slices of {slice} bytes", load.name);
        let time = fastest(|| blocks_of_slices(&load.trace, image, &mut graph, slice));
        of_blocks.push((slice as f64, time * 1e3));
        of_query.push((slice as f64, fastest(|| query_of_slices(&load.trace, slice)) * 1e3));
    }
    let whole = load.trace.len() as f64;
    of_blocks.push((whole, fastest(|| blocks(&load.trace, image, &mut graph)) * 1e3));
    of_query.push((whole, fastest(|| query(&load.trace)) * 1e3));
    let curves = [("blocks", of_blocks), ("query", of_query)];
    let curve = |(layer, points): (&str, Vec<(f64, f64)>)| {
        // How much of the whole trace's rate is left.
        let rates = points.iter().map(|(slice, time)| {
            format!(" {slice}: {:.0}%", points.last().map_or(0.0, |whole| 100.0 * whole.1 / time))
        });
        println!("{} {layer} by bytes a slice:{}", load.name, rates.collect::<String>());
        Curve { name: format!("{} {layer}", load.name), points }
    };
    curves.into_iter().map(curve).collect()
}
