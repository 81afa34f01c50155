//! The scaling of the cost with the trace's length, the image's size, the cache's size and the slices' size.

use super::{
    clock::thread_time,
    layers::{CACHE_WORDS, blocks, blocks_of_slices, query, query_of_slices},
    load::Load,
};
use pugmark_decoder_core::{
    block_cache::{BlockCache, WORDS_PER_BLOCK},
    image::{AddressSpace, Image, Section},
};
use pugmark_harness::libipt_speed::TimedDecode;
use std::{hint::black_box, time::Duration};

/// A curve: points of x and y.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// The number of measurements of each point.
const ROUNDS: usize = 7;

/// Returns a curve of the milliseconds of each run, by its number. The runs take turns, and the fastest turn of each
/// counts: the speed of a machine may change within a second.
fn measure(name: String, along: &[f64], mut run: impl FnMut(usize) -> TimedDecode) -> Curve {
    let mut points: Vec<(f64, f64)> = along.iter().map(|x| (*x, f64::MAX)).collect();
    for _ in 0..ROUNDS {
        for (number, (_, best)) in points.iter_mut().enumerate() {
            let start = thread_time();
            black_box(run(number));
            let time = (thread_time() - start).max(Duration::from_nanos(1));
            *best = best.min(time.as_secs_f64() * 1e3);
        }
    }
    Curve { name, points }
}

/// Measures milliseconds against the trace's length in kilobytes: a line through the origin if the cost is linear.
pub(super) fn by_length(load: &Load) -> Vec<Curve> {
    let sections = load.sections();
    let image = Image::new(&sections);
    let mut memory = vec![0; CACHE_WORDS];
    let mut cache = BlockCache::new(&mut memory);
    blocks(&load.trace, image, &mut cache);
    let part = |number: usize| &load.trace[..load.trace.len() * (number + 1) / 8];
    let kilobytes: Vec<f64> = (0..8).map(|number| part(number).len() as f64 / 1e3).collect();
    vec![
        measure(format!("{} blocks", load.name), &kilobytes, |number| {
            blocks(part(number), image, &mut cache)
        }),
        measure(format!("{} query", load.name), &kilobytes, |number| query(part(number))),
    ]
}

/// Measures milliseconds against the number of sections that are not executed: flat if their number does not matter.
pub(super) fn by_image(load: &Load) -> Vec<Curve> {
    let filler = vec![0xcc; 4096];
    let with_more = |count: u64| {
        let mut sections = load.sections();
        // Far from all code, in the kernel's half of the addresses.
        let base = |index: u64| 0xffff_9000_0000_0000 + index * 0x1_0000;
        sections.extend((0..count).map(|index| Section {
            base: base(index),
            bytes: &filler,
            space: AddressSpace::Any,
        }));
        sections
    };
    let images = [0, 16, 64, 256, 1024, 4096].map(with_more);
    let mut memory = vec![0; CACHE_WORDS];
    let numbers = images.each_ref().map(|sections| sections.len() as f64);
    vec![measure(format!("{} blocks, cold", load.name), &numbers, |number| {
        blocks(&load.trace, Image::new(&images[number]), &mut BlockCache::new(&mut memory))
    })]
}

/// Measures milliseconds against the cache's size in blocks.
pub(super) fn by_cache(load: &Load) -> Vec<Curve> {
    let sections = load.sections();
    let image = Image::new(&sections);
    let rooms = [10, 11, 12, 13, 14, 15, 16].map(|shift| 1_usize << shift);
    let mut memories = rooms.map(|room| vec![0; WORDS_PER_BLOCK * room]);
    let mut caches = memories.each_mut().map(|memory| BlockCache::new(memory));
    vec![measure(format!("{} blocks", load.name), &rooms.map(|room| room as f64), |number| {
        blocks(&load.trace, image, &mut caches[number])
    })]
}

/// Measures milliseconds against the size of the trace's slices; the last point is the whole trace.
pub(super) fn by_slice(load: &Load) -> Vec<Curve> {
    let sections = load.sections();
    let image = Image::new(&sections);
    let mut memory = vec![0; CACHE_WORDS];
    let mut cache = BlockCache::new(&mut memory);
    let expected = blocks(&load.trace, image, &mut cache).count;
    let whole = load.trace.len();
    let sizes = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, whole];
    let along = sizes.map(|size| size as f64);
    let of_blocks = measure(format!("{} blocks", load.name), &along, |number| match sizes[number] {
        size if size == whole => blocks(&load.trace, image, &mut cache),
        size => {
            let found = blocks_of_slices(&load.trace, image, &mut cache, size);
            assert_eq!(found.count, expected, "{} in slices of {size} bytes", load.name);
            found
        }
    });
    let of_query = measure(format!("{} query", load.name), &along, |number| match sizes[number] {
        size if size == whole => query(&load.trace),
        size => query_of_slices(&load.trace, size),
    });
    vec![of_blocks, of_query]
}
