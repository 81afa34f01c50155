//! What the decoders of the flow are tried on: code and a trace, maybe of it.

use crate::{asked, code, trace, wire::Places};
use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{
    config::Config,
    image::{AddressSpace, Section},
};
use pugmark_program::{
    Program,
    trace::{self as traced, Topic, run},
};

/// Code, a trace, and what is asked of the decoders.
#[derive(Debug)]
pub struct Subject {
    /// The code, where it is and who has it.
    code: Vec<(u64, Vec<u8>, AddressSpace)>,
    /// The trace.
    pub trace: Vec<u8>,
    /// What is asked of the decoders.
    pub config: Config<'static>,
}

const TOPICS: [Topic; 7] =
    [Topic::Everything, Topic::Level, Topic::Cr3, Topic::Range, Topic::Stop, Topic::Overflow, Topic::Events];

impl Subject {
    /// Code and trace by themselves, or a program's trace with damage.
    ///
    /// # Errors
    /// When there are no bytes to choose by.
    pub fn made(u: &mut Unstructured<'_>) -> Result<Self> {
        let asked = asked::config(u)?;
        if u.arbitrary()? { Self::of_program(u, asked) } else { Self::of_packets(u, asked) }
    }

    fn of_packets(u: &mut Unstructured<'_>, config: Config<'static>) -> Result<Self> {
        let first = code::made(u)?;
        let places = Places { base: 0x1000, len: first.len() as u16 };
        let mut code = vec![(places.base, first, AddressSpace::Any)];
        // Code over code, and code of one address space.
        for _ in 0..u.int_in_range(0..=2)? {
            let space = if u.arbitrary()? { AddressSpace::Cr3(u.arbitrary()?) } else { AddressSpace::Any };
            code.push((places.ip(u)?, code::made(u)?, space));
        }
        Ok(Self { code, trace: trace::made(u, places)?, config })
    }

    fn of_program(u: &mut Unstructured<'_>, asked: Config<'static>) -> Result<Self> {
        let seed = u64::from(u.arbitrary::<u16>()?);
        let (program, config) = traced::Config::draw_small(*u.choose(&TOPICS)?, seed);
        let mut trace = run(&program, &config, seed).trace;
        let first = first(&program);
        // The damage ends where the bytes do.
        let _ = trace::damage(u, &mut trace, Places { base: first.0, len: first.1.len() as u16 });
        let section =
            |section: &pugmark_program::Section| (section.base, section.bytes.clone(), AddressSpace::Any);
        Ok(Self { code: program.sections().iter().map(section).collect(), trace, config: asked })
    }

    /// The code, for an image.
    #[must_use]
    pub fn sections(&self) -> Vec<Section<'_>> {
        self.code.iter().map(|(base, bytes, space)| Section { base: *base, bytes, space: *space }).collect()
    }

    /// More steps than any decode has: between two things that the trace says it walks a few times over the code at
    /// most, and a byte says at most eight things.
    #[must_use]
    pub fn most_steps(&self) -> usize {
        let code: usize = self.code.iter().map(|(_, bytes, _)| bytes.len()).sum();
        (8 * self.trace.len() + 64) * (4 * code + 64)
    }
}

fn first(program: &Program) -> (u64, &[u8]) {
    program.sections().first().map_or((0, &[]), |section| (section.base, &section.bytes))
}
