//! Undamaged traces: both decoders find the same instructions, which are those that were executed.

use crate::{
    cases,
    own_decoder::OwnResult,
    skipped,
    subject::{Code, Subject},
};
use pugmark_decoder_core::{
    block::BlockDecoder,
    block_cache::{
        BlockCache, ExecutionSink, WORDS_PER_BLOCK,
        edges::{EDGES, EdgeMap},
    },
    event::Event,
    image::Image,
};
use pugmark_generator::trace::Topic;
use pugmark_harness::libipt;

/// Edges in their order.
#[derive(Default)]
struct EdgeList(Vec<u16>);

impl ExecutionSink for EdgeList {
    const EDGES: bool = true;

    fn edge(&mut self, edge: u16) {
        self.0.push(edge);
    }

    fn event(&mut self, _: &Event) {}
}

fn visit(trace: &[u8], code: &Code<'_>, cache: &mut BlockCache<'_>, sink: &mut impl ExecutionSink) {
    let mut decoder = BlockDecoder::new(trace, Image::new(&code.own));
    while decoder.resync().is_some() {
        decoder.visit(cache, sink).expect("the trace is not damaged");
    }
}

/// Decodes each program's trace with libipt, and checks it. Returns `false` if libipt is not installed.
fn each_is_decoded(mut check: impl FnMut(&str, &Subject, &Code<'_>, libipt::Decoded)) -> bool {
    (0..cases()).all(|seed| {
        let subject = Subject::of(seed);
        let code = subject.code();
        let theirs = libipt::decode_sections(None, &subject.run.trace, &code.theirs);
        let what = format!("{:?} {seed}", subject.topic);
        theirs.map(|theirs| check(&what, &subject, &code, theirs)).is_some()
    })
}

#[test]
fn random_graphs_have_the_edges_of_libipts_instructions() {
    let (mut edges, mut repeated, mut others) = (0, 0, 0);
    // Enough for all blocks of one program, and for repeats.
    let mut memory = vec![0; 1024 * WORDS_PER_BLOCK];
    let decoded = each_is_decoded(|what, subject, code, theirs| {
        let trace = &subject.run.trace;
        // libipt goes elsewhere after some returns.
        if OwnResult::by_the_manual(trace, &code.own).addresses != theirs.addresses {
            others += 1;
            return;
        }
        let mut cache = BlockCache::new(&mut memory);
        // Once without known blocks, then with all known.
        for _ in 0..2 {
            let mut own = EdgeList::default();
            visit(trace, code, &mut cache, &mut own);
            assert!(own.0 == theirs.edges, "{what}: not the edges in libipt's instructions");
        }
        let mut expected = [0_u8; EDGES];
        for edge in &theirs.edges {
            let count = &mut expected[usize::from(*edge)];
            *count = count.wrapping_add(1);
        }
        for _ in 0..3 {
            let mut counts = [0; EDGES];
            let mut map = EdgeMap::<false>::new(&mut counts);
            visit(trace, code, &mut cache, &mut map);
            assert_eq!(map.taken(), theirs.edges.len() as u64, "{what}");
            assert!(counts == expected, "{what}: not the counts of edges in libipt's instructions");
        }
        edges += theirs.edges.len();
        repeated += cache.statistics().repeated;
    });
    if !decoded {
        return skipped();
    }
    println!("{} caches, {edges} edges, {repeated} repeats; {others} left out", cases());
    assert!(others < cases() / 100 && edges as u64 > 10 * cases() && repeated > cases());
}

#[test]
fn random_graphs_decode_to_the_same_addresses() {
    let (mut instructions, mut bytes, mut walks_differ) = (0, 0, 0);
    let decoded = each_is_decoded(|what, subject, code, theirs| {
        let trace = &subject.run.trace;
        let own = OwnResult::as_libipt(trace, &code.own);
        assert_eq!((own.error, theirs.errors), (None, vec![]), "{what}");
        assert!(own.addresses == theirs.addresses, "{what}: not libipt's instructions");
        let own = OwnResult::by_the_manual(trace, &code.own);
        assert_eq!(own.error, None, "{what}");
        // Overflows lose some instructions.
        let executed = &subject.run.truth;
        assert!(subject.topic == Topic::Overflow || own.addresses == *executed, "{what}: not those executed");
        walks_differ += u64::from(own.addresses != theirs.addresses);
        instructions += theirs.addresses.len();
        bytes += trace.len();
    });
    if !decoded {
        return skipped();
    }
    println!(
        "{} caches, {bytes} bytes of trace, {instructions} instructions; {walks_differ} where libipt is not at those \
         executed",
        cases()
    );
    assert!(instructions as u64 > 50 * cases() && walks_differ < cases() / 100);
}
