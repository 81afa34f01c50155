//! The steps of the block decoder: to the next event or the next decision.

use super::{
    base::Postponed,
    block::PtBlock,
    walk::{BlockDecoder, DecodedInsn, NOTHING},
};
use crate::{
    config::PtErrata,
    error::Code,
    event::{PtEvent, flag, kind},
    image::{
        code::Detail,
        insn::{PtInsn, class, flag as insn_flag, is_contiguous},
    },
    query::decoder::{Answer, status},
};
use std::ffi::c_int;

/// The trace is needed to continue.
const NEEDS_TRACE: c_int = Code::BadQuery.status();

impl BlockDecoder {
    fn reset(&mut self) {
        self.flow.reset();
        self.flow.event = PtEvent::EMPTY;
    }

    pub(crate) fn sync_forward(&mut self) -> Answer<c_int> {
        self.reset();
        let status = self.flow.query.sync_forward(Some(&mut self.flow.ip))?;
        self.start(status)
    }

    pub(crate) fn sync_backward(&mut self) -> Answer<c_int> {
        self.reset();
        let status = self.flow.query.sync_backward(Some(&mut self.flow.ip))?;
        self.start(status)
    }

    pub(crate) fn sync_set(&mut self, offset: u64) -> Answer<c_int> {
        self.reset();
        let status = self.flow.query.sync_set(offset, Some(&mut self.flow.ip))?;
        self.start(status)
    }

    fn start(&mut self, status: c_int) -> Answer<c_int> {
        self.flow.start(status);
        self.trailing(None)
    }

    /// Decodes the next block, as far as possible, and returns the status.
    pub(crate) fn next(&mut self, block: &mut PtBlock) -> Answer<c_int> {
        *block = PtBlock { ip: self.flow.ip, mode: self.flow.mode, ..PtBlock::EMPTY };
        if self.flow.speculative {
            block.flags |= insn_flag::SPECULATIVE as u16;
        }
        if self.flow.has_event()? {
            return self.go_to_event(block);
        }
        if !self.flow.enabled {
            let ended = self.flow.status & status::END_OF_STREAM != 0;
            return Err(if ended { Code::EndOfStream } else { Code::NoEnable }.status());
        }
        self.no_event(block)?;
        self.trailing(Some(block))
    }

    /// Keeps the instruction until its events are processed.
    fn postpone(&mut self, decoded: DecodedInsn) -> Answer<c_int> {
        let postponed = &mut self.flow.postponed;
        if postponed.insn.is_some() {
            return Err(Code::Internal.status());
        }
        postponed.insn = Some(decoded);
        self.flow.pending()
    }

    /// Goes past the instruction that was kept.
    fn past_postponed(&mut self) -> Answer<()> {
        let Some(decoded) = self.flow.postponed.insn else { return Ok(()) };
        if self.flow.enabled {
            match decoded.0.next_ip(&decoded.1) {
                Ok(ip) => self.flow.ip = ip,
                Err(Code::BadQuery) => self.with_trace(&decoded)?,
                Err(error) => return Err(error.status()),
            }
        }
        self.flow.postponed = Postponed::default();
        Ok(())
    }

    /// Sets the address where tracing should resume after it was disabled at an instruction.
    fn set_resume_ip(&mut self, insn: &PtInsn) {
        self.flow.ip = if matches!(insn.class, class::CALL | class::FAR_CALL) { insn.end() } else { 0 };
    }

    /// Goes to the place where tracing is disabled.
    fn go_to_disabled(&mut self, block: &mut PtBlock, last: &mut DecodedInsn) -> Answer<bool> {
        let event = self.flow.event;
        let config = &self.flow.query.config;
        if event.flags & flag::IP_SUPPRESSED == 0 {
            return self.go_to_ip(block, last, event.variant[0]);
        }
        let is_mov_cr3 = |(_, extra): &DecodedInsn| extra.detail == Detail::MovCr3;
        if config.filter.config == 0 || !config.errata.has(PtErrata::SKL014) {
            return self.go_to_insn(block, last, is_mov_cr3);
        }
        // Erratum SKL014: the instruction can be a direct branch out of a range.
        let filter = config.filter;
        loop {
            let is_direct = |(insn, extra): &DecodedInsn| {
                matches!(insn.class, class::CALL | class::JUMP) && extra.displacement.is_some()
            };
            if !self.go_to_insn(block, last, |decoded| is_direct(decoded) || is_mov_cr3(decoded))? {
                return Ok(false);
            }
            if is_mov_cr3(last) {
                return Ok(true);
            }
            let ip = last.0.next_ip(&last.1).map_err(Code::status)?;
            if !filter.traces(ip) {
                return Ok(true);
            }
            self.flow.ip = ip;
            if self.ends(&last.0) {
                return Ok(true);
            }
        }
    }

    /// Goes to an address. A step that needs the trace uses it, and ends the block.
    fn go_to_ip_with_trace(&mut self, block: &mut PtBlock, word: usize) -> Answer<bool> {
        if self.flow.event.flags & flag::IP_SUPPRESSED != 0 {
            return Ok(true);
        }
        let (ip, mut last) = (self.flow.event.variant[word], NOTHING);
        match self.go_to_ip(block, &mut last, ip) {
            Err(NEEDS_TRACE) => self.with_trace(&last)?,
            answer => {
                answer?;
            }
        }
        Ok(self.flow.ip == ip)
    }

    /// Goes to the event. Returns the status; zero if it was not reached.
    fn go_to_event(&mut self, block: &mut PtBlock) -> Answer<c_int> {
        let mut last = NOTHING;
        let event = self.flow.event;
        let is_suppressed = event.flags & flag::IP_SUPPRESSED != 0;
        let reached = match event.kind {
            kind::DISABLED => match self.go_to_disabled(block, &mut last) {
                Err(NEEDS_TRACE) => {
                    self.set_resume_ip(&last.0);
                    true
                }
                answer => answer?,
            },
            kind::ASYNC_DISABLED => {
                let at = event.variant[0];
                if !self.go_to_ip(block, &mut last, at)? {
                    return Ok(0);
                }
                if self.flow.query.config.errata.has(PtErrata::SKD022) && self.flow.handle_skd022(at) {
                    return self.go_to_event(block);
                }
                true
            }
            kind::ASYNC_BRANCH => self.go_to_ip(block, &mut last, event.variant[0])?,
            kind::PAGING if self.flow.enabled => {
                if !self.go_to_insn(block, &mut last, |(insn, extra)| insn.binds_to_pip(extra))? {
                    return Ok(0);
                }
                self.flow.postponed.paging = true;
                return self.postpone(last);
            }
            kind::VMCS if self.flow.enabled => {
                if !self.go_to_insn(block, &mut last, |(insn, extra)| insn.binds_to_vmcs(extra))? {
                    return Ok(0);
                }
                self.flow.postponed.vmcs = true;
                return self.postpone(last);
            }
            kind if self.flow.binds_to_insn() && self.flow.enabled => {
                if is_suppressed {
                    if !self.go_to_insn(block, &mut last, |(insn, extra)| insn.binds_to(kind, extra))? {
                        return Ok(0);
                    }
                    self.flow.event.variant[0] = last.0.ip;
                    self.flow.event.flags &= !flag::IP_SUPPRESSED;
                } else {
                    if !self.go_to_ip(block, &mut last, event.variant[0])? {
                        return Ok(0);
                    }
                    let Some(decoded) = self.one(block)? else { return Ok(0) };
                    last = decoded;
                }
                self.flow.bind();
                return self.postpone(last);
            }
            kind::ASYNC_PAGING => self.go_to_ip_with_trace(block, 2)?,
            _ if self.flow.is_mode_while_off() => true,
            kind::ASYNC_VMCS | kind::EXEC_MODE => self.go_to_ip_with_trace(block, 1)?,
            kind::TSX if !is_suppressed => self.go_to_ip(block, &mut last, event.variant[0])?,
            _ => match event.ip_word() {
                Some(word) if self.flow.comes_before_insn() && self.flow.enabled && !is_suppressed => {
                    self.go_to_ip(block, &mut last, event.variant[word])?
                }
                _ => true,
            },
        };
        if reached { self.flow.pending() } else { Ok(0) }
    }

    /// Handles erratum BDM64: the trace of a branch before an aborted transaction can be wrong. The branch then led to
    /// the abort.
    fn handle_bdm64(&mut self, block: &PtBlock) {
        if self.flow.event.variant[1] & flag::ABORTED == 0 || block.insns == 0 {
            return;
        }
        let mut insn = PtInsn { ip: block.end_ip, mode: block.mode, ..PtInsn::EMPTY };
        let read = self.flow.with_image(|image, _, asid| insn.read(image, asid));
        if read.is_err() || !insn.is_branch() {
            return;
        }
        let (from, to, mode) = (self.flow.ip, self.flow.event.variant[0], self.flow.mode);
        if !self.flow.with_image(|image, _, asid| is_contiguous(from, to, mode, image, asid)) {
            self.flow.ip = to;
        }
    }

    /// Looks for an event at the address. Returns the status.
    pub(super) fn trailing(&mut self, block: Option<&PtBlock>) -> Answer<c_int> {
        if !self.flow.has_event()? {
            self.past_postponed()?;
            return Ok(self.flow.status(0));
        }
        let event = self.flow.event;
        let is_suppressed = event.flags & flag::IP_SUPPRESSED != 0;
        let postponed = self.flow.postponed;
        let here = match event.kind {
            kind::DISABLED => match postponed.insn {
                None => false,
                Some((_, extra)) if is_suppressed && extra.detail == Detail::MovCr3 => true,
                Some((insn, extra)) => match insn.next_ip(&extra) {
                    Err(Code::BadQuery) => {
                        self.set_resume_ip(&insn);
                        true
                    }
                    Err(error) => return Err(error.status()),
                    Ok(ip) => {
                        self.flow.ip = ip;
                        self.flow.postponed = Postponed::default();
                        !is_suppressed && ip == event.variant[0]
                    }
                },
            },
            kind::PAGING | kind::VMCS if !self.flow.enabled => true,
            _ if self.flow.binds_to_insn() && !self.flow.enabled => true,
            kind::PAGING => {
                let binds = postponed.insn.is_some_and(|(insn, extra)| insn.binds_to_pip(&extra));
                let binds = binds && !postponed.paging;
                self.flow.postponed.paging |= binds;
                binds
            }
            kind::VMCS => {
                let binds = postponed.insn.is_some_and(|(insn, extra)| insn.binds_to_vmcs(&extra));
                let binds = binds && !postponed.vmcs;
                self.flow.postponed.vmcs |= binds;
                binds
            }
            kind if self.flow.binds_to_insn() => {
                let binds = postponed.insn.is_some_and(|(insn, extra)| insn.binds_to(kind, &extra));
                binds && is_suppressed && self.flow.bind()
            }
            _ => {
                self.past_postponed()?;
                self.is_here(block)
            }
        };
        if here {
            return self.flow.pending();
        }
        self.past_postponed()?;
        Ok(self.flow.status(0))
    }

    /// Returns true if an event that binds to no instruction is at the address.
    fn is_here(&mut self, block: Option<&PtBlock>) -> bool {
        let flow = &mut self.flow;
        let at = flow.event.variant[0];
        match flow.event.kind {
            kind::ASYNC_DISABLED => {
                flow.ip == at && !(flow.query.config.errata.has(PtErrata::SKD022) && flow.handle_skd022(at))
            }
            kind::ASYNC_BRANCH => flow.ip == at,
            kind::ASYNC_PAGING => !flow.is_elsewhere(2),
            _ if flow.is_mode_while_off() => true,
            kind::ASYNC_VMCS | kind::EXEC_MODE => !flow.is_elsewhere(1),
            kind::TSX => {
                if let Some(block) = block
                    && flow.event.flags & flag::IP_SUPPRESSED == 0
                    && flow.query.config.errata.has(PtErrata::BDM64)
                {
                    self.handle_bdm64(block);
                }
                !self.flow.is_elsewhere(0)
            }
            _ => !flow.comes_before_insn() || !flow.is_ahead(),
        }
    }

    /// Applies the event, passes it to `give`, and returns the status.
    pub(crate) fn event(&mut self, give: impl FnOnce(&PtEvent)) -> Answer<c_int> {
        let flow = &mut self.flow;
        if !flow.process_event {
            return Err(Code::BadQuery.status());
        }
        let is_elsewhere = match flow.event.kind {
            kind::ASYNC_DISABLED | kind::ASYNC_BRANCH => flow.event.variant[0] != flow.ip,
            kind::ASYNC_PAGING => flow.is_elsewhere(2),
            _ if flow.is_mode_while_off() => false,
            kind::ASYNC_VMCS | kind::EXEC_MODE => flow.is_elsewhere(1),
            kind::TSX => flow.is_elsewhere(0),
            _ => flow.comes_before_insn() && flow.is_ahead(),
        };
        if is_elsewhere {
            return Err(Code::BadQuery.status());
        }
        flow.apply()?;
        give(&flow.event);
        flow.process_event = false;
        self.trailing(None)
    }
}
