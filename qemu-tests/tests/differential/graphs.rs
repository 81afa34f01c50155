//! Undamaged traces: both decoders give the same instructions, and these were executed.

use crate::{
    cases,
    own_decoder::{LIBIPT, MANUAL, OwnResult},
    skipped,
    subject::Subject,
};
use pugmark_program::trace::Topic;
use pugmark_qemu_tests::libipt;

#[test]
fn random_graphs_decode_to_the_same_addresses() {
    let (mut instructions, mut bytes, mut dialects_differ) = (0, 0, 0);
    for seed in 0..cases() {
        let subject = Subject::of(seed);
        let (code, trace) = (subject.code(), &subject.run.trace);
        let Some(theirs) = libipt::decode_sections(None, trace, &code.theirs) else {
            return skipped();
        };
        let what = format!("{:?} {seed}", subject.topic);
        let own = OwnResult::of(trace, &code.own, LIBIPT);
        assert_eq!((own.error, theirs.errors), (None, vec![]), "{what}");
        assert!(own.addresses == theirs.addresses, "{what}: not libipt's instructions");
        let own = OwnResult::of(trace, &code.own, MANUAL);
        assert_eq!(own.error, None, "{what}");
        // Overflows lose some instructions.
        let executed = &subject.run.truth;
        assert!(subject.topic == Topic::Overflow || own.addresses == *executed, "{what}: not those executed");
        dialects_differ += u64::from(own.addresses != theirs.addresses);
        instructions += theirs.addresses.len();
        bytes += trace.len();
    }
    println!(
        "{} graphs, {bytes} bytes of trace, {instructions} instructions; {dialects_differ} where libipt and its \
         dialect are not at those executed",
        cases()
    );
    assert!(instructions as u64 > 50 * cases() && dialects_differ < cases() / 100);
}
