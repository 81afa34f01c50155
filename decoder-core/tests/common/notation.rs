//! The notation of scenarios: code, packets and flow as text.
//!
//! A file is made of sections, each with a heading on a line of its own. `#` begins a comment. Numbers are hexadecimal
//! unless noted otherwise.
//!
//! - Before the first heading: `options iflags ticks bdm70` are options of the decoder; `libipt differs` (with the
//!   reason as a comment) means that Debian's libipt 2.0.5 is not expected to report the same addresses. More options:
//!   `unknown`: 05 and a byte below 80 is a packet that only the test's packet reader knows, and the reader refuses 05
//!   with any other byte. `times`: events have their TSC before them. `clocks`: MTCs
//!   come every 2^9 crystal ticks, which are four TSC ticks each.
//! - `code`, `code cr3=2000`, `code vmcs=7000` or `code cr3=2000 vmcs=7000`: lines `ADDRESS: BYTES ; mnemonic`.
//!   Consecutive lines make one section of the image, so a new heading makes a new section.
//! - `packets`: one packet per line, see [`packet`]; ` xN` (decimal) at the end repeats it.
//! - `dump`: ptdump's output for the trace, with short offsets; the options after the heading are passed to it.
//! - `flow`: addresses of instructions (`?` before each one in a transaction), several per line, ` xN` at the end
//!   repeats the line; `[event]` as ptxed prints it with all addresses; `error OFFSET: text`; `end` if the trace ends
//!   with tracing on. After an error, decoding continues at the next PSB.
//! - `recovered`: the same, but after an error decoding continues at the next event that gives a place: `at ADDRESS` or
//!   `off` is the place found, `lost` means that there was none.

use pugmark_decoder_core::{
    ErrorKind,
    config::{AddressRange, Config, RangeKind, UnknownPackets},
    errata::Errata,
    image::AddressSpace,
    last_ip::LastIp,
    packet::{
        Bbp, Bep, Bip, BipValue, BlockItemSize, Cbr, Cfe, Cyc, Evd, Exstop, Ip, Mnt, ModeExec, ModeTsx, Mtc,
        Mwait, Packet, Pip, Ptw, PtwPayload, Pwre, Pwrx, Tma, Tnt, Trig, Tsc, Unknown, Vmcs,
    },
};

/// A scenario.
#[derive(Default)]
pub(crate) struct Scenario {
    pub(crate) config: Config<'static>,
    pub(crate) libipt_differs: bool,
    pub(crate) code: Vec<Code>,
    pub(crate) trace: Vec<u8>,
    pub(crate) dump: Dump,
    pub(crate) flow: Vec<String>,
    pub(crate) recovered: Vec<String>,
    /// True if events are written with their TSC.
    pub(crate) times: bool,
}

/// The expected output of ptdump.
#[derive(Default)]
pub(crate) struct Dump {
    pub(crate) options: Vec<String>,
    pub(crate) lines: Vec<String>,
}

/// A section of the image.
pub(crate) struct Code {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) space: AddressSpace,
}

impl Scenario {
    /// Reads a scenario; panics with the line that is wrong.
    pub(crate) fn parse(text: &str) -> Self {
        let mut scenario = Self::default();
        let mut heading = Heading::None;
        let mut space = AddressSpace::Any;
        let mut adjacent = false;
        let mut last_ip = LastIp::new();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default().trim();
            let words: Vec<_> = line.split_whitespace().collect();
            match (words.first().copied(), heading) {
                (None, _) => {}
                (Some("code"), _) => {
                    space = address_space(&words[1..]);
                    (heading, adjacent) = (Heading::Code, false);
                }
                (Some("packets"), _) => heading = Heading::Packets,
                (Some("dump"), _) => {
                    let options = words[1..].iter().map(|&word| word.to_owned()).collect();
                    scenario.dump = Dump { options, lines: vec![] };
                    heading = Heading::Dump;
                }
                (Some("flow"), _) => heading = Heading::Flow,
                (Some("recovered"), _) => heading = Heading::Recovered,
                (Some("options"), Heading::None) => {
                    words[1..].iter().for_each(|option| scenario.option(option))
                }
                (Some("libipt"), Heading::None) => scenario.libipt_differs = true,
                (Some(_), Heading::Code) => {
                    scenario.code_line(line, space, adjacent);
                    adjacent = true;
                }
                (Some(_), Heading::Packets) => {
                    let (words, times) = times(&words);
                    for _ in 0..times {
                        scenario.packet_line(words, &mut last_ip);
                    }
                }
                (Some(_), Heading::Dump) => scenario.dump.lines.push(words.join(" ")),
                (Some(_), Heading::Flow) => flow_line(&mut scenario.flow, line, &words),
                (Some(_), Heading::Recovered) => flow_line(&mut scenario.recovered, line, &words),
                (Some(_), Heading::None) => panic!("before a heading: {line}"),
            }
        }
        scenario
    }

    fn option(&mut self, option: &str) {
        match option {
            "iflags" => self.config.flags.iflags = true,
            "ticks" => self.config.flags.ticks = true,
            // Only code from 1000 to 1fff was traced.
            "filter" => {
                self.config.filter.ranges[0] =
                    AddressRange { kind: RangeKind::Filter, first: 0x1000, last: 0x1fff };
            }
            "unknown" => self.config.unknown = Some(UNKNOWN),
            "times" => self.times = true,
            "clocks" => {
                let clocks = &mut self.config.clocks;
                (clocks.mtc_freq, clocks.cpuid_15h_eax, clocks.cpuid_15h_ebx) = (9, 1, 4);
            }
            "skd007" => self.config.errata = Errata { skd007: true, ..Errata::NONE },
            "skl168" => self.config.errata = Errata { skl168: true, ..Errata::NONE },
            "skz84" => self.config.errata = Errata { skz84: true, ..Errata::NONE },
            "apl11" => self.config.errata = Errata { apl11: true, ..Errata::NONE },
            "apl12" => self.config.errata = Errata { apl12: true, ..Errata::NONE },
            "bdm64" => self.config.errata = Errata { bdm64: true, ..Errata::NONE },
            "bdm70" => self.config.errata = Errata { bdm70: true, ..Errata::NONE },
            "skd010" => self.config.errata = Errata { skd010: true, ..Errata::NONE },
            "skd022" => self.config.errata = Errata { skd022: true, ..Errata::NONE },
            "skl014" => self.config.errata = Errata { skl014: true, ..Errata::NONE },
            _ => panic!("unknown option {option}"),
        }
    }

    fn code_line(&mut self, line: &str, space: AddressSpace, adjacent: bool) {
        let (address, bytes) =
            line.split_once(':').unwrap_or_else(|| panic!("code without an address: {line}"));
        let address = hex(address);
        let bytes = bytes.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
        match self.code.last_mut() {
            Some(code) if adjacent && code.base + code.bytes.len() as u64 == address => {
                code.bytes.extend(bytes)
            }
            _ => self.code.push(Code { base: address, bytes: bytes.collect(), space }),
        }
    }

    fn packet_line(&mut self, words: &[&str], last_ip: &mut LastIp) {
        if words[0] == "bytes" {
            self.trace.extend(words[1..].iter().map(|byte| u8::from_str_radix(byte, 16).unwrap()));
            return;
        }
        let mut bytes = [0; 16];
        let len = packet(words, last_ip).emit(&mut bytes).unwrap();
        self.trace.extend(&bytes[..len]);
    }
}

/// The part of a scenario file that a line belongs to.
#[derive(Clone, Copy)]
enum Heading {
    None,
    Code,
    Packets,
    Dump,
    Flow,
    Recovered,
}

/// The packets of `options unknown`.
const UNKNOWN: UnknownPackets<'_> = UnknownPackets::new(&|_, position, _| match *position.bytes() {
    [0x05, value, ..] if value < 0x80 => Ok(Unknown { size: 2, value: value.into() }),
    [0x05, value, ..] => Err(ErrorKind::Refused(value.into())),
    [opcode, ..] => Err(ErrorKind::UnknownOpcode(opcode)),
    [] => Err(ErrorKind::OutOfSync),
});

fn flow_line(flow: &mut Vec<String>, line: &str, words: &[&str]) {
    if line.starts_with('[') || matches!(words[0], "error" | "end" | "at" | "off" | "lost") {
        flow.push(line.to_owned());
        return;
    }
    let (words, times) = times(words);
    for _ in 0..times {
        let mut mark = "";
        for word in words {
            if *word == "?" {
                mark = "? ";
            } else {
                flow.push(format!("{mark}{:x}", hex(word)));
                mark = "";
            }
        }
    }
}

/// Returns the address space that `cr3=` and `vmcs=` name.
fn address_space(words: &[&str]) -> AddressSpace {
    let named = |name| words.iter().find_map(|word| word.strip_prefix(name)).map(hex);
    match (named("cr3="), named("vmcs=")) {
        (None, None) => AddressSpace::Any,
        (Some(cr3), None) => AddressSpace::Cr3(cr3),
        (None, Some(vmcs)) => AddressSpace::Vmcs(vmcs),
        (Some(cr3), Some(vmcs)) => AddressSpace::Guest { vmcs, cr3 },
    }
}

/// Parses one packet: its name in ptdump's spelling, then its fields in the order of ptdump.
fn packet(words: &[&str], last_ip: &mut LastIp) -> Packet {
    let has = |flag: &str| words[1..].contains(&flag);
    let number = |at: usize| hex(words.get(at).unwrap_or_else(|| panic!("{words:?} has no field {at}")));
    let mut ip = || match words[1] {
        "-" => Ip::Suppressed,
        ip => last_ip.compress(hex(ip)),
    };
    let tnt = |outcomes: &str| Tnt {
        bits: outcomes.chars().fold(0, |bits, outcome| bits << 1 | u64::from(outcome == '!')),
        len: outcomes.len() as u8,
    };
    match words[0] {
        "pad" => Packet::Pad,
        "psb" => {
            last_ip.reset();
            Packet::Psb
        }
        "psbend" => Packet::PsbEnd,
        "ovf" => Packet::Ovf,
        "stop" => Packet::TraceStop,
        "tnt" => Packet::TntShort(tnt(words[1])),
        "tnt.64" => Packet::TntLong(tnt(words[1])),
        "tip" => Packet::Tip(ip()),
        "tip.pge" => Packet::TipPge(ip()),
        "tip.pgd" => Packet::TipPgd(ip()),
        "fup" => Packet::Fup(ip()),
        "mode.exec" => Packet::ModeExec(ModeExec { cs_l: has("cs.l"), cs_d: has("cs.d"), iflag: has("if") }),
        "mode.tsx" => Packet::ModeTsx(ModeTsx { in_tx: has("intx"), abort: has("abrt") }),
        "pip" => Packet::Pip(Pip { cr3: number(1), non_root: has("nr") }),
        "vmcs" => Packet::Vmcs(Vmcs { base: number(1) }),
        "tsc" => Packet::Tsc(Tsc { tsc: number(1) }),
        "cbr" => Packet::Cbr(Cbr { ratio: number(1) as u8, reserved: 0 }),
        "tma" => Packet::Tma(Tma { ctc: number(1) as u16, fc: number(2) as u16 }),
        "mtc" => Packet::Mtc(Mtc { ctc: number(1) as u8 }),
        "cyc" => Packet::Cyc(Cyc { cycles: number(1) }),
        "mnt" => Packet::Mnt(Mnt { payload: number(1) }),
        "exstop" => Packet::Exstop(Exstop { ip: has("ip") }),
        "mwait" => Packet::Mwait(Mwait { hints: number(1) as u32, ext: number(2) as u32 }),
        "pwre" => Packet::Pwre(Pwre { state: number(1) as u8, sub_state: number(2) as u8, hw: has("hw") }),
        "pwrx" => Packet::Pwrx(Pwrx {
            last: number(1) as u8,
            deepest: number(2) as u8,
            interrupt: has("int"),
            store: has("st"),
            autonomous: has("hw"),
        }),
        "ptw" => {
            let payload = match words[1] {
                "4" => PtwPayload::Four(number(2) as u32),
                _ => PtwPayload::Eight(number(2)),
            };
            Packet::Ptw(Ptw { payload, ip: has("ip") })
        }
        "bbp" => Packet::Bbp(Bbp { size: BlockItemSize::Eight, kind: number(1) as u8 }),
        "bip" => Packet::Bip(Bip { id: number(1) as u8, value: BipValue::Eight(number(2)) }),
        "bep" => Packet::Bep(Bep { ip: has("ip") }),
        "cfe" => {
            let vector = if words.len() > 2 && words[2] != "ip" { number(2) as u8 } else { 0 };
            Packet::Cfe(Cfe { kind: number(1) as u8, vector, ip: has("ip") })
        }
        "evd" => Packet::Evd(Evd { kind: number(1) as u8, payload: number(2) }),
        "trig" => {
            let icnt = words.iter().find_map(|word| word.strip_prefix("icnt=")).map(|icnt| hex(icnt) as u16);
            Packet::Trig(Trig { trbv: number(1) as u8, icnt, mult: has("mult"), ip: has("ip") })
        }
        _ => panic!("unknown packet {words:?}"),
    }
}

/// Splits words into those before ` xN`, and N.
fn times<'a, 'b>(words: &'b [&'a str]) -> (&'b [&'a str], usize) {
    match words {
        [rest @ .., last] if last.starts_with('x') => (rest, last[1..].parse().unwrap()),
        _ => (words, 1),
    }
}

fn hex(number: &str) -> u64 {
    u64::from_str_radix(number.trim(), 16).unwrap_or_else(|_| panic!("not a hexadecimal number: {number}"))
}
