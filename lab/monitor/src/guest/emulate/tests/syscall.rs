use super::*;
use crate::guest::{Gpr, Segment, efer};

const SYSCALL: &[u8] = &[0x0f, 0x05];
const SYSRETD: &[u8] = &[0x0f, 0x07];
const SYSRETQ: &[u8] = &[0x48, 0x0f, 0x07];
const SYSENTER: &[u8] = &[0x0f, 0x34];
const SYSEXITD: &[u8] = &[0x0f, 0x35];
const SYSEXITQ: &[u8] = &[0x48, 0x0f, 0x35];
const NON_CANONICAL: u64 = 0x8000_0000_0000;

fn flat(selector: u16, attributes: u16) -> Segment {
    Segment { selector, attributes, limit: u32::MAX, base: 0 }
}

#[test]
fn syscall_saves_rip_and_flags_and_masks_them() {
    use rflags::{AC, CF, FIXED, IF, RF, TF};
    // Flags, FMASK, R11, flags after.
    let rows = [
        (FIXED | CF | IF, 0, FIXED | CF | IF, FIXED | CF | IF),
        (FIXED | CF | IF | TF | AC, IF | TF | AC, FIXED | CF | IF | TF | AC, FIXED | CF),
        (FIXED | RF | IF, 0, FIXED | IF, FIXED | IF),
        (FIXED | IF, u64::MAX, FIXED | IF, FIXED),
    ];
    for (flags, mask, r11, after) in rows {
        let mut machine = Machine::long_user();
        machine.cpu.rflags = flags;
        machine.cpu.sfmask = mask;
        // The RPL becomes 0 regardless of the selector's low bits.
        machine.cpu.star = 0x001b_000b << 32 | 0xdead_beef;
        let rsp = machine.cpu.get(Gpr::Rsp);
        run(&mut machine, SYSCALL).unwrap();
        let cpu = &machine.cpu;
        assert_eq!((cpu.get(Gpr::R11), cpu.rflags), (r11, after), "{flags:#x} {mask:#x}");
        assert_eq!((cpu.get(Gpr::Rcx), cpu.rip), (at::CODE + 2, at::HANDLERS));
        assert_eq!((cpu.cpl, cpu.get(Gpr::Rsp)), (0, rsp));
        assert_eq!((cpu.cs, cpu.ss), (flat(8, 0xa9b), flat(0x10, 0xc93)));
    }
}

#[test]
fn syscall_and_sysret_exist_only_in_64_bit_mode_with_sce() {
    type Change = fn(&mut Machine);
    let sce: Change = |machine| machine.cpu.efer &= !efer::SCE;
    let nothing: Change = |_| {};
    type Row<'a> = (fn() -> Machine, Change, &'a [u8], Exception);
    let rows: &[Row<'_>] = &[
        (Machine::long, sce, SYSCALL, UD),
        (Machine::long, sce, SYSRETQ, UD),
        (Machine::compatibility, nothing, SYSCALL, UD),
        (Machine::compatibility, nothing, SYSRETD, UD),
        (Machine::protected, nothing, SYSCALL, UD),
        (Machine::long_user, nothing, SYSRETQ, GP),
        (Machine::long_user, nothing, SYSRETD, GP),
        (Machine::long_user, sce, SYSRETQ, UD),
        (Machine::long, |machine| machine.cpu.set(Gpr::Rcx, NON_CANONICAL), SYSRETQ, GP),
    ];
    for (start, change, bytes, exception) in rows {
        let mut machine = start();
        change(&mut machine);
        assert_eq!(run_whole(&mut machine, bytes), fault(*exception), "{bytes:x?}");
    }
}

#[test]
fn sysret_returns_to_64_bit_or_compatibility_mode_at_level_3() {
    let rcx = 0x7fff_1234_5678;
    // Bytes, RIP, CS, mode.
    let rows = [
        (SYSRETQ, rcx, flat(0x2b, 0xafb), Mode::Bits64),
        (SYSRETD, 0x1234_5678, flat(0x1b, 0xcfb), Mode::Compatibility),
    ];
    for (bytes, rip, cs, mode) in rows {
        let mut machine = Machine::long();
        machine.cpu.set(Gpr::Rcx, rcx);
        machine.cpu.set(Gpr::R11, u64::MAX);
        run(&mut machine, bytes).unwrap();
        let cpu = &machine.cpu;
        assert_eq!((cpu.rip, cpu.cs, cpu.ss, cpu.mode(), cpu.cpl), (rip, cs, flat(0x23, 0xcf3), mode, 3));
        assert_eq!(cpu.rflags, 0x3c_7fd7, "neither RF nor VM");
    }
    // A 32-bit address is always canonical.
    let mut machine = Machine::long();
    machine.cpu.set(Gpr::Rcx, NON_CANONICAL + 5);
    run(&mut machine, SYSRETD).unwrap();
    assert_eq!(machine.cpu.rip, 5);
    let mut machine = Machine::long();
    machine.cpu.rflags = 0x3c_7fd7;
    run(&mut machine, SYSRETQ).unwrap();
    assert_eq!(machine.cpu.rflags, rflags::FIXED);
    // The RPL becomes 3 regardless of STAR.
    let mut machine = Machine::long();
    machine.cpu.star = 0x18 << 48;
    run(&mut machine, SYSRETQ).unwrap();
    assert_eq!((machine.cpu.cs.selector, machine.cpu.ss.selector), (0x2b, 0x23));
}

#[test]
fn sysenter_goes_where_its_registers_say() {
    // Machine, code segment, RIP and RSP.
    let wide = 0x1_0002_0003_0000;
    let rows = [
        (Machine::long_user as fn() -> Machine, 0xa9b, wide, Mode::Bits64),
        (Machine::compatibility, 0xa9b, wide, Mode::Bits64),
        (Machine::protected_user, 0xc9b, 0x0003_0000, Mode::Protected),
    ];
    for (start, code, address, mode) in rows {
        let mut machine = start();
        machine.cpu.sysenter_cs = 0x0b;
        machine.cpu.sysenter_eip = wide + 0x100;
        machine.cpu.sysenter_esp = wide + 0x200;
        machine.cpu.rflags |= rflags::IF | rflags::CF;
        assert_eq!(run(&mut machine, SYSENTER), RETIRED);
        let cpu = &machine.cpu;
        assert_eq!((cpu.cs, cpu.ss, cpu.mode(), cpu.cpl), (flat(8, code), flat(0x10, 0xc93), mode, 0));
        assert_eq!((cpu.rip, cpu.get(Gpr::Rsp)), (address + 0x100, address + 0x200));
        assert_eq!(cpu.rflags, rflags::FIXED | rflags::CF);
    }
}

#[test]
fn sysexit_returns_to_level_3() {
    let (rip, rsp) = (0x7fff_1234_5678, 0x7fff_2345_6789);
    // Machine, bytes, CS, SS, mode, mask of the pointers.
    let rows = [
        (Machine::long as fn() -> Machine, SYSEXITQ, flat(0x2b, 0xafb), 0x33, Mode::Bits64, u64::MAX),
        (Machine::long, SYSEXITD, flat(0x1b, 0xcfb), 0x23, Mode::Compatibility, 0xffff_ffff),
        (Machine::protected, SYSEXITD, flat(0x1b, 0xcfb), 0x23, Mode::Protected, 0xffff_ffff),
    ];
    for (start, bytes, cs, ss, mode, mask) in rows {
        // The RPL becomes 3 regardless of the selector's low bits.
        for sysenter_cs in [8, 0xb] {
            let mut machine = start();
            machine.cpu.sysenter_cs = sysenter_cs;
            machine.cpu.set(Gpr::Rdx, rip);
            machine.cpu.set(Gpr::Rcx, rsp);
            assert_eq!(run(&mut machine, bytes), RETIRED);
            let cpu = &machine.cpu;
            assert_eq!((cpu.cs, cpu.ss, cpu.mode(), cpu.cpl), (cs, flat(ss, 0xcf3), mode, 3));
            assert_eq!((cpu.rip, cpu.get(Gpr::Rsp)), (rip & mask, rsp & mask));
        }
    }
}

#[test]
fn sysenter_and_sysexit_refuse_what_the_manual_refuses() {
    type Change = fn(&mut Machine);
    let ready: Change = |machine| machine.cpu.sysenter_cs = 8;
    type Row<'a> = (fn() -> Machine, Change, &'a [u8]);
    let rows: &[Row<'_>] = &[
        (Machine::real, ready, SYSENTER),
        (Machine::real, ready, SYSEXITD),
        (Machine::long, |_| {}, SYSENTER),
        (Machine::long, |machine| machine.cpu.sysenter_cs = 3, SYSENTER),
        (Machine::long, |_| {}, SYSEXITQ),
        (Machine::long, |machine| machine.cpu.sysenter_cs = 3, SYSEXITQ),
        (Machine::long_user, ready, SYSEXITQ),
        (
            Machine::long,
            |machine| {
                machine.cpu.sysenter_cs = 8;
                machine.cpu.set(Gpr::Rcx, NON_CANONICAL);
            },
            SYSEXITQ,
        ),
        (
            Machine::long,
            |machine| {
                machine.cpu.sysenter_cs = 8;
                machine.cpu.set(Gpr::Rdx, NON_CANONICAL);
            },
            SYSEXITQ,
        ),
    ];
    for (start, change, bytes) in rows {
        let mut machine = start();
        change(&mut machine);
        assert_eq!(run_whole(&mut machine, bytes), fault(GP), "{bytes:x?}");
    }
}
