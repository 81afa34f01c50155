extern crate std;

use std::vec;
use std::vec::Vec;

use super::*;
use crate::guest::{cr0, cr4, efer};
use crate::memory::SliceMemory;

/// Present.
const P: u64 = 1 << 0;
/// Writable.
const W: u64 = 1 << 1;
/// User.
const U: u64 = 1 << 2;
/// Accessed.
const A: u64 = 1 << 5;
/// Dirty.
const D: u64 = 1 << 6;
const LINEAR: u64 = 0x3123;
const FRAME: u64 = 0x8000;

/// Returns tables of four levels at 1000h to 4000h, whose last entry for [`LINEAR`] is `leaf`, and a frame at 8000h.
fn tables(upper: u64, leaf: u64) -> Vec<u8> {
    let mut ram = vec![0; 0x9000];
    let mut put = |at: usize, value: u64| ram[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0x1000, 0x2000 | upper);
    put(0x2000, 0x3000 | upper);
    put(0x3000, 0x4000 | upper);
    put(0x4000 + 3 * 8, leaf);
    ram
}

fn cpu() -> Cpu {
    let cr0 = cr0::PG | cr0::WP | 1;
    Cpu { cr0, cr3: 0x1000, cr4: cr4::PAE, efer: efer::LMA | efer::NXE, ..Cpu::default() }
}

fn translate(cpu: &Cpu, ram: &mut [u8], address: u64, write: bool) -> Result<Mapping, PageFault> {
    let mut memory = SliceMemory { base: 0, bytes: ram };
    TracingMemory { cpu, memory: &mut memory }.translate(address, write)
}

#[test]
fn accesses_go_through_the_page_tables_with_supervisor_rights() {
    // Upper entries and last entry, `true` for a write; then `true` for a supervisor page and `true` if it was marked,
    // or the error code of the fault.
    let rows = [
        (P | W | A, P | W | A | D, true, Ok((true, true))),
        (P | W | A, P | W | A, true, Ok((true, false))),
        (P | W | A, P | W | A, false, Ok((true, true))),
        (P | W, P | W | A | D, false, Ok((true, false))),
        (P | W | U | A, P | W | A, false, Ok((true, true))),
        (P | W | U | A, P | W | U | A, false, Ok((false, true))),
        (P | W | A, 0, false, Err(0)),
        (P | W | A, 0, true, Err(2)),
        (P | W | A, P, true, Err(3)),
        (P | W | A, P | A, false, Ok((true, true))),
    ];
    for level in 0..=3 {
        for (upper, leaf, write, expected) in rows {
            let cpu = Cpu { cpl: level, ..cpu() };
            let mut ram = tables(upper, if leaf == 0 { 0 } else { FRAME | leaf });
            let expected = match expected {
                Ok((supervisor, marked)) => {
                    Ok(Mapping { physical: FRAME | 0x123, supervisor, marked, ..Mapping::default() })
                }
                Err(code) => Err(PageFault { address: LINEAR, code }),
            };
            assert_eq!(translate(&cpu, &mut ram, LINEAR, write), expected, "{upper:#x} {leaf:#x} {write}");
            // Now the entries are marked.
            let again = expected.map(|mapping| Mapping { marked: true, ..mapping });
            assert_eq!(translate(&cpu, &mut ram, LINEAR, write), again, "{upper:#x} {leaf:#x} {write}");
        }
    }
}

#[test]
fn smap_keeps_the_hardware_from_pages_of_users() {
    let cpu = Cpu { cr4: cr4::PAE | cr4::SMAP, rflags: 1 << 18, ..cpu() };
    let mut ram = tables(P | W | U | A, FRAME | P | W | U | A | D);
    assert_eq!(translate(&cpu, &mut ram, LINEAR, true), Err(PageFault { address: LINEAR, code: 3 }));
}

#[test]
fn what_has_no_page_tables_is_not_mapped() {
    let mut ram = tables(P | W | A, FRAME | P | W | A | D);
    // At addresses without memory, each entry has its reserved bits set.
    for (cr3, address, code) in [(0x1000, 1 << 47, 0), (0x1000, LINEAR | 1 << 63, 0), (0x10_0000, LINEAR, 9)]
    {
        let cpu = Cpu { cr3, ..cpu() };
        for (write, code) in [(false, code), (true, code | 2)] {
            let found = translate(&cpu, &mut ram, address, write);
            assert_eq!(found, Err(PageFault { address, code }), "{cr3:#x} {address:#x}");
        }
    }
}

#[test]
fn without_paging_addresses_are_physical() {
    let cpu = Cpu { cr0: 1, ..Cpu::default() };
    let expected = Mapping { physical: LINEAR, supervisor: true, marked: true, ..Mapping::default() };
    assert_eq!(translate(&cpu, &mut [0; 0x4000], LINEAR, true), Ok(expected));
}

#[test]
fn a_mapping_tells_its_page_and_what_is_there() {
    /// Page size, and cache disable.
    const PS: u64 = 1 << 7;
    const PCD: u64 = 1 << 4;
    use {Memory as M, PageSize as S};
    // Entries of the third, the second and the last level; the reported page size and memory type.
    let (next, all) = (P | W | A | D, P | W | U | A | D);
    let rows = [
        ([0x3000 | next, 0x4000 | next, FRAME | all], S::K4, M::Cached),
        ([0x3000 | next, 0x4000 | next, FRAME | all | PCD], S::K4, M::Uncached),
        // Only PCD of the last entry is used.
        ([0x3000 | next | PCD, 0x4000 | next | PCD, FRAME | all], S::K4, M::Cached),
        ([0x3000 | next, 0x4000 | next, 0xf_0000 | all], S::K4, M::Device),
        ([0x3000 | next, 0x4000 | next, 0xf_0000 | all | PCD], S::K4, M::Device),
        ([0x3000 | next, all | PS, 0], S::M2, M::Cached),
        ([0x3000 | next, all | PS | PCD, 0], S::M2, M::Uncached),
        ([all | PS, 0, 0], S::G1, M::Cached),
        ([all | PS | PCD, 0, 0], S::G1, M::Uncached),
    ];
    for ([third, second, last], page, memory) in rows {
        let mut ram = tables(P | W | A, last);
        ram[0x2000..0x2008].copy_from_slice(&third.to_le_bytes());
        ram[0x3000..0x3008].copy_from_slice(&second.to_le_bytes());
        let found = translate(&cpu(), &mut ram, LINEAR, false).unwrap();
        assert_eq!((found.page, found.memory), (page, memory), "{third:#x} {second:#x} {last:#x}");
    }
}

#[test]
fn a_sample_has_each_register_in_its_place() {
    let cpu =
        Cpu { gpr: core::array::from_fn(|index| index as u64), rip: 100, rflags: 101, ..Cpu::default() };
    let Registers { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15 } = registers(&cpu);
    assert_eq!([rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((r8_r15, rip, rflags), ([8, 9, 10, 11, 12, 13, 14, 15], 100, 101));
}
