//! Walks the guest's page tables.

use super::cpu::{Cpu, cr0, cr4, efer, rflags};
use super::exception::Exception;
use super::memory::GuestMemory;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads data.
    Read,
    /// Writes data.
    Write,
    /// Fetches an instruction.
    Execute,
}

/// The privilege of an access.
///
/// Source: SDM vol. 3, Paging, "Access Rights".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// A user-mode access: CPL is 3.
    User,
    /// An explicit supervisor-mode access: CPL is below 3; RFLAGS.AC lifts SMAP.
    Supervisor,
    /// An implicit supervisor-mode access, to a descriptor table or a TSS at any CPL; nothing lifts SMAP.
    Implicit,
}

/// One access to linear memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The kind of access.
    pub kind: AccessKind,
    /// Its privilege.
    pub privilege: Privilege,
}

impl Access {
    /// Returns an access by the current instruction, with the rights of the current privilege level.
    pub const fn at_cpl(cpu: &Cpu, kind: AccessKind) -> Self {
        let privilege = if cpu.cpl == 3 { Privilege::User } else { Privilege::Supervisor };
        Self { kind, privilege }
    }

    /// Returns an access to a descriptor table or a TSS.
    pub const fn implicit(kind: AccessKind) -> Self {
        Self { kind, privilege: Privilege::Implicit }
    }
}

/// The result of a page walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The guest-physical address.
    pub physical: u64,
    /// The page tables also allow user-mode accesses.
    pub user: bool,
    /// All entries of the walk were already marked as accessed, and for a write the last one as dirty.
    pub marked: bool,
    /// Number of address bits within the page.
    pub page_bits: u32,
    /// PCD is set in the last entry: the page is not cached, given the reset value of the PAT register.
    pub uncached: bool,
}

/// Returns the guest-physical address of `linear`, without the other results of [`walk`].
///
/// Errors: as [`walk`].
pub fn translate<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    linear: u64,
    access: Access,
) -> Result<u64, Exception> {
    Ok(walk(cpu, memory, linear, access)?.physical)
}

/// Walks the guest's page tables for `linear`.
///
/// Sets accessed and dirty flags as the processor does, but only on success. Without paging the result is `linear`
/// itself. Bits above the linear address width are not checked: use [`Cpu::is_canonical`] for that. A table at an
/// address without memory reads as all ones, so its reserved bits are set.
///
/// Errors: the page fault.
///
/// Source: SDM vol. 3, Paging, "32-Bit Paging", "PAE Paging", "4-Level Paging and 5-Level Paging", "Access Rights",
/// "Page-Fault Exceptions", "Accessed and Dirty Flags".
pub fn walk<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    linear: u64,
    access: Access,
) -> Result<Mapped, Exception> {
    let linear = if cpu.is_long_mode() { linear } else { linear & 0xffff_ffff };
    if cpu.cr0 & cr0::PG == 0 {
        return Ok(Mapped { physical: linear, user: false, marked: true, page_bits: 12, uncached: false });
    }
    let wide = cpu.is_long_mode() || cpu.cr4 & cr4::PAE != 0;
    loop {
        let once = if wide { walk_wide } else { walk_narrow };
        // Walks again if another processor has changed an entry in the meantime.
        if let Some(mapped) = once(cpu, memory, linear, access)? {
            return Ok(mapped);
        }
    }
}

/// A few translations of instruction fetches, cached between steps.
///
/// It holds only translations that the processor's own TLB may hold, and must be [flushed](Tlb::flush) whenever that
/// TLB is: on INVLPG, INVPCID, MOV to CR3 and CR4, MOV to CR0, WRMSR of IA32_EFER, and after any period of execution in
/// which these were not intercepted. The cache detects writes of CR0, CR3, CR4 and EFER, and changes of the privilege
/// level, by itself. If a guest changes a mapping in place without INVLPG, the stale mapping is used until then, as the
/// manual allows for a processor.
#[derive(Clone, Debug)]
pub struct Tlb {
    context: [u64; 4],
    entries: [Option<(u64, u64)>; Self::ENTRIES],
}

impl Tlb {
    const ENTRIES: usize = 16;

    /// Returns an empty TLB.
    pub const fn new() -> Self {
        Self { context: [0; 4], entries: [None; Self::ENTRIES] }
    }

    /// Flushes all translations.
    pub fn flush(&mut self) {
        self.entries = [None; Self::ENTRIES];
    }

    /// Translates an instruction fetch at the current privilege level, like [`translate`].
    pub fn translate_fetch<M: GuestMemory + ?Sized>(
        &mut self,
        cpu: &Cpu,
        memory: &mut M,
        linear: u64,
    ) -> Result<u64, Exception> {
        let context = [cpu.cr3, cpu.cr4, cpu.cr0, cpu.efer << 2 | u64::from(cpu.cpl)];
        if self.context != context {
            self.context = context;
            self.flush();
        }
        let page = linear >> 12;
        let slot = page as usize % Self::ENTRIES;
        if let Some((held, frame)) = self.entries[slot]
            && held == page
        {
            return Ok(frame | linear & 0xfff);
        }
        let physical = translate(cpu, memory, linear, Access::at_cpl(cpu, AccessKind::Execute))?;
        self.entries[slot] = Some((page, physical & !0xfff));
        Ok(physical)
    }
}

impl Default for Tlb {
    fn default() -> Self {
        Self::new()
    }
}

/// Bits of a page-fault error code. Source: SDM vol. 3, Paging, "Page-Fault Exceptions".
mod code {
    pub(super) const P: u32 = 1 << 0;
    pub(super) const WR: u32 = 1 << 1;
    pub(super) const US: u32 = 1 << 2;
    pub(super) const RSVD: u32 = 1 << 3;
    pub(super) const ID: u32 = 1 << 4;
}

/// Bits of a paging-structure entry, of all three formats.
mod entry {
    pub(super) const P: u64 = 1 << 0;
    pub(super) const RW: u64 = 1 << 1;
    pub(super) const US: u64 = 1 << 2;
    pub(super) const PCD: u64 = 1 << 4;
    pub(super) const A: u64 = 1 << 5;
    pub(super) const D: u64 = 1 << 6;
    pub(super) const PS: u64 = 1 << 7;
    pub(super) const XD: u64 = 1 << 63;
    pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

/// The entries of a walk. They are marked if the walk succeeds.
struct PageWalk {
    entries: [(u64, u64); 5],
    len: usize,
}

impl PageWalk {
    const fn new() -> Self {
        Self { entries: [(0, 0); 5], len: 0 }
    }

    fn push(&mut self, address: u64, value: u64) {
        self.entries[self.len] = (address, value);
        self.len += 1;
    }

    /// Sets A in all entries, and for a write D in the last one. Like P, both flags are in the low byte of every
    /// format. Returns `false` if an entry has changed since it was read.
    fn mark<M: GuestMemory + ?Sized>(&self, memory: &mut M, kind: AccessKind) -> bool {
        for (address, value, flags) in self.unmarked(kind) {
            // A write to an address without memory is lost.
            if memory.replace(address, value as u8, (value | flags) as u8) == Some(false) {
                return false;
            }
        }
        true
    }

    /// Returns the entries whose flags must be set: address, value and flags.
    fn unmarked(&self, kind: AccessKind) -> impl Iterator<Item = (u64, u64, u64)> {
        let last = self.len.saturating_sub(1);
        let entries = self.entries[..self.len].iter().enumerate();
        entries.filter_map(move |(index, &(address, value))| {
            let dirty = if index == last && kind == AccessKind::Write { entry::D } else { 0 };
            let flags = entry::A | dirty;
            (value & flags != flags).then_some((address, value, flags))
        })
    }

    /// Ends a walk that found a physical address in a page with `page_bits` offset bits and these rights.
    fn mapped<M: GuestMemory + ?Sized>(
        &self,
        memory: &mut M,
        kind: AccessKind,
        rights: u64,
        (physical, page_bits): (u64, u32),
    ) -> Option<Mapped> {
        let marked = self.unmarked(kind).next().is_none();
        let uncached = self.entries[..self.len].last().is_some_and(|(_, value)| value & entry::PCD != 0);
        let mapped = Mapped { physical, user: rights & entry::US != 0, marked, page_bits, uncached };
        self.mark(memory, kind).then_some(mapped)
    }
}

/// Walks 4-level, 5-level and PAE paging: entries of 64 bits. Returns `None` if another processor has changed an entry.
fn walk_wide<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    linear: u64,
    access: Access,
) -> Result<Option<Mapped>, Exception> {
    let long = cpu.is_long_mode();
    let levels = match (long, cpu.cr4 & cr4::LA57 != 0) {
        (true, true) => 5,
        (true, false) => 4,
        (false, _) => 3,
    };
    let reserved = reserved_address_bits(cpu) | if cpu.efer & efer::NXE == 0 { entry::XD } else { 0 };
    let mut table = if long { cpu.cr3 & entry::ADDRESS } else { cpu.cr3 & 0xffff_ffe0 };
    let mut rights = entry::RW | entry::US;
    let mut no_execute = 0;
    let mut trail = PageWalk::new();
    for level in (1..=levels).rev() {
        let shift = 12 + 9 * (level - 1);
        let address = table + (linear >> shift & 0x1ff) * 8;
        let value = read_entry::<8, M>(memory, address);
        if value & entry::P == 0 {
            return Err(fault(cpu, linear, access, 0));
        }
        // The four entries of a PAE page-directory-pointer table have no rights and no accessed or dirty flags, and do
        // not map pages.
        let pae_pointer = !long && level == 3;
        let leaf = level == 1 || level <= 3 && value & entry::PS != 0;
        let mut must_be_zero = reserved;
        if pae_pointer {
            must_be_zero |= 0x1e6 | entry::XD;
        } else if !long {
            must_be_zero |= 0x7ff0_0000_0000_0000;
        }
        if level > 3 || pae_pointer {
            must_be_zero |= entry::PS;
        } else if leaf {
            // Bit 12 of a large page is PAT. A page of 4 KiB has no such bits.
            must_be_zero |= ((1 << shift) - 1) & !0x1fff;
        }
        if value & must_be_zero != 0 {
            return Err(fault(cpu, linear, access, code::P | code::RSVD));
        }
        if !pae_pointer {
            rights &= value;
            no_execute |= value & entry::XD;
            trail.push(address, value);
        }
        if leaf {
            if !permits(cpu, access, rights, no_execute != 0) {
                return Err(fault(cpu, linear, access, code::P));
            }
            let offset = (1 << shift) - 1;
            let physical = value & entry::ADDRESS & !offset | linear & offset;
            return Ok(trail.mapped(memory, access.kind, rights, (physical, shift)));
        }
        table = value & entry::ADDRESS;
    }
    // Unreachable: the last iteration has level 1, which is always a leaf.
    Err(fault(cpu, linear, access, 0))
}

/// Walks 32-bit paging: two levels, entries of 32 bits. Returns `None` as [`walk_wide`] does.
fn walk_narrow<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    linear: u64,
    access: Access,
) -> Result<Option<Mapped>, Exception> {
    let mut trail = PageWalk::new();
    let directory = (cpu.cr3 & 0xffff_f000) + (linear >> 22 & 0x3ff) * 4;
    let value = read_entry::<4, M>(memory, directory);
    if value & entry::P == 0 {
        return Err(fault(cpu, linear, access, 0));
    }
    trail.push(directory, value);
    let (rights, physical, page_bits) = if value & entry::PS != 0 && cpu.cr4 & cr4::PSE != 0 {
        // PSE-36: bits 20:13 are bits 39:32 of the address; bit 21 and the bits above the address width are reserved.
        let high = (value >> 13 & 0xff) << 32;
        if value & 1 << 21 != 0 || high & reserved_address_bits(cpu) != 0 {
            return Err(fault(cpu, linear, access, code::P | code::RSVD));
        }
        (value, high | value & 0xffc0_0000 | linear & 0x3f_ffff, 22)
    } else {
        let table = (value & 0xffff_f000) + (linear >> 12 & 0x3ff) * 4;
        let leaf = read_entry::<4, M>(memory, table);
        if leaf & entry::P == 0 {
            return Err(fault(cpu, linear, access, 0));
        }
        trail.push(table, leaf);
        (value & leaf, leaf & 0xffff_f000 | linear & 0xfff, 12)
    };
    if !permits(cpu, access, rights, false) {
        return Err(fault(cpu, linear, access, code::P));
    }
    Ok(trail.mapped(memory, access.kind, rights, (physical, page_bits)))
}

fn read_entry<const N: usize, M: GuestMemory + ?Sized>(memory: &M, address: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.load(address, &mut bytes[..N]);
    u64::from_le_bytes(bytes)
}

/// Returns a mask of bits 51 down to the physical address width.
fn reserved_address_bits(cpu: &Cpu) -> u64 {
    let width = match cpu.physical_address_bits {
        0 => 52,
        bits => bits.clamp(32, 52),
    };
    entry::ADDRESS & !((1 << width) - 1)
}

/// Returns whether the page's `rights` permit the access.
///
/// Source: SDM vol. 3, Paging, "Determination of Access Rights".
fn permits(cpu: &Cpu, access: Access, rights: u64, no_execute: bool) -> bool {
    let user_page = rights & entry::US != 0;
    let writable = rights & entry::RW != 0;
    let execute = access.kind == AccessKind::Execute;
    if execute && no_execute && cpu.efer & efer::NXE != 0 {
        return false;
    }
    if access.privilege == Privilege::User {
        return user_page && (access.kind != AccessKind::Write || writable);
    }
    if user_page {
        if execute {
            return cpu.cr4 & cr4::SMEP == 0;
        }
        let lifted = access.privilege == Privilege::Supervisor && cpu.rflags & rflags::AC != 0;
        if cpu.cr4 & cr4::SMAP != 0 && !lifted {
            return false;
        }
    }
    access.kind != AccessKind::Write || writable || cpu.cr0 & cr0::WP == 0
}

fn fault(cpu: &Cpu, linear: u64, access: Access, code: u32) -> Exception {
    let mut code = code;
    match access.kind {
        AccessKind::Read => {}
        AccessKind::Write => code |= code::WR,
        // The flag exists only if execution can be forbidden at all.
        AccessKind::Execute => {
            let xd = cpu.efer & efer::NXE != 0 && (cpu.is_long_mode() || cpu.cr4 & cr4::PAE != 0);
            if xd || cpu.cr4 & cr4::SMEP != 0 {
                code |= code::ID;
            }
        }
    }
    if access.privilege == Privilege::User {
        code |= code::US;
    }
    Exception::page_fault(code, linear)
}

#[cfg(test)]
mod tests;
