//! The entry of the local APIC's local vector table (LVT) that routes performance-monitoring interrupts.
//!
//! ```
//! use pugmark_kernel::lapic::{Delivery, LvtPc, Vector};
//!
//! // A PMI as NMI, and one by a vector, which must not be an exception's.
//! assert_eq!(LvtPc::new(Delivery::Nmi).0, 0x400);
//! let vector = Vector::new(0x40).expect("it is above the exceptions'");
//! assert_eq!(LvtPc::new(Delivery::Fixed(vector)).masked().0, 0x1_0040);
//! assert_eq!(Vector::new(14), None);
//! ```
//!
//! Source: SDM vol. 3, Advanced Programmable Interrupt Controller, "Local Vector Table" and "x2APIC Register Address
//! Space".

use crate::msr::{GeneralProtection, Msr, Register, RegisterValue, TypedMsr};
use core::ptr::NonNull;

/// The local APIC of one logical processor, reduced to the driver's needs: the LVT Performance Monitoring entry, and
/// the software enable bit.
///
/// # Safety
///
/// Reads and writes must access the local APIC of the logical processor that the driver runs on, the same one in all
/// calls. Only the entry may be written.
pub unsafe trait LocalApic {
    /// Returns whether software has enabled the local APIC: bit 8 of the spurious-interrupt vector register. While the
    /// bit is 0, the mask bits of all entries stay 1 in spite of writes, and no PMI arrives.
    ///
    /// Source: "Enabling or Disabling the Local APIC", "Local APIC State After It Has Been Software Disabled".
    ///
    /// # Errors
    ///
    /// The register raised #GP(0).
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection>;

    /// Reads the entry.
    ///
    /// # Errors
    ///
    /// The entry's register raised #GP(0).
    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection>;

    /// Writes the entry.
    ///
    /// # Errors
    ///
    /// The entry's register raised #GP(0).
    ///
    /// # Safety
    ///
    /// The entry must be masked, or deliver an interrupt that the kernel handles as an interrupt: an exception's vector
    /// would run a handler that expects an exception's frame.
    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection>;
}

// SAFETY: the reference forwards every call to the implementation that it refers to.
unsafe impl<A: LocalApic> LocalApic for &mut A {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        (**self).is_enabled()
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        (**self).lvt_pc()
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        // SAFETY: the caller promises the same.
        unsafe { (**self).set_lvt_pc(entry) }
    }
}

/// LVT Performance Monitoring: xAPIC offset `0x340`, x2APIC MSR `0x834`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LvtPc(pub u32);

impl LvtPc {
    /// Bit 16, Mask: the entry delivers nothing. Intel's processors set it when they deliver an interrupt.
    pub const MASK: u32 = 1 << 16;

    /// Returns an unmasked entry with this delivery mode.
    #[must_use]
    pub const fn new(delivery: Delivery) -> Self {
        match delivery {
            Delivery::Fixed(vector) => Self(vector.get() as u32),
            Delivery::Nmi => Self(0b100 << 8),
        }
    }

    /// Returns whether the mask bit is set.
    #[must_use]
    pub const fn is_masked(self) -> bool {
        self.0 & Self::MASK != 0
    }

    /// Returns the entry with the mask bit set.
    #[must_use]
    pub const fn masked(self) -> Self {
        Self(self.0 | Self::MASK)
    }
}

/// An interrupt vector that is not an exception's: 32 to 255. Vectors below 32 are reserved for exceptions, whose
/// handlers expect an exception's frame; the local APIC never delivers 0 to 15.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "Exception and Interrupt Vectors"; Advanced Programmable
/// Interrupt Controller, "Valid Interrupt Vectors".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector(u8);

impl Vector {
    /// Returns the vector with this number, or `None` below 32.
    #[must_use]
    pub const fn new(vector: u8) -> Option<Self> {
        if vector < 32 { None } else { Some(Self(vector)) }
    }

    /// Returns the vector's number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The delivery of a PMI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The interrupt with this vector; held pending while RFLAGS.IF is 0.
    Fixed(Vector),
    /// An NMI, which arrives even while interrupts are disabled.
    Nmi,
}

/// The physical address of the local APIC's registers after a reset.
const RESET_ADDRESS: u64 = 0xfee0_0000;

/// A local APIC in xAPIC mode, whose registers are memory-mapped.
#[derive(Debug)]
pub struct XApic {
    base: NonNull<u8>,
}

impl XApic {
    /// Takes the local APIC whose page is mapped at `base`.
    ///
    /// # Safety
    ///
    /// The local APIC's page (see IA32_APIC_BASE) is mapped there, writable and uncached, as long as the value lives,
    /// and the APIC is in xAPIC mode.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>) -> Self {
        Self { base }
    }

    /// Takes the local APIC in a kernel that has mapped its page at `offset`, and has left the local APIC where reset
    /// put it: at physical address FEE0_0000H.
    ///
    /// A boot loader that maps all RAM at an offset does not map this page, which is no RAM: the kernel maps it there
    /// itself, uncached. A processor in x2APIC mode needs no page ([`X2Apic`]).
    ///
    /// Source: "Local APIC Status and Location", "Relocating the Local APIC Registers".
    ///
    /// # Panics
    ///
    /// `offset` is a negative number that leads to address 0.
    ///
    /// # Safety
    ///
    /// As [`XApic::new`], of the page at physical address FEE0_0000H. IA32_APIC_BASE has that address.
    #[must_use]
    pub unsafe fn at_offset(offset: u64) -> Self {
        // Volatile accesses outside Rust allocations need only an address.
        let base = core::ptr::without_provenance_mut(offset.wrapping_add(RESET_ADDRESS) as usize);
        Self { base: NonNull::new(base).expect("the local APIC's page is not at address 0") }
    }

    fn register(&self) -> *mut u32 {
        self.register_at(0x340)
    }

    /// Returns the address of the register at `offset`, which must be a multiple of 16 below 4096.
    pub(crate) fn register_at(&self, offset: usize) -> *mut u32 {
        assert!(offset < 0x1000 && offset % 16 == 0);
        // The page need not be a Rust allocation, as other pointer arithmetic would require.
        self.base.as_ptr().wrapping_add(offset).cast()
    }
}

// SAFETY: the page belongs to the processor that accesses it, and the offset written is LVT Performance Monitoring.
unsafe impl LocalApic for XApic {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        // SAFETY: an aligned register of the page that the caller of `new` promised.
        let register = unsafe { self.register_at(0xf0).read_volatile() };
        Ok(SpuriousVector(register).is_enabled())
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        // SAFETY: an aligned register of the page that the caller of `new` promised.
        Ok(LvtPc(unsafe { self.register().read_volatile() }))
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        // SAFETY: an aligned register of the page that the caller of `new` promised.
        unsafe { self.register().write_volatile(entry.0) };
        Ok(())
    }
}

/// A local APIC in x2APIC mode, whose registers are MSRs.
#[derive(Debug)]
pub struct X2Apic<M> {
    pub(crate) msr: M,
}

impl<M: Msr> X2Apic<M> {
    /// Takes the MSRs of a local APIC in x2APIC mode; in xAPIC mode these MSRs raise #GP.
    pub const fn new(msr: M) -> Self {
        Self { msr }
    }
}

// SAFETY: the MSR written is LVT Performance Monitoring of the processor whose MSRs these are.
unsafe impl<M: Msr> LocalApic for X2Apic<M> {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        self.msr.read::<SpuriousVector>().map(SpuriousVector::is_enabled)
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        self.msr.read()
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        // SAFETY: this routes an interrupt; the processor writes to no memory but the handler's stack.
        unsafe { self.msr.write(entry) }
    }
}

/// The spurious-interrupt vector register: xAPIC offset `0xf0`, x2APIC MSR `0x80f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpuriousVector(u32);

impl SpuriousVector {
    /// Returns bit 8, APIC Software Enable/Disable.
    const fn is_enabled(self) -> bool {
        self.0 >> 8 & 1 == 1
    }
}

impl RegisterValue for SpuriousVector {
    fn from_bits(bits: u64) -> Self {
        Self(bits as u32)
    }

    fn to_bits(self) -> u64 {
        u64::from(self.0)
    }
}

impl Register for SpuriousVector {
    const ADDRESS: u32 = 0x80f;
}

impl RegisterValue for LvtPc {
    fn from_bits(bits: u64) -> Self {
        Self(bits as u32)
    }

    fn to_bits(self) -> u64 {
        u64::from(self.0)
    }
}

impl Register for LvtPc {
    const ADDRESS: u32 = 0x834;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_manuals_bits() {
        // Bits 7:0 vector, 10:8 delivery mode (000 fixed, 100 NMI), 16 mask.
        let table = [
            (LvtPc::new(Delivery::Fixed(Vector::new(0x42).unwrap())), 0x42),
            (LvtPc::new(Delivery::Nmi), 0x400),
            (LvtPc::new(Delivery::Nmi).masked(), 0x1_0400),
        ];
        for (entry, bits) in table {
            assert_eq!(entry.0, bits);
            assert_eq!(entry.is_masked(), bits >> 16 & 1 == 1);
        }
        assert_eq!(LvtPc::ADDRESS, 0x834);
    }

    #[test]
    fn no_vector_of_an_exception_is_one() {
        for vector in 0..=255 {
            assert_eq!(Vector::new(vector).map(Vector::get), (vector >= 32).then_some(vector), "{vector}");
        }
    }

    #[test]
    fn bit_8_of_the_spurious_vector_register_enables_the_local_apic() {
        for (value, enabled) in [(0x1ff, true), (0x100, true), (0xff, false), (0xffff_feff, false)] {
            let mut page = [0u32; 1024];
            page[0xf0 / 4] = value;
            // SAFETY: the page outlives the value, and plain memory can stand in for a register.
            let mut apic = unsafe { XApic::new(NonNull::new(page.as_mut_ptr().cast()).unwrap()) };
            assert_eq!(apic.is_enabled(), Ok(enabled), "{value:#x}");
            let mut msr = crate::fake::FakeMsr::new();
            msr.set(0x80f, u64::from(value));
            assert_eq!(X2Apic::new(msr).is_enabled(), Ok(enabled), "{value:#x}");
        }
    }

    #[test]
    fn an_offset_leads_to_the_page_where_reset_put_it() {
        for (offset, page) in [
            (0, 0xfee0_0000),
            (0xffff_8000_0000_0000, 0xffff_8000_fee0_0000),
            (0u64.wrapping_sub(0xfedf_f000), 0x1000),
        ] {
            // SAFETY: nothing accesses the page.
            let apic = unsafe { XApic::at_offset(offset) };
            assert_eq!(apic.register().addr(), page + 0x340, "{offset:#x}");
        }
    }

    #[test]
    fn the_xapic_entry_is_at_340h() {
        let mut page = [0u32; 1024];
        page[0x340 / 4] = 0x1_0000;
        // SAFETY: the page outlives the value, and plain memory can stand in for a register.
        let mut apic = unsafe { XApic::new(NonNull::new(page.as_mut_ptr().cast()).unwrap()) };
        assert_eq!(apic.lvt_pc(), Ok(LvtPc(0x1_0000)));
        // SAFETY: plain memory delivers nothing.
        unsafe { apic.set_lvt_pc(LvtPc::new(Delivery::Nmi)) }.unwrap();
        assert_eq!(page.iter().position(|&word| word != 0), Some(0x340 / 4));
        assert_eq!(page[0x340 / 4], 0x400);
    }

    #[test]
    fn no_register_is_outside_the_page_or_between_two() {
        let mut page = [0u32; 1024];
        // SAFETY: the page outlives the value, and plain memory can stand in for a register.
        let apic = unsafe { XApic::new(NonNull::new(page.as_mut_ptr().cast()).unwrap()) };
        for (offset, legal) in
            [(0, true), (0xff0, true), (0x1000, false), (0x1010, false), (0x348, false), (0x341, false)]
        {
            let found = std::panic::catch_unwind(|| apic.register_at(offset));
            assert_eq!(found.is_ok(), legal, "{offset:#x}");
        }
    }
}
