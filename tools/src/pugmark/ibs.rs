//! `pugmark ibs`: prints samples of AMD's Instruction Based Sampling (IBS), which tags single fetches and micro-ops.

use crate::file::read_finite;
use crate::output::{self, tell};
use anyhow::{Context, Result, bail};
use clap::Args;
use pugmark_decoder_core::Error;
use pugmark_decoder_core::ibs::{FetchSample, OpSample, Part, RawSamples, Sample};
use serde_json::{Map, Value, json};
use std::{io, io::Write, path::PathBuf};

/// The options of `pugmark ibs`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark ibs --cpu 0x19/0x11 samples.raw")]
pub struct IbsOptions {
    /// Raw samples of perf (PERF_SAMPLE_RAW), one after the other: size, capabilities, registers
    file: PathBuf,
    /// The sampled processor; by default the first one that had the samples' capabilities
    #[arg(long, value_name = "FAMILY/MODEL", value_parser = processor)]
    cpu: Option<(u8, u8)>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Runs `pugmark ibs`.
///
/// # Errors
/// If the file cannot be read, is not made of samples, or the output cannot be written. The samples before a bad one
/// are printed.
pub fn run(options: &IbsOptions) -> Result<()> {
    let name = options.file.display();
    let bytes = read_finite(&options.file).with_context(|| format!("{name}"))?;
    if bytes.is_empty() {
        tell(format_args!("pugmark: warning: {name} is empty: there is no sample"));
    }
    let mut result = Ok(());
    output::print(|to| {
        // A bad sample is reported after all samples before it are printed.
        match print(&bytes, options.cpu, options.json, to) {
            Err(PrintError::Write(error)) => return Err(error),
            Err(PrintError::Sample(error)) => result = Err(error),
            Ok(()) => {}
        }
        Ok(())
    })?;
    result.with_context(|| format!("{name}"))
}

pub(super) fn processor(text: &str) -> Result<(u8, u8)> {
    match crate::cpu::numbers(text) {
        Ok(cpu) if cpu.family <= 0xff => Ok((cpu.family as u8, cpu.model)),
        _ => bail!("not a processor: write FAMILY/MODEL, each up to 255, as in 0x19/0x11"),
    }
}

/// Why printing stopped.
enum PrintError {
    Write(io::Error),
    Sample(Error),
}

impl From<io::Error> for PrintError {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

fn print(bytes: &[u8], cpu: Option<(u8, u8)>, as_json: bool, to: &mut dyn Write) -> Result<(), PrintError> {
    let mut records = RawSamples::new(bytes);
    loop {
        let offset = records.offset();
        let Some(record) = records.next() else { return Ok(()) };
        let record = record.map_err(PrintError::Sample)?;
        let guess = Part::by_caps(record.caps);
        let part = cpu.map_or(guess, |(family, model)| Part { family, model, caps: record.caps });
        let (kind, fields) = match record.sample(part) {
            Some(Sample::Fetch(fetch)) => ("fetch", fetch_fields(&fetch)),
            Some(Sample::Op(op)) => ("op", op_fields(&op)),
            None => ("none", Map::new()),
        };
        match as_json {
            true => {
                let mut object =
                    Map::from_iter([("offset".into(), json!(offset)), ("kind".into(), json!(kind))]);
                object.extend(fields);
                writeln!(to, "{}", Value::Object(object))?;
            }
            false => writeln!(to, "{offset:016x}  {kind}{}", text(&fields))?,
        }
    }
}

/// Writes the fields on one line: a flag as its name if it is set, all others with their values.
pub(super) fn text(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        match value {
            Value::Bool(false) => {}
            Value::Bool(true) => text += &format!(" {name}"),
            Value::String(value) => text += &format!(" {name}={value}"),
            Value::Object(inner) => text += &format!(" {name}:{}", self::text(inner)),
            value => text += &format!(" {name}={value}"),
        }
    }
    text
}

/// Keeps the fields that are valid.
pub(super) fn valid<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.into(), value))
        .collect()
}

pub(super) fn address(address: Option<u64>) -> Value {
    address.map_or(Value::Null, |address| json!(format!("{address:#x}")))
}

fn name(value: Option<impl std::fmt::Debug>) -> Value {
    value.map_or(Value::Null, |value| json!(format!("{value:?}")))
}

fn fetch_fields(fetch: &FetchSample) -> Map<String, Value> {
    valid([
        ("linear", address(fetch.linear_address())),
        ("physical", address(fetch.physical_address())),
        ("max_count", json!(fetch.max_count())),
        ("latency", json!(fetch.latency())),
        ("completed", json!(fetch.completed())),
        ("ic_miss", json!(fetch.ic_miss())),
        ("oc_miss", json!(fetch.oc_miss())),
        ("l2_miss", json!(fetch.l2_miss())),
        ("l3_miss", json!(fetch.l3_miss())),
        ("l1_tlb_miss", json!(fetch.l1_tlb_miss())),
        ("l2_tlb_miss", json!(fetch.l2_tlb_miss())),
        ("page", name(fetch.page_size())),
        ("itlb_refill_latency", json!(fetch.itlb_refill_latency())),
    ])
}

fn op_fields(op: &OpSample) -> Map<String, Value> {
    let branch = op.branch().map(|branch| {
        valid([
            ("taken", json!(branch.taken)),
            ("mispredicted", json!(branch.mispredicted)),
            ("return", json!(branch.is_return)),
            ("fused", json!(branch.fused)),
            ("target", address(branch.target)),
        ])
    });
    valid([
        ("rip", address(op.rip())),
        ("max_count", json!(op.max_count())),
        ("counts", name(Some(op.counts()))),
        ("current_count", json!(op.current_count())),
        ("completion_to_retire", json!(op.completion_to_retire())),
        ("tag_to_retire", json!(op.tag_to_retire())),
        ("microcode", json!(op.microcode())),
        ("resync", json!(op.resync())),
        ("mispredicted_return", json!(op.mispredicted_return())),
        ("data4", address(op.data4())),
        ("branch", json!(branch)),
        ("access", json!(op.access().map(access_fields))),
    ])
}

fn access_fields(access: pugmark_decoder_core::ibs::Access<'_>) -> Map<String, Value> {
    valid([
        ("load", json!(access.is_load())),
        ("store", json!(access.is_store())),
        ("software_prefetch", json!(access.software_prefetch())),
        ("bytes", json!(access.bytes())),
        ("linear", address(access.linear_address())),
        ("physical", address(access.physical_address())),
        ("dtlb", name(access.dtlb())),
        ("page", name(access.page_size())),
        ("tlb_refill_latency", json!(access.tlb_refill_latency())),
        ("dc_miss", json!(access.dc_miss())),
        ("l2_miss", json!(access.l2_miss())),
        ("miss_latency", json!(access.miss_latency())),
        ("source", name(access.source())),
        ("remote_node", json!(access.remote_node())),
        ("remote_socket", json!(access.remote_socket())),
        ("cache_state", name(access.cache_state())),
        ("open_requests", json!(access.open_requests())),
        ("mab_hit", json!(access.mab_hit())),
        ("miss_without_mab", json!(access.miss_without_mab())),
        ("misaligned", json!(access.misaligned())),
        ("locked", json!(access.locked())),
        ("write_combining", json!(access.write_combining())),
        ("uncacheable", json!(access.uncacheable())),
        ("streaming_store", json!(access.streaming_store())),
        ("load_bank_conflict", json!(access.load_bank_conflict())),
        ("store_bank_conflict", json!(access.store_bank_conflict())),
        ("store_to_load_forwarded", json!(access.store_to_load_forwarded())),
        ("store_to_load_cancelled", json!(access.store_to_load_cancelled())),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::ibs::{Caps, FetchRegisters, OpRegisters, RawRegisters, RawSample};

    fn file() -> Vec<u8> {
        let fetch = FetchRegisters {
            ctl: 0x100 | 7 << 32 | 0b1111 << 48 | 1 << 52,
            linear: 0x40_1000,
            physical: 0x2000,
            ..Default::default()
        };
        let op = OpRegisters {
            ctl: 1 << 17 | 1 << 18 | 0x200,
            rip: 0x40_1004,
            data: 1 << 37 | 1 << 35 | 9 << 16,
            data2: 1,
            data3: 1 | 1 << 7 | 1 << 17 | 77 << 32,
            dc_linear: 0x7000,
            ..Default::default()
        };
        let mut file = Vec::new();
        for kind in
            [RawRegisters::Fetch(fetch), RawRegisters::Op(op), RawRegisters::Op(OpRegisters::default())]
        {
            let mut bytes = [0; RawSample::MAX_BYTES];
            let len = RawSample { caps: Caps(0x7), kind }.emit(&mut bytes).unwrap();
            file.extend_from_slice(&bytes[..len]);
        }
        file
    }

    fn printed(bytes: &[u8], cpu: Option<(u8, u8)>, as_json: bool) -> (String, Result<()>) {
        let mut to = Vec::new();
        let result = match print(bytes, cpu, as_json, &mut to) {
            Ok(()) => Ok(()),
            Err(PrintError::Sample(error)) => Err(error.into()),
            Err(PrintError::Write(error)) => panic!("{error}"),
        };
        (String::from_utf8(to).unwrap(), result)
    }

    #[test]
    fn a_line_has_what_is_valid() {
        let (text, result) = printed(&file(), None, false);
        result.unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        for (line, fields) in [
            (0, &["fetch", "linear=0x401000", "physical=0x2000", "latency=7", "ic_miss", "page=K4"][..]),
            (1, &["op", "rip=0x401004", "branch:", "taken", "access:", "source=LocalL3", "miss_latency=77"]),
            (2, &["none"]),
        ] {
            for field in fields {
                assert!(
                    lines[line].split_whitespace().any(|word| word == *field),
                    "{field}: {}",
                    lines[line]
                );
            }
        }
        assert!(!text.contains("l2_miss"), "family 10h does not tell it");
        assert!(lines[1].starts_with("0000000000000020  op "), "{}", lines[1]);
    }

    /// Returns the line that is printed for these registers on that processor.
    fn line(kind: RawRegisters, caps: u32, cpu: (u8, u8)) -> String {
        let mut bytes = [0; RawSample::MAX_BYTES];
        let len = RawSample { caps: Caps(caps), kind }.emit(&mut bytes).unwrap();
        let (text, result) = printed(&bytes[..len], Some(cpu), false);
        result.unwrap();
        text.strip_prefix("0000000000000000  ").unwrap().trim_end().to_owned()
    }

    #[test]
    fn each_field_has_its_own_value() {
        let fetch = FetchRegisters {
            ctl: 0x12 | 0x34 << 32 | 1 << 49 | 1 << 50 | 1 << 52 | 1 << 53 | 1 << 55 | 1 << 58 | 1 << 61,
            linear: 0x40_1000,
            physical: 0x2000,
            extended: 0x56,
        };
        assert_eq!(
            line(RawRegisters::Fetch(fetch), 0xbff, (0x19, 0x11)),
            "fetch completed itlb_refill_latency=86 l1_tlb_miss l2_miss l3_miss latency=52 linear=0x401000 \
             max_count=288 page=M2 physical=0x2000"
        );
        let op = OpRegisters {
            ctl: 0x12 | 1 << 18 | 1 << 19 | 0x78 << 32,
            rip: 0x40_1004,
            data: 3 | 4 << 16 | 1 << 37 | 1 << 36,
            data2: 2 | 1 << 5,
            data3: 1
                | 1 << 2
                | 1 << 4
                | 1 << 7
                | 0b111 << 17
                | 1 << 20
                | 3 << 22
                | 5 << 26
                | 6 << 32
                | 7 << 48,
            dc_linear: 0x7000,
            dc_physical: 0x8000,
            br_target: 0x40_2000,
            data4: 0,
        };
        assert_eq!(
            line(RawRegisters::Op(op), 0x8_1bff, (0x1a, 0x02)),
            "op access: bytes=4 cache_state=Owned dc_miss dtlb=L2 l2_miss linear=0x7000 load miss_latency=6 \
             open_requests=5 page=M2 physical=0x8000 source=NodeCache tlb_refill_latency=7 branch: \
             mispredicted target=0x402000 completion_to_retire=3 counts=Dispatched current_count=120 \
             max_count=288 rip=0x401004 tag_to_retire=4"
        );
    }

    #[test]
    fn json_has_the_same_and_the_processor_decides_what_it_means() {
        for (cpu, source) in [(None, json!("LocalL3")), (Some((0x17, 0x31)), Value::Null)] {
            let (text, result) = printed(&file(), cpu, true);
            result.unwrap();
            let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines[0]["kind"], "fetch");
            assert_eq!(lines[0]["completed"], true);
            assert_eq!(lines[1]["offset"], 32);
            assert_eq!(lines[1]["branch"]["taken"], true);
            assert_eq!(lines[1]["access"]["linear"], "0x7000");
            assert_eq!(lines[1]["access"]["source"], source, "{cpu:?}");
        }
    }

    #[test]
    fn a_bad_sample_is_named_after_what_comes_before_it() {
        let file = file();
        let (text, result) = printed(&file[..file.len() - 1], None, false);
        assert_eq!(text.lines().count(), 2);
        assert_eq!(result.unwrap_err().to_string(), "0x60: 63 bytes where 64 are needed");
    }

    #[test]
    fn a_processor_is_family_and_model() {
        assert_eq!(processor("0x19/0x11").unwrap(), (0x19, 0x11));
        for text in ["none", "256/1", "25", ""] {
            assert!(processor(text).is_err(), "{text}");
        }
    }
}
