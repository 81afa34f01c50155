//! With loss, the decode is a list of pieces in order, each a contiguous part of the truth.

use pugmark_decoder_core::flow::{After, InsnDecoder, Pieces};
use pugmark_decoder_core::image::Image;
use pugmark_decoder_core::packet::{Packet, Packets};
use pugmark_generator::trace::{Topic, TraceConfig, TraceRun, run};

use crate::{programs, sections};

/// Totals over runs with loss.
#[derive(Default, Debug)]
struct Loss {
    overflows: usize,
    pieces: usize,
    /// Number of runs that lost something.
    cut: usize,
    /// Instructions that the filter selects and the trace lacks.
    lost: usize,
    /// Instructions that were traced.
    traced: usize,
    /// Of the missing instructions, those after the last traced one.
    after_last: usize,
}

fn check(topic: Topic, seed: u64) -> Result<(TraceRun, Loss), String> {
    let (program, config) = TraceConfig::random(topic, seed);
    let run = run(&program, &config, seed);
    let sections = sections(&program);
    let mut loss = Loss {
        overflows: Packets::new(&run.trace).filter(|packet| matches!(packet, Ok((_, Packet::Ovf)))).count(),
        ..Loss::default()
    };
    let fail = |what: String| Err(format!("{topic:?} {seed}: {what}\n{config:?}"));
    let decoder = InsnDecoder::new(&run.trace, Image::new(&sections));
    let mut pieces = if run.wrapped { Pieces::wrapped(decoder) } else { Pieces::new(decoder) };
    let mut from = 0;
    loop {
        let mut addresses = Vec::new();
        let Some(piece) = pieces.next_with(|insn| addresses.push(insn.ip)) else { break };
        if let After::Error(error) = piece.after {
            return fail(format!("{error}"));
        }
        // The earliest match leaves the most room for the pieces that follow.
        let Some(at) = run.truth[from..].windows(addresses.len()).position(|window| window == addresses)
        else {
            let what = format!("piece {} of {} instructions", loss.pieces, addresses.len());
            return fail(format!("{what} is not in the truth from {from}"));
        };
        if piece.after == After::Start && at != 0 {
            return fail("lost something at the start".into());
        }
        loss.lost += at;
        loss.traced += addresses.len();
        loss.pieces += 1;
        from += at + addresses.len();
    }
    if pieces.errors() != 0 {
        return fail(format!("{} errors", pieces.errors()));
    }
    loss.after_last = run.truth.len() - from;
    loss.lost += loss.after_last;
    loss.cut = usize::from(loss.lost > 0);
    Ok((run, loss))
}

/// Checks `count` seeds; `judge` returns false for a run that is wrong.
fn check_all(topic: Topic, count: u64, judge: impl Fn(&TraceRun, &Loss) -> bool) -> Loss {
    let mut sum = Loss::default();
    let mut failures = Vec::new();
    for seed in 0..programs(count) {
        match check(topic, seed) {
            Ok((run, loss)) => {
                if !judge(&run, &loss) {
                    failures.push(format!("{topic:?} {seed}: {loss:?}, {} stops", run.stops));
                }
                sum.overflows += loss.overflows;
                sum.pieces += loss.pieces;
                sum.cut += loss.cut;
                sum.lost += loss.lost;
                sum.traced += loss.traced;
            }
            Err(failure) => failures.push(failure),
        }
    }
    let shown = failures.iter().take(8).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {} programs:\n{shown}", failures.len(), programs(count));
    sum
}

#[test]
fn overflows_cut_the_trace_into_pieces_of_the_truth() {
    let sum = check_all(Topic::Overflow, 250, |_, loss| {
        (loss.lost == 0 || loss.overflows > 0) && loss.pieces <= loss.overflows + 1
    });
    assert!(sum.overflows > 200 && sum.pieces > 200, "{sum:?}");
    assert!(sum.lost > 1000 && sum.traced > sum.lost, "{sum:?}");
}

#[test]
fn a_full_output_cuts_off_the_end_of_the_truth() {
    let sum = check_all(Topic::Full, 60, |run, loss| {
        loss.pieces == 1 && loss.lost == loss.after_last && (loss.lost == 0 || run.stops == 1)
    });
    assert!(sum.cut > 20, "{sum:?}");
}

#[test]
fn a_wrapped_output_has_the_end_of_the_truth() {
    let sum = check_all(Topic::Wrap, 60, |run, loss| {
        loss.after_last == 0 && loss.pieces == 1 && (loss.lost == 0 || run.wrapped)
    });
    assert!(sum.cut > 20, "{sum:?}");
}
