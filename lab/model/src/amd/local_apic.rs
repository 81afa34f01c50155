//! The entries of the local vector table through which counters and IBS interrupt, and the interrupts in flight.
//!
//! Source: APM vol. 2, Advanced Programmable Interrupt Controller (APIC), "Local APIC
//! Registers", "Local Interrupts" and "Extended Interrupts"; BKDG
//! for AMD Family 10h Processors, "APIC Registers".

use super::AmdViolations;
use crate::Pmi;

/// An entry of the local vector table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LvtEntry {
    /// Performance counters.
    Counters,
    /// One of the extended entries.
    Extended(usize),
}

const MASK: u32 = 1 << 16;
/// Mask, message type, vector. The delivery status reads as idle.
const WRITABLE: u32 = MASK | 0x7ff;
const FIXED: u32 = 0;
const NMI: u32 = 4;

/// Offsets of registers in the local APIC's page.
const LVT_PC: u32 = 0x340;
const VERSION: u32 = 0x30;
const EXTENDED_FEATURE: u32 = 0x400;
const EXTENDED_CONTROL: u32 = 0x410;
const EXTENDED_LVT: u32 = 0x500;

/// The reset value of an entry, including the extended ones.
///
/// Source: PPR for AMD Family 1Ah Model 44h, "Local APIC Registers": 0001_0000h for all entries. The table of APM vol.
/// 2, "APIC Registers", has 0 for the extended entries, but "Local APIC Enable" there says that the mask bits of all
/// entries are set and cannot be cleared while APIC_SW_EN is 0, which is its reset value.
const UNPROGRAMMED: u32 = MASK;
/// The lowest vector of a fixed interrupt.
const FIRST_VECTOR: u8 = 16;

/// The number of extended entries of the largest processor.
const MAX_EXTENDED: usize = 4;
/// Maximum number of in-flight interrupts; further ones merge with them.
const MAX_ON_THE_WAY: usize = 4;

#[derive(Debug)]
pub(super) struct LocalApic {
    counters: u32,
    extended: [u32; MAX_EXTENDED],
    /// Number of extended entries.
    present: usize,
    skid: u32,
    /// In-flight interrupts, each with the number of instructions before it arrives.
    waiting: [Option<(LvtEntry, u32)>; MAX_ON_THE_WAY],
    nmi: bool,
    vectors: [Option<u8>; 2],
}

impl LocalApic {
    pub(super) fn new(extended_lvts: u32, skid: u32) -> Self {
        Self {
            counters: UNPROGRAMMED,
            extended: [UNPROGRAMMED; MAX_EXTENDED],
            present: (extended_lvts as usize).min(MAX_EXTENDED),
            skid,
            waiting: [None; MAX_ON_THE_WAY],
            nmi: false,
            vectors: [None; 2],
        }
    }

    /// Returns true if the register at `offset` of the page is modelled here.
    pub(super) fn owns(&self, offset: u32) -> bool {
        match offset {
            LVT_PC => true,
            EXTENDED_FEATURE | EXTENDED_CONTROL => self.present != 0,
            _ => self.index(offset).is_some(),
        }
    }

    pub(super) fn read(&self, offset: u32) -> u32 {
        match offset {
            LVT_PC => self.counters,
            // The number of extended entries. There are no interrupt enables, no specific EOI and no extended ID.
            EXTENDED_FEATURE => (self.present as u32) << 16,
            _ => self.index(offset).map_or(0, |index| self.extended[index]),
        }
    }

    pub(super) fn write(&mut self, offset: u32, value: u32) {
        if offset == LVT_PC {
            self.counters = value & WRITABLE;
        } else if let Some(index) = self.index(offset) {
            self.extended[index] = value & WRITABLE;
        }
    }

    /// Returns the value of a register that is not modelled here if the physical local APIC's value is `value`: the
    /// version register reports whether there is an extended space.
    pub(super) fn adjust(&self, offset: u32, value: u32) -> u32 {
        const EXTENDED_SPACE: u32 = 1 << 31;
        if offset == VERSION && self.present != 0 { value | EXTENDED_SPACE } else { value }
    }

    /// Resets the entries, as INIT does.
    pub(super) fn init(&mut self) {
        self.counters = UNPROGRAMMED;
        self.extended = [UNPROGRAMMED; MAX_EXTENDED];
        self.nmi = false;
        self.vectors = [None; 2];
    }

    /// Puts an interrupt in flight. If there are too many already, it merges with them.
    pub(super) fn signal(&mut self, entry: LvtEntry) {
        if let Some(free) = self.waiting.iter_mut().find(|slot| slot.is_none()) {
            *free = Some((entry, self.skid));
        }
    }

    pub(super) fn has_interrupt_on_the_way(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
    }

    /// Returns the number of instructions to retire, including the one at which the next interrupt arrives.
    pub(super) fn instructions_until_interrupt(&self) -> u32 {
        let left = self.waiting.iter().flatten().map(|(_, left)| left.saturating_add(1));
        left.min().unwrap_or(u32::MAX)
    }

    /// Counts an instruction that retired: each in-flight interrupt is one instruction closer.
    pub(super) fn instruction_retired(&mut self, violations: &mut AmdViolations) {
        for index in 0..MAX_ON_THE_WAY {
            match self.waiting[index] {
                Some((entry, 0)) => {
                    self.waiting[index] = None;
                    self.deliver_to(entry, violations);
                }
                Some((entry, left)) => self.waiting[index] = Some((entry, left - 1)),
                None => {}
            }
        }
    }

    /// Delivers all in-flight interrupts, because the processor stops executing.
    pub(super) fn deliver_all(&mut self, violations: &mut AmdViolations) {
        for index in 0..MAX_ON_THE_WAY {
            if let Some((entry, _)) = self.waiting[index].take() {
                self.deliver_to(entry, violations);
            }
        }
    }

    /// Delivers an interrupt as its entry selects. The entry is unchanged: an AMD processor does not mask it.
    fn deliver_to(&mut self, entry: LvtEntry, violations: &mut AmdViolations) {
        let lvt = match entry {
            LvtEntry::Counters => self.counters,
            LvtEntry::Extended(index) => self.extended[index],
        };
        if lvt & MASK != 0 {
            violations.interrupts_dropped += 1;
            return;
        }
        match lvt >> 8 & 7 {
            NMI => self.nmi = true,
            FIXED if lvt as u8 >= FIRST_VECTOR => {
                let vector = lvt as u8;
                if !self.vectors.contains(&Some(vector))
                    && let Some(free) = self.vectors.iter_mut().find(|slot| slot.is_none())
                {
                    *free = Some(vector);
                }
            }
            _ => violations.interrupts_misprogrammed += 1,
        }
    }

    /// Takes the next interrupt that is due, an NMI first.
    pub(super) fn take_delivered(&mut self) -> Option<Pmi> {
        if core::mem::take(&mut self.nmi) {
            return Some(Pmi::Nmi);
        }
        self.vectors.iter_mut().find_map(Option::take).map(Pmi::Fixed)
    }

    /// Returns true if there is an extended entry with that number.
    pub(super) fn has_extended(&self, index: usize) -> bool {
        index < self.present
    }

    fn index(&self, offset: u32) -> Option<usize> {
        let index = offset.checked_sub(EXTENDED_LVT)? as usize;
        (index.is_multiple_of(0x10) && index / 0x10 < self.present).then_some(index / 0x10)
    }
}
