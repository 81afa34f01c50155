//! `pugmark script`: every instruction that was executed, one a line, as `perf script` lays them out.

use super::{
    layers::GRAPH_WORDS,
    options::Input,
    progress::{Progress, Size},
    recording::Traced,
    symbols::{NamedPlace, TracedSymbols},
};
use crate::{
    number,
    output::{self, tell},
};
use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use pugmark_decoder_core::{
    block::BlockDecoder,
    event::Event,
    graph::{ExecutionSink, Graph, Straight},
    image::Image,
};
use std::{
    io::{self, Write},
    ops::Range,
    process::ExitCode,
};

/// The options of `pugmark script`.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("layer", |layer| layer.hide(true)),
    mut_arg("threads", |threads| threads.hide(true)),
    after_help = "\
Examples:
  pugmark script a.rec                                addresses, functions and files
  pugmark script -F ip --symfs root perf.data         as perf script --itrace=i1i -F ip
  pugmark script --function main -F ip,symoff a.rec   one function's instructions alone"
)]
pub struct ScriptOptions {
    /// Columns: ip, sym, symoff (sym with offset), dso
    #[arg(
        short = 'F',
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "ip,sym,symoff,dso",
        hide_possible_values = true
    )]
    fields: Vec<ScriptField>,
    /// Only instructions of this function
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Only instructions at these addresses; TO is the first one that is not meant
    #[arg(long, value_name = "FROM-TO", value_parser = addresses)]
    addresses: Option<Range<u64>>,
    #[command(flatten)]
    input: Input,
}

/// A column of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScriptField {
    Ip,
    Sym,
    Symoff,
    Dso,
}

fn addresses(text: &str) -> Result<Range<u64>> {
    let range = text.split_once('-').and_then(|(from, to)| Some(number::parse(from)?..number::parse(to)?));
    let range = range.ok_or_else(|| anyhow!("write two addresses, as in 0x1000-0x2000"))?;
    ensure!(!range.is_empty(), "the second address is not after the first");
    Ok(range)
}

/// Runs `pugmark script`. The exit status is 1 if a trace has errors or nothing in it was executed.
///
/// # Errors
/// If there is no trace or no code, or the output cannot be written.
pub fn run(options: &ScriptOptions) -> Result<ExitCode> {
    let mut progress = Progress::stderr();
    let traces = options.input.traces()?;
    let (mut executed, mut errors) = (false, 0);
    let mut result = Ok(());
    output::page(|out| {
        for traced in &traces {
            match options.script(traced, out, &mut progress) {
                Ok((any, wrong)) => (executed, errors) = (executed | any, errors + wrong),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        Ok(())
    })?;
    result?;
    let good = executed && errors == 0;
    if !good {
        tell(format_args!(
            "pugmark: warning: {errors} errors in the traces, or no code was executed: `pugmark decode` says more"
        ));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl ScriptOptions {
    /// Writes the lines of a trace. Returns whether there were instructions, and the number of errors.
    fn script(&self, traced: &Traced, out: &mut dyn Write, progress: &mut Progress) -> Result<(bool, usize)> {
        let code = self.input.code(traced)?;
        let trace = self.input.load(traced, progress)?;
        let config = self.input.config(traced)?;
        let symbols = match self.needs_symbols() {
            true => TracedSymbols::of(traced, &code, self.input.symfs.as_deref(), &[])?,
            false => TracedSymbols::default(),
        };
        let sections = code.sections();
        let mut memory = vec![0; GRAPH_WORDS];
        let mut graph = Graph::new(&mut memory);
        let mut decoder = BlockDecoder::with_config(&trace, Image::new(&sections), config);
        progress.begin("decoding", Size::Bytes(trace.len() as u64));
        let mut lines =
            ScriptLines { options: self, symbols: &symbols, out, failed: None, executed: false, progress };
        let mut errors = 0;
        while lines.failed.is_none() && decoder.resync().is_some() {
            errors += usize::from(decoder.visit(&mut graph, &mut lines).is_err());
        }
        let (executed, failed) = (lines.executed, lines.failed.take());
        progress.end();
        failed.map_or(Ok(()), Err).context(output::CANNOT_WRITE)?;
        Ok((executed, errors))
    }

    fn needs_symbols(&self) -> bool {
        self.function.is_some() || self.fields.iter().any(|field| *field != ScriptField::Ip)
    }

    /// Whether an instruction is to be shown.
    fn is_wanted(&self, ip: u64, place: &NamedPlace<'_>) -> bool {
        let named = |name: &String| place.function.is_some_and(|(known, _)| known == name);
        self.addresses.as_ref().is_none_or(|range| range.contains(&ip))
            && self.function.as_ref().is_none_or(named)
    }

    fn line(&self, ip: u64, place: &NamedPlace<'_>, out: &mut dyn Write) -> io::Result<()> {
        let has = |field| self.fields.contains(&field);
        if has(ScriptField::Ip) {
            write!(out, " {ip:16x}")?;
        }
        match place.function {
            Some((name, offset)) if has(ScriptField::Symoff) => write!(out, " {name}+{offset:#x}")?,
            Some((name, _)) if has(ScriptField::Sym) => write!(out, " {name}")?,
            None if has(ScriptField::Sym) || has(ScriptField::Symoff) => write!(out, " [unknown]")?,
            _ => {}
        }
        if has(ScriptField::Dso) {
            write!(out, " ({})", place.object.unwrap_or("[unknown]"))?;
        }
        writeln!(out)
    }
}

/// Writes instructions as lines.
struct ScriptLines<'a> {
    options: &'a ScriptOptions,
    symbols: &'a TracedSymbols,
    out: &'a mut dyn Write,
    /// Why a line could not be written.
    failed: Option<io::Error>,
    executed: bool,
    progress: &'a mut Progress,
}

impl ExecutionSink for ScriptLines<'_> {
    const INSNS: bool = true;
    const FILLS: bool = true;

    fn insns(&mut self, insns: Straight) {
        self.executed = true;
        let Self { options, symbols, out, .. } = self;
        // Straight instructions can run from one function into the next one.
        let find = |ip| if options.needs_symbols() { symbols.find(ip) } else { NamedPlace::default() };
        let mut wanted = insns.map(|ip| (ip, find(ip))).filter(|(ip, place)| options.is_wanted(*ip, place));
        if self.failed.is_none() {
            self.failed = wanted.try_for_each(|(ip, place)| options.line(ip, &place, out)).err();
        }
    }

    fn event(&mut self, _: &Event) {}

    fn reached(&mut self, offset: u64) {
        self.progress.reached(offset);
    }

    fn is_full(&self) -> bool {
        self.failed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_two_numbers_of_which_the_second_is_larger() {
        assert_eq!(addresses("0x10-32").unwrap(), 0x10..0x20);
        for bad in ["", "0x10", "0x10-", "0x20-0x10", "16-16"] {
            assert!(addresses(bad).is_err(), "{bad}");
        }
    }
}
