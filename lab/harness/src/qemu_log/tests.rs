use super::*;
use crate::judge::stubs::STUB;
use crate::truth::RecordFlags;

const GUEST: LoggedGuest = LoggedGuest { wrmsr: 77, stubs: 0x9000, only_programs: false };
/// The first instruction of the page-fault handler.
const HANDLER: u64 = 0x9000 + 14 * STUB;
const PAGE_FAULT: u64 = EXCEPTION + 14;
const WRMSR: u64 = 0x7c;

/// A line of QEMU's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// An instruction begins.
    At(u64),
    /// The guest exits: the exit code and RIP.
    Exit(u64, u64),
}
use Line::{At, Exit as Out};

/// Returns a log in which the instructions from 200 to 299 are repeated ones and those from 300 on jump to themselves.
fn log(lines: &[Line]) -> ExecLog {
    let mut log =
        ExecLog { repeating: (200..300).collect(), selves: (300..310).collect(), ..ExecLog::default() };
    for line in lines {
        match *line {
            At(address) => {
                log.begun.push(address);
                log.levels.push(0);
            }
            Out(code, rip) => log.exits.push(Exit { after: log.begun.len(), code, rip }),
        }
    }
    log
}

fn records(addresses: &[u64]) -> Vec<Record> {
    let record = |&rip: &u64| Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(0), cpu: 0 };
    addresses.iter().map(record).collect()
}

/// Returns the counts of equal, repeated and unfinished instructions; `None` if the comparison fails.
fn counts(lines: &[Line], truth: &[Record]) -> Option<(u64, u64, u64)> {
    let found = compare(&log(lines), truth, GUEST).ok()?;
    Some((found.equal, found.repeated, found.unfinished))
}

#[test]
fn only_what_the_log_shows_not_to_have_retired_may_be_missing() {
    let fault = [At(1), At(2), Out(PAGE_FAULT, 2), At(HANDLER), At(2), At(3)];
    let step = [At(1), Out(DEBUG, 2), At(2), Out(DEBUG, 3), At(3)];
    let repeat = [At(1), At(200), At(200), At(200), At(3)];
    let stepped = [At(1), At(200), Out(DEBUG, 200), At(200), Out(DEBUG, 202), At(202)];
    let interrupted = [At(1), At(200), Out(INTERRUPT, 200), At(HANDLER), At(200), At(3)];
    let handed = [At(1), At(5), Out(WRMSR, 5), At(HANDLER), At(3)];
    let looped =
        [At(1), Out(DEBUG, 300), At(300), Out(DEBUG, 300), At(300), Out(DEBUG, 3), At(3), Out(DEBUG, 4)];
    for (lines, truth, expected) in [
        (&[At(7), At(1), At(2), At(3), At(8)][..], &[1, 2, 3][..], Some((3, 0, 0))),
        (&fault, &[1, HANDLER, 2, 3], Some((4, 0, 1))),
        (&step, &[1, 2, 3], Some((3, 0, 0))),
        (&repeat, &[1, 200, 3], Some((3, 2, 0))),
        (&stepped, &[1, 200, 202], Some((3, 1, 0))),
        (&interrupted, &[1, HANDLER, 200, 3], Some((4, 1, 0))),
        (&handed, &[1, HANDLER, 3], Some((3, 0, 1))),
        (&handed, &[1, 5, HANDLER, 3], Some((4, 0, 0))),
        // The first exit shows the outcome of an instruction.
        (&[At(1), At(2), Out(PAGE_FAULT, 2), Out(NMI, HANDLER), At(HANDLER)], &[1, HANDLER], Some((2, 0, 1))),
        // An instruction that faulted did not retire; one that retired must not be left out.
        (&fault, &[1, 2, HANDLER, 2, 3], None),
        (&fault, &[1, HANDLER, 3], None),
        (&repeat, &[1, 200, 200, 200, 3], None),
        (&repeat, &[1, 3], None),
        (&[At(1), At(2), At(2), At(3)], &[1, 2, 3], Some((3, 0, 0))),
        (&[At(1), At(2), At(2), At(3)], &[1, 2, 2, 3], None),
        (&[At(1), At(300), At(300), At(3)], &[1, 300, 300, 3], Some((4, 0, 0))),
        (&[At(1), At(300), At(300), At(3)], &[1, 300, 3], None),
        (&[At(1), At(4), At(2), At(3)], &[1, 2, 3], None),
        (&[At(1), At(5), Out(WRMSR, 5), At(7)], &[1, 5, 7], Some((3, 0, 0))),
        (&[At(1), At(5), Out(WRMSR, 5), At(7)], &[1, 7], None),
        (&looped, &[1, 300, 300, 3], Some((4, 0, 0))),
        (&looped, &[1, 300, 3], None),
        (&[At(1), At(3)], &[1, 2, 3], None),
        (&[At(1), At(2)], &[1, 2, 3], None),
        (&[At(1), At(2)], &[], None),
    ] {
        assert_eq!(counts(lines, &records(truth)), expected, "{lines:x?} {truth:x?}");
    }
}

#[test]
fn a_truth_that_was_tampered_with_is_another_one() {
    let addresses: Vec<u64> = (1000..2000).collect();
    let lines: Vec<Line> = addresses.iter().map(|&address| At(address)).collect();
    let every_second: Vec<u64> = addresses.iter().copied().step_by(2).collect();
    let changed = |change: &dyn Fn(&mut Vec<u64>)| {
        let mut addresses = addresses.clone();
        change(&mut addresses);
        addresses
    };
    let one_dropped = changed(&|all| _ = all.remove(500));
    let one_twice = changed(&|all| all.insert(500, all[500]));
    let two_swapped = changed(&|all| all.swap(500, 501));
    assert_eq!(counts(&lines, &records(&addresses)), Some((1000, 0, 0)));
    for truth in [every_second, one_dropped, one_twice, two_swapped] {
        assert_eq!(counts(&lines, &records(&truth)), None, "{} instructions", truth.len());
    }
}

#[test]
fn a_gap_goes_from_one_wrmsr_to_another() {
    for (begun, expected) in [
        (&[1, 2, 77, 8, 9, 77, 3, 4][..], Some(4)),
        (&[1, 2, 77, 8, 77, 9, 77, 3, 4], Some(5)),
        (&[1, 2, 77, 3, 8, 77, 3, 4], Some(4)),
        (&[1, 2, 77, 77, 3, 4], Some(2)),
        // One WRMSR is not enough.
        (&[1, 2, 77, 3, 4], None),
        (&[1, 2, 8, 9, 77, 3, 4], None),
        (&[1, 2, 77, 8, 9, 3, 4], None),
        (&[1, 2, 77, 8, 77, 3, 5], None),
    ] {
        let lines: Vec<Line> = begun.iter().map(|&address| At(address)).collect();
        let agreement = compare(&log(&lines), &records(&[1, 2, 3, 4]), GUEST).ok();
        assert_eq!(agreement.map(|found| found.untraced), expected, "{begun:?}");
    }
}

#[test]
fn a_wrmsr_that_faulted_switches_nothing() {
    // Both faults have the same handler and the same instructions after it, more than distinguish the uses of a WRMSR:
    // the first WRMSR must not count as the start of a gap that ends at the second one.
    let handled: Vec<u64> = [HANDLER].into_iter().chain(10..40).collect();
    let fault = || [At(77), Out(WRMSR, 77)].into_iter().chain(handled.iter().map(|&address| At(address)));
    let lines: Vec<Line> = [At(1)].into_iter().chain(fault()).chain(fault()).chain([At(8)]).collect();
    let both = [&[1][..], &handled, &handled, &[8]].concat();
    assert_eq!(counts(&lines, &records(&both)), Some((both.len() as u64, 0, 2)));
    // The truth without the handler is a different truth.
    let without = [&[1][..], &handled[1..], &handled, &[8]].concat();
    assert_eq!(counts(&lines, &records(&without)), None);
}

#[test]
fn the_guest_was_before_what_the_monitor_executed_and_goes_on_after_it() {
    // The monitor emulated 110 and 112.
    let emulated = [At(100), Out(DEBUG, 110), At(114), At(115)];
    let to_handler = [At(100), Out(DEBUG, 110), At(HANDLER)];
    for (lines, truth, hands, expected) in [
        (&emulated[..], &[100, 110, 112, 114, 115][..], &[110, 112][..], Some(2)),
        (&emulated, &[100, 110, 114, 115], &[110], Some(1)),
        (&to_handler, &[100, 110, HANDLER], &[110], Some(1)),
        (&to_handler, &[100, HANDLER], &[], Some(0)),
        (&emulated, &[100, 114, 115], &[], None),
        (&emulated, &[100, 111, 114, 115], &[111], None),
        (&emulated, &[100, 110, 150, 114, 115], &[110, 150], None),
        (&emulated, &[100, 110, 114, 115, 116, 118], &[110, 116, 118], None),
        (&[At(100), Out(DEBUG, 110), At(110)], &[100, 110, 110], &[110], None),
    ] {
        let mut truth = records(truth);
        for record in truth.iter_mut().filter(|record| hands.contains(&record.rip)) {
            record.flags = record.flags.emulated();
        }
        let agreement = compare(&log(lines), &truth, GUEST).ok();
        assert_eq!(agreement.map(|found| found.emulated), expected, "{lines:?} {truth:?}");
    }
}

#[test]
fn the_guest_may_be_left_again_before_it_has_begun_anything() {
    const IRET: u64 = 0x74;
    // The monitor emulated 110 and 112.
    let left = [At(100), Out(DEBUG, 110), Out(NMI, 114), At(HANDLER)];
    let twice = [At(100), Out(DEBUG, 110), Out(INTERRUPT, 110), Out(NMI, 112), At(114)];
    let handed = [At(100), Out(WRMSR, 100), Out(NMI, 110), At(112)];
    let returned = [At(100), Out(IRET, 100), Out(NMI, 110), At(112)];
    let to_handler = [At(100), Out(DEBUG, 110), Out(NMI, HANDLER), At(HANDLER)];
    for (lines, truth, expected) in [
        (&left[..], &[100, 110, 112, HANDLER][..], Some(2)),
        (&left, &[100, HANDLER], None),
        (&left, &[100, 112, HANDLER], None),
        (&left, &[100, 110, 112, 112, HANDLER], None),
        (&twice, &[100, 110, 112, 114], Some(2)),
        (&twice, &[100, 110, 114], None),
        (&twice, &[100, 112, 114], None),
        (&twice, &[100, 114], None),
        (&handed, &[100, 110, 112], Some(1)),
        (&returned, &[100, 110, 112], Some(1)),
        (&[At(100), Out(NMI, 110), At(130)], &[100, 130], None),
        (&[At(100), At(114)], &[100, 110, 114], None),
        (&to_handler, &[100, HANDLER], Some(0)),
        (&to_handler, &[100, 110, HANDLER], Some(1)),
        (&[At(100), Out(DEBUG, 110), At(HANDLER + 1)], &[100, HANDLER + 1], None),
        // The emulated instruction is no branch, is a branch, or faults.
        (&[At(100), Out(WRMSR, 100), At(102)], &[100, 102], Some(0)),
        (&[At(100), Out(WRMSR, 100), At(116)], &[100, 116], None),
        (&[At(100), Out(IRET, 100), At(116)], &[100, 116], Some(0)),
        (&[At(99), At(100), Out(PAGE_FAULT, 100), At(HANDLER)], &[99, HANDLER], Some(0)),
        (&[At(99), At(100), Out(PAGE_FAULT, 100), At(101)], &[99, 101], None),
    ] {
        let mut truth = records(truth);
        for record in truth.iter_mut().filter(|record| matches!(record.rip, 110 | 112)) {
            record.flags = record.flags.emulated();
        }
        if lines.last() == Some(&At(112)) {
            truth.last_mut().unwrap().flags = RecordFlags::new(0);
        }
        let agreement = compare(&log(lines), &truth, GUEST);
        let found = agreement.as_ref().ok().map(|found| found.emulated);
        assert_eq!(found, expected, "{lines:?} {truth:?} {agreement:?}");
    }
}

#[test]
fn the_level_is_compared() {
    let mut log = log(&[At(1), At(2)]);
    let mut truth = records(&[1, 2]);
    assert!(compare(&log, &truth, GUEST).is_ok());
    log.levels[1] = 3;
    assert!(compare(&log, &truth, GUEST).is_err());
    truth[1].flags = RecordFlags::new(3);
    assert!(compare(&log, &truth, GUEST).is_ok());
    log.levels[1] = 0;
    assert!(compare(&log, &truth, GUEST).is_err());
}

/// Compares a log and a truth of instructions with their privilege levels.
fn compare_levels(only_programs: bool, begun: &[(u64, u8)], truth: &[(u64, u8)]) -> Option<(u64, u64)> {
    let mut log = ExecLog::default();
    (log.begun, log.levels) = begun.iter().copied().unzip();
    let record =
        |&(rip, cpl): &(u64, u8)| Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(cpl), cpu: 0 };
    let truth: Vec<_> = truth.iter().map(record).collect();
    let found = compare(&log, &truth, LoggedGuest { only_programs, ..GUEST }).ok()?;
    Some((found.equal, found.untraced))
}

#[test]
fn the_kernel_is_left_out_where_only_programs_are_traced_and_programs_never() {
    let log = [(1, 3), (2, 3), (50, 0), (51, 0), (3, 3), (52, 0), (4, 3)];
    for (only_programs, truth, expected) in [
        (true, &[(1, 3), (2, 3), (3, 3), (4, 3)][..], Some((4, 3))),
        // The monitor has seen the kernel's return.
        (true, &[(1, 3), (2, 3), (51, 0), (3, 3), (52, 0), (4, 3)], Some((6, 1))),
        // An instruction of the program is missing, at each place.
        (true, &[(1, 3), (3, 3), (4, 3)], None),
        (true, &[(1, 3), (2, 3), (4, 3)], None),
        (true, &[(1, 3), (2, 3), (51, 0), (4, 3)], None),
        // The kernel is traced as well, so all of it must be in the truth.
        (false, &[(1, 3), (2, 3), (50, 0), (51, 0), (3, 3), (52, 0), (4, 3)], Some((7, 0))),
        (false, &[(1, 3), (2, 3), (3, 3), (4, 3)], None),
        (false, &[(1, 3), (2, 3), (50, 0), (3, 3), (52, 0), (4, 3)], None),
        (false, &[(1, 3), (2, 3), (50, 0), (51, 0), (3, 3), (4, 3)], None),
    ] {
        assert_eq!(compare_levels(only_programs, &log, truth), expected, "{truth:?}");
    }
}
