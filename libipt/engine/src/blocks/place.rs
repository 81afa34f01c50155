//! The place of the next event in the code: an address, an instruction that it binds to, or right here.
//!
//! An event is reported as soon as the walk is at its place. `trailing_event` looks if that is so already, after a
//! block or another event; `event_ahead` walks there.

use super::{
    block::{Block, BlockInsn, FlowStatus},
    decoder::BlockDecoder,
    insns::{
        binds_to_pip, binds_to_vmcs, is_iret, is_ptwrite, is_software_interrupt, is_system_call, is_uiret,
        is_vm_entry, writes_cr3,
    },
    run::Stop,
};
use crate::{
    code::{Answer, Code},
    event::{PtEvent, flag, kind},
};
use pugmark_decoder_core::insn::{Class, Insn};

/// The instructions that events of a kind bind to.
#[derive(Clone, Copy)]
struct BindingRule {
    binds: fn(&Insn) -> bool,
    at_ip: AtIp,
}

/// The use of the address that such an event can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtIp {
    /// None: it never has one.
    Never,
    /// It is the instruction's, which the walk passes before the event.
    After,
    /// It is the instruction's, before which the walk stops: an asynchronous branch may follow from there.
    Before,
}

/// Returns the rule for a kind of events, if they bind to instructions.
fn binding_rule(event: &PtEvent) -> Option<BindingRule> {
    let (binds, at_ip): (fn(&Insn) -> bool, AtIp) = match event.kind {
        kind::PAGING => (binds_to_pip, AtIp::Never),
        kind::VMCS => (binds_to_vmcs, AtIp::Never),
        kind::PTWRITE => (is_ptwrite, AtIp::After),
        kind::IRET => (is_iret, AtIp::After),
        kind::VMENTRY => (is_vm_entry, AtIp::After),
        kind::UIRET => (is_uiret, AtIp::After),
        kind::SWINTR => (is_software_interrupt, AtIp::Before),
        kind::SYSCALL => (is_system_call, AtIp::Before),
        _ => return None,
    };
    Some(BindingRule { binds, at_ip })
}

/// The state of a trailing event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trailing {
    /// Its place is here.
    Here,
    /// Its place is ahead.
    Ahead,
}

impl Trailing {
    fn here_if(is_here: bool) -> Self {
        if is_here { Self::Here } else { Self::Ahead }
    }
}

impl BlockDecoder<'_> {
    /// Returns the address that the next event waits for. Without tracing most events wait for nothing.
    pub(super) fn awaited_ip(&self) -> Option<u64> {
        let event = &self.event;
        match event.kind {
            kind::ASYNC_DISABLED | kind::ASYNC_BRANCH => Some(event.variant[0]),
            kind::ASYNC_PAGING | kind::ASYNC_VMCS | kind::TSX => event.ip(),
            kind::EXSTOP
            | kind::MWAIT
            | kind::EXEC_MODE
            | kind::IFLAGS
            | kind::INTERRUPT
            | kind::SMI
            | kind::INIT
            | kind::VMEXIT
            | kind::SHUTDOWN
            | kind::UINTR => event.ip().filter(|_| self.enabled),
            _ => None,
        }
    }

    /// Goes to the place of the next event, or as far as the block goes.
    pub(super) fn event_ahead(&mut self, block: &mut Block) -> Answer<FlowStatus> {
        let not_reached = FlowStatus::default();
        if let Some(rule) = binding_rule(&self.event) {
            if self.enabled {
                if !Stop::reached(self.go_to_bound_insn(block, rule))? {
                    return Ok(not_reached);
                }
                self.bound = 1 << self.event.kind;
                self.postponed = block.last().copied();
            }
            return Ok(self.status(true));
        }
        let result = match self.event.kind {
            kind::DISABLED if !self.event.has(flag::STATUS_UPDATE) => self.go_to_disabled(block),
            kind::TRIG => self.go_to_trigger(block),
            kind::TIP | kind::TNT => Err(Code::Internal.into()),
            _ => self.awaited_ip().map_or(Ok(()), |ip| self.go_to_ip(block, ip)),
        };
        if !Stop::reached(result)? {
            return Ok(not_reached);
        }
        if self.event.kind == kind::ASYNC_DISABLED && self.is_vm_entry_by_skd022() {
            // It is another event now.
            return self.event_ahead(block);
        }
        Ok(self.status(true))
    }

    fn go_to_bound_insn(&mut self, block: &mut Block, rule: BindingRule) -> Result<(), Stop> {
        let ip = self.event.ip().filter(|_| rule.at_ip != AtIp::Never);
        let Some(ip) = ip else { return self.go_to_insn(block, rule.binds).map(|_| ()) };
        self.go_to_ip(block, ip)?;
        match rule.at_ip {
            AtIp::After => self.one_insn(block).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Goes to where tracing was disabled: an address, an instruction that can disable it, or a branch that needs the
    /// trace.
    fn go_to_disabled(&mut self, block: &mut Block) -> Result<(), Stop> {
        let result = match self.event.ip() {
            Some(ip) => self.go_to_ip(block, ip),
            None => self.go_to_disabling_insn(block).map(|_| ()),
        };
        if let (Err(Stop::NeedsTrace), Some(&branch)) = (result, block.last()) {
            self.set_resume_ip(branch);
            return Ok(());
        }
        result
    }

    /// Sets the address where tracing may be enabled again after this branch: a call returns.
    fn set_resume_ip(&mut self, branch: BlockInsn) {
        self.ip = match branch.insn.class {
            Class::NearCall | Class::IndirectCall | Class::FarCall => branch.end(),
            _ => 0,
        };
    }

    /// Goes to where a trigger fired.
    fn go_to_trigger(&mut self, block: &mut Block) -> Result<(), Stop> {
        if self.event.has(flag::IP_SUPPRESSED) {
            return Ok(());
        }
        self.anchor_trigger()?;
        if !self.enabled {
            return Ok(());
        }
        self.go_to_ip(block, self.event.variant[1])?;
        // The event has what is left to go, because the block may end on the way.
        while trigger_count(&self.event) != 0 {
            self.count_insn(block)?;
            self.event.variant[0] -= 1 << 16;
            self.event.variant[1] = self.ip;
        }
        Ok(())
    }

    /// Gives a trigger without an address the walk's place, and the instructions that are left from there.
    fn anchor_trigger(&mut self) -> Answer<()> {
        if self.event.variant[1] != 0 {
            return Ok(());
        }
        let left = self.since_anchor.and_then(|passed| trigger_count(&self.event).checked_sub(passed.into()));
        let left = left.ok_or(Code::BadPacket.status())?;
        self.event.variant[0] = self.event.variant[0] & 0xffff | left << 16;
        self.event.variant[1] = self.ip;
        Ok(())
    }

    /// Looks for an event here, after a block (if one is given), an event, or a synchronisation.
    pub(super) fn trailing_event(&mut self, block: Option<&Block>) -> Answer<FlowStatus> {
        if let Some(error) = self.error {
            self.pass_postponed()?;
            // An error is reported as an event; the end of the trace has a status of its own.
            return Ok(self.status(error != Code::EndOfStream.status()));
        }
        while self.event.kind == kind::TNT {
            let ticks = self.options.ticks && self.event.has(flag::HAS_TSC) && self.event.tsc != self.tsc;
            if let (true, Some(block)) = (ticks, block) {
                let used = |last: &BlockInsn| matches!(last.insn.class, Class::CondJump | Class::NearReturn);
                return match block.last().is_some_and(used) {
                    true => Ok(self.status(true)),
                    false => self.nothing_here(),
                };
            }
            if self.event.variant[1] != 0 {
                return self.nothing_here();
            }
            self.next_event()?;
            if self.error.is_some() {
                return self.trailing_event(block);
            }
        }
        match self.trailing(block)? {
            Trailing::Here => Ok(self.status(true)),
            Trailing::Ahead => self.nothing_here(),
        }
    }

    fn nothing_here(&mut self) -> Answer<FlowStatus> {
        self.pass_postponed()?;
        Ok(self.status(false))
    }

    /// Finds out if the next event's place is here. Events that do not bind to the instruction that was postponed take
    /// the walk past it.
    fn trailing(&mut self, block: Option<&Block>) -> Answer<Trailing> {
        if let Some(rule) = binding_rule(&self.event) {
            return Ok(self.trailing_binding(rule));
        }
        match self.event.kind {
            kind::TIP => return Ok(Trailing::Ahead),
            kind::DISABLED => return Ok(self.trailing_disabled()),
            _ => self.pass_postponed()?,
        }
        match self.event.kind {
            kind::TRIG => return self.trailing_trigger(),
            kind::TSX if !self.event.has(flag::IP_SUPPRESSED) => {
                if let Some(block) = block {
                    self.jump_by_bdm64(block);
                }
            }
            _ => {}
        }
        if self.awaited_ip().is_some_and(|ip| ip != self.ip) {
            return Ok(Trailing::Ahead);
        }
        let is_changed = self.event.kind == kind::ASYNC_DISABLED && self.is_vm_entry_by_skd022();
        Ok(Trailing::here_if(!is_changed))
    }

    /// Binds the next event to the instruction that was postponed, if it can be that one's: at most one of each kind,
    /// and none with an address.
    fn trailing_binding(&mut self, rule: BindingRule) -> Trailing {
        let bit = 1 << self.event.kind;
        let has_ip = rule.at_ip != AtIp::Never && !self.event.has(flag::IP_SUPPRESSED);
        let binds = self.postponed.is_some_and(|postponed| (rule.binds)(&postponed.insn));
        if self.enabled && (!binds || has_ip || self.bound & bit != 0) {
            return Trailing::Ahead;
        }
        if self.enabled {
            self.bound |= bit;
        }
        Trailing::Here
    }

    fn trailing_disabled(&mut self) -> Trailing {
        let ip = self.event.ip();
        let Some(postponed) = self.postponed else {
            return Trailing::here_if(self.event.has(flag::STATUS_UPDATE));
        };
        if ip.is_none() && writes_cr3(&postponed.insn) {
            return Trailing::Here;
        }
        let Some(next) = postponed.next_ip() else {
            // It needs the trace, which ends there.
            self.set_resume_ip(postponed);
            return Trailing::Here;
        };
        self.ip = next;
        self.clear_postponed();
        Trailing::here_if(ip == Some(next))
    }

    fn trailing_trigger(&mut self) -> Answer<Trailing> {
        if !self.enabled || self.event.has(flag::IP_SUPPRESSED) {
            return Ok(Trailing::Here);
        }
        self.anchor_trigger()?;
        if trigger_count(&self.event) != 0 {
            return Ok(Trailing::Ahead);
        }
        if self.event.variant[1] != self.ip {
            return Err(Code::BadPacket.status());
        }
        Ok(Trailing::Here)
    }

    /// Goes past the instruction that was postponed, if there is one.
    fn pass_postponed(&mut self) -> Answer<()> {
        if let Some(insn) = self.postponed.filter(|_| self.enabled) {
            match insn.next_ip() {
                Some(next) => self.ip = next,
                None => self.pass_with_trace(insn)?,
            }
        }
        self.clear_postponed();
        Ok(())
    }
}

/// Returns the number of instructions from a trigger's address to its place.
fn trigger_count(event: &PtEvent) -> u64 {
    event.variant[0] >> 16
}
