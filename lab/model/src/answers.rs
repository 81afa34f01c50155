//! The results of instructions that query a processor, and the interrupts that it raises.

/// #GP(0): the instruction that accessed the MSR faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;

/// The values of EAX, EBX, ECX and EDX after CPUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidResult {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// A performance-monitoring interrupt that the local APIC delivers now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pmi {
    /// Delivery mode Fixed, with this vector.
    Fixed(u8),
    /// Delivery mode NMI.
    Nmi,
}
