//! Computes from the truth what performance counters must have counted.
//!
//! While a counter is on, the log has exactly the instructions that the counter saw; the instructions that turn it on
//! and off are not among them. Interrupts and exceptions count too. The log does not have them, but each leads to the
//! first instruction of its vector's stub, and nothing else leads there.
//!
//! Source: BKDG 31116, "Performance Counter Events", EventSelect 0C0h, 0C2h, 0C6h; PPR 56176, "Core Performance Monitor
//! Counters", PMCx0C0, PMCx0C2, PMCx0C6.

use anyhow::{Result, bail};

use crate::instructions::Instructions;
use crate::symbols::Symbols;
use crate::truth::Record;

/// How often each event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Retired instructions, including software interrupts.
    pub instructions: u64,
    /// Retired instructions that can branch, taken or not, without software interrupts.
    pub branches: u64,
    /// Retired far transfers, without software interrupts.
    pub far: u64,
    /// Software interrupts.
    pub software_interrupts: u64,
    /// Interrupts and exceptions of all kinds.
    pub deliveries: u64,
}

impl Events {
    /// Counts the events at one level of privilege: `Some(0)` for level 0, `Some(3)` for all levels above it, `None`
    /// for all. An interrupt counts at the level to which the instruction before it led.
    ///
    /// # Errors
    /// A record's address has no instruction, or the image has no stubs.
    pub fn of<'r>(
        records: impl IntoIterator<Item = &'r Record>,
        cpl: Option<u8>,
        instructions: &mut Instructions,
        symbols: &Symbols,
    ) -> Result<Self> {
        let stubs = symbols.address(STUBS)?;
        let mut events = Self::default();
        let mut now = 0;
        // The levels to which the handlers return.
        let mut interrupted = Vec::new();
        for record in records {
            let at_level = |level: u8| u64::from(cpl.is_none_or(|cpl| (cpl == 0) == (level == 0)));
            if is_begin_of_stub(record.rip, stubs) {
                events.deliveries += at_level(now);
                interrupted.push(now);
            }
            now = record.flags.cpl();
            let counts = at_level(now);
            events.instructions += counts;
            if record.flags.is_software_interrupt() {
                events.software_interrupts += counts;
            } else {
                let kind = instructions.of(record)?;
                events.branches += counts * u64::from(kind.branch);
                events.far += counts * u64::from(kind.far);
                let back = if kind.returns_from_handler { interrupted.pop() } else { None };
                now = kind.leads_to.or(back).unwrap_or(now);
            }
        }
        Ok(events)
    }

    /// Returns what a counter of event `select` must have. Families 0Fh to 15h also count interrupts and exceptions as
    /// instructions (`as_instructions`).
    ///
    /// # Errors
    /// The event is unknown here.
    pub fn counted(&self, select: u16, as_instructions: bool) -> Result<u64> {
        Ok(match select {
            // A software interrupt already counts as an instruction; its delivery does not count again in either case.
            0xc0 if as_instructions => self.instructions + self.deliveries - self.software_interrupts,
            0xc0 => self.instructions,
            0xc2 => self.branches + self.deliveries,
            0xc6 => self.far + self.deliveries,
            _ => bail!("nothing is known of event {select:#x}"),
        })
    }
}

/// The symbol of the guest kernel's table of stubs, one for each of the 256 vectors.
pub(crate) const STUBS: &str = "trap_stubs";
/// Bytes of each stub.
pub(crate) const STUB: u64 = 16;
const VECTORS: u64 = 256;

/// Whether `rip` is the first instruction of a handler's stub in the table at `stubs`.
pub(crate) fn is_begin_of_stub(rip: u64, stubs: u64) -> bool {
    rip.checked_sub(stubs).is_some_and(|at| at < VECTORS * STUB && at.is_multiple_of(STUB))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::truth::RecordFlags;

    #[test]
    fn each_vector_has_a_stub() {
        for (rip, begins) in [
            (0x1ff0, false),
            (0x2000, true),
            (0x2001, false),
            (0x200f, false),
            (0x2010, true),
            (0x2ff0, true),
            (0x3000, false),
        ] {
            assert_eq!(is_begin_of_stub(rip, 0x2000), begins, "{rip:#x}");
        }
    }

    #[test]
    fn an_interrupt_before_the_first_instruction_of_a_level_is_of_that_level() {
        // 1000: sysretq; 1003: syscall; 1005: iretq; stubs of nops.
        let main = [0x48, 0x0f, 0x07, 0x0f, 0x05, 0x48, 0xcf];
        let code = [(0x1000, main.to_vec()), (0x2000, vec![0x90; 4096])];
        let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
        let symbols = Symbols::from_pairs([(STUBS, 0x2000)]);
        let at = |rip, cpl| Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(cpl), cpu: 0 };
        let (back, out, nmi, end) = (at(0x1000, 0), at(0x1003, 3), at(0x2020, 0), at(0x1005, 0));
        for (records, user) in [
            (&[back, nmi][..], 1),
            (&[out, nmi], 0),
            // The second NMI comes as soon as the first one's handler has returned.
            (&[back, nmi, end, nmi], 2),
            (&[out, nmi, end, nmi], 0),
            // The second NMI comes within the handler of one that came at user level.
            (&[back, nmi, nmi, end, nmi], 1),
        ] {
            let mut instructions = Instructions::new(code.clone());
            let events = Events::of(records, Some(3), &mut instructions, &symbols).unwrap();
            assert_eq!(events.deliveries, user, "{records:x?}");
        }
    }

    #[test]
    fn interrupts_count_at_the_level_that_they_interrupt() {
        // 1000: nop; 1001: jmp; 1003: iretq; 1005: int 80h; at 2000 the stubs, of nops.
        let main = [0x90, 0xeb, 0x00, 0x48, 0xcf, 0xcd, 0x80];
        let code = [(0x1000, main.to_vec()), (0x2000, vec![0x90; 4096])];
        let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
        let symbols = Symbols::from_pairs([(STUBS, 0x2000)]);
        let at = |rip, cpl| Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(cpl), cpu: 0 };
        let software = Record { flags: RecordFlags::new(3).software_interrupt(), ..at(0x1005, 3) };
        let records = [
            at(0x1000, 3),
            at(0x1001, 3),
            // An NMI: its first and second instruction, and its return.
            at(0x2020, 0),
            at(0x2021, 0),
            at(0x1003, 0),
            software,
            at(0x2800, 0),
            // A page fault in the kernel.
            at(0x20e0, 0),
        ];
        let events = |cpl| Events::of(&records, cpl, &mut Instructions::new(code.clone()), &symbols).unwrap();
        let all = Events { instructions: 8, branches: 2, far: 1, software_interrupts: 1, deliveries: 3 };
        assert_eq!(events(None), all);
        let user = Events { instructions: 3, branches: 1, far: 0, software_interrupts: 1, deliveries: 2 };
        assert_eq!(events(Some(3)), user);
        let kernel = Events { instructions: 5, branches: 1, far: 1, software_interrupts: 0, deliveries: 1 };
        assert_eq!(events(Some(0)), kernel);
        for (select, as_instructions, expected) in
            [(0xc0, false, 8), (0xc0, true, 10), (0xc2, true, 5), (0xc6, false, 4)]
        {
            assert_eq!(all.counted(select, as_instructions).unwrap(), expected, "{select:#x}");
        }
        assert!(all.counted(0x76, false).is_err());
    }
}
