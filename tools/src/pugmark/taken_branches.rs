//! TakenBranches of control from one place to another, as `perf script --itrace=b` counts: branches that were taken,
//! interrupts, and where tracing began and ended.

use pugmark_decoder_core::{
    event::{Event, EventKind},
    flow::{ExecutedInsn, FlowItem},
    image::{Asid, Image},
    insn::Class,
};

/// A step from one place to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakenBranch {
    /// The branch, or the first instruction that was no longer executed; `None` where tracing begins.
    pub(super) from: Option<u64>,
    /// The instruction after it; `None` where tracing ends.
    pub(super) to: Option<u64>,
    /// The kind of the step, in perf's words.
    pub(super) flags: &'static str,
    /// True if a function, a handler or the kernel is entered or left, or tracing begins or ends.
    pub(super) is_call_or_return: bool,
}

/// A finder of the taken_branches among the items of an instruction flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakenBranches {
    waiting: Waiting,
    /// True if the next interruption is the abort of a transaction.
    aborts: bool,
}

/// The transfer that the next instruction completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Waiting {
    /// Tracing begins at it.
    #[default]
    Begin,
    /// Nothing: the next instruction simply follows.
    Next,
    Branch(ExecutedInsn),
    Interrupt {
        from: u64,
    },
    /// A transaction is aborted.
    Abort {
        from: u64,
    },
}

impl TakenBranches {
    /// Takes the next item of the flow and returns the taken_branches that it completes, in order.
    pub(super) fn step(&mut self, item: &FlowItem, image: Image<'_>) -> [Option<TakenBranch>; 2] {
        match item {
            FlowItem::Insn(insn) => {
                let next = if insn.class.is_branch() { Waiting::Branch(*insn) } else { Waiting::Next };
                let before = std::mem::replace(&mut self.waiting, next);
                [before.completed(insn.ip, image), None]
            }
            FlowItem::Event(event) if event.status => [None; 2],
            FlowItem::Event(event) => self.event(event, image),
        }
    }

    fn event(&mut self, event: &Event, image: Image<'_>) -> [Option<TakenBranch>; 2] {
        match event.kind {
            EventKind::AsyncBranch { from } => {
                // An instruction such as INT n is reported as an interrupt too: together they are one step.
                if let Waiting::Branch(ExecutedInsn { class: Class::FarCall, .. }) = self.waiting {
                    return [None; 2];
                }
                let next = match std::mem::take(&mut self.aborts) {
                    true => Waiting::Abort { from },
                    false => Waiting::Interrupt { from },
                };
                let before = std::mem::replace(&mut self.waiting, next);
                [before.completed(from, image), None]
            }
            EventKind::Enabled { .. } => {
                self.waiting = Waiting::Begin;
                [None; 2]
            }
            EventKind::Disabled => {
                let (from, why) = match std::mem::take(&mut self.waiting) {
                    Waiting::Branch(insn) => (insn.ip, flags(&insn, image)),
                    Waiting::Interrupt { from } => (from, "hw int"),
                    Waiting::Abort { from } => (from, "tx abrt"),
                    Waiting::Begin | Waiting::Next => return [None; 2],
                };
                [Some(TakenBranch::end(from, event.ip, why)), None]
            }
            EventKind::AsyncDisabled { at } => {
                // The transfer before has led there, even if nothing was executed there, as when the first
                // instruction faults.
                let before = std::mem::take(&mut self.waiting).completed(at, image);
                let why = if std::mem::take(&mut self.aborts) { "tx abrt" } else { "async" };
                [before, Some(TakenBranch::end(at, event.ip, why))]
            }
            EventKind::Overflow | EventKind::Stop => {
                self.forget();
                [None; 2]
            }
            EventKind::Tsx { aborted, .. } => {
                self.aborts = aborted;
                [None; 2]
            }
            _ => [None; 2],
        }
    }

    /// Notes that the trace goes on somewhere else.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Waiting {
    /// Returns the transfer to `to`.
    fn completed(self, to: u64, image: Image<'_>) -> Option<TakenBranch> {
        let (from, flags, is_call_or_return) = match self {
            Self::Begin => (None, "tr strt", true),
            Self::Next => return None,
            Self::Interrupt { from } => (Some(from), "hw int", true),
            Self::Abort { from } => (Some(from), "tx abrt", false),
            Self::Branch(insn) => {
                let next = insn.ip.wrapping_add(u64::from(insn.len));
                if insn.class == Class::CondJump && to == next {
                    return None;
                }
                let calls = !matches!(insn.class, Class::CondJump | Class::NearJump | Class::IndirectJump);
                (Some(insn.ip), flags(&insn, image), calls)
            }
        };
        Some(TakenBranch { from, to: Some(to), flags, is_call_or_return })
    }
}

impl TakenBranch {
    fn end(from: u64, to: Option<u64>, why: &'static str) -> Self {
        let flags = ENDS.iter().find(|(branch, _)| *branch == why).map_or("tr end", |(_, end)| end);
        Self { from: Some(from), to, flags, is_call_or_return: true }
    }
}

/// perf's names of a branch, and of the end of tracing by it.
const ENDS: [(&str, &str); 11] = [
    ("jcc", "tr end  jcc"),
    ("jmp", "tr end  jmp"),
    ("call", "tr end  call"),
    ("return", "tr end  return"),
    ("syscall", "tr end  syscall"),
    ("sysret", "tr end  sysret"),
    ("iret", "tr end  iret"),
    ("int", "tr end  int"),
    ("hw int", "tr end  hw int"),
    ("async", "tr end  async"),
    ("tx abrt", "tr end  tx abrt"),
];

/// Returns the kind of a branch, in perf's words.
fn flags(insn: &ExecutedInsn, image: Image<'_>) -> &'static str {
    match insn.class {
        Class::CondJump => "jcc",
        Class::NearJump | Class::IndirectJump | Class::FarJump => "jmp",
        Class::NearCall | Class::IndirectCall => "call",
        Class::NearReturn => "return",
        Class::FarCall | Class::FarReturn => {
            let mut bytes = [0; 15];
            let bytes = bytes.get_mut(..insn.len.into()).unwrap_or_default();
            // The decoder has read the same bytes.
            let _ = image.read(insn.ip, Asid::default(), bytes);
            // After REX and other prefixes.
            match bytes.iter().position(|byte| !matches!(byte, 0x40..=0x4f | 0x66 | 0xf2 | 0xf3)) {
                Some(at) => match bytes[at..] {
                    [0x0f, 0x05 | 0x34, ..] => "syscall",
                    [0x0f, 0x07 | 0x35, ..] => "sysret",
                    [0xcf, ..] => "iret",
                    [0xcc | 0xcd | 0xce | 0xf1, ..] => "int",
                    _ if insn.class == Class::FarCall => "call",
                    _ => "return",
                },
                None => "call",
            }
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::{
        event::Stamp,
        image::{AddressSpace, Section},
        mode::ExecMode,
    };

    fn insn(ip: u64, len: u8, class: Class) -> FlowItem {
        FlowItem::Insn(ExecutedInsn { ip, len, class, mode: ExecMode::Bits64, speculative: false })
    }

    fn event(kind: EventKind, ip: Option<u64>) -> FlowItem {
        FlowItem::Event(Event { kind, ip, when: Stamp::default(), offset: 0, status: false })
    }

    /// Lists the taken_branches of a flow over this code at 1000, as `from flags to`.
    fn found(code: &[u8], items: &[FlowItem]) -> Vec<String> {
        let sections = [Section { base: 0x1000, bytes: code, space: AddressSpace::Any }];
        let image = Image::new(&sections);
        let mut taken_branches = TakenBranches::default();
        let text = |at: Option<u64>| at.map_or("-".into(), |at| format!("{at:x}"));
        let found = items.iter().flat_map(|item| taken_branches.step(item, image)).flatten();
        found.map(|found| format!("{} {} {}", text(found.from), found.flags, text(found.to))).collect()
    }

    #[test]
    fn branches_that_are_taken_are_transfers() {
        let flow = [
            insn(0x1000, 2, Class::CondJump),
            insn(0x1002, 2, Class::CondJump),
            insn(0x1000, 2, Class::CondJump),
            insn(0x1002, 2, Class::Other),
            insn(0x1004, 2, Class::NearJump),
            // A jump to the next instruction is a transfer nevertheless.
            insn(0x1006, 5, Class::NearCall),
            insn(0x1020, 1, Class::NearReturn),
            insn(0x100b, 2, Class::IndirectJump),
            insn(0x100d, 2, Class::IndirectCall),
            insn(0x1030, 1, Class::Other),
        ];
        let expected =
            ["- tr strt 1000", "1002 jcc 1000", "1004 jmp 1006", "1006 call 1020", "1020 return 100b"];
        assert_eq!(found(&[0; 64], &flow), [&expected[..], &["100b jmp 100d", "100d call 1030"]].concat());
    }

    #[test]
    fn far_branches_are_named_by_their_instruction() {
        for (code, class, flags) in [
            (&[0x0f, 0x05][..], Class::FarCall, "syscall"),
            (&[0x0f, 0x34], Class::FarCall, "syscall"),
            (&[0xcd, 0x80], Class::FarCall, "int"),
            (&[0xcc], Class::FarCall, "int"),
            (&[0xff, 0x18], Class::FarCall, "call"),
            (&[0x48, 0x0f, 0x07], Class::FarReturn, "sysret"),
            (&[0x48, 0xcf], Class::FarReturn, "iret"),
            (&[0xcb], Class::FarReturn, "return"),
        ] {
            let flow = [insn(0x1000, code.len() as u8, class), insn(0x5000, 1, Class::Other)];
            assert_eq!(found(code, &flow)[1], format!("1000 {flags} 5000"));
        }
    }

    #[test]
    fn interrupts_and_the_ends_of_tracing_are_transfers() {
        use EventKind::{AsyncBranch, AsyncDisabled, Disabled, Enabled, Overflow};
        let other = |ip| insn(ip, 1, Class::Other);
        let flow = [
            other(0x1000),
            event(AsyncBranch { from: 0x1001 }, Some(0x2000)),
            insn(0x2000, 2, Class::FarReturn),
            other(0x1001),
            event(AsyncDisabled { at: 0x1002 }, None),
            event(Enabled { resumed: true }, Some(0x1002)),
            insn(0x1002, 2, Class::FarCall),
            event(Disabled, None),
            event(Enabled { resumed: false }, Some(0x1004)),
            other(0x1004),
            event(Overflow, Some(0x3000)),
            other(0x3000),
        ];
        assert_eq!(
            found(&[0xcd; 16], &flow),
            [
                "- tr strt 1000",
                "1001 hw int 2000",
                "2000 return 1001",
                "1002 tr end  async -",
                "- tr strt 1002",
                "1002 tr end  int -",
                "- tr strt 1004",
                "- tr strt 3000",
            ]
        );
        // The instruction that is jumped to faults, and then the one with which tracing begins.
        let flow = [
            insn(0x1000, 2, Class::NearJump),
            event(AsyncDisabled { at: 0x1008 }, None),
            event(Enabled { resumed: true }, Some(0x1008)),
            event(AsyncDisabled { at: 0x1008 }, None),
        ];
        let begin = "- tr strt 1008";
        let expected =
            ["- tr strt 1000", "1000 jmp 1008", "1008 tr end  async -", begin, "1008 tr end  async -"];
        assert_eq!(found(&[0xcd; 16], &flow), expected);
        // The abort of a transaction is no interrupt, and the interrupt after it is one.
        let abort = event(EventKind::Tsx { speculative: false, aborted: true }, Some(0x1001));
        let begin = event(EventKind::Tsx { speculative: true, aborted: false }, Some(0x1000));
        let flow = [
            begin,
            other(0x1000),
            abort,
            event(AsyncBranch { from: 0x1001 }, Some(0x1010)),
            other(0x1010),
            event(AsyncBranch { from: 0x1011 }, Some(0x2000)),
            other(0x2000),
            abort,
            event(AsyncDisabled { at: 0x2001 }, None),
        ];
        let expected = ["- tr strt 1000", "1001 tx abrt 1010", "1011 hw int 2000", "2001 tr end  tx abrt -"];
        assert_eq!(found(&[0; 16], &flow), expected);
        // INT n and the interrupt that it makes are one, and a branch before an interrupt is another.
        let flow = [
            insn(0x1000, 2, Class::FarCall),
            event(AsyncBranch { from: 0x1000 }, Some(0x2000)),
            insn(0x2000, 2, Class::NearJump),
            event(AsyncBranch { from: 0x2010 }, Some(0x3000)),
            other(0x3000),
        ];
        let expected = ["- tr strt 1000", "1000 int 2000", "2000 jmp 2010", "2010 hw int 3000"];
        assert_eq!(found(&[0xcd; 16], &flow), expected);
    }
}
