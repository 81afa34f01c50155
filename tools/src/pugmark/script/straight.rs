//! Instructions without their times, from the graph of blocks.

use super::{ScriptLines, When, known_text::TextKey};
use crate::pugmark::{layers::GRAPH_WORDS, progress::Size};
use pugmark_decoder_core::{
    block::BlockDecoder,
    config::Config,
    event::Event,
    graph::{ExecutionSink, Graph, Straight},
    image::Image,
};

impl ScriptLines<'_> {
    /// Writes instructions. Returns the number of errors.
    pub(super) fn straight(&mut self, trace: &[u8], image: Image<'_>, config: Config<'_>) -> usize {
        let mut memory = vec![0; GRAPH_WORDS];
        let mut graph = Graph::new(&mut memory);
        let mut decoder = BlockDecoder::with_config(trace, image, config);
        self.progress.begin("decoding", Size::Bytes(trace.len() as u64));
        let mut errors = 0;
        while self.failed.is_none() && decoder.resync().is_some() {
            errors += usize::from(decoder.visit(&mut graph, self).is_err());
        }
        errors
    }
}

impl TextKey for Straight {
    fn number(self) -> u64 {
        self.ip ^ self.lengths.rotate_left(32)
    }
}

impl ExecutionSink for ScriptLines<'_> {
    const INSNS: bool = true;
    const FILLS: bool = true;

    fn insns(&mut self, insns: Straight) {
        self.executed = true;
        let Self { options, columns, out, known, .. } = self;
        let text = known.insns.get(insns, |text| {
            // Straight instructions can run from one function into the next one.
            for ip in insns {
                let place = options.place(columns, ip);
                if options.is_wanted(ip, &place) {
                    columns.begin(When::default(), text);
                    columns.insn(ip, &place, text);
                }
            }
        });
        let written = out.write_all(text.as_bytes());
        self.keep(written);
    }

    fn event(&mut self, _: &Event) {}

    fn reached(&mut self, offset: u64) {
        self.progress.reached(offset);
    }

    fn is_full(&self) -> bool {
        self.failed.is_some()
    }
}
