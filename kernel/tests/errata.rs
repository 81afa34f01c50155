//! Errata and restrictions of processor models, on the model of the hardware.

mod common;

use common::store::What;
use common::{Machine, Registers};
use pugmark_kernel::cpuid::CpuIdReader;
use pugmark_kernel::intel::ds::{DsRefusal, DsUnit};
use pugmark_kernel::intel::lbr::{Branch, Classes, LbrConfig, LbrUnit};
use pugmark_kernel::intel::pebs::{Counter, PebsConfig, PebsRefusal, PreciseEvent};
use pugmark_kernel::lifecycle::StartError;
use pugmark_model::intel::{IntelSettings, IntelViolations};

fn store(machine: &Machine, cpuid: impl CpuIdReader) -> DsUnit<Registers> {
    DsUnit::detect(cpuid, machine.registers()).unwrap()
}

const CALL: &[u8] = &[0xe8, 0x0b, 0, 0, 0];
const CALL_RAX: &[u8] = &[0xff, 0xd0];
const RET: &[u8] = &[0xc3];
const JMP_RAX: &[u8] = &[0xff, 0xe0];
const JMP: &[u8] = &[0xeb, 0x0e];
const JZ: &[u8] = &[0x74, 0x0e];

#[test]
fn calls_and_returns_that_are_asked_for_are_recorded_also_where_that_takes_jumps() {
    let kinds = [
        (Classes::NEAR_REL_CALL, CALL),
        (Classes::NEAR_IND_CALL, CALL_RAX),
        (Classes::NEAR_RET, RET),
        (Classes::NEAR_IND_JMP, JMP_RAX),
        (Classes::NEAR_REL_JMP, JMP),
        (Classes::JCC, JZ),
    ];
    for profile in ["nehalem", "broadwell", "skylake"] {
        for wanted in 1..1 << 6 {
            let classes = kinds.iter().enumerate().filter(|(n, _)| wanted >> n & 1 == 1);
            let classes = classes.fold(Classes::empty(), |all, (_, (class, _))| all | *class);
            let machine = Machine::new(profile, IntelSettings::default());
            let unit =
                LbrUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()).unwrap();
            let config = LbrConfig::new().os(false).classes(classes);
            let recorded = config.recorded(unit.capabilities());
            assert!(
                recorded.contains(classes) && (profile == "nehalem" || recorded == classes),
                "{recorded:?}"
            );
            let mut running = unit.start(&config).map_err(|failed| failed.error()).unwrap();
            let mut expected: Vec<_> = kinds
                .iter()
                .map(|&(class, bytes)| (class, machine.branch(bytes)))
                .filter(|(class, _)| recorded.contains(*class))
                .map(|(_, from)| from)
                .collect();
            expected.reverse();
            let mut out = [Branch::default(); 16];
            let found: Vec<_> = running.last(&mut out).unwrap().iter().map(|branch| branch.from).collect();
            assert_eq!(found, expected, "{profile} {classes:?}");
            assert_eq!(machine.violations(), IntelViolations::default());
        }
    }
}

#[test]
fn periods_that_broadwell_and_nehalem_do_not_take_are_refused_before_anything_is_written() {
    let distributed = PreciseEvent::INST_RETIRED_PREC_DIST;
    let branches = PreciseEvent { select: 0xc4, umask: 0x20 };
    for (profile, event, period, taken) in [
        ("broadwell", distributed, 64, false),
        ("broadwell", distributed, 127, false),
        ("broadwell", distributed, 128, true),
        ("broadwell", distributed, 1001, false),
        ("broadwell", distributed, 1024, true),
        ("broadwell", branches, 31, false),
        ("broadwell", branches, 1001, true),
        ("nehalem", PreciseEvent::INST_RETIRED, 31, false),
        ("nehalem", PreciseEvent::INST_RETIRED, 32, true),
        ("skylake", distributed, 41, true),
    ] {
        let machine = Machine::new(profile, IntelSettings::default());
        let unit = store(&machine, |leaf, subleaf| machine.cpuid(leaf, subleaf));
        let area = machine.area(&unit, What::Samples);
        let pebs = PebsConfig::new().general(1, event, period).os(false);
        let accesses = machine.accesses();
        let started = unit.start(&What::Samples.config(profile).pebs(pebs), area);
        let refusal = started.err().map(|failed| failed.error());
        let refused =
            matches!(refusal, Some(StartError::Refused(DsRefusal::Pebs(PebsRefusal::Period { .. }))));
        assert_eq!((refusal.is_none(), refused), (taken, !taken), "{profile} {period}: {refusal:?}");
        assert_eq!(machine.accesses() == accesses, !taken, "{profile} {period}");
    }
}

#[test]
fn counter_3_is_left_to_the_microcode_that_uses_it() {
    let machine = Machine::new("skylake", IntelSettings::default());
    // RTM and TSX_FORCE_ABORT. The model has no IA32_TSX_FORCE_ABORT, as some hypervisors have none.
    let cpuid = |leaf, subleaf| {
        let mut answer = machine.cpuid(leaf, subleaf);
        if (leaf, subleaf) == (7, 0) {
            answer.ebx |= 1 << 11;
            answer.edx |= 1 << 13;
        }
        answer
    };
    let event = PreciseEvent::BR_INST_RETIRED_PEBS;
    for (taken, unit) in [
        (true, store(&machine, cpuid)),
        (false, store(&machine, |leaf, subleaf| machine.cpuid(leaf, subleaf))),
    ] {
        let capabilities = unit.capabilities().pebs.unwrap();
        let expected = if taken { Err(PebsRefusal::Microcode(Counter::General(3))) } else { Ok(()) };
        assert_eq!(PebsConfig::new().general(3, event, 10_000).check(&capabilities, 100), expected);
        assert_eq!(PebsConfig::new().general(2, event, 10_000).check(&capabilities, 100), Ok(()));
    }
}
