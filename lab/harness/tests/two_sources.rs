//! Intel PT and the Branch Trace Store report the same branches.

use pugmark_decoder_core::insn::{self, Class};
use pugmark_decoder_core::mode::ExecMode;
use pugmark_harness::agreement;
use pugmark_harness::boots::{Boot, boots};
use pugmark_harness::code::{self, Code};
use pugmark_harness::expected;
use pugmark_harness::images::Images;
use pugmark_harness::instructions::Instructions;
use pugmark_harness::judge::{Evidence, Source};
use pugmark_harness::machine::{Machine, Outcome};
use pugmark_harness::truth::{Branch, BranchKind};

const PROFILE: &str = "skylake";

/// Time advances with the instructions, so that two runs execute the same.
const VIRTUAL_TIME: [&str; 2] = ["-icount", "shift=0,sleep=off"];

/// Workloads that both sources trace and that execute the same at any time of interrupts. Excluded: `timer`, which
/// waits for interrupts; `hash-map`, which searches the heap for space, where the other source has left other holes;
/// `address-spaces`, where the kernel drains branch records before each switch; `stop`, where PT is off for a while.
const WORKLOADS: [&[&str]; 2] = [
    &["recursion", "sort", "dispatch", "interpreter", "strings", "exceptions", "shadows", "syscall"],
    &[
        "syscall-tf-kept",
        "user-interrupt",
        "filter-os",
        "filter-user",
        "small-buffers",
        "circular",
        "nmi",
        "single-range",
        "ring",
    ],
];

/// Number of branches that may differ because the driver starts and stops the two sources differently.
const DRIVER: usize = 60;
/// The same in instructions. Each driver also reads registers to prove that they are its own.
const DRIVER_INSTRUCTIONS: usize = 600;

#[test]
fn two_runs_agree_branch_by_branch() {
    agree(WORKLOADS[0]);
}

#[test]
fn two_runs_with_interrupts_and_levels_agree_branch_by_branch() {
    agree(WORKLOADS[1]);
}

fn agree(workloads: &[&str]) {
    let images = Images::build().unwrap();
    let symbols = images.guest_symbols().unwrap();
    let stubs = symbols.address("trap_stubs").unwrap();
    let run = |boot: &Boot| -> Outcome {
        Machine::on_monitor(&images, &boot.monitor_options, &boot.command_line)
            .arguments(VIRTUAL_TIME)
            .run(|_| {})
            .unwrap()
    };
    for name in workloads {
        // Each workload has a machine of its own, so that earlier workloads make no difference.
        let mut boot = boots(Source::Pt, PROFILE, Some(name)).swap_remove(0);
        boot.command_line.push_str(" dump");
        // The kernel is in the truth even if only user-mode code is traced.
        boot.monitor_options.push_str(" step=all-levels");
        let packets = run(&boot);
        let boot = boots(Source::Bts, PROFILE, Some(name)).swap_remove(0);
        let records = run(&boot);
        let (by_packets, by_records) = (&packets.transcript.runs[0], &records.transcript.runs[0]);
        // Each decode equals its own truth, so comparing the two truths compares the two decodes.
        let check = |source, run, outcome: &Outcome| {
            let evidence = Evidence { run, truth: &outcome.truth, symbols: &symbols, image: &images.guest };
            expected::check(source, PROFILE, &evidence).unwrap();
        };
        check(Source::Pt, by_packets, &packets);
        check(Source::Bts, by_records, &records);
        // The truths contain all levels.
        let code = code::of(by_packets, &images.guest).unwrap();
        let instructions = packets.truth.session(by_packets.session.unwrap());
        let instructions =
            agreement::outside_handlers(instructions, stubs, &mut Instructions::new(code.clone())).unwrap();
        let branches = records.truth.branches(by_records.session.unwrap());
        let (compared, all) = check_kinds(branches, &code);
        let branches = agreement::branches_outside_handlers(branches, stubs);
        assert!(2 * compared > all, "{name}: the kinds of {compared} branches of {all} were compared");
        let found = agreement::longest(&instructions, &branches).unwrap();
        let (agreed, covered) = (found.branches.len(), found.instructions.len());
        let (taken, retired) = (branches.len(), instructions.len());
        let what = format!("{name}: {agreed} branches of {taken}, {covered} instructions of {retired}");
        println!("{what}");
        assert!(agreed + DRIVER >= taken && covered + DRIVER_INSTRUCTIONS >= retired, "{what}");
    }
}

/// Compares the kinds of branches that the monitor reports with the decoder's classes of the instructions at their
/// sources, if these are known. Returns the numbers of compared and of all branches, without events, which come from
/// any instruction.
fn check_kinds(branches: &[Branch], code: &[Code]) -> (usize, usize) {
    let instructions = branches.iter().filter(|branch| branch.kind != BranchKind::Event);
    let mut counts = (0, 0);
    for branch in instructions {
        counts.1 += 1;
        // Code at addresses that differ by address space is skipped.
        let at = |code: &&Code| (code.base..code.base + code.bytes.len() as u64).contains(&branch.from);
        let Some(section) = code.iter().find(at).filter(|code| code.cr3.is_none()) else { continue };
        let bytes = &section.bytes[(branch.from - section.base) as usize..];
        let kind = match insn::decode(bytes, ExecMode::Bits64, branch.from).unwrap().class {
            Class::CondJump => BranchKind::Conditional,
            Class::NearJump | Class::IndirectJump => BranchKind::Jump,
            Class::NearCall | Class::IndirectCall => BranchKind::Call,
            Class::NearReturn => BranchKind::Return,
            Class::FarJump | Class::FarCall | Class::FarReturn => BranchKind::Far,
            class => panic!("a branch from {:#x}, which is {class:?}", branch.from),
        };
        assert_eq!(branch.kind, kind, "{:#x} to {:#x}", branch.from, branch.to);
        counts.0 += 1;
    }
    counts
}
