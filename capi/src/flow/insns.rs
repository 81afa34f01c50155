//! How the decoder of instructions goes on: which events bind to an instruction, and which to an address.

use super::{
    base::{Flow, Postponed},
    code::{Detail, Extra, decode},
    insn::{self, PtInsn, class, is_contiguous},
};
use crate::{
    config::{PtConfig, PtErrata},
    error::Code,
    event::{PtEvent, flag, kind},
    image::CodePlace,
    query::decoder::{Answer, status},
};
use std::ffi::c_int;

/// `struct pt_insn_decoder`.
#[derive(Debug)]
pub struct InsnDecoder {
    pub(crate) flow: Flow,
    /// Instructions that were decoded, by the hash of their place. Empty before the first one.
    known: Box<[Known]>,
}

/// An instruction that was decoded. It is copied to the caller as it is: to change a part of a structure, and then to read
/// the whole of it, takes longer than all the rest.
#[derive(Clone, Copy, Debug)]
struct Known {
    place: CodePlace,
    insn: PtInsn,
    extra: Extra,
}

impl Known {
    const NONE: Self =
        Self { place: CodePlace { mapping: 0, offset: 0 }, insn: PtInsn::EMPTY, extra: Extra::NONE };
}

/// How many are remembered: half a megabyte.
const KNOWN: usize = 1 << 13;

/// Where an instruction is remembered.
#[inline]
fn index(place: CodePlace) -> usize {
    // Knuth's multiplicative hash: neighbours get different indices.
    let hash = place.offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> (64 - KNOWN.ilog2())) as usize
}

impl Flow {
    /// Goes past an instruction.
    #[inline]
    fn proceed(&mut self, insn: &PtInsn, extra: &Extra) -> Answer<()> {
        self.ip = self.ip.wrapping_add(insn.size.into());
        match insn.class {
            class::PTWRITE | class::OTHER => return Ok(()),
            class::COND_JUMP => {
                let (taken, status) = self.cond_branch()?;
                self.status = status;
                if !taken {
                    return Ok(());
                }
            }
            // A call of the next instruction is how code finds its own address.
            class::CALL if extra.displacement != Some(0) => self.returns.push(self.ip),
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
        if let Some(displacement) = extra.displacement {
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
        Self { flow: Flow::new(config, 1 << 0), known: Box::default() }
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

    /// The next instruction. It is passed to `give` also where it cannot be decoded, and with `false` where its section
    /// cannot be read.
    #[inline]
    pub(crate) fn next(&mut self, give: impl FnOnce(&PtInsn, bool)) -> Answer<c_int> {
        let flow = &self.flow;
        if !flow.enabled {
            let ended = flow.status & status::END_OF_STREAM != 0;
            return Err(if ended { Code::EndOfStream } else { Code::NoEnable }.status());
        }
        let Some(index) = self.known() else { return self.unknown(give) };
        let Self { flow, known } = self;
        let Known { insn, extra, .. } = &known[index];
        give(insn, true);
        if flow.may_have_event() {
            let (insn, extra) = (*insn, *extra);
            return self.after(&insn, &extra);
        }
        flow.proceed(insn, extra)?;
        if flow.may_have_event() {
            let (insn, extra) = (*insn, *extra);
            return self.check_ip(Some((&insn, &extra)));
        }
        Ok(flow.status(0))
    }

    /// The next instruction, which has to be decoded.
    #[inline(never)]
    fn unknown(&mut self, give: impl FnOnce(&PtInsn, bool)) -> Answer<c_int> {
        let mut insn = PtInsn::EMPTY;
        let (is_whole, extra) = self.read(&mut insn);
        give(&insn, is_whole);
        self.after(&insn, &extra?)
    }

    /// What comes after an instruction: events that bind to it, the way to the next one, and events there.
    #[inline(never)]
    fn after(&mut self, insn: &PtInsn, extra: &Extra) -> Answer<c_int> {
        let status = self.check_insn(insn, extra)?;
        if status & status::EVENT_PENDING != 0 {
            return Ok(status);
        }
        self.flow.proceed(insn, extra)?;
        self.check_ip(Some((insn, extra)))
    }

    fn flags(&self) -> u32 {
        if self.flow.speculative { insn::flag::SPECULATIVE } else { 0 }
    }

    /// Which of the known ones the next instruction is, if it was decoded from the same bytes before.
    #[inline]
    fn known(&self) -> Option<usize> {
        let (place, isid) = self.flow.place()?;
        let index = index(place);
        let Known { place: known, insn, .. } = self.known.get(index)?;
        let is_same = *known == place
            && insn.ip == self.flow.ip
            && insn.isid == isid
            && insn.mode == self.flow.mode
            && insn.flags == self.flags();
        is_same.then_some(index)
    }

    /// Reads the next instruction. The first value is `false` where its section cannot be read.
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
        if let (Ok(extra), Some((place, _))) = (extra, self.flow.place())
            && insn.flags & insn::flag::TRUNCATED == 0
        {
            if self.known.is_empty() {
                self.known = vec![Known::NONE; KNOWN].into_boxed_slice();
            }
            self.known[index(place)] = Known { place, insn: *insn, extra };
        }
        (true, extra)
    }

    /// Decodes it from the mapped section, or else from the image.
    fn decode(&mut self, insn: &mut PtInsn, has_kept: bool) -> Answer<Extra> {
        if has_kept {
            match self.flow.kept.read(&mut insn.raw, insn.ip) {
                Ok(size) => {
                    // At most 15.
                    insn.size = size as u8;
                    if let Ok(extra) = decode(insn) {
                        return Ok(extra);
                    }
                }
                Err(Code::NotMapped) => {}
                Err(error) => return Err(error.status()),
            }
        }
        self.flow.with_image(|image, _, asid| insn.read(image, asid))
    }

    /// Whether tracing is disabled by this instruction.
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

    /// Looks for an event that binds to an instruction. Returns the status; zero if there is none.
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
                    // It is expected to return from a call.
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
            kind::PTWRITE => {
                if bound.ptwrite {
                    return Ok(0);
                }
                let event = &mut flow.event;
                if event.flags & flag::IP_SUPPRESSED != 0 {
                    if insn.class != class::PTWRITE {
                        return Ok(0);
                    }
                    event.variant[0] = flow.ip;
                    event.flags &= !flag::IP_SUPPRESSED;
                } else if flow.ip != event.variant[0] {
                    return Ok(0);
                }
                bound.ptwrite = true;
                self.postpone(insn, extra)
            }
            _ => Ok(0),
        }
    }

    /// Erratum BDM64: the trace of a branch before an aborted transaction can be wrong. Then it led to the abort.
    fn handle_bdm64(&mut self, insn: &PtInsn) {
        let flow = &mut self.flow;
        if flow.event.variant[1] & flag::ABORTED == 0 || !insn.is_branch() {
            return;
        }
        let (from, to, mode) = (flow.ip, flow.event.variant[0], flow.mode);
        if !flow.with_image(|image, _, asid| is_contiguous(from, to, mode, image, asid)) {
            flow.ip = to;
        }
    }

    /// Looks for an event at the address, after an instruction if there is one. Returns the status.
    #[inline]
    fn check_ip(&mut self, last: Option<(&PtInsn, &Extra)>) -> Answer<c_int> {
        if !self.flow.has_event()? {
            return Ok(self.flow.status(0));
        }
        self.check_event_here(last)
    }

    #[inline(never)]
    fn check_event_here(&mut self, last: Option<(&PtInsn, &Extra)>) -> Answer<c_int> {
        let flow = &mut self.flow;
        let here = match flow.event.kind {
            kind::DISABLED => false,
            kind::ASYNC_DISABLED => {
                flow.event.variant[0] == flow.ip
                    && !(flow.query.config.errata.has(PtErrata::SKD022) && flow.handle_skd022(flow.ip))
            }
            kind::TSX => {
                let is_suppressed = flow.event.flags & flag::IP_SUPPRESSED != 0;
                if let Some((insn, _)) = last
                    && !is_suppressed
                    && flow.query.config.errata.has(PtErrata::BDM64)
                {
                    self.handle_bdm64(insn);
                }
                !self.flow.is_elsewhere(0)
            }
            kind::ASYNC_BRANCH => flow.event.variant[0] == flow.ip,
            kind::EXEC_MODE | kind::ASYNC_VMCS => !flow.is_elsewhere(1),
            kind::ASYNC_PAGING => !flow.is_elsewhere(2),
            kind::PAGING | kind::VMCS | kind::PTWRITE => !flow.enabled,
            kind::EXSTOP | kind::MWAIT => !flow.enabled || !flow.is_elsewhere(0),
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
            kind::EXSTOP | kind::MWAIT => flow.enabled && flow.is_elsewhere(0),
            _ => false,
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
