//! Instructions without their times, from the block cache of blocks.

use super::{ScriptLines, When, known_text::TextKey};
use crate::session::{SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block_cache::{ExecutionSink, InstructionRun},
    event::{Event, EventKind},
    resume::Lost,
};

impl TextKey for InstructionRun {
    fn number(self) -> u64 {
        self.ip ^ self.lengths.rotate_left(32)
    }
}

impl SliceSink for ScriptLines<'_> {
    const ENDS_EARLY: bool = true;

    fn begins(&mut self, slice: &TraceSlice) {
        self.begin(slice);
    }

    fn loses_outside(&mut self) {
        self.errors += 1;
    }

    fn is_done(&self) -> bool {
        self.failed.is_some()
    }
}

impl ExecutionSink for ScriptLines<'_> {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.executed = true;
        self.count += u64::from((u64::BITS - insns.lengths.leading_zeros()).div_ceil(4));
        if self.failed.is_some() {
            return;
        }
        let Self { options, columns, out, known, .. } = self;
        let text = known.insns.get((known.code, insns), |text| {
            // Straight instructions can run from one function into the next one.
            for ip in insns {
                if options.is_wanted(columns, ip) {
                    let place = options.place(columns, ip);
                    columns.begin(When::default(), text);
                    columns.insn(ip, &place, text);
                }
            }
        });
        let written = out.write_all(text.as_bytes());
        self.keep(written);
    }

    fn event(&mut self, event: &Event) {
        self.errors += usize::from(event.kind == EventKind::Overflow);
    }

    fn lost(&mut self, lost: &Lost) {
        self.errors += usize::from(matches!(lost, Lost::Error(_)));
    }

    fn reached(&mut self, offset: u64) {
        self.progress.reached(offset);
    }
}
