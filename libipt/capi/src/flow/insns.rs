//! The steps of the instruction decoder: some events bind to an instruction, others to an address.

use super::base::{Flow, Postponed};
use crate::{
    config::{PtConfig, PtErrata},
    error::Code,
    event::{PtEvent, flag, kind},
    image::{
        code::{Detail, Extra, decode},
        insn::{self, PtInsn, class, is_contiguous},
        shape::{LONGEST, Shape},
    },
    query::decoder::{Answer, status},
};
use std::ffi::c_int;

/// `struct pt_insn_decoder`.
#[derive(Debug)]
pub struct InsnDecoder {
    pub(crate) flow: Flow,
}

/// The fields of an instruction beside its shape and its bytes.
struct Head {
    ip: u64,
    isid: c_int,
    mode: c_int,
    flags: u32,
}

impl Head {
    fn insn(&self, shape: Shape, bytes: &[u8; LONGEST]) -> PtInsn {
        let Self { ip, isid, mode, flags } = *self;
        PtInsn { ip, isid, mode, class: shape.class(), raw: *bytes, size: shape.size(), flags }
    }

    /// Writes the instruction field by field: reading a whole structure just after writing its fields would stall.
    ///
    /// # Safety
    /// `out` is writable.
    #[inline(always)]
    unsafe fn write(&self, shape: Shape, bytes: &[u8; LONGEST], out: *mut PtInsn) {
        macro_rules! write {
            ($($field:ident = $value:expr;)*) => {$(
                // SAFETY: it is a part of the structure.
                let place = unsafe { &raw mut (*out).$field };
                // SAFETY: by contract.
                unsafe { place.write_unaligned($value) };
            )*};
        }
        write! {
            ip = self.ip;
            isid = self.isid;
            mode = self.mode;
            class = shape.class();
            raw = *bytes;
            size = shape.size();
            flags = self.flags;
        }
    }
}

impl Flow {
    /// Goes past an instruction.
    fn proceed(&mut self, insn: &PtInsn, extra: &Extra) -> Answer<()> {
        self.ip = self.ip.wrapping_add(insn.size.into());
        match insn.class {
            class::PTWRITE | class::OTHER => Ok(()),
            class => self.branch(class, extra.displacement),
        }
    }

    /// Goes to a branch's target; the current address is already the end of the branch.
    #[inline(always)]
    fn branch(&mut self, class: c_int, displacement: Option<i32>) -> Answer<()> {
        match class {
            class::COND_JUMP => {
                let (taken, status) = self.cond_branch()?;
                self.status = status;
                if !taken {
                    return Ok(());
                }
            }
            // Code calls the next instruction to find its own address.
            class::CALL if displacement != Some(0) => self.returns.push(self.ip),
            class::RETURN => {
                if let Ok((taken, status)) = self.cond_branch() {
                    self.status = status;
                    if !taken {
                        return Err(Code::BadReturn.status());
                    }
                    self.ip = self.returns.pop().ok_or(Code::ReturnWithoutCall.status())?;
                    return Ok(());
                }
            }
            class::ERROR => return Err(Code::BadInstruction.status()),
            _ => {}
        }
        if let Some(displacement) = displacement {
            self.ip = self.ip.wrapping_add_signed(displacement.into());
            return Ok(());
        }
        let status = self.indirect_branch()?;
        self.status = status;
        if status & status::IP_SUPPRESSED != 0 {
            return Err(Code::NoIp.status());
        }
        Ok(())
    }
}

impl InsnDecoder {
    pub(crate) fn new(config: PtConfig) -> Self {
        Self { flow: Flow::new(config, 1 << 0, 1 << 2) }
    }

    pub(crate) fn sync_forward(&mut self) -> Answer<c_int> {
        self.flow.reset();
        let status = self.flow.query.sync_forward(Some(&mut self.flow.ip))?;
        self.start(status)
    }

    pub(crate) fn sync_backward(&mut self) -> Answer<c_int> {
        self.flow.reset();
        let status = self.flow.query.sync_backward(Some(&mut self.flow.ip))?;
        self.start(status)
    }

    pub(crate) fn sync_set(&mut self, offset: u64) -> Answer<c_int> {
        self.flow.reset();
        let status = self.flow.query.sync_set(offset, Some(&mut self.flow.ip))?;
        self.start(status)
    }

    fn start(&mut self, status: c_int) -> Answer<c_int> {
        self.flow.start(status);
        self.check_ip(None)
    }

    /// Writes the next instruction, and returns the status.
    ///
    /// # Safety
    /// `out` is writable.
    #[inline(always)]
    pub(crate) unsafe fn next(&mut self, out: *mut PtInsn) -> c_int {
        let flow = &self.flow;
        if flow.enabled
            && !flow.may_have_event()
            && let Some((shape, bytes, isid)) = flow.remembered()
        {
            let head = self.head(isid);
            // SAFETY: by contract.
            unsafe { head.write(shape, bytes, out) };
            return self.calm(shape, shape.displacement(bytes));
        }
        let answer = self.slow(|next, _| {
            // SAFETY: by contract.
            unsafe { out.write_unaligned(*next) };
        });
        self.flow.done(answer)
    }

    /// Goes past an instruction while no event is pending.
    #[inline(always)]
    fn calm(&mut self, shape: Shape, displacement: Option<i32>) -> c_int {
        let flow = &mut self.flow;
        flow.ip = flow.ip.wrapping_add(shape.size().into());
        let class = shape.class();
        if class == class::OTHER {
            return flow.status & status::END_OF_STREAM;
        }
        self.past_branch(class, displacement)
    }

    #[inline]
    fn past_branch(&mut self, class: c_int, displacement: Option<i32>) -> c_int {
        let flow = &mut self.flow;
        let answer = match class {
            class::PTWRITE => Ok(()),
            _ => flow.branch(class, displacement),
        };
        match answer {
            Ok(()) if flow.may_have_event() => {
                let answer = self.check_ip(Some(class));
                self.flow.done(answer)
            }
            Ok(()) => flow.status(0),
            Err(error) => error,
        }
    }

    /// Passes the next instruction to `give`, also one that cannot be decoded; with `false` if its section cannot be
    /// read.
    #[inline(never)]
    pub(crate) fn slow(&mut self, give: impl FnOnce(&PtInsn, bool)) -> Answer<c_int> {
        let flow = &self.flow;
        if !flow.enabled {
            let ended = flow.status & status::END_OF_STREAM != 0;
            return Err(if ended { Code::EndOfStream } else { Code::NoEnable }.status());
        }
        if let Some((shape, bytes, isid)) = flow.remembered() {
            let head = self.head(isid);
            let (insn, extra) = (head.insn(shape, bytes), shape.extra(bytes));
            give(&insn, true);
            return self.after(&insn, &extra);
        }
        let mut insn = PtInsn::EMPTY;
        let (is_whole, extra) = self.read(&mut insn);
        give(&insn, is_whole);
        self.after(&insn, &extra?)
    }

    /// Handles the events that bind to an instruction, steps to the next one, and looks for events there.
    #[inline(never)]
    fn after(&mut self, insn: &PtInsn, extra: &Extra) -> Answer<c_int> {
        let status = self.check_insn(insn, extra)?;
        if status & status::EVENT_PENDING != 0 {
            return Ok(status);
        }
        self.flow.proceed(insn, extra)?;
        self.check_ip(Some(insn.class))
    }

    fn flags(&self) -> u32 {
        if self.flow.speculative { insn::flag::SPECULATIVE } else { 0 }
    }

    #[inline(always)]
    fn head(&self, isid: c_int) -> Head {
        Head { ip: self.flow.ip, isid, mode: self.flow.mode, flags: self.flags() }
    }

    /// Reads the next instruction. The first value is `false` if its section cannot be read.
    #[inline(never)]
    fn read(&mut self, insn: &mut PtInsn) -> (bool, Answer<Extra>) {
        let flags = self.flags();
        let flow = &mut self.flow;
        *insn = PtInsn { ip: flow.ip, mode: flow.mode, flags, ..PtInsn::EMPTY };
        let ip = flow.ip;
        let kept = flow.with_image(|image, kept, asid| kept.update(image, asid, ip));
        insn.isid = match kept {
            Ok(isid) => isid,
            Err(Code::NotMapped) => Code::NotMapped.status(),
            Err(error) => return (false, Err(error.status())),
        };
        let extra = self.decode(insn, kept.is_ok());
        (true, extra)
    }

    /// Decodes the instruction from the mapped section, or else from the image.
    fn decode(&mut self, insn: &mut PtInsn, has_kept: bool) -> Answer<Extra> {
        if has_kept {
            match self.flow.kept.read(&mut insn.raw, insn.ip) {
                Ok(size) => {
                    // At most 15.
                    insn.size = size as u8;
                    if let Ok(extra) = decode(insn) {
                        self.flow.kept.remember(insn, &extra);
                        return Ok(extra);
                    }
                }
                Err(Code::NotMapped) => {}
                Err(error) => return Err(error.status()),
            }
        }
        self.flow.with_image(|image, _, asid| insn.read(image, asid))
    }

    /// Returns true if this instruction disables tracing.
    fn is_disabled_by(&self, insn: &PtInsn, extra: &Extra) -> Answer<bool> {
        let config = &self.flow.query.config;
        if self.flow.event.flags & flag::IP_SUPPRESSED != 0 {
            let jumps_out = || {
                matches!(insn.class, class::CALL | class::JUMP)
                    && insn.target(extra).is_some_and(|target| !config.filter.traces(target))
            };
            return Ok(insn.is_far()
                || extra.detail == Detail::MovCr3
                || config.filter.config != 0 && config.errata.has(PtErrata::SKL014) && jumps_out());
        }
        match insn.class {
            class::PTWRITE | class::OTHER => Ok(false),
            class::CALL | class::JUMP => {
                Ok(insn.target(extra).is_none_or(|target| target == self.flow.event.variant[0]))
            }
            class::ERROR => Err(Code::BadInstruction.status()),
            _ => Ok(true),
        }
    }

    /// Keeps the instruction until its events are processed.
    fn postpone(&mut self, insn: &PtInsn, extra: &Extra) -> Answer<c_int> {
        self.flow.postponed.insn.get_or_insert((*insn, *extra));
        self.flow.pending()
    }

    /// Looks for an event that binds to an instruction. Returns the status; zero if there is no such event.
    #[inline]
    fn check_insn(&mut self, insn: &PtInsn, extra: &Extra) -> Answer<c_int> {
        if !self.flow.has_event()? {
            return Ok(0);
        }
        self.check_event(insn, extra)
    }

    #[inline(never)]
    fn check_event(&mut self, insn: &PtInsn, extra: &Extra) -> Answer<c_int> {
        let flow = &mut self.flow;
        let bound = &mut flow.postponed;
        match flow.event.kind {
            kind::DISABLED => {
                if !self.is_disabled_by(insn, extra)? {
                    return Ok(0);
                }
                self.flow.ip = match insn.next_ip(extra) {
                    Ok(ip) => ip,
                    // Tracing should resume at the return from a call.
                    Err(Code::BadQuery) if matches!(insn.class, class::CALL | class::FAR_CALL) => insn.end(),
                    Err(Code::BadQuery) => 0,
                    Err(error) => {
                        self.flow.ip = 0;
                        return Err(error.status());
                    }
                };
                self.flow.pending()
            }
            kind::PAGING => {
                if bound.paging || !insn.binds_to_pip(extra) {
                    return Ok(0);
                }
                bound.paging = true;
                self.postpone(insn, extra)
            }
            kind::VMCS => {
                if bound.vmcs || !insn.binds_to_vmcs(extra) {
                    return Ok(0);
                }
                bound.vmcs = true;
                self.postpone(insn, extra)
            }
            kind if flow.binds_to_insn() => {
                let is_suppressed = flow.event.flags & flag::IP_SUPPRESSED != 0;
                let is_its = if is_suppressed { insn.binds_to(kind, extra) } else { !flow.is_elsewhere(0) };
                if !is_its || !flow.bind() {
                    return Ok(0);
                }
                flow.event.variant[0] = flow.ip;
                flow.event.flags &= !flag::IP_SUPPRESSED;
                self.postpone(insn, extra)
            }
            _ => Ok(0),
        }
    }

    /// Handles erratum BDM64: the trace of a branch before an aborted transaction can be wrong. The branch then led to
    /// the abort.
    fn handle_bdm64(&mut self, last: c_int) {
        let flow = &mut self.flow;
        if flow.event.variant[1] & flag::ABORTED == 0 || !class::is_branch(last) {
            return;
        }
        let (from, to, mode) = (flow.ip, flow.event.variant[0], flow.mode);
        if !flow.with_image(|image, _, asid| is_contiguous(from, to, mode, image, asid)) {
            flow.ip = to;
        }
    }

    /// Looks for an event at the address; `last` is the class of the instruction before. Returns the status.
    #[inline]
    fn check_ip(&mut self, last: Option<c_int>) -> Answer<c_int> {
        if !self.flow.has_event()? {
            return Ok(self.flow.status(0));
        }
        self.check_event_here(last)
    }

    #[inline(never)]
    fn check_event_here(&mut self, last: Option<c_int>) -> Answer<c_int> {
        let flow = &mut self.flow;
        let here = match flow.event.kind {
            kind::DISABLED => false,
            kind::ASYNC_DISABLED => {
                flow.event.variant[0] == flow.ip
                    && !(flow.query.config.errata.has(PtErrata::SKD022) && flow.handle_skd022(flow.ip))
            }
            kind::TSX => {
                let is_suppressed = flow.event.flags & flag::IP_SUPPRESSED != 0;
                if let Some(last) = last
                    && !is_suppressed
                    && flow.query.config.errata.has(PtErrata::BDM64)
                {
                    self.handle_bdm64(last);
                }
                !self.flow.is_elsewhere(0)
            }
            kind::ASYNC_BRANCH => flow.event.variant[0] == flow.ip,
            _ if flow.is_mode_while_off() => true,
            kind::EXEC_MODE | kind::ASYNC_VMCS => !flow.is_elsewhere(1),
            kind::ASYNC_PAGING => !flow.is_elsewhere(2),
            kind::PAGING | kind::VMCS => !flow.enabled,
            _ if flow.binds_to_insn() => !flow.enabled,
            _ if flow.comes_before_insn() => !flow.is_ahead(),
            _ => true,
        };
        if here { self.flow.pending() } else { Ok(self.flow.status(0)) }
    }

    /// Applies the event, passes it to `give`, and returns the status.
    pub(crate) fn event(&mut self, give: impl FnOnce(&PtEvent)) -> Answer<c_int> {
        let bad = Err(Code::BadQuery.status());
        let flow = &mut self.flow;
        if !flow.process_event {
            return bad;
        }
        let is_elsewhere = match flow.event.kind {
            kind::ASYNC_DISABLED => {
                flow.event.flags & flag::IP_SUPPRESSED == 0 && flow.event.variant[0] != flow.ip
            }
            kind::ASYNC_BRANCH => flow.event.variant[0] != flow.ip,
            kind::ASYNC_PAGING => flow.is_elsewhere(2),
            kind::ASYNC_VMCS => flow.is_elsewhere(1),
            _ => flow.comes_before_insn() && flow.is_ahead(),
        };
        if is_elsewhere {
            return bad;
        }
        flow.apply()?;
        give(&flow.event);
        flow.process_event = false;
        if let Some((insn, extra)) = flow.postponed.insn {
            let status = self.check_insn(&insn, &extra)?;
            if status & status::EVENT_PENDING != 0 {
                return Ok(status);
            }
            if self.flow.enabled {
                self.flow.proceed(&insn, &extra)?;
            }
            self.flow.postponed = Postponed::default();
        }
        self.check_ip(None)
    }
}
