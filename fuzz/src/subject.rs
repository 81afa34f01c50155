//! The input for the decoders of instructions: code, and a trace that may or may not belong to it.

use crate::{code, decoder_config, trace, wire::Places};
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{
    config::Config,
    image::{AddressSpace, Section},
};
use pugmark_generator::{
    Program,
    trace::{self as traced, Topic, run},
};

/// Code, a trace, and a configuration for the decoders.
#[derive(Debug)]
pub struct Subject {
    /// The pieces of code, with their addresses and address spaces.
    code: Vec<(u64, Vec<u8>, AddressSpace)>,
    /// The trace.
    pub trace: Vec<u8>,
    /// The configuration of the decoders.
    pub config: Config<'static>,
}

const TOPICS: [Topic; 7] =
    [Topic::Everything, Topic::Level, Topic::Cr3, Topic::Range, Topic::Stop, Topic::Overflow, Topic::Events];

impl Subject {
    /// Makes code and an independent trace, or a program and its damaged trace.
    ///
    /// # Errors
    /// If there are not enough bytes to choose with.
    pub fn made(u: &mut Unstructured<'_>) -> Result<Self> {
        let config = decoder_config::config(u)?;
        if u.arbitrary()? { Self::of_program(u, config) } else { Self::of_packets(u, config) }
    }

    fn of_packets(u: &mut Unstructured<'_>, config: Config<'static>) -> Result<Self> {
        let first = code::made(u)?;
        let places = Places { base: 0x1000, len: first.len() as u16 };
        let mut code = vec![(places.base, first, AddressSpace::Any)];
        // Code that overlaps other code, and code in a single address space.
        for _ in 0..u.int_in_range(0..=2)? {
            let space = if u.arbitrary()? { AddressSpace::Cr3(u.arbitrary()?) } else { AddressSpace::Any };
            code.push((places.ip(u)?, code::made(u)?, space));
        }
        Ok(Self { code, trace: trace::made(u, places)?, config })
    }

    fn of_program(u: &mut Unstructured<'_>, decoder_config: Config<'static>) -> Result<Self> {
        let seed = u64::from(u.arbitrary::<u16>()?);
        let (program, config) = traced::TraceConfig::random_small(*u.choose(&TOPICS)?, seed);
        let mut trace = run(&program, &config, seed).trace;
        let first = first(&program);
        // Running out of input bytes ends the damage.
        let _ = trace::damage(u, &mut trace, Places { base: first.0, len: first.1.len() as u16 });
        let section =
            |section: &pugmark_generator::Section| (section.base, section.bytes.clone(), AddressSpace::Any);
        Ok(Self { code: program.sections().iter().map(section).collect(), trace, config: decoder_config })
    }

    /// Returns the code, from which an image can be made.
    #[must_use]
    pub fn sections(&self) -> Vec<Section<'_>> {
        self.code.iter().map(|(base, bytes, space)| Section { base: *base, bytes, space: *space }).collect()
    }

    /// Returns a number of steps that no decoder exceeds. Between two items of the trace a decoder walks over the code
    /// at most a few times, and a byte of the trace holds at most eight items.
    #[must_use]
    pub fn most_steps(&self) -> usize {
        let code: usize = self.code.iter().map(|(_, bytes, _)| bytes.len()).sum();
        (8 * self.trace.len() + 64) * (4 * code + 64)
    }
}

fn first(program: &Program) -> (u64, &[u8]) {
    program.sections().first().map_or((0, &[]), |section| (section.base, &section.bytes))
}
