//! The stack that the driver takes in an interrupt handler, with each sink: at most `HANDLER_STACK`.
//!
//! The depth depends on optimisation: `cargo xtask test` runs this with the profiles `dev`, `unoptimised` and
//! `release`.
#![cfg(all(target_arch = "x86_64", not(miri)))]

#[path = "../amd/machine.rs"]
#[allow(dead_code, reason = "AMD's tests use the rest")]
mod amd;
#[path = "../common/mod.rs"]
mod common;
mod decoders;
mod painted;
mod ways;

use common::store::What;
use decoders::Kind;
use pugmark_kernel::pmi::HANDLER_STACK;
use ways::Depths;

#[test]
fn every_unit_and_every_sink_is_served_on_the_stack_that_a_handler_has() {
    let pt = ways::pt();
    for (name, Depths { all, sink }) in [
        ("Intel PT", pt),
        ("Intel PT, relay", ways::relay()),
        ("Intel PT, PEBS in its trace", ways::traced_samples()),
        ("BTS", ways::store(ways::BRANCHES)),
        ("PEBS", ways::store(What::Samples)),
        ("BTS and PEBS", ways::store(What::Both)),
        ("LBR, read", ways::last_branches()),
        ("AMD's counters and IBS", ways::counters_and_ibs()),
        ("AMD's last branches, read", ways::amd_branches()),
    ] {
        println!("stack {name}: {all} bytes, {sink} where the sink is called");
        assert!(all <= HANDLER_STACK, "{name}: {all} bytes");
    }
    let cases = decoders::cases();
    for kind in Kind::ALL {
        let decoding = decoders::measure(&cases, kind);
        let all = pt.sink + decoding;
        println!(
            "stack Intel PT decoded in the handler, {kind:?}: {all} bytes, {decoding} of them the sink's"
        );
        assert!(all <= HANDLER_STACK, "{kind:?}: {all} bytes");
    }
}
