//! The instruction flow against libipt's test vectors: the addresses of the ptxed expectations.

use pugmark_decoder_core::{
    config::Config,
    flow::{FlowItem, InsnDecoder},
    image::{AddressSpace, Image, Section},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Vectors that are not compared, and the part of their expectation that the instruction flow does not supply.
const NOT_COMPARED: [(&str, &str); 18] = [
    ("apl12-tip_pge", "erratum APL12"),
    ("bdm64-tip-xabort", "erratum BDM64"),
    ("skl014-call", "erratum SKL014"),
    ("skz84", "erratum SKZ84"),
    ("bad_cpu", "a message of the tool's command line"),
    ("linear-fup-tip_pgd", "a statistic: compared by count below"),
    ("mtc-ovf_keep-cyc", "time"),
    ("ptxed-tick", "time"),
    ("pevent-comm_exec-mmap-tsc-iret", "sideband"),
    ("pevent-fork", "sideband"),
    ("pevent-mmap_secondary-tsc", "sideband"),
    ("pevent-tip_pgd-switch-tsc-tip_pge", "sideband"),
    ("pevent-tip_pgd-switch_cpu_wide-tsc-tip_pge", "sideband"),
    ("pevent-warn", "sideband"),
    ("ptxed-resync-bad_query-fup-tip", "--resync-on-error"),
    ("ptxed-resync-nomap-mode_tsx-eos", "--resync-on-error"),
    ("ptxed-resync-nomap-mode_tsx-fup-tip", "--resync-on-error"),
    ("ptxed-resync-psb-bad_status-psb", "--resync-on-error"),
];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/ptt/examples")
}

#[test]
fn the_flow_has_the_addresses_that_ptxed_prints() {
    let examples = examples();
    let mut compared = 0;
    let mut wrong = vec![];
    let mut names: Vec<_> = fs::read_dir(&examples)
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix("-ptxed.exp")?.to_owned()))
        .collect();
    names.sort();
    for name in names {
        if let Some((_, why)) = NOT_COMPARED.iter().find(|(other, _)| *other == name) {
            println!("not compared: {name}: {why}");
            continue;
        }
        let vector = Vector::read(&examples, &name);
        let (expected, got) = (vector.expected(), vector.decode());
        compared += 1;
        if expected != got {
            wrong.push(format!("{name}:\n expected {expected:#?}\n got {got:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared >= 25, "only {compared} vectors compared");
}

#[test]
fn walks_a_hundred_thousand_instructions_to_an_event() {
    let lines = Vector::read(&examples(), "linear-fup-tip_pgd").decode();
    assert_eq!(lines.len(), 100_000);
}

struct Vector {
    base: u64,
    options: Vec<String>,
    code: Vec<u8>,
    trace: Vec<u8>,
    expectation: String,
}

impl Vector {
    fn read(examples: &Path, name: &str) -> Self {
        let file = |suffix: &str| examples.join(format!("{name}{suffix}"));
        let command: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(file(".cmd.json")).unwrap()).unwrap();
        let base = command["base"].as_str().unwrap().trim_start_matches("0x");
        let options = command["tools"]["ptxed"]["options"].as_array().unwrap();
        Self {
            base: u64::from_str_radix(base, 16).unwrap(),
            options: options.iter().map(|option| option.as_str().unwrap().to_owned()).collect(),
            code: fs::read(file(".bin")).unwrap(),
            trace: fs::read(file(".pt")).unwrap(),
            expectation: fs::read_to_string(file("-ptxed.exp")).unwrap(),
        }
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }

    /// Returns the addresses of the expectation.
    fn expected(&self) -> Vec<String> {
        let lines = self.expectation.lines().map(str::trim).filter(|line| !line.is_empty());
        let insns = lines.filter(|line| !line.starts_with('[') && !line.contains(": "));
        insns.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    fn decode(&self) -> Vec<String> {
        let any = AddressSpace::Any;
        let sections = [
            Section { base: self.base, bytes: &self.code, space: any },
            // `truncated`: the same code a second time, in another section from its third byte on.
            Section { base: self.base + 2, bytes: self.code.get(2..).unwrap_or_default(), space: any },
        ];
        let image = Image::new(&sections[..if self.has("--raw") { 2 } else { 1 }]);
        let mut decoder = InsnDecoder::with_config(&self.trace, image, Config::new());
        let mut lines = vec![];
        while decoder.sync_forward().is_some() {
            while let Ok(Some(item)) = decoder.next() {
                if let FlowItem::Insn(insn) = item {
                    let mark = if insn.speculative { "? " } else { "" };
                    lines.push(format!("{mark}{:016x}", insn.ip));
                }
            }
        }
        lines
    }
}
