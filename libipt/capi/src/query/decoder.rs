//! The state of a query decoder: its position, the next packet, and the answers to queries.
//!
//! libipt reads ahead: after each answer it goes to the next packet that a query needs, so that the status can announce
//! an event. On the way only packets that change nothing but time are applied.

use super::{
    opcode::{self, Opcode},
    outcomes::Outcomes,
};
use crate::{
    config::PtConfig,
    error::Code,
    event::{PtEvent, Queue, Wait},
    fast_packets::given_ip,
    packets::{CallerPackets, packets},
};
use pugmark_decoder_core::{
    config::Clocks,
    last_ip::LastIp,
    packet::{ModeExec, PSB},
    sync::forward,
    time::Estimate,
};
pub(crate) use pugmark_ipt::Answer;
use pugmark_ipt::{Clock, EventData};
use std::ffi::c_int;

/// `enum pt_status_flag`.
pub(crate) mod status {
    use std::ffi::c_int;

    pub(crate) const EVENT_PENDING: c_int = 1 << 0;
    pub(crate) const IP_SUPPRESSED: c_int = 1 << 1;
    pub(crate) const END_OF_STREAM: c_int = 1 << 2;
}

/// `struct pt_query_decoder`.
#[derive(Debug)]
pub struct QueryDecoder {
    pub(crate) config: PtConfig,
    pub(super) clocks: Clocks,
    /// The offset of the next packet; `None` before the first synchronisation. Erratum SKZ84 can lead one byte past the
    /// end.
    pub(super) position: Option<usize>,
    pub(super) sync: Option<usize>,
    /// The opcode at the position; `None` if it is not known.
    pub(super) next: Option<Opcode>,
    /// True while tracing is enabled.
    pub(super) enabled: bool,
    /// True if an event has used the packet at the position, which is consumed once no other event waits for it.
    pub(super) consume: bool,
    /// The event that the last packet published.
    pub(super) event: Option<PtEvent>,
    pub(super) ip: LastIp,
    pub(super) outcomes: Outcomes,
    pub(super) clock: Clock,
    pub(super) data: EventData,
    /// True if Event Trace is on: changes of the interrupt flag are events, and a MODE.Exec may have a FUP of its own.
    pub(crate) has_interrupt_flag: bool,
    /// The last mode, if Event Trace is on.
    pub(super) mode: Option<ModeExec>,
    /// True if the next FUP belongs to a packet that is no event.
    pub(super) ignores_fup: bool,
    /// The time of the last answer, if it has changed since.
    answered_time: Option<Estimate>,
    queues: [Queue; 3],
    /// The flags of the packets that are events, or that events wait for.
    waits: u8,
}

impl QueryDecoder {
    pub(crate) fn new(config: PtConfig, has_interrupt_flag: bool) -> Self {
        Self {
            config,
            clocks: config.clocks(),
            position: None,
            sync: None,
            next: None,
            enabled: false,
            consume: false,
            event: None,
            ip: LastIp::new(),
            outcomes: Outcomes::default(),
            clock: Clock::default(),
            data: EventData::NONE,
            has_interrupt_flag,
            mode: None,
            ignores_fup: false,
            answered_time: None,
            queues: [Queue::EMPTY; 3],
            waits: opcode::EVENT,
        }
    }

    pub(super) fn reset(&mut self) {
        self.enabled = false;
        self.consume = false;
        self.event = None;
        self.ip = LastIp::new();
        self.outcomes = Outcomes::default();
        self.clock = Clock::default();
        self.data = EventData::NONE;
        self.mode = None;
        self.ignores_fup = false;
        self.answered_time = Some(Estimate::default());
        for queue in &mut self.queues {
            queue.clear();
        }
        self.waits = opcode::EVENT;
    }

    /// Returns the events that wait for a packet.
    pub(super) fn queue(&self, wait: Wait) -> &Queue {
        &self.queues[wait as usize]
    }

    /// Applies `change` to the events that wait for a packet.
    pub(super) fn change<T>(&mut self, wait: Wait, change: impl FnOnce(&mut Queue) -> T) -> T {
        let queue = &mut self.queues[wait as usize];
        let result = change(queue);
        let flag = match wait {
            Wait::PsbEnd => opcode::PSBEND,
            Wait::Tip => opcode::TIP,
            Wait::Fup => opcode::FUP,
        };
        self.waits = if queue.is_empty() { self.waits & !flag } else { self.waits | flag };
        result
    }

    pub(super) fn push(&mut self, wait: Wait, event: PtEvent) -> Option<()> {
        self.change(wait, |queue| queue.push(event))
    }

    pub(super) fn pop(&mut self, wait: Wait) -> Option<PtEvent> {
        self.change(wait, Queue::pop)
    }

    /// Returns the clock, to be changed, and the processor's clocks. The time of the last answer does not change.
    #[inline]
    pub(super) fn clock_mut(&mut self) -> (&mut Clock, &Clocks) {
        self.answered_time.get_or_insert(self.clock.time);
        (&mut self.clock, &self.clocks)
    }

    /// Returns the buffer, borrowed from the decoder, because the caller's reader of unknown packets may write to it.
    pub(super) fn trace(&self) -> &[u8] {
        // SAFETY: the caller of the function that made the decoder promised that the buffer is readable as long as the
        // decoder exists, and that only its reader of unknown packets writes to it. While that reader runs, no slice
        // exists.
        unsafe { self.config.trace() }
    }

    /// Returns the rest of the buffer from the position on.
    pub(super) fn rest(&self) -> &[u8] {
        self.position.and_then(|position| self.trace().get(position..)).unwrap_or_default()
    }

    /// Returns a separate packet decoder that looks ahead from the position plus `offset`.
    pub(super) fn scanner(&self, offset: usize) -> Answer<CallerPackets> {
        let from = self.position.ok_or(Code::NoSync.status())? + offset;
        // SAFETY: this decoder outlives it, and both use the buffer in the same way.
        let mut packets = unsafe { packets(self.config) };
        packets.sync_set(from as u64)?;
        Ok(packets)
    }

    #[inline(always)]
    fn fetch(&self) -> Result<Opcode, Code> {
        let position = self.position.ok_or(Code::NoSync)?;
        Opcode::fetch(self.trace().get(position..).ok_or(Code::NoSync)?)
    }

    /// Reads the opcode at the position.
    pub(super) fn fetch_next(&mut self) -> Answer<Opcode> {
        let opcode = self.fetch();
        self.next = opcode.ok();
        opcode.map_err(Code::status)
    }

    /// Returns the opcode at the position, or the error status.
    fn current(&self) -> Answer<Opcode> {
        match self.next {
            Some(opcode) => Ok(opcode),
            None => Err(self.fetch().err().unwrap_or(Code::Internal).status()),
        }
    }

    /// Returns true if the next packet is an event, or one that events wait for.
    fn will_event(&self) -> bool {
        let Some(opcode) = self.next else { return false };
        opcode.flags() & self.waits != 0
    }

    /// Returns the status, which announces the next packet once all outcomes are taken.
    #[inline]
    fn flags(&self) -> c_int {
        if !self.outcomes.is_empty() {
            return 0;
        }
        let mut flags = 0;
        if self.will_event() {
            flags |= status::EVENT_PENDING;
        }
        if self.next.is_none() && self.fetch() == Err(Code::EndOfStream) {
            flags |= status::END_OF_STREAM;
        }
        flags
    }

    /// Goes to the next packet that a query needs.
    fn read_ahead(&mut self) -> Answer<()> {
        loop {
            let opcode = self.fetch_next()?;
            if opcode.flags() & (opcode::TIP | opcode::TNT) != 0 || self.will_event() {
                return Ok(());
            }
            let decoded = match opcode {
                Opcode::Cyc => self.cyc(),
                _ => self.decode(opcode),
            };
            if let Err(error) = decoded {
                if error == Code::EndOfStream.status() {
                    // The packet is cut off at the end.
                    self.position = Some(self.trace().len());
                    self.next = None;
                }
                return Err(error);
            }
        }
    }

    /// Reads ahead after an answer: keeps the answer's time, and leaves the end of the trace to the next query.
    #[inline(always)]
    pub(super) fn answered(&mut self) -> Answer<()> {
        if let Ok(opcode) = self.fetch()
            && opcode.flags() & (opcode::TIP | opcode::TNT) != 0
        {
            self.answered_now(opcode);
            return Ok(());
        }
        self.read_ahead_after_answer()
    }

    /// Ends an answer after which the packet at the position is one that the next query needs.
    #[inline(always)]
    pub(super) fn answered_now(&mut self, next: Opcode) {
        self.answered_time = None;
        self.next = Some(next);
    }

    #[inline(never)]
    fn read_ahead_after_answer(&mut self) -> Answer<()> {
        self.answered_time = None;
        self.read_ahead()
            .or_else(|error| if error == Code::EndOfStream.status() { Ok(()) } else { Err(error) })
    }

    /// Writes the last address, and returns true if there is one.
    fn write_ip(&self, out: Option<&mut u64>) -> bool {
        let ip = self.ip.get();
        if let Some(out) = out {
            *out = ip.unwrap_or(0);
        }
        ip.is_ok()
    }

    /// Starts at a PSB.
    fn start(&mut self, at: usize, mut ip: Option<&mut u64>) -> Answer<c_int> {
        self.reset();
        self.sync = Some(at);
        self.position = Some(at);
        if self.fetch_next()? != Opcode::Psb {
            return Err(Code::NoSync.status());
        }
        self.decode(Opcode::Psb)?;
        // A PSB+ that follows at once may have another address.
        if self.write_ip(ip.as_deref_mut()) {
            ip = None;
        }
        self.read_ahead()?;
        let mut flags = self.flags();
        let asked = ip.is_some();
        if !self.write_ip(ip) && asked {
            flags |= status::IP_SUPPRESSED;
        }
        Ok(flags)
    }

    pub(crate) fn sync_forward(&mut self, ip: Option<&mut u64>) -> Answer<c_int> {
        let position = match self.position {
            // The current PSB is not the next one.
            Some(position) if self.sync == Some(position) => position + PSB.len(),
            position => position.unwrap_or(0),
        };
        // The packet before may have swallowed the first bytes of a PSB.
        let from = position - position.min(PSB.len() - 1);
        if from > self.trace().len() {
            return Err(Code::Internal.status());
        }
        let psb = forward(self.trace(), from).ok_or(Code::EndOfStream.status())?;
        self.start(psb, ip)
    }

    pub(crate) fn sync_backward(&mut self, mut ip: Option<&mut u64>) -> Answer<c_int> {
        let start = self.position.unwrap_or(self.trace().len());
        if start > self.trace().len() {
            return Err(Code::Internal.status());
        }
        let (mut from, mut last) = (start, None);
        loop {
            let at = pugmark_ipt::backward(self.trace(), self.config.begin.addr(), from)
                .ok_or(Code::EndOfStream.status())?;
            if last == Some(at) {
                // In a run of PSBs the search finds the last one from each of them; libipt 2.0.5 never returns there.
                from = from.saturating_sub(PSB.len());
                continue;
            }
            (from, last) = (at, Some(at));
            match self.start(at, ip.as_deref_mut()) {
                // The last PSB+ may be cut off.
                Err(error) if error == Code::EndOfStream.status() => {}
                Err(error) => return Err(error),
                // A PSB+ with nothing after it may lead back to the start of the search.
                Ok(_) if self.position != Some(start) => return Ok(0),
                Ok(_) => {}
            }
        }
    }

    pub(crate) fn sync_set(&mut self, offset: u64, ip: Option<&mut u64>) -> Answer<c_int> {
        let offset = self.config.checked(offset).ok_or(Code::EndOfStream.status())?;
        // The offset is in the buffer, so it fits.
        let at = offset as usize;
        let rest = &self.trace()[at..];
        let Some(begin) = rest.get(..2) else { return Err(Code::EndOfStream.status()) };
        if begin != &PSB[..2] {
            return Err(Code::NoSync.status());
        }
        match rest.get(..PSB.len()) {
            None => Err(Code::EndOfStream.status()),
            Some(bytes) if bytes != PSB => Err(Code::BadPacket.status()),
            Some(_) => self.start(at, ip),
        }
    }

    /// Reads TNT packets until there are outcomes.
    #[inline]
    fn read_outcomes(&mut self) -> Answer<()> {
        // No event waits for a TNT packet.
        if self.next == Some(Opcode::Tnt8)
            && let Some(&byte) = self.rest().first()
        {
            return self.read_short(byte);
        }
        loop {
            let opcode = self.current()?;
            if self.will_event() || opcode.flags() & opcode::TIP != 0 {
                return Err(Code::BadQuery.status());
            }
            self.event = None;
            self.decode(opcode)?;
            if self.event.is_some() {
                return Err(Code::EventIgnored.status());
            }
            if opcode.flags() & opcode::TNT != 0 {
                return self.answered();
            }
            self.read_ahead()?;
        }
    }

    /// Returns the outcome of the next conditional branch (true if taken), and the status.
    #[inline(always)]
    pub(crate) fn cond_branch(&mut self) -> Answer<(bool, c_int)> {
        match self.outcomes.take_before_last() {
            Some(is_taken) => Ok((is_taken, 0)),
            None => self.last_or_first_cond_branch(),
        }
    }

    #[inline(never)]
    fn last_or_first_cond_branch(&mut self) -> Answer<(bool, c_int)> {
        if self.outcomes.is_empty() {
            self.read_outcomes()?;
        }
        if self.outcomes.is_empty() {
            return Err(Code::BadQuery.status());
        }
        Ok((self.outcomes.take(), self.flags()))
    }

    /// Writes the target of the next indirect branch, unless it is suppressed, and returns the status. An error can
    /// follow the write.
    pub(crate) fn indirect_branch(&mut self, out: &mut u64) -> Answer<c_int> {
        if self.next == Some(Opcode::Tip)
            && self.waits & opcode::TIP == 0
            && self.outcomes.is_empty()
            && let Some((form, payload, size)) = given_ip(self.rest())
        {
            *out = self.ip.update_by(form, payload);
            self.skip(size);
            self.answered()?;
            return Ok(self.flags());
        }
        self.other_indirect_branch(out)
    }

    #[inline(never)]
    fn other_indirect_branch(&mut self, out: &mut u64) -> Answer<c_int> {
        self.settle();
        loop {
            let opcode = self.current()?;
            if self.will_event() {
                return Err(Code::BadQuery.status());
            }
            self.event = None;
            // One TNT packet can come before: the one whose outcomes are already taken.
            if opcode.flags() & opcode::TNT != 0 && !self.outcomes.is_empty() {
                return Err(Code::BadQuery.status());
            }
            self.decode(opcode)?;
            if self.event.is_some() {
                return Err(Code::EventIgnored.status());
            }
            if opcode.flags() & opcode::TIP != 0 {
                let suppressed = match self.ip.get() {
                    Ok(ip) => {
                        *out = ip;
                        0
                    }
                    Err(_) => status::IP_SUPPRESSED,
                };
                self.answered()?;
                return Ok(self.flags() | suppressed);
            }
            self.read_ahead()?;
        }
    }

    /// Passes the next event to `give`, and returns the status. An error after that comes from reading ahead.
    pub(crate) fn next_event(&mut self, give: impl FnOnce(&PtEvent)) -> Answer<c_int> {
        if !self.outcomes.is_empty() {
            return Err(Code::BadQuery.status());
        }
        loop {
            let opcode = self.current()?;
            if opcode.flags() & (opcode::TIP | opcode::TNT) != 0 && !self.will_event() {
                return Err(Code::BadQuery.status());
            }
            self.event = None;
            self.decode(opcode)?;
            if let Some(event) = &self.event {
                give(event);
                self.answered()?;
                return Ok(self.flags());
            }
            self.read_ahead()?;
        }
    }

    /// Returns the offset of the last synchronisation.
    pub(crate) fn sync_offset(&self) -> Option<u64> {
        self.sync.map(|sync| sync as u64)
    }

    /// Returns the time of the last answer.
    pub(crate) fn time(&self) -> &Estimate {
        self.answered_time.as_ref().unwrap_or(&self.clock.time)
    }
}
