//! A guest of the machine, in VMX non-root operation.

use super::{CODE, HANDLER, Machine, kernel};
use pugmark_kernel::msr::RtitCtl;
use pugmark_model::{self as model, intel::VmxTransition};

/// The guest's CR3.
pub(crate) const GUEST_CR3: u64 = 0x9000;
/// The distance between the guest's code and the program's.
const GUEST: u64 = 0x10_0000;

impl Machine {
    /// Makes a machine that has VMX, and Intel PT in it; with XSAVES of PT state if `saved`.
    pub(crate) fn with_vmx(profile: &str, settings: model::intel::IntelSettings, saved: bool) -> Self {
        let machine = match saved {
            true => Self::with_pt_state(profile, settings, 4 << 20),
            false => Self::with_memory(profile, settings, 4 << 20),
        };
        let profile = model::intel::IntelProfile::by_name(profile).unwrap();
        let processor = model::intel::IntelProcessor::new(profile, settings).with_vmx();
        machine.state.borrow_mut().processor = if saved { processor.with_pt_state() } else { processor };
        if saved {
            machine.enable_pt_state(true);
        }
        machine
    }

    /// Enters a guest unknown to this kernel's units, and leaves it: the VM exit clears IA32_DEBUGCTL.
    pub(crate) fn vm_exit(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let host = kernel(HANDLER + 0x20);
        let exit =
            VmxTransition { before: host, after: host, tsc: state.tsc, rtit_ctl: None, concealed: true };
        state.processor.vm_entry(&exit, &mut &*self.ram).expect("a VM entry");
        state.processor.vm_exit(&exit, &mut &*self.ram).expect("a VM exit");
    }

    /// Enters the guest, which makes `jumps` jumps or is ended by a PMI, and leaves it. Returns the targets of the
    /// jumps, and whether a PMI came. If not `clears`, the VM exit leaves IA32_RTIT_CTL as it is.
    pub(crate) fn guest(&self, ctl: RtitCtl, jumps: usize, clears: bool) -> (Vec<u64>, bool) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let host = kernel(HANDLER + 0x20);
        let guest = |n: usize| model::Context {
            ip: CODE + GUEST + (n as u64 % 0x400) * 0x10,
            cr3: GUEST_CR3,
            cpl: 3,
            ..host
        };
        let mut transition = VmxTransition {
            before: host,
            after: guest(0),
            tsc: state.tsc,
            rtit_ctl: Some(ctl.bits()),
            concealed: false,
        };
        state.processor.vm_entry(&transition, &mut &*self.ram).expect("a VM entry");
        let (mut targets, mut pmi) = (Vec::new(), false);
        while targets.len() < jumps && !pmi {
            let (before, after) = (guest(targets.len()), guest(targets.len() + 1));
            targets.push(after.ip);
            if model::Processor::needs_each_instruction(&state.processor) {
                let bytes = &[0xff, 0xe0];
                let jump = model::Retired { before, after, bytes, tsc: state.tsc, operand: 0 };
                model::Processor::retire(&mut state.processor, &jump, &mut &*self.ram);
            }
            state.tsc += 10;
            pmi = model::Processor::take_interrupt(&mut state.processor).is_some();
        }
        transition = VmxTransition {
            before: guest(targets.len()),
            after: host,
            tsc: state.tsc,
            rtit_ctl: clears.then_some(0),
            concealed: false,
        };
        state.processor.vm_exit(&transition, &mut &*self.ram).expect("a VM exit");
        // A PMI in flight arrives in the host.
        pmi |= model::Processor::take_interrupt(&mut state.processor).is_some();
        (targets, pmi)
    }
}
