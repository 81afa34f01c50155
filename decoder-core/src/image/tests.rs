extern crate std;

use super::*;
use core::cell::RefCell;
use std::vec;

const ANY: AddressSpace = AddressSpace::Any;

fn section(base: u64, bytes: &[u8], space: AddressSpace) -> Section<'_> {
    Section { base, bytes, space }
}

#[test]
fn later_sections_hide_earlier_ones() {
    let (a, b, c) = ([0xaa; 16], [0xbb; 4], [0xcc; 8]);
    // a: 100..110, b: 104..108, c: 10e..116
    let sections = [section(0x100, &a, ANY), section(0x104, &b, ANY), section(0x10e, &c, ANY)];
    let image = Image::new(&sections);
    for (ip, base, byte, len) in [
        (0x100, 0x100, 0xaa, 4),
        (0x103, 0x100, 0xaa, 4),
        (0x104, 0x104, 0xbb, 4),
        (0x107, 0x104, 0xbb, 4),
        (0x108, 0x108, 0xaa, 6),
        (0x10d, 0x108, 0xaa, 6),
        (0x10e, 0x10e, 0xcc, 8),
        (0x115, 0x10e, 0xcc, 8),
    ] {
        let window = image.window(ip, None).unwrap();
        assert_eq!((window.base, window.bytes), (base, &[byte; 16][..len]), "{ip:#x}");
    }
    for ip in [0, 0xff, 0x116, u64::MAX] {
        assert_eq!(image.window(ip, None), None, "{ip:#x}");
    }
}

#[test]
fn an_address_space_sees_its_own_sections_and_those_of_all() {
    let sections = [
        section(0x100, &[0xaa], ANY),
        section(0x100, &[0xbb], AddressSpace::Cr3(0x2000)),
        section(0x200, &[0xcc], AddressSpace::Cr3(0x3000)),
    ];
    let image = Image::new(&sections);
    for (ip, cr3, byte) in [
        (0x100, Some(0x1000), Some(0xaa)),
        (0x100, Some(0x2000), Some(0xbb)),
        (0x100, Some(0x2018), Some(0xbb)),
        (0x100, Some(0x2020), Some(0xaa)),
        (0x100, None, Some(0xbb)),
        (0x200, Some(0x1000), None),
        (0x200, Some(0x3000), Some(0xcc)),
    ] {
        let window = image.window(ip, cr3);
        assert_eq!(window.map(|window| window.bytes[0]), byte, "{ip:#x} in {cr3:x?}");
    }
}

/// Uses random sections, in order and apart or not: a byte is that of the last section that has it.
#[test]
fn a_window_is_as_long_as_no_other_section_begins() {
    let mut rng = fastrand::Rng::with_seed(9);
    let bytes: [u8; 64] = core::array::from_fn(|at| at as u8);
    let spaces = [ANY, AddressSpace::Cr3(0x1000), AddressSpace::Cr3(0x2000)];
    let (mut apart, mut overlapping) = (0, 0);
    for _ in 0..3_000 {
        let mut sections = vec![];
        let mut base = rng.u64(..4);
        for _ in 0..rng.u8(..5) {
            let first = rng.usize(..60);
            let part = &bytes[first..first + rng.usize(..4)];
            sections.push(section(base, part, spaces[rng.usize(..3)]));
            base = (base + rng.u64(..6)).saturating_sub(u64::from(rng.u8(..8) == 0));
        }
        let image = Image::new(&sections);
        *(if image.apart { &mut apart } else { &mut overlapping }) += 1;
        for ip in 0..28 {
            // The section with the byte at `ip`, by the definition.
            let owner = |ip: u64| {
                sections.iter().rposition(|section| {
                    let here = ip.checked_sub(section.base).is_some_and(|at| at < section.bytes.len() as u64);
                    here && section.space.contains(Asid::from(Some(0x1000)))
                })
            };
            let expected = owner(ip).map(|number| {
                let base = (0..=ip).rev().take_while(|ip| owner(*ip) == Some(number)).last().unwrap();
                let len = (base..).take_while(|ip| owner(*ip) == Some(number)).count();
                let at = (base - sections[number].base) as usize;
                Window { base, bytes: &sections[number].bytes[at..at + len] }
            });
            let window = image.window(ip, Some(0x1000));
            assert_eq!(window, expected, "{ip} {sections:x?}");
            // If sections overlap, two may have the same bytes at the same address.
            let number = window.and_then(|window| image.section_of(&window));
            assert!(!image.apart || number == owner(ip), "{ip} {sections:x?}");
        }
    }
    assert!(apart > 300 && overlapping > 300, "{apart} {overlapping}");
}

#[test]
fn sections_end_with_the_address_space() {
    let bytes = [1, 2, 3, 4];
    let sections = [section(u64::MAX - 1, &bytes, ANY), section(0x10, &[], ANY)];
    let image = Image::new(&sections);
    assert_eq!(image.window(u64::MAX, None), Some(Window { base: u64::MAX - 1, bytes: &bytes[..2] }));
    assert_eq!(image.window(0, None), None);
    assert_eq!(image.window(0x10, None), None);
    assert_eq!(image.read(u64::MAX - 1, None, &mut [0; 8]), 2);
}

#[test]
fn reads_over_the_borders_of_sections() {
    let sections = [section(0x100, &[1, 2], ANY), section(0x102, &[3], ANY), section(0x104, &[5], ANY)];
    let mut out = [0; 4];
    let read = Image::new(&sections).read(0x101, None, &mut out);
    assert_eq!((read, out), (2, [2, 3, 0, 0]));
}

#[test]
fn a_window_gives_the_bytes_after_an_address_in_it() {
    let window = Window { base: 0x100, bytes: &[1, 2, 3] };
    for (ip, bytes) in [(0xff, &[][..]), (0x100, &[1, 2, 3]), (0x102, &[3]), (0x103, &[]), (0x104, &[])] {
        assert_eq!(window.from(ip), bytes, "{ip:#x}");
    }
}

#[test]
fn virtual_machines_see_their_own_sections() {
    use AddressSpace::{Cr3, Guest, Vmcs};
    let sections = [
        section(0x100, &[1], ANY),
        section(0x100, &[2], Vmcs(0x7000)),
        section(0x100, &[3], Guest { vmcs: 0x7000, cr3: 0x2000 }),
        section(0x200, &[4], Cr3(0x2000)),
    ];
    let image = Image::new(&sections);
    for (ip, cr3, vmcs, byte) in [
        (0x100, Some(0x1000), Some(0x6000), Some(1)),
        (0x100, Some(0x2000), Some(0x6000), Some(1)),
        (0x100, Some(0x1000), Some(0x7000), Some(2)),
        (0x100, Some(0x1000), Some(0x7abc), Some(2)),
        (0x100, Some(0x1000), None, Some(2)),
        (0x100, Some(0x2000), Some(0x7000), Some(3)),
        (0x100, Some(0x2000), None, Some(3)),
        (0x100, None, Some(0x7000), Some(3)),
        (0x200, Some(0x2000), Some(0x6000), Some(4)),
        (0x200, Some(0x2000), None, Some(4)),
        (0x200, Some(0x1000), Some(0x7000), None),
    ] {
        let space = Asid { cr3, vmcs };
        assert_eq!(image.window(ip, space).map(|window| window.bytes[0]), byte, "{ip:#x} in {space:x?}");
    }
}

#[test]
fn a_reader_is_asked_for_what_is_in_no_section() {
    let asked = RefCell::new(vec![]);
    // Everything below 200, and the last three bytes, in one address space.
    let read = |out: &mut [u8], ip: u64, space: Asid| {
        asked.borrow_mut().push((ip, out.len()));
        let end = if ip < 0x200 { 0x200 } else { u64::MAX };
        let known = space.cr3 == Some(0x5000) && !(0x200..u64::MAX - 2).contains(&ip);
        let len = if known { out.len().min((end - ip) as usize) } else { 0 };
        out[..len].fill(0xee);
        len
    };
    let sections = [section(0x104, &[1, 2], ANY), section(0x108, &[3], AddressSpace::Cr3(0x6000))];
    let image = Image::new(&sections).with_reader(CodeReader::new(&read));
    let none: &[(u64, usize)] = &[];
    for (ip, cr3, len, asks) in [
        (0x104, 0x5000, 2, none),
        (0x100, 0x5000, 4, &[(0x100, 4)]),
        (0x102, 0x5000, 8, &[(0x102, 2), (0x106, 4)]),
        (0x105, 0x6000, 1, &[(0x106, 2)]),
        (0x101, 0x6000, 0, &[(0x101, 3)]),
        (0x1fe, 0x5000, 2, &[(0x1fe, 8), (0x200, 6)]),
        (u64::MAX - 2, 0x5000, 2, &[(u64::MAX - 2, 3), (u64::MAX, 1)]),
    ] {
        let mut out = [0; 8];
        let room = if asks.is_empty() {
            2
        } else if ip == 0x100 {
            4
        } else {
            8
        };
        assert_eq!(image.read(ip, Some(cr3), &mut out[..room]), len, "{ip:#x}");
        assert_eq!(asked.take(), asks, "{ip:#x}");
    }
    assert!(image.has(0x100, Some(0x5000)) && !image.has(0x100, Some(0x6000)));
    // A reader that claims to have read more than was requested.
    let lies = |_: &mut [u8], _, _| usize::MAX;
    let image = Image::new(&[]).with_reader(CodeReader::new(&lies));
    assert_eq!(image.read(0x100, None, &mut [0; 8]), 8);
}

#[test]
fn sections_are_mapped_over_others_and_taken_away() {
    let (a, b) = ([0xaa; 16], [0xbb; 4]);
    let (cr3, other) = (AddressSpace::Cr3(0x5000), AddressSpace::Cr3(0x6000));
    let lower = section(0x100, &a, cr3);
    let over = section(0x104, &b, cr3);
    let all: &[(u64, usize)] = &[(0x100, 4), (0x104, 4), (0x108, 8)];
    for (addresses, space, windows) in [
        (0..u64::MAX, cr3, &[][..]),
        (0..u64::MAX, ANY, all),
        (0..u64::MAX, other, all),
        (0x105..0x105, cr3, all),
        (0..0x102, cr3, &[(0x102, 2), (0x104, 4), (0x108, 8)]),
        (0x10c..0x200, cr3, &[(0x100, 4), (0x104, 4), (0x108, 4)]),
        // Hidden sections are removed as well.
        (0x104..0x108, cr3, &[(0x100, 4), (0x108, 8)]),
        (0x106..0x10a, cr3, &[(0x100, 4), (0x104, 2), (0x10a, 6)]),
    ] {
        let mut memory = [Section::EMPTY; 3];
        let mut sections = Sections::new(&mut memory);
        sections.map(lower).unwrap();
        sections.map(over).unwrap();
        sections.unmap(addresses.clone(), space).unwrap();
        let mut found = vec![];
        let mut ip = 0x100;
        while ip < 0x110 {
            match sections.image().window(ip, Some(0x5000)) {
                Some(window) => {
                    assert_eq!(window.base, ip, "{addresses:x?}");
                    found.push((ip, window.bytes.len()));
                    ip += window.bytes.len() as u64;
                }
                None => ip += 1,
            }
        }
        assert_eq!(found, windows, "{addresses:x?} in {space:x?}");
    }

    let mut memory = [Section::EMPTY; 3];
    let mut sections = Sections::new(&mut memory);
    for section in [lower, over, Section { space: other, ..lower }] {
        assert_eq!(sections.map(section), Ok(()));
    }
    assert_eq!(sections.map(lower), Err(Full));
    // The section would be split in two.
    let before = sections.as_slice().to_vec();
    assert_eq!(sections.unmap(0x101..0x102, cr3), Err(Full));
    assert_eq!(sections.as_slice(), before);
    assert!(sections.remove(&over) && !sections.remove(&over));
    assert_eq!(sections.image().window(0x104, Some(0x5000)).unwrap().bytes, a);
    // The section after it has the same addresses in another space.
    assert!(sections.remove(&lower));
    assert_eq!(sections.as_slice(), [Section { space: other, ..lower }]);
    assert_eq!(sections.map(lower), Ok(()));
    assert_eq!((sections.remove_space(cr3), sections.remove_space(cr3)), (1, 0));
    assert_eq!(sections.as_slice(), [Section { space: other, ..lower }]);
}
