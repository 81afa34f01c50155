use super::super::testing::{Machine, sel};
use super::super::{Privilege, cr4};
use super::*;

const PAGE: u64 = 0x3_0000;
const USER_WRITE: Access = Access { kind: AccessKind::Write, privilege: Privilege::User };
const READ: Access = Access { kind: AccessKind::Read, privilege: Privilege::Supervisor };

#[test]
fn a_range_over_two_pages_goes_to_both_frames() {
    let mut machine = Machine::long();
    // The second page is at another physical address.
    machine.set_page(PAGE + 0x1000, 0x4_0007);
    write_linear(&machine.cpu, &mut machine.ram, PAGE + 0xffd, &[1, 2, 3, 4, 5, 6, 7], USER_WRITE).unwrap();
    assert_eq!(machine.quad(PAGE + 0xff8) >> 40, 0x03_0201);
    assert_eq!(machine.quad(0x4_0000), 0x0706_0504);
    let mut out = [0; 7];
    read_linear(&machine.cpu, &mut machine.ram, PAGE + 0xffd, &mut out, READ).unwrap();
    assert_eq!(out, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn nothing_is_written_when_any_page_faults() {
    let gone = PAGE + 0x1000;
    let rows = [(0, Exception::page_fault(6, gone)), (gone | 5, Exception::page_fault(7, gone))];
    for (entry, error) in rows {
        let mut machine = Machine::long();
        machine.set_page(gone, entry);
        let result = write_linear(&machine.cpu, &mut machine.ram, gone - 4, &[0xff; 8], USER_WRITE);
        assert_eq!(result, Err(error));
        assert_eq!(machine.double(gone - 4), 0, "{entry:#x}");
    }
}

#[test]
fn where_there_is_no_memory_reads_give_ones_writes_are_lost_and_the_address_is_noted() {
    let gone = PAGE + 0x1000;
    let mut machine = Machine::long();
    machine.set_page(gone, 0x10_0007);
    for (linear, len, address) in [(gone, 1, 0x10_0000), (gone + 8, 2, 0x10_0008), (gone - 4, 8, 0x10_0000)] {
        let there = gone.saturating_sub(linear) as usize;
        let mut out = [0; 8];
        assert_eq!(read_linear(&machine.cpu, &mut machine.ram, linear, &mut out[..len], READ), Ok(()));
        assert!(
            out[..there].iter().all(|byte| *byte == 0) && out[there..len].iter().all(|byte| *byte == 0xff)
        );
        assert_eq!(machine.ram.take_missing(), [address]);
        assert_eq!(write_linear(&machine.cpu, &mut machine.ram, linear, &[7; 8][..len], USER_WRITE), Ok(()));
        assert_eq!(machine.ram.take_missing(), [address]);
        assert_eq!(machine.quad(gone - 8) >> 32, if there > 0 { 0x0707_0707 } else { 0 });
        machine.put(gone - 8, &[0; 8]);
    }
}

#[test]
fn segments_check_canonical_addresses_limits_and_types() {
    use AccessKind::{Execute, Read, Write};
    use SegmentName::{Cs, Ds, Es, Fs, Gs, Ss};
    let gp = Err(Exception::general_protection(0));
    let ss = Err(Exception::stack_fault(0));
    let expand_down = Segment { selector: sel::DATA, attributes: 0x497, limit: 0xfff, base: 0x100 };
    let small_expand_down = Segment { attributes: 0x97, ..expand_down };
    let code = Segment { selector: sel::CODE32, attributes: 0x499, limit: 0xfff, base: 0x100 };
    let data = Segment { attributes: 0x493, ..code };
    let read_only = Segment { attributes: 0x491, ..code };
    let null = Segment::default();
    // 64-bit mode, the segment put into every register, name, offset, length, access, linear address.
    let rows = [
        (true, data, Ds, 0x1000, 8, Write, Ok(0x1000)),
        (true, data, Fs, 0x1000, 8, Write, Ok(0x1100)),
        (true, data, Gs, 0x1000, 8, Write, Ok(0x1100)),
        (true, null, Es, 0x7fff_ffff_fff8, 8, Write, Ok(0x7fff_ffff_fff8)),
        (true, data, Ds, 0x7fff_ffff_fff9, 8, Read, gp),
        (true, data, Ss, 0x7fff_ffff_fff9, 8, Read, ss),
        (true, data, Ds, 0xffff_7fff_ffff_ffff, 1, Read, gp),
        (true, data, Ds, 0xffff_8000_0000_0000, 1, Read, Ok(0xffff_8000_0000_0000)),
        (false, data, Ds, 0xff8, 8, Write, Ok(0x10f8)),
        (false, data, Ds, 0xff9, 8, Write, gp),
        (false, data, Ss, 0xff9, 8, Write, ss),
        (false, null, Ds, 0, 1, Read, gp),
        (false, null, Ss, 0, 1, Read, ss),
        (false, read_only, Ds, 0, 1, Read, Ok(0x100)),
        (false, read_only, Ds, 0, 1, Write, gp),
        // Execute-only code.
        (false, code, Cs, 0, 1, Read, gp),
        (false, code, Cs, 0, 1, Execute, Ok(0x100)),
        (false, data, Ds, 0, 1, Execute, gp),
        (false, expand_down, Ss, 0xfff, 1, Write, ss),
        (false, expand_down, Ss, 0x1000, 4, Write, Ok(0x1100)),
        (false, expand_down, Ss, 0xffff_fffc, 4, Write, Ok(0xfc)),
        (false, expand_down, Ss, 0xffff_fffd, 4, Write, ss),
        (false, small_expand_down, Ss, 0xfffd, 4, Write, ss),
        (false, small_expand_down, Ss, 0xfffc, 4, Write, Ok(0x1_00fc)),
    ];
    for (long, segment, name, offset, len, kind, expected) in rows {
        let mut machine = if long { Machine::long() } else { Machine::protected() };
        let cpu = &mut machine.cpu;
        for register in [&mut cpu.es, &mut cpu.ss, &mut cpu.ds, &mut cpu.fs, &mut cpu.gs] {
            *register = segment;
        }
        if !long {
            cpu.cs = segment;
        }
        let found = segment_address(cpu, name, offset, len, kind);
        assert_eq!(found, expected, "{long} {name:?} {offset:#x} {kind:?}");
    }
}

#[test]
fn in_real_address_mode_a_segment_has_no_type() {
    for attributes in [0, 0x91, 0x93, 0x99, 0x9b] {
        let mut machine = Machine::real();
        machine.cpu.ds = Segment { selector: 0x10, attributes, limit: 0xffff, base: 0x100 };
        for kind in [AccessKind::Read, AccessKind::Write] {
            let at = |offset| segment_address(&machine.cpu, SegmentName::Ds, offset, 2, kind);
            assert_eq!(at(0x20), Ok(0x120), "{attributes:#x}");
            assert_eq!(at(0xffff), Err(Exception::general_protection(0)), "{attributes:#x}");
        }
    }
}

#[test]
fn five_levels_widen_the_canonical_range() {
    let mut machine = Machine::long();
    machine.cpu.cr4 |= cr4::LA57;
    let found = segment_address(&machine.cpu, SegmentName::Ds, 0x7fff_ffff_fff9, 8, AccessKind::Read);
    assert_eq!(found, Ok(0x7fff_ffff_fff9));
}
