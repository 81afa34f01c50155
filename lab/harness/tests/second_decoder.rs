//! Intel's libipt, if it is installed, decodes the same bytes to the same instructions.

use pugmark_harness::boots::boots;
use pugmark_harness::code::Code;
use pugmark_harness::images::Images;
use pugmark_harness::judge::Source;
use pugmark_harness::libipt::{self, Decoded, Section};
use pugmark_harness::machine::Machine;
use pugmark_harness::report::Run;
use pugmark_harness::traces::{self, Trace};
use pugmark_harness::truth::hash;

/// After the last packet of a trace that was cut, libipt 2.0.5 continues to the next instruction that needs a packet;
/// our decoder ends with the packets. The difference is at most this many instructions.
const WALKED_ON: usize = 64;

fn same_as_libipt(profile: &str) {
    let images = Images::build().unwrap();
    let mut wrong = Vec::new();
    for boot in boots(Source::Pt, profile, None) {
        let command_line = format!("{} dump", boot.command_line);
        let outcome = Machine::on_monitor(&images, &boot.monitor_options, &command_line).run(|_| {}).unwrap();
        for trace in traces::of(&outcome, &images.guest).unwrap() {
            let Some(parts) = decode(&trace) else {
                println!("{}", libipt::REFERENCE.skipped());
                return;
            };
            match compare(trace.run, &parts) {
                Ok(count) => println!("{profile} {}: libipt count={count}, as ours", trace.run.name),
                Err(difference) => wrong.push(format!("{profile} {}: {difference}", trace.run.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Decodes each part of a trace with libipt; `None` if it is not installed.
fn decode(trace: &Trace<'_>) -> Option<Vec<Decoded>> {
    let sections: Vec<_> = trace.code.iter().map(section).collect();
    trace.parts.iter().map(|part| libipt::decode_sections(None, part, &sections)).collect()
}

fn section(code: &Code) -> Section<'_> {
    Section { base: code.base, bytes: &code.bytes, cr3: code.cr3 }
}

/// Compares count and hash of all parts; if the trace was cut, of each part without the additional instructions of
/// libipt. Returns the number of instructions.
fn compare(run: &Run, parts: &[Decoded]) -> Result<usize, String> {
    let stat = run.stat.ok_or("no stat line")?;
    if let Some(error) = parts.iter().find_map(|part| part.errors.first()) {
        return Err(format!("{error:?}"));
    }
    let all: Vec<u64> = parts.iter().flat_map(|part| part.addresses.iter().copied()).collect();
    if (all.len() as u64, hash(&all)) == (stat.count, stat.hash) {
        return Ok(all.len());
    }
    if parts.len() == 1 || parts.len() != run.pieces.len() {
        return Err(format!("libipt count={}, ours {}", all.len(), stat.count));
    }
    for (index, (part, piece)) in parts.iter().zip(&run.pieces).enumerate() {
        let count = usize::try_from(piece.count).map_err(|error| error.to_string())?;
        let ours = part.addresses.get(..count).filter(|ours| hash(ours) == piece.hash);
        if ours.is_none() || part.addresses.len() - count > WALKED_ON {
            return Err(format!("part {index}: libipt count={}, ours {count}", part.addresses.len()));
        }
    }
    Ok(all.len())
}

#[test]
fn libipt_agrees_on_skylake() {
    same_as_libipt("skylake");
}

#[test]
fn libipt_agrees_on_broadwell() {
    same_as_libipt("broadwell");
}
