//! Time in a guest's trace of itself: at each instruction the decoder's bounds contain the TSC that the model received.

use pugmark_decoder_core::config::{Clocks, Config};
use pugmark_decoder_core::flow::{FlowItem, InsnDecoder};
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::time::{CoreSpeed, Span, Timeline};
use pugmark_harness::boots::boots;
use pugmark_harness::expected;
use pugmark_harness::images::Images;
use pugmark_harness::judge::{Evidence, Source};
use pugmark_harness::machine::Machine;
use pugmark_harness::traces;

const PROFILE: &str = "skylake";
/// Skylake's clocks, as the model enumerates them, and the workload's MTCFreq.
const CLOCKS: Clocks =
    Clocks { mtc_freq: 9, nom_freq: 30, cpuid_15h_eax: 2, cpuid_15h_ebx: 250, ..Clocks::UNKNOWN };

/// The TSC counts instructions, so that pauses of the host lose no MTC packets.
const VIRTUAL_TIME: [&str; 2] = ["-icount", "shift=0,sleep=off"];

/// Returns the address of each instruction and its place in the trace.
fn decode(trace: &[u8], sections: &[Section<'_>]) -> Vec<(u64, Span)> {
    let mut decoder = InsnDecoder::new(trace, Image::new(sections));
    decoder.sync_forward().unwrap();
    let mut decoded = Vec::new();
    while let Some(item) = decoder.next().unwrap() {
        if let FlowItem::Insn(insn) = item {
            decoded.push((insn.ip, decoder.span()));
        }
    }
    decoded
}

/// Checks each instruction's bounds. Returns the mean error of the guesses, and the mean of the error bounds.
fn check(what: &str, mut timeline: Timeline<'_>, decoded: &[(u64, Span)], times: &[u64]) -> (u64, u64) {
    let (mut bounded, mut off, mut error) = (0, 0, 0);
    for (index, (&(ip, span), &tsc)) in decoded.iter().zip(times).enumerate() {
        let moment = timeline.moment(span).unwrap();
        // After the last TSC packet nothing shows whether MTC packets were lost.
        if !moment.confirmed {
            continue;
        }
        let what = || format!("{what}: instruction {index} at {ip:#x}, TSC {tsc:#x}: {moment:x?}");
        assert!(moment.contains(tsc), "{}", what());
        assert_eq!(moment.doubt, None, "{}", what());
        bounded += 1;
        off += moment.tsc().abs_diff(tsc);
        error += moment.error().unwrap_or_else(|| panic!("no bound: {}", what()));
    }
    assert!(2 * bounded > decoded.len() as u64, "{what}: {bounded} of {} are confirmed", decoded.len());
    println!("{what}: {bounded} of {}, off by {}, at most {}", decoded.len(), off / bounded, error / bounded);
    (off / bounded, error / bounded)
}

#[test]
fn the_bounds_hold_the_tsc_that_the_model_was_given_at_each_instruction() {
    let images = Images::build().unwrap();
    let boot = boots(Source::Pt, PROFILE, Some("timing")).swap_remove(0);
    let options = format!("{} times=1", boot.monitor_options);
    let machine = Machine::on_monitor(&images, &options, &format!("{} dump", boot.command_line));
    let outcome = machine.arguments(VIRTUAL_TIME).run(|_| {}).unwrap();
    let run = &outcome.transcript.runs[0];
    let symbols = images.guest_symbols().unwrap();
    let evidence = Evidence { run, truth: &outcome.truth, symbols: &symbols, image: &images.guest };
    expected::check(Source::Pt, PROFILE, &evidence).unwrap();

    let traces = traces::of(&outcome, &images.guest).unwrap();
    let (code, trace) = (&traces[0].code, traces[0].parts[0]);
    let space = |cr3: Option<u64>| cr3.map_or(AddressSpace::Any, AddressSpace::Cr3);
    let sections: Vec<_> = code
        .iter()
        .map(|code| Section { base: code.base, bytes: &code.bytes, space: space(code.cr3) })
        .collect();
    let decoded = decode(trace, &sections);

    // Each instruction has its time; a decoder does not count software interrupts.
    let session = run.session.unwrap();
    let (records, all) = (outcome.truth.session(session), outcome.truth.times(session));
    let known = |record: usize| all.binary_search_by_key(&record, |time| time.index).map(|at| all[at].tsc);
    let times: Vec<u64> = records
        .iter()
        .enumerate()
        .filter(|(_, record)| !record.flags.is_software_interrupt())
        .map(|(index, record)| known(index).unwrap_or_else(|_| panic!("no time of {index}, {record:x?}")))
        .collect();
    assert!(times.is_sorted(), "time goes back");
    assert_eq!(times.len(), decoded.len());

    let timeline =
        |clocks| Timeline::new(trace, Config { clocks, ..Config::default() }).with_tsc_near(times[0]);
    // The core clock runs at the TSC's frequency.
    let speed = CoreSpeed::between(CLOCKS.nom_freq, CLOCKS.nom_freq, CLOCKS.nom_freq).unwrap();
    let no_crystal = Clocks { cpuid_15h_eax: 0, cpuid_15h_ebx: 0, ..CLOCKS };
    let (_, tsc) = check("TSC packets", timeline(no_crystal), &decoded, &times);
    let (_, mtc) = check("and MTC packets", timeline(CLOCKS), &decoded, &times);
    let cyc = check("TSC and CYC packets", timeline(no_crystal).with_speed(speed), &decoded, &times);
    let every = check("all of them", timeline(CLOCKS).with_speed(speed), &decoded, &times);
    // Neither MTC nor CYC is always narrower than the other.
    assert!(mtc < tsc && cyc.1 < tsc && every.1 <= mtc.min(cyc.1), "each narrows the bounds");
}
