use super::*;
use crate::cpuid::CpuIdResult;
use crate::fake::FakeMsr;

/// Instructions that save or restore nothing, and record their arguments.
#[derive(Debug, Default)]
struct Still {
    /// XSTATE_BV and XCOMP_BV that XSAVES writes.
    header: (u64, u64),
    /// CTL, XSTATE_BV and XCOMP_BV that each XRSTORS found.
    restored: Vec<(u64, u64, u64)>,
}

// SAFETY: there are no registers.
unsafe impl PtStateInstructions for Still {
    fn xsaves(&mut self, area: &mut PtStateArea) {
        area.put(512, self.header.0);
        area.put(520, self.header.1);
    }

    unsafe fn xrstors(&mut self, area: &PtStateArea) -> bool {
        self.restored.push((area.get(576), area.get(512), area.get(520)));
        true
    }
}

/// Returns the CPUID of a processor whose XSAVES saves PT state: leaf 1, sub-leaves 1 and 8 of leaf 0DH.
fn cpuid(leaf: u32, subleaf: u32) -> CpuIdResult {
    let zero = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    match (leaf, subleaf) {
        (1, _) => CpuIdResult { ecx: 1 << 27, ..zero },
        (0x0d, 1) => CpuIdResult { eax: 1 << 3, ecx: 1 << 8, ..zero },
        (0x0d, 8) => CpuIdResult { eax: 128, ecx: 1, ..zero },
        _ => zero,
    }
}

#[test]
fn an_area_is_aligned_and_large_enough() {
    assert_eq!((size_of::<PtStateArea>(), align_of::<PtStateArea>()), (704, 64));
    assert_eq!(PtStateArea::new().bytes().len(), 704);
}

/// Compares the order of the component with the one typed from the manual.
#[test]
fn each_register_is_where_the_manual_has_it() {
    let order = [0x570, 0x560, 0x561, 0x571, 0x572, 0x580, 0x581, 0x582, 0x583];
    for (n, address) in order.into_iter().enumerate() {
        assert_eq!(place(address), Some(576 + 8 * n), "{address:#x}");
    }
    // The other address ranges are no part of it.
    assert_eq!([0x584, 0x587, 0x38e, 0x1d9].map(place), [None; 4]);
}

#[test]
fn pt_state_is_used_where_the_processor_has_it_and_the_kernel_has_enabled_it() {
    let with = |leaf: (u32, u32), change: fn(&mut CpuIdResult), xss: u64| {
        let mut msr = FakeMsr::new();
        msr.set(0xda0, xss);
        let changed = move |l: u32, s: u32| {
            let mut answer = cpuid(l, s);
            if (l, s) == leaf {
                change(&mut answer);
            }
            answer
        };
        XsavedMsr::new(changed, msr, Still::default()).unused()
    };
    assert_eq!(with((0, 0), |_| (), 1 << 8), None);
    assert_eq!(with((0, 0), |_| (), 0x1900), None, "beside others");
    assert_eq!(with((1, 0), |one| one.ecx = !(1 << 27), 1 << 8), Some(NoPtState::Disabled));
    assert_eq!(with((0x0d, 1), |one| one.eax = !(1 << 3), 1 << 8), Some(NoPtState::NoXsaves));
    assert_eq!(with((0x0d, 1), |one| one.ecx = !(1 << 8), 1 << 8), Some(NoPtState::NoComponent));
    assert_eq!(with((0x0d, 8), |pt| pt.eax = 72, 1 << 8), None);
    assert_eq!(with((0x0d, 8), |pt| pt.eax = 129, 1 << 8), Some(NoPtState::Size { bytes: 129 }));
    assert_eq!(with((0, 0), |_| (), 0x800), Some(NoPtState::NotEnabled { xss: 0x800 }));
    let mut msr = FakeMsr::new();
    msr.fault_at = Some(0);
    let fault = GeneralProtection { address: 0xda0, written: None };
    assert_eq!(XsavedMsr::new(cpuid, msr, Still::default()).unused(), Some(NoPtState::Fault(fault)));
}

fn write(registers: &mut XsavedMsr<FakeMsr, Still>, address: u32, value: u64) {
    // SAFETY: the registers represent no hardware.
    unsafe { registers.wrmsr(address, value) }.unwrap();
}

#[test]
fn an_area_that_xsaves_left_out_as_initial_is_zeros() {
    let mut msr = FakeMsr::new();
    msr.set(0xda0, 1 << 8);
    let mut registers = XsavedMsr::new(cpuid, msr, Still { header: (0, 1 << 63 | 1 << 8), restored: vec![] });
    registers.area.bytes[576..].fill(0x55);
    write(&mut registers, 0x570, 0x2001);
    write(&mut registers, 0x570, 0x2000);
    assert_eq!(registers.rdmsr(0x560), Ok(0));
    write(&mut registers, 0x570, 0x2001);
    assert_eq!(registers.instructions.restored, [(0x2001, 1 << 8, 1 << 63 | 1 << 8)]);
    // From now on the registers are the processor's again.
    write(&mut registers, 0x560, 0x1000);
    assert_eq!(registers.msr.writes, [(0x570, 0x2001), (0x560, 0x1000)]);
}

#[test]
fn without_pt_state_each_access_is_the_registers_own() {
    let mut registers = XsavedMsr::new(cpuid, FakeMsr::new(), Still::default());
    let writes = [(0x570, 0), (0x560, 0x1000), (0x570, 1), (0x570, 0)];
    for (address, value) in writes {
        write(&mut registers, address, value);
    }
    assert_eq!(registers.msr.writes, writes);
    assert_eq!(registers.rdmsr(0x560), Ok(0x1000));
}

#[test]
fn reasons_are_told_by_the_bits_name() {
    let fault = GeneralProtection { address: 0xda0, written: None };
    for (why, text) in [
        (NoPtState::Disabled, "CPUID.1:ECX[27] (OSXSAVE) is 0"),
        (NoPtState::NoXsaves, "CPUID.0DH.1:EAX[3] (XSAVES) is not there"),
        (NoPtState::NoComponent, "CPUID.0DH.1:ECX[8] (PT state in IA32_XSS) is not there"),
        (NoPtState::Size { bytes: 256 }, "PT state has 256 bytes: CPUID.0DH.8:EAX"),
        (NoPtState::NotEnabled { xss: 0x800 }, "IA32_XSS is 0x800: bit 8 (PT state) is 0"),
        (NoPtState::Fault(fault), "RDMSR 0xda0 raised #GP(0)"),
    ] {
        assert_eq!(why.to_string(), text);
    }
}
