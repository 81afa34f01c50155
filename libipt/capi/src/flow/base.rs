//! The state that the instruction decoder and the block decoder share: the position in the code, and the event being
//! processed.

use crate::{
    config::PtConfig,
    error::Code,
    event::{PtEvent, flag, kind},
    image::{
        Image, Kept, PtAsid, Window,
        code::{Detail, Extra},
        insn::PtInsn,
        shape::{LONGEST, Shape},
    },
    query::decoder::{Answer, QueryDecoder, status},
};
use pugmark_ipt::Returns;
use std::{ffi::c_int, ptr};

/// An instruction that the decoder has not gone past because events bind to it, and the events bound so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Postponed {
    pub(super) insn: Option<(PtInsn, Extra)>,
    pub(super) paging: bool,
    pub(super) vmcs: bool,
    /// Kinds of other events that are bound, as bits.
    pub(super) kinds: u64,
}

#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) query: QueryDecoder,
    /// True if the caller wants tick events.
    pub(super) ticks: bool,
    /// The caller's image; null for the decoder's own.
    image: *mut Image,
    own_image: Box<Image>,
    pub(super) kept: Kept,
    pub(crate) asid: PtAsid,
    pub(super) mode: c_int,
    pub(super) ip: u64,
    pub(super) status: c_int,
    pub(super) enabled: bool,
    pub(super) speculative: bool,
    /// True while the event is processed and the caller has not got it yet.
    pub(super) process_event: bool,
    pub(super) event: PtEvent,
    pub(super) postponed: Postponed,
    pub(super) returns: Returns,
}

impl Flow {
    /// Makes a decoder. `ticks` and `interrupt_flag` are masks in the configuration's flags; they depend on the kind of
    /// decoder.
    pub(super) fn new(config: PtConfig, ticks: u32, interrupt_flag: u32) -> Self {
        let has_interrupt_flag = config.flags[0] & interrupt_flag != 0;
        Self {
            query: QueryDecoder::new(PtConfig { flags: [0; 4], ..config }, has_interrupt_flag),
            ticks: config.flags[0] & ticks != 0,
            image: ptr::null_mut(),
            own_image: Box::new(Image::new(None)),
            kept: Kept::default(),
            asid: PtAsid::ANY,
            mode: 0,
            ip: 0,
            status: 0,
            enabled: false,
            speculative: false,
            process_event: false,
            event: PtEvent::EMPTY,
            postponed: Postponed::default(),
            returns: Returns::new(),
        }
    }

    pub(super) fn reset(&mut self) {
        self.asid = PtAsid::ANY;
        self.mode = 0;
        self.ip = 0;
        self.status = 0;
        self.enabled = false;
        self.speculative = false;
        self.process_event = false;
        self.postponed = Postponed::default();
        self.returns.clear();
    }

    pub(crate) fn image(&mut self) -> *mut Image {
        if self.image.is_null() { &raw mut *self.own_image } else { self.image }
    }

    /// # Safety
    /// `image` is null, or an image that outlives its use by this decoder, and that nobody else uses meanwhile.
    pub(crate) unsafe fn set_image(&mut self, image: *mut Image) {
        self.image = image;
    }

    /// Calls `with` with the image, the mapped section and the address space.
    #[inline]
    pub(super) fn with_image<T>(&mut self, with: impl FnOnce(&mut Image, &mut Kept, &PtAsid) -> T) -> T {
        // SAFETY: null, or the caller of `set_image` promised that it lives and that nobody else uses it now.
        let image = unsafe { self.image.as_mut() }.unwrap_or(&mut self.own_image);
        with(image, &mut self.kept, &self.asid)
    }

    /// Returns the next instruction, if it is cached in the mapped section: its shape, its bytes and the section's
    /// identifier.
    #[inline(always)]
    pub(super) fn remembered(&self) -> Option<(Shape, &[u8; LONGEST], c_int)> {
        // SAFETY: as in `with_image`.
        let image = unsafe { self.image.as_ref() }.unwrap_or(&self.own_image);
        let window = self.kept.window(image.version())?;
        let (shape, bytes) = window.shape(self.ip, self.mode)?;
        Some((shape, bytes, window.isid))
    }

    /// Returns the mapped section, if it is still the first one of the image, and the return addresses.
    #[inline(always)]
    pub(super) fn known_code(&mut self) -> Option<(&Window, &mut Returns)> {
        // SAFETY: as in `with_image`.
        let image = unsafe { self.image.as_ref() }.unwrap_or(&self.own_image);
        Some((self.kept.window(image.version())?, &mut self.returns))
    }

    /// Ends a call: releases the image, and converts the answer to the call's status.
    #[inline]
    pub(super) fn done(&mut self, answer: Answer<c_int>) -> c_int {
        self.with_image(|image, _, _| image.release());
        answer.unwrap_or_else(|error| error)
    }

    /// Returns the status that the caller gets, with `flags`.
    #[inline]
    pub(super) fn status(&self, flags: c_int) -> c_int {
        let disabled = if self.enabled { 0 } else { status::IP_SUPPRESSED };
        // The end of the trace is reported after the events.
        let end = if self.process_event { 0 } else { self.status & status::END_OF_STREAM };
        flags | disabled | end
    }

    /// Returns the status with an event.
    pub(super) fn pending(&self) -> Answer<c_int> {
        Ok(self.status(status::EVENT_PENDING))
    }

    /// Sets the state after synchronisation.
    pub(super) fn start(&mut self, status: c_int) {
        self.status = status;
        self.enabled = status & status::IP_SUPPRESSED == 0;
    }

    /// Makes a tick event if the time has changed.
    fn tick(&mut self, ip: u64) -> Answer<()> {
        if !self.ticks {
            return Ok(());
        }
        if !self.enabled {
            return Err(Code::Internal.status());
        }
        let time = self.query.time();
        if self.process_event || time.relative() == self.event.tsc {
            return Ok(());
        }
        let mut event = PtEvent::new(kind::TICK, [ip, 0, 0]);
        event.tsc = time.relative();
        event.lost_mtc = time.lost_mtc();
        event.lost_cyc = time.lost_cyc();
        if time.time().is_ok() {
            event.flags |= flag::HAS_TSC;
        }
        self.event = event;
        self.process_event = true;
        Ok(())
    }

    /// Goes where the next indirect branch goes, and returns the status.
    pub(super) fn indirect_branch(&mut self) -> Answer<c_int> {
        let from = self.ip;
        let status = self.query.indirect_branch(&mut self.ip)?;
        self.tick(from)?;
        Ok(status)
    }

    /// Returns the outcome of the next conditional branch (true if taken), and the status.
    #[inline]
    pub(super) fn cond_branch(&mut self) -> Answer<(bool, c_int)> {
        let answer = self.query.cond_branch()?;
        if self.ticks {
            self.tick(self.ip)?;
        }
        Ok(answer)
    }

    /// Returns true if there is an event to process, or an error where one should be.
    #[inline]
    pub(super) fn may_have_event(&self) -> bool {
        self.process_event || self.status & status::EVENT_PENDING != 0
    }

    /// Returns true if there is an event to process.
    #[inline]
    pub(super) fn has_event(&mut self) -> Answer<bool> {
        if self.process_event {
            return Ok(true);
        }
        if self.status & status::EVENT_PENDING == 0 {
            return Ok(false);
        }
        let event = &mut self.event;
        self.status = self.query.next_event(|next| *event = *next)?;
        self.process_event = true;
        Ok(true)
    }

    /// Returns the instruction at an address, from the image.
    pub(super) fn insn_at(&mut self, ip: u64) -> Option<(PtInsn, Extra)> {
        let mut insn = PtInsn { ip, mode: self.mode, ..PtInsn::EMPTY };
        let extra = self.with_image(|image, _, asid| insn.read(image, asid)).ok()?;
        Some((insn, extra))
    }

    /// Handles erratum SKD022: tracing is disabled by a VM entry itself, not before it. Returns true if it changed the
    /// event.
    pub(super) fn handle_skd022(&mut self, ip: u64) -> bool {
        let is_entry = self.insn_at(ip).is_some_and(|(_, extra)| extra.detail == Detail::VmEntry);
        if is_entry {
            self.event.kind = kind::DISABLED;
            self.event.variant[0] = self.event.variant[1];
        }
        is_entry
    }

    /// Returns true if the event binds to the instruction at its address, or, without an address, to one of these
    /// instructions.
    pub(super) const fn binds_to_insn(&self) -> bool {
        matches!(self.event.kind, kind::PTWRITE | kind::IRET | kind::VMENTRY | kind::UIRET)
    }

    /// Returns true if the event comes before the instruction at its address.
    pub(super) const fn comes_before_insn(&self) -> bool {
        matches!(self.event.kind, kind::EXSTOP | kind::MWAIT)
            || self.event.is_of_event_trace() && !self.binds_to_insn()
    }

    /// Binds the event to an instruction, unless one of its kind is bound to it. Returns true if it did.
    pub(super) fn bind(&mut self) -> bool {
        // A kind that binds is less than 64.
        let bit = 1 << self.event.kind;
        let is_new = self.postponed.kinds & bit == 0;
        self.postponed.kinds |= bit;
        is_new
    }

    /// Returns true if tracing is enabled, and the event is at another address than the decoder.
    pub(super) fn is_ahead(&self) -> bool {
        self.enabled && self.event.ip_word().is_some_and(|word| self.is_elsewhere(word))
    }

    /// Returns true if the event is a change of mode that got an address from a FUP while tracing is off.
    pub(super) fn is_mode_while_off(&self) -> bool {
        self.event.kind == kind::EXEC_MODE && self.query.has_interrupt_flag && !self.enabled
    }

    /// Returns true if the event is at another address than the decoder.
    pub(super) fn is_elsewhere(&self, word: usize) -> bool {
        self.event.flags & flag::IP_SUPPRESSED == 0 && self.event.variant[word] != self.ip
    }

    /// Applies the event to the state.
    pub(super) fn apply(&mut self) -> Answer<()> {
        let bad = Err(Code::BadContext.status());
        let event = &mut self.event;
        let is_status = event.flags & flag::STATUS_UPDATE != 0;
        let is_suppressed = event.flags & flag::IP_SUPPRESSED != 0;
        match event.kind {
            kind::ENABLED => {
                if event.variant[0] == self.ip {
                    event.variant[1] |= flag::RESUMED;
                }
                if is_status || self.enabled {
                    return bad;
                }
                self.ip = event.variant[0];
                self.enabled = true;
            }
            kind::DISABLED | kind::ASYNC_DISABLED => {
                if is_status || !self.enabled {
                    return bad;
                }
                self.enabled = false;
            }
            kind::ASYNC_BRANCH => {
                if is_status || !self.enabled {
                    return bad;
                }
                self.ip = event.variant[1];
            }
            kind::PAGING | kind::ASYNC_PAGING if self.asid.cr3 != event.variant[0] => {
                self.kept.forget();
                self.asid.cr3 = event.variant[0];
            }
            kind::VMCS | kind::ASYNC_VMCS if self.asid.vmcs != event.variant[0] => {
                self.kept.forget();
                self.asid.vmcs = event.variant[0];
            }
            kind::OVERFLOW => {
                if is_status {
                    return bad;
                }
                self.enabled = !is_suppressed;
                self.ip = if is_suppressed { 0 } else { event.variant[0] };
                self.speculative = false;
            }
            kind::EXEC_MODE => {
                // The mode has 32 bits.
                let mode = event.variant[0] as c_int;
                if is_status && self.enabled && self.mode != 0 && self.mode != mode {
                    return Err(Code::BadStatusUpdate.status());
                }
                self.mode = mode;
            }
            kind::TSX => self.speculative = event.variant[1] & flag::SPECULATIVE != 0,
            kind::STOP if is_status || self.enabled => return bad,
            _ => {}
        }
        Ok(())
    }
}
