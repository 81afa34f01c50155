//! Traces that repeat themselves, in slices: parts that recur are only counted, and the counts are those of the whole.

use crate::{
    common::{
        everywhere,
        loops::{all_code, random_trace},
    },
    cuts::Cuts,
};
use pugmark_decoder_core::{
    block::BlockDecoder,
    block_cache::{
        BlockCache,
        edges::{EDGES, EdgeMap},
    },
    config::Config,
    image::Image,
    resume::{BlockStream, Kept},
};

#[test]
fn loops_in_slices_have_the_edges_of_the_whole() {
    let mut random = fastrand::Rng::with_seed(0x736c_6963_6573);
    let code = all_code();
    let sections = everywhere(&code);
    let image = Image::new(&sections);
    let mut repeated = 0;
    for round in 0..40 {
        let mut trace = random_trace(&mut random, 5 + round);
        if round % 4 == 3 {
            let at = random.usize(..trace.len());
            trace[at] = random.u8(..);
        }
        let whole = whole(&trace, image);
        let mut memory = vec![0; 100_000];
        let mut cache = BlockCache::new(&mut memory);
        // Each size several times: a part that recurs becomes known only later.
        for size in [24, 64, 100, 1000, 4096, 24, 64, 100, 1000, 4096] {
            let (mut map, mut kept) = (Box::new([0; EDGES]), <Kept>::new());
            let mut edges = EdgeMap::<false>::new(&mut map);
            let mut stream = BlockStream::new(image, Config::new(), &mut kept);
            Cuts::Each(size).slices(&trace, |slice| stream.decode(slice, &mut cache, &mut edges));
            stream.finish(&mut cache, &mut edges);
            assert!(map == whole, "{round}, slices of {size} bytes of {trace:x?}");
        }
        repeated += cache.statistics().repeated;
    }
    println!("{repeated} repeats");
    assert!(repeated > 1_000, "{repeated}");
}

/// Returns the edges of the whole trace, decoded once by a block cache that is too small to know parts that recur.
fn whole(trace: &[u8], image: Image<'_>) -> Box<[u8; EDGES]> {
    let (mut map, mut memory) = (Box::new([0; EDGES]), [0; 500]);
    let mut cache = BlockCache::new(&mut memory);
    let mut decoder = BlockDecoder::new(trace, image);
    while decoder.resync().is_some() {
        if decoder.visit(&mut cache, &mut EdgeMap::<false>::new(&mut map)).is_ok() {
            break;
        }
    }
    assert_eq!(cache.statistics().repeated, 0);
    map
}
