//! The generation of packets from instructions and events.
//!
//! Packets report control flow: TNT (taken/not taken) has the outcomes of conditional branches, TIP (target IP) the
//! target of an indirect branch or an event, FUP (flow update) the source of an event. PSB+ is a group of packets at
//! which a decoder can begin.
//!
//! Source: SDM vol. 3, Intel Processor Trace, the table "Packet Generation under Different Enable Conditions", whose
//! cases the functions here follow.
//!
//! Implementation-specific behaviour, and the choices of the model:
//! - FilterEn and TraceStop are evaluated at taken branches, far transfers, events and MOV to CR3, not when execution
//!   runs sequentially across the boundary of a range. They depend on the next instruction's address. Only TraceStop at
//!   a MOV to CR3 depends on the address of the MOV itself, as in the table.
//! - IA-32e mode, which decides about CR3\[11:5\], is derived from the code: code with CPL above 0 counts as
//!   compatibility mode if the last kernel code was 64-bit code.
//! - Any packet except CYC forces out the TNT buffer and the TIPs deferred after it.
//! - RETs are never compressed with DisTNT.
//! - A conditional branch to the next instruction counts as not taken.
//! - MTCs that were missed between two instructions are not emitted later; the next one has the newest value.
//!
//! The configurable choices are in [`IntelSettings`].

mod buffer;
mod enables;
mod event_trace;
mod init;
mod ip_compression;
mod near_branch;
mod overflow;
mod power;
mod psb;
mod ret_stack;
mod sample;
mod stream;
mod timing;
mod tnt;
mod transactions;
mod vmcs;

use pugmark_decoder_core::packet::Packet;
use pugmark_decoder_core::packet::{Ip, ModeExec, Pip, Ptw, PtwPayload};

use crate::branch::{DecodedInstruction, InstructionKind};
use crate::intel::registers::{cap_ebx, ctl, status};
use crate::intel::{IntelProfile, IntelSettings};
use crate::{Context, Delivery, ExecMode, Retired};
use enables::TraceFilter;
use ret_stack::RetStack;
use stream::PacketStream;

/// The representation of a control transfer in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferKind {
    /// None: the target is known from the code.
    Direct,
    /// One TNT bit: a taken conditional branch or a compressed RET.
    Outcome,
    /// A TIP that may be deferred: near indirect JMP and CALL.
    Indirect,
    /// A TIP: an uncompressed RET.
    Return,
    /// PIP, MODE.Exec, TIP: a far transfer.
    Far,
    /// A FUP, then the packets of a far transfer: an interrupt or exception.
    Event,
    /// The same with a PIP in any case: an INIT after which execution goes on.
    Init,
    /// A VM entry, or with a FUP before it a VM exit: the packets of a far transfer, with a PIP unless it is concealed.
    Vmx { exit: bool, concealed: bool },
}

impl TransferKind {
    /// Returns true if a FUP names the source.
    const fn is_asynchronous(self) -> bool {
        matches!(self, Self::Event | Self::Init | Self::Vmx { exit: true, .. })
    }
}

/// Generates packets while TraceEn is set.
#[derive(Debug)]
pub(crate) struct Packetizer {
    stream: PacketStream,
    settings: IntelSettings,
    core_ratio: u8,
    counts_packet_bytes: bool,
    /// IA32_RTIT_STATUS has FilterEn.
    shows_filter_en: bool,
    ctl: u64,
    filter: TraceFilter,
    trigger_en: bool,
    context_en: bool,
    filter_en: bool,
    /// IA32_EFER.LMA, as derived from the code that runs.
    ia_32e: bool,
    /// The address of the current VMCS, all ones if there is none; `None` outside VMX operation.
    vmcs: Option<u64>,
    /// VMX non-root operation, unless it is concealed.
    non_root: bool,
    /// VMX non-root operation that is concealed.
    concealed: bool,
    /// A transaction executes.
    in_tx: bool,
    stopped: bool,
    /// The mode in the last MODE.Exec since the last PSB.
    mode: Option<ModeExec>,
    /// The processor is in a C-state deeper than C0.0, since HLT or MWAIT.
    in_c_state: bool,
    /// The state in which the processor waits for a start-up interrupt, after INIT.
    waiting: Option<Context>,
    lost: overflow::LostPackets,
    rets: RetStack,
}

impl Packetizer {
    pub(crate) fn new(profile: &IntelProfile, settings: IntelSettings) -> Self {
        Self {
            stream: PacketStream::new(profile, &settings),
            settings,
            core_ratio: settings.core_ratio.unwrap_or(profile.non_turbo_ratio),
            counts_packet_bytes: profile.counts_packet_bytes(),
            shows_filter_en: profile.feature(cap_ebx::IP_FILTERING),
            ctl: 0,
            filter: TraceFilter::new(0, 0, &[0; 8]),
            trigger_en: false,
            context_en: false,
            filter_en: false,
            ia_32e: false,
            vmcs: None,
            non_root: false,
            concealed: false,
            in_tx: false,
            stopped: false,
            mode: None,
            in_c_state: false,
            waiting: None,
            lost: overflow::LostPackets::default(),
            rets: RetStack::new(),
        }
    }

    /// Returns FilterEn, ContextEn, TriggerEn and PacketByteCnt as in IA32_RTIT_STATUS. Without IP filtering FilterEn
    /// is always set inside the processor, and its bit is reserved (SDM vol. 4, the tables of IA-32 architectural MSRs
    /// and of Broadwell's MSRs).
    pub(crate) fn status(&self) -> u64 {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        let count = if self.counts_packet_bytes { u64::from(self.stream.since_psb()) } else { 0 };
        flag(self.filter_en && self.shows_filter_en, status::FILTER_EN)
            | flag(self.context_en, status::CONTEXT_EN)
            | flag(self.trigger_en, status::TRIGGER_EN)
            | count.min(status::PACKET_BYTE_CNT_MAX) << status::PACKET_BYTE_CNT_SHIFT
    }

    /// Sets PacketByteCnt, which software wrote.
    pub(crate) fn set_packet_byte_cnt(&mut self, count: u32) {
        self.stream.set_since_psb(count);
    }

    /// Returns whether a TraceStop range was entered since the last call.
    pub(crate) fn take_stopped(&mut self) -> bool {
        core::mem::take(&mut self.stopped)
    }

    /// Ends packet generation because output stopped or met an error: packets not written yet are lost.
    pub(crate) fn end_by_output(&mut self) {
        self.trigger_en = false;
        self.stream.discard_buffered();
        self.lost = overflow::LostPackets::default();
    }

    /// Returns the number of bytes in the internal buffer.
    #[inline]
    pub(crate) fn buffered(&self) -> usize {
        self.stream.buffer.len()
    }

    /// Returns the oldest bytes of the internal buffer, at most `most`.
    pub(crate) fn oldest_bytes(&self, most: usize) -> &[u8] {
        self.stream.buffer.oldest_bytes(most)
    }

    /// Removes the oldest `count` bytes, which left the internal buffer.
    pub(crate) fn consume(&mut self, count: usize) {
        self.stream.buffer.consume(count);
    }

    /// Starts tracing: a WRMSR set TraceEn with Error and Stopped clear (cases 2a to 2e). `next` is the state after the
    /// WRMSR.
    pub(crate) fn enable(&mut self, ctl: u64, filter: (u64, &[u64; 8]), next: &Context, tsc: u64, psb: bool) {
        self.ctl = ctl;
        self.filter = TraceFilter::new(ctl, filter.0, filter.1);
        self.in_c_state = false;
        self.waiting = None;
        // WRMSR aborts a transaction.
        self.in_tx = false;
        self.lost = overflow::LostPackets::default();
        self.rets.clear();
        self.stream.start(ctl, tsc, self.settings.deferred_tips);
        self.trigger_en = true;
        self.set_context(next);
        let stops = self.context_en && self.filter.stops(next.ip);
        self.filter_en = !stops && self.filter.passes(next.ip);
        let psb = psb || !self.counts_packet_bytes || self.stream.since_psb() == 0;
        if psb && self.settings.psb_before_pge {
            self.psb_plus(next, false);
        } else if !psb {
            self.timestamp();
        }
        if self.packet_en() {
            self.mode = None;
            self.mode_exec_at(next, Packet::TipPge);
        }
        if psb && !self.settings.psb_before_pge {
            self.psb_plus(next, self.packet_en());
        }
        if stops {
            self.trace_stop();
        }
    }

    /// Ends tracing: a WRMSR clears TraceEn (cases 3a, 3b). `at` is the state before the WRMSR.
    pub(crate) fn disable(&mut self, at: &Context, tsc: u64) {
        if !self.trigger_en {
            return;
        }
        self.stream.tick(tsc);
        if self.packet_en() {
            self.stream.ip(at.ip, Packet::Fup);
            self.stream.packet(Packet::TipPgd(Ip::Suppressed));
        }
        self.trigger_en = false;
    }

    /// Returns true if a PSB is due: PacketByteCnt has crossed the period.
    #[inline]
    pub(crate) fn psb_due(&self) -> bool {
        self.stream.since_psb() >= 2048 << ctl::psb_freq(self.ctl)
    }

    /// Handles an instruction that retired.
    pub(crate) fn retire(&mut self, retired: &Retired, decoded: DecodedInstruction) {
        if !self.trigger_en {
            return;
        }
        self.wake(retired.tsc, false);
        self.stream.tick(retired.tsc);
        self.instruction(retired, decoded);
    }

    /// Handles the delivery of an interrupt or exception (cases 11 to 13).
    pub(crate) fn deliver(&mut self, delivery: &Delivery) {
        if !self.trigger_en {
            return;
        }
        self.wake(delivery.tsc, delivery.kind == crate::DeliveryKind::Interrupt);
        self.stream.tick(delivery.tsc);
        self.event_of_delivery(delivery);
        self.transfer(TransferKind::Event, &delivery.before, &delivery.after);
    }

    /// Notes a VM entry or a VM exit. `kind`: whether it is an entry, and whether it is concealed.
    pub(crate) fn set_non_root(&mut self, kind: (bool, bool)) {
        let (entry, concealed) = kind;
        self.non_root = entry && !concealed;
        self.concealed = entry && concealed;
        self.vmcs.get_or_insert(vmcs::NONE);
    }

    /// Handles a VM entry or a VM exit (cases 16 and 17) while TraceEn is set. `kind`: whether it is an entry, and
    /// whether it is concealed.
    pub(crate) fn vmx_transition(&mut self, before: &Context, after: &Context, tsc: u64, kind: (bool, bool)) {
        let (entry, concealed) = kind;
        self.set_non_root(kind);
        if !self.trigger_en {
            return;
        }
        self.wake(tsc, false);
        self.stream.tick(tsc);
        self.transfer(TransferKind::Vmx { exit: !entry, concealed }, before, after);
    }

    /// Runs between two instructions: resolves an overflow, and inserts a PSB+ when it is due.
    pub(crate) fn between_instructions(&mut self, next: &Context) {
        if self.stream.overflowed() {
            if self.stream.can_resume() {
                self.resolve_overflow(next);
            }
        } else if self.trigger_en && self.psb_due() {
            self.psb_plus(next, self.packet_en());
        }
    }

    fn instruction(&mut self, retired: &Retired, decoded: DecodedInstruction) {
        let Retired { before, after, .. } = retired;
        let next_ip = decoded.next_ip(before);
        match decoded.kind {
            InstructionKind::Other => {
                if before.iflag != after.iflag {
                    self.interrupt_flag_changed(after);
                }
            }
            InstructionKind::Conditional if after.ip == next_ip => {
                if self.packet_en() && self.ctl & ctl::DIS_TNT == 0 {
                    self.stream.branch_outcome(false);
                }
            }
            InstructionKind::Conditional => self.transfer(TransferKind::Outcome, before, after),
            InstructionKind::DirectJump => self.transfer(TransferKind::Direct, before, after),
            InstructionKind::DirectCall { to_next } => {
                if !to_next {
                    self.call(next_ip);
                }
                self.transfer(TransferKind::Direct, before, after);
            }
            InstructionKind::IndirectJump => self.transfer(TransferKind::Indirect, before, after),
            InstructionKind::IndirectCall => {
                self.call(next_ip);
                self.transfer(TransferKind::Indirect, before, after);
            }
            InstructionKind::Return => {
                let shape =
                    if self.compresses(after.ip) { TransferKind::Outcome } else { TransferKind::Return };
                self.transfer(shape, before, after);
            }
            InstructionKind::Far => self.transfer(TransferKind::Far, before, after),
            InstructionKind::InterruptReturn => {
                self.event_of_iret(before);
                self.transfer(TransferKind::Far, before, after);
            }
            InstructionKind::MovCr3 => self.mov_cr3(before, after),
            InstructionKind::Ptwrite { eight } => self.ptwrite(before, eight, retired.operand),
            InstructionKind::Hlt => self.sleep(before, None),
            InstructionKind::Mwait => self.sleep(before, Some(retired.operand)),
        }
    }

    fn packet_en(&self) -> bool {
        self.trigger_en && self.context_en && self.filter_en && self.ctl & ctl::BRANCH_EN != 0
    }

    /// Sets ContextEn by the state `at`, in which the next instruction executes.
    fn set_context(&mut self, at: &Context) {
        self.ia_32e = at.mode == ExecMode::Bits64 || self.ia_32e && at.cpl != 0;
        self.context_en = self.filter.context(at, self.ia_32e);
    }

    fn call(&mut self, next_ip: u64) {
        if self.packet_en() {
            self.rets.push(next_ip);
        }
    }

    fn compresses(&mut self, target: u64) -> bool {
        let uncompressed = ctl::DIS_RETC | ctl::DIS_TNT;
        self.packet_en()
            && self.ctl & uncompressed == 0
            && self.rets.pop(target, self.settings.return_elsewhere)
    }

    /// Handles a taken branch or an event: updates the enables, and emits the packets that they require.
    fn transfer(&mut self, shape: TransferKind, before: &Context, after: &Context) {
        let was_on = self.packet_en();
        self.set_context(after);
        let stops = self.context_en && self.filter.stops(after.ip);
        if self.context_en {
            self.filter_en = !stops && self.filter.passes(after.ip);
        }
        if was_on && shape.is_asynchronous() {
            self.stream.ip(before.ip, Packet::Fup);
        }
        let far = matches!(shape, TransferKind::Far | TransferKind::Event);
        let shown = matches!(shape, TransferKind::Init | TransferKind::Vmx { concealed: false, .. });
        if far && before.cr3 != after.cr3 || shown {
            self.pip(after);
        }
        match (was_on, self.packet_en()) {
            (true, true) => match shape {
                TransferKind::Direct => {}
                TransferKind::Outcome if self.ctl & ctl::DIS_TNT != 0 => {}
                TransferKind::Outcome => self.stream.branch_outcome(true),
                TransferKind::Indirect => self.stream.deferrable_tip(after.ip),
                TransferKind::Return => self.stream.ip(after.ip, Packet::Tip),
                TransferKind::Far | TransferKind::Event | TransferKind::Init | TransferKind::Vmx { .. } => {
                    self.mode_exec_at(after, Packet::Tip);
                }
            },
            (true, false) => {
                self.rets.clear();
                if !self.context_en || shape == TransferKind::Outcome {
                    self.stream.packet(Packet::TipPgd(Ip::Suppressed));
                } else {
                    self.stream.ip(after.ip, Packet::TipPgd);
                }
            }
            (false, true) => {
                self.emit_pge(after);
            }
            (false, false) => {}
        }
        if stops {
            self.trace_stop();
        }
    }

    /// Handles MOV to CR3 (cases 5a to 5f): not a branch, but it can change ContextEn.
    fn mov_cr3(&mut self, before: &Context, after: &Context) {
        let was_on = self.packet_en();
        self.set_context(after);
        let stops = self.context_en && self.filter.stops(before.ip);
        if self.context_en {
            self.filter_en = !stops && self.filter.passes(after.ip);
        }
        self.pip(after);
        match (was_on, self.packet_en()) {
            (true, false) => {
                self.rets.clear();
                if self.context_en {
                    self.stream.ip(after.ip, Packet::TipPgd);
                } else {
                    self.stream.packet(Packet::TipPgd(Ip::Suppressed));
                }
            }
            (false, true) => {
                self.emit_pge(after);
            }
            (true, true) | (false, false) => {}
        }
        if stops {
            self.trace_stop();
        }
    }

    /// Emits the packets for PacketEn set by an instruction or event. What an overflow lost of
    /// the reader's state comes first.
    fn emit_pge(&mut self, at: &Context) {
        self.repeat_lost(at);
        self.mode_exec_at(at, Packet::TipPge);
    }

    /// Handles PTWRITE (cases 16.24a to 16.24e).
    fn ptwrite(&mut self, before: &Context, eight: bool, operand: u64) {
        if self.ctl & ctl::PTW_EN == 0 || !self.context_en || !self.filter_en {
            return;
        }
        let payload = if eight { PtwPayload::Eight(operand) } else { PtwPayload::Four(operand as u32) };
        let ip = self.ctl & ctl::FUP_ON_PTW != 0;
        self.stream.packet(Packet::Ptw(Ptw { payload, ip }));
        if ip {
            self.stream.ip(before.ip, Packet::Fup);
        }
    }

    /// Emits a PIP if the enables allow it.
    fn pip(&mut self, at: &Context) {
        if self.context_en && self.ctl & ctl::OS != 0 {
            let cr3 = enables::table(at.cr3, self.ia_32e) & ((1 << 52) - 1);
            self.lost.pip = !self.stream.packet(Packet::Pip(Pip { cr3, non_root: self.non_root }));
        }
    }

    /// Emits MODE.Exec if it is due, and the packet with the IP at which it takes effect. If an overflow occurs between
    /// the two, a reader cannot know whether MODE.Exec took effect, and it is due again.
    fn mode_exec_at(&mut self, at: &Context, packet: fn(Ip) -> Packet) {
        let shown = self.mode;
        self.mode_exec(at);
        self.stream.ip(at.ip, packet);
        if self.stream.overflowed() && self.mode != shown {
            self.mode = None;
        }
    }

    /// Emits MODE.Exec if the mode differs from the last one in the trace.
    fn mode_exec(&mut self, at: &Context) {
        let mode = self.mode_of(at);
        if self.mode != Some(mode) && self.stream.packet(Packet::ModeExec(mode)) {
            self.mode = Some(mode);
        }
    }

    fn mode_of(&self, at: &Context) -> ModeExec {
        ModeExec {
            cs_l: at.mode == ExecMode::Bits64,
            cs_d: at.mode == ExecMode::Bits32,
            iflag: at.iflag && self.ctl & ctl::EVENT_EN != 0,
        }
    }

    /// Handles the entry into a TraceStop range. During an overflow the packet waits until the overflow is resolved.
    fn trace_stop(&mut self) {
        self.stopped = true;
        self.trigger_en = false;
        self.lost.trace_stop = !self.stream.packet(Packet::TraceStop);
    }
}
