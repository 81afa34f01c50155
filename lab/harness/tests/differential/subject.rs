//! Random programs, traced by the model.

use pugmark_decoder_core::image::{AddressSpace, Section};
use pugmark_generator::{
    Program,
    trace::{self, Topic, TraceRun, ctl},
};
use pugmark_harness::libipt;

/// The subjects of the programs. Topics that cut off the output are excluded, because the decoders end at different
/// places there.
const TOPICS: [Topic; 7] =
    [Topic::Everything, Topic::Level, Topic::Cr3, Topic::Range, Topic::Stop, Topic::Overflow, Topic::Events];

/// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND: 27 bytes.
pub(crate) const START: &[u8] =
    b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";

/// A program and its trace.
pub(crate) struct Subject {
    pub(crate) topic: Topic,
    pub(crate) run: TraceRun,
    program: Program,
}

impl Subject {
    pub(crate) fn of(seed: u64) -> Self {
        let topic = TOPICS[(seed % TOPICS.len() as u64) as usize];
        let (program, mut config) = trace::TraceConfig::random_small(topic, seed);
        // libipt 2.0.5 has no event trace.
        config.ctl &= !ctl::EVENT_EN;
        config.make_decodable_by_libipt();
        let run = trace::run(&program, &config, seed);
        Self { topic, run, program }
    }

    /// Returns the program's code, for both decoders.
    pub(crate) fn code(&self) -> Code<'_> {
        let code = self.program.sections().iter().map(|code| (code.base, &code.bytes[..]));
        Code::new(&code.collect::<Vec<_>>())
    }
}

/// The same code for both decoders.
pub(crate) struct Code<'a> {
    pub(crate) own: Vec<Section<'a>>,
    pub(crate) theirs: Vec<libipt::Section<'a>>,
}

impl<'a> Code<'a> {
    pub(crate) fn new(code: &[(u64, &'a [u8])]) -> Self {
        let space = AddressSpace::Any;
        Self {
            own: code.iter().map(|&(base, bytes)| Section { base, bytes, space }).collect(),
            theirs: code.iter().map(|&(base, bytes)| libipt::Section { base, bytes, cr3: None }).collect(),
        }
    }

    /// Returns the bytes from `address` on.
    pub(crate) fn at(&self, address: u64) -> &'a [u8] {
        let here = |section: &Section<'a>| section.bytes.get(address.checked_sub(section.base)? as usize..);
        self.own.iter().find_map(here).unwrap_or_default()
    }
}
