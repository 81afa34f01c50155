//! Runs of code, remembered.
//!
//! A run is straight-line code up to the first branch. It is decoded once and then found by its first address; the
//! memory for that is the caller's, and what does not fit replaces what was there.

use crate::{
    error::ErrorKind,
    image::{AddressSpace, Image, Window},
    insn::{self, Class, InsnError},
    mode::ExecMode,
};

/// A place in the caller's memory for one run of code.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    run: Run,
    ip: u64,
    space: u64,
}

/// Straight-line code: every instruction behind the first follows the one before it, and only the last may branch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    /// Where a direct branch at the end goes when it is taken.
    pub(super) target: u64,
    /// The section that the first byte is in.
    pub(super) section: u32,
    /// From the first byte to the last instruction's, and to the byte behind that.
    pub(super) last: u16,
    pub(super) span: u16,
    /// How many instructions; 0 in a slot that is not in use.
    pub(super) insns: u8,
    pub(super) end: End,
    mode: u8,
    /// The last instruction's bytes are not all in the section.
    pub(super) truncated: bool,
}

/// What is at the end of a [`Run`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// No branch: the code goes on.
    #[default]
    None,
    Cond,
    Jump,
    Call,
    /// A call to the next instruction only asks for its own address; it is never returned from.
    CallNext,
    Return,
    IndirectCall,
    /// All others: a TIP says where they lead.
    Indirect,
}

/// Runs in the caller's memory, by first address, address space and mode.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    slots: &'a mut [Slot],
    shift: u32,
    /// The image is the same in all address spaces.
    one_space: bool,
    space: u64,
}

/// Instructions of a run: few enough for its length to fit.
const MOST: u8 = 250;

impl<'a> Cache<'a> {
    pub(super) fn new(memory: &'a mut [Slot], image: Image<'_>) -> Self {
        let bits = memory.len().checked_ilog2().unwrap_or(0);
        let slots = memory.get_mut(..1 << bits).unwrap_or_default();
        slots.fill(Slot::default());
        let one_space = image.sections().iter().all(|section| section.space == AddressSpace::Any);
        Self { slots, shift: 64 - bits.max(1), one_space, space: 0 }
    }

    /// From here on code is that of the address space of `cr3`.
    pub(super) fn enter(&mut self, cr3: Option<u64>) {
        if !self.one_space {
            // Bits 4:0 do not tell address spaces apart; here they tell the unknown one from that of zero.
            self.space = cr3.map_or(1, |cr3| cr3 & !0x1f);
        }
    }

    /// The run at `ip`.
    #[inline]
    pub(super) fn get(&self, ip: u64, mode: ExecMode) -> Option<&Run> {
        let slot = self.slots.get(self.index(ip))?;
        let hit =
            slot.ip == ip && slot.run.insns != 0 && slot.space == self.space && slot.run.mode == mode as u8;
        hit.then_some(&slot.run)
    }

    #[cold]
    pub(super) fn insert(&mut self, ip: u64, run: Run) {
        let (space, index) = (self.space, self.index(ip));
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Slot { run, ip, space };
        }
    }

    #[inline]
    fn index(&self, ip: u64) -> usize {
        // Multiplicative hashing by the golden ratio.
        (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }
}

impl Run {
    /// Decodes the code from `ip` on: at least one instruction, up to a branch or what is no instruction.
    pub(super) fn decode(
        image: Image<'_>,
        cr3: Option<u64>,
        ip: u64,
        mode: ExecMode,
    ) -> Result<Self, ErrorKind> {
        let (window, first, truncated) = fetch(image, cr3, Window::default(), ip, mode)?;
        let mut run =
            Self { section: section_of(image, &window), mode: mode as u8, truncated, ..Self::default() };
        let mut insn = first;
        loop {
            run.last = run.span;
            run.span += u16::from(insn.len);
            run.insns += 1;
            run.target = insn.target.unwrap_or_default();
            let next = ip.wrapping_add(u64::from(run.span));
            run.end = match insn.class {
                Class::Other | Class::Ptwrite => End::None,
                Class::CondJump => End::Cond,
                Class::NearCall if run.target != next => End::Call,
                Class::NearCall => End::CallNext,
                Class::NearJump => End::Jump,
                Class::NearReturn => End::Return,
                Class::IndirectCall => End::IndirectCall,
                Class::IndirectJump | Class::FarJump | Class::FarCall | Class::FarReturn => End::Indirect,
            };
            if run.end != End::None || run.truncated || run.insns == MOST {
                return Ok(run);
            }
            insn = match insn::decode(window.from(next), mode, next) {
                Ok(insn) => insn,
                // What is wrong here, or where it goes on, is found out when the walk comes here.
                Err(_) => return Ok(run),
            };
        }
    }
}

/// Decodes the instruction at `ip`, from `window` if it is there as a whole: the window that its first byte is in, the
/// instruction, and whether some of it is elsewhere.
#[inline]
pub(super) fn fetch<'a>(
    image: Image<'a>,
    cr3: Option<u64>,
    window: Window<'a>,
    ip: u64,
    mode: ExecMode,
) -> Result<(Window<'a>, insn::Insn, bool), ErrorKind> {
    match insn::decode(window.from(ip), mode, ip) {
        Ok(insn) => Ok((window, insn, false)),
        Err(InsnError::Truncated) => fetch_elsewhere(image, cr3, ip, mode),
        Err(_) => Err(ErrorKind::UnknownInstruction { ip }),
    }
}

#[cold]
fn fetch_elsewhere(
    image: Image<'_>,
    cr3: Option<u64>,
    ip: u64,
    mode: ExecMode,
) -> Result<(Window<'_>, insn::Insn, bool), ErrorKind> {
    let window = image.window(ip, cr3).ok_or(ErrorKind::NoMemory { ip })?;
    let mut bytes = [0; insn::MAX_LEN];
    let len = image.read(ip, cr3, &mut bytes);
    let insn = insn::decode(bytes.get(..len).unwrap_or_default(), mode, ip).map_err(|error| match error {
        InsnError::Truncated => ErrorKind::NoMemory { ip },
        _ => ErrorKind::UnknownInstruction { ip },
    })?;
    Ok((window, insn, window.from(ip).len() < usize::from(insn.len)))
}

/// Which of the image's sections a window is a part of.
pub(super) fn section_of(image: Image<'_>, window: &Window<'_>) -> u32 {
    let start = window.bytes.as_ptr();
    let holds = |section: &crate::image::Section<'_>| {
        section.bytes.as_ptr_range().contains(&start)
            && section.base.wrapping_add((start as usize - section.bytes.as_ptr() as usize) as u64)
                == window.base
    };
    // A later section is in front of an earlier one.
    image.sections().iter().rposition(holds).map_or(u32::MAX, |index| index as u32)
}
