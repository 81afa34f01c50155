//! `pugmark pebs`: prints the samples of PEBS that are in a trace of Intel PT.

use super::ibs::{address, text, valid};
use crate::file::read_finite;
use crate::output::{self, tell};
use crate::source::perf_data::{AuxTrace, PerfData};
use anyhow::{Context, Result};
use clap::Args;
use pugmark_decoder_core::config::Config;
use pugmark_decoder_core::errata::Errata;
use pugmark_decoder_core::pebs::{PebsBlocks, PebsRecord, Registers, TracedRecord};
use serde_json::{Map, Value, json};
use std::{io, io::Write, path::PathBuf, process::ExitCode};

/// The options of `pugmark pebs`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  perf record -c 10000 -e '{intel_pt/branch=0/,cycles/aux-output/ppp}' uname
  pugmark pebs perf.data")]
pub struct PebsOptions {
    /// A file of `perf record`, or the packets of Intel PT as they are in memory
    file: PathBuf,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Runs `pugmark pebs`. The status is 1 if a record is damaged; those before and after it are printed.
///
/// # Errors
/// If the file cannot be read, or the output cannot be written.
pub fn run(options: &PebsOptions) -> Result<ExitCode> {
    let name = options.file.display();
    let (traces, config) = match PerfData::is_one(&options.file) {
        true => {
            let data = PerfData::read(&options.file)?;
            let errata = data.cpu.and_then(|cpu| Errata::of(cpu).ok()).unwrap_or(Errata::NONE);
            (data.traces, Config { errata, ..Config::new() })
        }
        false => {
            let bytes = read_finite(&options.file).with_context(|| format!("{name}"))?;
            (vec![AuxTrace { bytes, ..AuxTrace::default() }], Config::new())
        }
    };
    let mut counts = SampleCounts::default();
    output::print(|to| {
        let several = traces.len() > 1;
        traces.iter().try_for_each(|trace| print(trace, several, config, options.json, &mut counts, to))
    })?;
    match counts {
        SampleCounts { samples: 0, errors: 0 } => {
            tell(format_args!("pugmark: warning: {name} has no sample"));
            Ok(ExitCode::SUCCESS)
        }
        SampleCounts { errors: 0, .. } => Ok(ExitCode::SUCCESS),
        SampleCounts { .. } => Ok(ExitCode::FAILURE),
    }
}

/// The numbers of samples and errors.
#[derive(Clone, Copy, Debug, Default)]
struct SampleCounts {
    samples: u64,
    errors: u64,
}

fn print(
    trace: &AuxTrace,
    several: bool,
    config: Config<'_>,
    as_json: bool,
    counts: &mut SampleCounts,
    to: &mut dyn Write,
) -> io::Result<()> {
    let mut records = PebsBlocks::with_config(&trace.bytes, config);
    while let Some(record) = records.next() {
        let found = match record {
            Ok(found) => found,
            Err(error) => {
                counts.errors += 1;
                tell(format_args!("pugmark: {trace}: {error}"));
                continue;
            }
        };
        counts.samples += 1;
        let mut object = Map::new();
        if several {
            object.insert("trace".into(), json!(trace.to_string()));
        }
        let offset = trace.offset + found.offset;
        if as_json {
            object.insert("offset".into(), json!(offset));
        }
        object.extend(fields(&found));
        match as_json {
            true => writeln!(to, "{}", Value::Object(object))?,
            false => writeln!(to, "{offset:016x} {}", text(&object))?,
        }
    }
    Ok(())
}

fn fields(found: &TracedRecord<'_>) -> Map<String, Value> {
    let PebsRecord { registers, memory, tx_abort, branches, .. } = found.record;
    let memory = memory.map(|memory| {
        valid([
            ("address", address(Some(memory.address))),
            ("source", address(Some(memory.source.0))),
            ("latency", json!(memory.latency)),
        ])
    });
    let branches = branches.map(|branches| {
        let ends = branches.iter().map(|branch| json!(format!("{:#x}/{:#x}", branch.from, branch.to)));
        Value::Array(ends.collect())
    });
    valid([
        ("ip", address(found.record.eventing_ip)),
        ("counters", address(found.record.applicable_counters)),
        ("tsc", json!(found.record.tsc)),
        ("flow", address(found.ip)),
        ("registers", json!(registers.map(general))),
        ("memory", json!(memory)),
        ("tx_abort", address(tx_abort.map(|abort| abort.0))),
        ("xmm", json!(found.record.xmm.map(|xmm| xmm.map(|byte| format!("{byte:02x}")).concat()))),
        ("branches", json!(branches)),
    ])
}

fn general(registers: Registers) -> Map<String, Value> {
    let Registers { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15 } = registers;
    let legacy = [
        ("rflags", rflags),
        ("rip", rip),
        ("rax", rax),
        ("rbx", rbx),
        ("rcx", rcx),
        ("rdx", rdx),
        ("rsi", rsi),
        ("rdi", rdi),
        ("rbp", rbp),
        ("rsp", rsp),
    ];
    let named = legacy.into_iter().map(|(name, value)| (name.to_string(), value));
    let numbered = (8..).zip(r8_r15).map(|(number, value)| (format!("r{number}"), value));
    named.chain(numbered).map(|(name, value)| (name, address(Some(value)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::packet::{Bbp, Bep, Bip, BipValue, BlockItemSize, Ip, Packet};

    fn item(id: u8, value: u64) -> Packet {
        Packet::Bip(Bip { id, value: BipValue::Eight(value) })
    }

    fn block(kind: u8) -> Packet {
        Packet::Bbp(Bbp { size: BlockItemSize::Eight, kind })
    }

    /// Returns a trace of a record, one that an overflow cuts, and another.
    fn trace() -> AuxTrace {
        let packets = [
            Packet::Psb,
            Packet::PsbEnd,
            block(4),
            item(0, 0x1000),
            item(1, 2),
            item(2, 77),
            block(8),
            item(0, 1),
            item(1, 2),
            item(2, 3),
            block(5),
            item(0, 0x5000),
            Packet::Bep(Bep { ip: true }),
            Packet::Fup(Ip::Full(0x1003)),
            block(4),
            Packet::Ovf,
            block(1),
            item(17, 0xf),
            Packet::Bep(Bep { ip: false }),
        ];
        let mut bytes = Vec::new();
        for packet in packets {
            let mut out = [0; 16];
            let len = packet.emit(&mut out).unwrap();
            bytes.extend_from_slice(&out[..len]);
        }
        AuxTrace { cpu: Some(1), offset: 0x100, bytes, ..AuxTrace::default() }
    }

    #[test]
    fn each_sample_is_a_line_with_what_it_has_and_a_damaged_one_is_counted() {
        let print = |several, as_json| {
            let (mut counts, mut out) = (SampleCounts::default(), Vec::new());
            super::print(&trace(), several, Config::new(), as_json, &mut counts, &mut out).unwrap();
            assert_eq!((counts.samples, counts.errors), (2, 1));
            String::from_utf8(out).unwrap()
        };
        let text = print(false, false);
        let [first, second] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(first.starts_with("0000000000000112 "), "{first}");
        for part in ["ip=0x1000", "counters=0x2", "tsc=77", "flow=0x1003", "address=0x5000", "0x1/0x2"] {
            assert!(first.contains(part), "{part}: {first}");
        }
        assert!(second.contains("r15=0xf") && !second.contains(" ip="), "{second}");
        let json = print(true, true);
        let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
        assert_eq!((&first["ip"], &first["trace"]), (&json!("0x1000"), &json!("cpu-1 from 0x100")));
        assert_eq!((&first["offset"], &first["branches"]), (&json!(0x112), &json!(["0x1/0x2"])));
    }
}
