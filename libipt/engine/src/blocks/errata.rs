//! Errata that can be detected only with the traced code.
//!
//! Source: the specification updates of the 5th generation Intel Core processors (BDM64, "An Incorrect LBR or Intel
//! Processor Trace Packet May Be Recorded Following a Transactional Abort") and of the 6th (SKD022, "VM Entry That
//! Clears TraceEn May Generate a FUP"; SKL014, "Intel PT TIP.PGD May Not Have Target IP Payload").

use super::{
    block::{Block, BlockInsn},
    decoder::BlockDecoder,
    insns::{is_vm_entry, writes_cr3},
    run::Stop,
};
use crate::event::{flag, kind};
use pugmark_decoder_core::{config::RangeKind, insn::Class};

/// The maximum number of instructions to look at for the place of an abort.
const STEPS: usize = 256;

impl BlockDecoder<'_> {
    /// Handles SKD022: an apparent asynchronous end of tracing at a VM entry belongs to that instruction. Then changes
    /// the event, and returns true.
    pub(super) fn is_vm_entry_by_skd022(&mut self) -> bool {
        let [at, ip, ..] = self.event.variant;
        let fetched = self.memory.fetch(at, self.mode);
        let is_entry =
            self.options.events.errata.skd022 && fetched.is_ok_and(|fetched| is_vm_entry(&fetched.insn));
        if is_entry {
            self.event.kind = kind::DISABLED;
            self.event.variant[0] = ip;
        }
        is_entry
    }

    /// Goes to the instruction that disabled tracing, if the trace does not say where that was. By SKL014 that can be a
    /// direct branch out of the filter's ranges.
    pub(super) fn go_to_disabling_insn(&mut self, block: &mut Block) -> Result<BlockInsn, Stop> {
        let filter = self.options.filter;
        let is_filtered = filter.ranges.iter().any(|range| range.kind != RangeKind::Unused);
        if !self.options.events.errata.skl014 || !is_filtered {
            return self.go_to_insn(block, writes_cr3);
        }
        self.go_to_insn(block, |insn| {
            let direct = insn.target.filter(|_| insn.class != Class::CondJump);
            writes_cr3(insn) || direct.is_some_and(|target| !filter.contains(target))
        })
    }

    /// Handles BDM64: an abort at a place that the code does not reach means that the branch before it, the block's
    /// last instruction, led there.
    pub(super) fn jump_by_bdm64(&mut self, block: &Block) {
        let [at, flags, ..] = self.event.variant;
        let is_branch = block.last().is_some_and(|last| last.insn.class.is_branch());
        if self.options.events.errata.bdm64 && flags & flag::ABORTED != 0 && is_branch && !self.reaches(at) {
            self.ip = at;
        }
    }

    /// Returns true if the code reaches an address without the trace.
    fn reaches(&mut self, target: u64) -> bool {
        let mut ip = self.ip;
        for _ in 0..STEPS {
            if ip == target {
                return true;
            }
            let Ok(fetched) = self.memory.fetch(ip, self.mode) else { return false };
            let Some(next) = (BlockInsn { ip, insn: fetched.insn }).next_ip() else { return false };
            ip = next;
        }
        ip == target
    }
}
