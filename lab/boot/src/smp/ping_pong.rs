//! Two processors that take turns, each traced with time: merging both traces by time must give the order in which the
//! turns happened.

use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};
use pugmark_decoder_core::config::Config;
use pugmark_decoder_core::flow::{FlowItem, InsnDecoder};
use pugmark_decoder_core::image::Image;
use pugmark_decoder_core::time::{Merge, Moment, ProcessorItems, Timeline};
use pugmark_kernel::intel::pt::{Buffer, Layout, Mode, PtCapabilities, PtConfig, PtUnit, RegionSize};
use pugmark_protocol::Line;
use spin::Mutex;

use super::SmpWorkload;
use super::traces::{Ended, code};
use crate::arch::serial::{print, say};
use crate::arch::{processors, registers};
use crate::runner::RunError;
use crate::sources::KernelFrames;
use crate::workload::{Mismatch, expect};
use pugmark_machine::mark_truth;

/// Number of turns of both processors together.
const TURNS: u64 = 200;

static TURN: AtomicU64 = AtomicU64::new(0);

/// The work of each processor in its turn.
const PLAYS: [fn(u64) -> u64; 2] = [ping, pong];

#[inline(never)]
fn ping(turn: u64) -> u64 {
    black_box(turn) + 1
}

#[inline(never)]
fn pong(turn: u64) -> u64 {
    1 + black_box(turn)
}

pub(super) fn run(smp: &SmpWorkload<'_>) {
    let capabilities = PtCapabilities::of_this_processor().expect("Intel PT");
    let config = PtConfig::new().os(true).tsc(true).mtc(3).cycles(0);
    let ended: [Mutex<Option<Ended>>; 2] = [const { Mutex::new(None) }; 2];
    processors::together(&|processor| {
        let Some(ended) = ended.get(processor) else { return };
        let unit = PtUnit::with_capabilities(capabilities, registers::msr()).expect("a unit");
        // Large enough that no PMI is due: a processor that waits is traced, too.
        let layout = Layout::topa(RegionSize::M2, 4);
        let mode = Mode::StopWhenFull { spare: 1 };
        let buffer = Buffer::allocate(KernelFrames, &capabilities, layout, mode).expect("memory");
        let session = 1 + processor as u16;
        mark_truth(session.into());
        let Ok(running) = unit.start(&config, buffer) else { panic!("the trace does not start") };
        play(processor as u64);
        let Ok(stopped) = running.stop() else { panic!("the trace does not stop") };
        mark_truth(0);
        *ended.lock() = Some(Ended::new(session, &stopped.trace, stopped.loss, 4 << 20));
    });
    let ended = ended.map(|ended| ended.into_inner().expect("both have played"));
    for (ended, name) in ended.iter().zip(["ping-pong", "ping-pong@1"]) {
        ended.report(smp, name, Ok(()));
    }
    let config = config.for_decoder(&capabilities).expect("it has traced so");
    say(Line::Run("merge"));
    (smp.report)("merge", check_order(&ended, config).map_err(RunError::Workload));
}

/// Number of times that a processor spins before it passes on the turn.
const PAUSE: u32 = 100;

#[inline(never)]
fn play(processor: u64) {
    while TURN.load(Ordering::Acquire) < TURNS {
        let turn = TURN.load(Ordering::Acquire);
        if turn % 2 == processor && turn < TURNS {
            let next = black_box(PLAYS)[processor as usize](turn);
            // A monitor may time several instructions at once, when the last of them retires. Spin until it has:
            // otherwise the other processor's turn could be timed before this one.
            (0..black_box(PAUSE)).for_each(|_| core::hint::spin_loop());
            TURN.store(next, Ordering::Release);
        } else {
            core::hint::spin_loop();
        }
    }
}

/// If the bounds of two turns overlap, the merge may reverse them. At most one turn in this many may be reversed.
const UNCERTAIN: u64 = 10;

/// Merges the calls of `ping` and `pong`, and checks that they take turns. Where the bounds of two turns overlap, the
/// traces do not tell which was first.
fn check_order(ended: &[Ended; 2], config: Config<'static>) -> Result<(), Mismatch> {
    let plays = [0, 1]
        .map(|processor: usize| times(ended[processor].bytes(), config, PLAYS[processor] as usize as u64));
    let mut processors =
        plays.each_ref().map(|plays| ProcessorItems::new(plays.iter().map(|at| (at.tsc(), *at))));
    let (mut turns, mut certain, mut reversed) = (0, 0, 0);
    let mut next_turn = [0, 1];
    let mut before: Option<(u64, Moment)> = None;
    for merged in Merge::new(&mut processors) {
        let turn = next_turn[merged.processor];
        next_turn[merged.processor] += 2;
        let is_after =
            |(_, before): (u64, Moment)| before.latest.is_some_and(|latest| latest < merged.item.earliest);
        let is_certain = before.is_none_or(is_after);
        if let Some((other, _)) = before.filter(|(other, _)| *other > turn) {
            reversed += 1;
            expect("the turn that is certainly after another", if is_certain { turn } else { other }, other)?;
        }
        certain += u64::from(is_certain);
        before = Some((turn, merged.item));
        turns += 1;
    }
    print(format_args!("merged turns={turns} certain={certain} reversed={reversed}\n"));
    expect("too many turns that are reversed", reversed.max(TURNS / UNCERTAIN), TURNS / UNCERTAIN)?;
    expect("the number of turns", turns, TURNS)
}

/// Returns the times at which the function at `address` was entered.
fn times(trace: &[u8], config: Config<'static>, address: u64) -> Vec<Moment> {
    let sections = [code()];
    let mut flow = InsnDecoder::new(trace, Image::new(&sections));
    let mut timeline = Timeline::new(trace, config);
    let mut times = Vec::new();
    flow.sync_forward();
    while let Ok(Some(item)) = flow.next() {
        if matches!(item, FlowItem::Insn(insn) if insn.ip == address) {
            times.extend(timeline.moment(flow.span()));
        }
    }
    times
}
