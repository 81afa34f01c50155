//! The configuration of a traced run, drawn from a seed.

use fastrand::Rng;
use std::ops::{Range, RangeInclusive};

use crate::{CodeLevel, EventRates, Filter, Program, ProgramShape};
use pugmark_model::intel::{IntelProfile, IntelSettings, Overflow, ReturnElsewhere};

/// Bits of IA32_RTIT_CTL, typed from the manual: SDM vol. 3, Intel Processor Trace, "IA32_RTIT_CTL MSR".
pub mod ctl {
    /// TraceEn: packets are generated.
    pub const TRACE_EN: u64 = 1 << 0;
    /// CYCEn.
    pub const CYC_EN: u64 = 1 << 1;
    /// OS: privilege level 0 is traced.
    pub const OS: u64 = 1 << 2;
    /// User: privilege levels above 0 are traced.
    pub const USER: u64 = 1 << 3;
    /// FUPonPTW.
    pub const FUP_ON_PTW: u64 = 1 << 5;
    /// CR3Filter.
    pub const CR3_FILTER: u64 = 1 << 7;
    /// ToPA.
    pub const TOPA: u64 = 1 << 8;
    /// MTCEn.
    pub const MTC_EN: u64 = 1 << 9;
    /// TSCEn.
    pub const TSC_EN: u64 = 1 << 10;
    /// DisRETC.
    pub const DIS_RETC: u64 = 1 << 11;
    /// PTWEn.
    pub const PTW_EN: u64 = 1 << 12;
    /// BranchEn.
    pub const BRANCH_EN: u64 = 1 << 13;
    /// The lowest bit of MTCFreq.
    pub const MTC_FREQ: u32 = 14;
    /// The lowest bit of CycThresh.
    pub const CYC_THRESH: u32 = 19;
    /// The lowest bit of PSBFreq.
    pub const PSB_FREQ: u32 = 24;
    /// EventEn.
    pub const EVENT_EN: u64 = 1 << 31;
    /// The lowest bit of ADDR0_CFG; the fields of the other ranges follow, four bits each.
    pub const ADDR_CFG: u32 = 32;
    /// ADDRn_CFG: the range is traced.
    pub const ADDR_FILTER: u64 = 1;
    /// ADDRn_CFG: reaching the range stops the trace.
    pub const ADDR_STOP: u64 = 2;
}

/// The destination of the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceOutput {
    /// One range, large enough for the whole run.
    Range,
    /// One ToPA region, large enough for the whole run.
    Region,
    /// ToPA regions of 4 KiB; the last one has STOP.
    Regions {
        /// Number of regions.
        count: usize,
        /// Index of the region with INT: the unit requests a PMI when that region is full.
        pmi: usize,
    },
    /// ToPA regions of 4 KiB; the last one has STOP and no region has INT.
    Full {
        /// Number of regions.
        count: usize,
    },
    /// ToPA regions of 4 KiB, used as a ring.
    Ring {
        /// Number of regions.
        count: usize,
    },
}

/// The configuration of a traced run.
#[derive(Debug, Clone)]
pub struct TraceConfig {
    /// The processor model.
    pub profile: &'static IntelProfile,
    /// Choices that the manual leaves to the processor.
    pub settings: IntelSettings,
    /// IA32_RTIT_CTL without TraceEn, filters and output.
    pub ctl: u64,
    /// The part of the execution that is traced.
    pub filter: Filter,
    /// The destination of the packets.
    pub output: TraceOutput,
    /// STATUS is written as 0 before each start, so that the trace begins with a PSB, where decoding can start.
    pub clears_status: bool,
    /// Frequencies of unforeseen events, and the duration of instructions.
    pub rates: EventRates,
    /// Minimum number of steps of the execution, which then continues until tracing is turned off.
    pub steps: usize,
}

/// The subject of a test; the rest of the configuration is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// Everything is traced.
    Everything,
    /// Filtered by privilege level.
    Level,
    /// Filtered by CR3.
    Cr3,
    /// Filtered by address range.
    Range,
    /// Traced until an address is reached.
    Stop,
    /// Small output regions and PMIs.
    Pmi,
    /// The internal buffer overflows and packets are lost.
    Overflow,
    /// The output becomes full.
    Full,
    /// The output overwrites itself.
    Wrap,
    /// PTWRITE and event trace.
    Events,
}

impl TraceConfig {
    /// Draws the program for `seed` and the configuration of its trace.
    ///
    /// # Panics Never: the profiles that the function names exist.
    #[must_use]
    pub fn random(topic: Topic, seed: u64) -> (Program, Self) {
        Self::random_of(topic, seed, &ProgramShape::default(), 1000..4000)
    }

    /// Draws like [`TraceConfig::random`], a smaller program and fewer steps, for tests that need many programs.
    #[must_use]
    pub fn random_small(topic: Topic, seed: u64) -> (Program, Self) {
        let shape =
            ProgramShape { kernel: 3, user: 3, lib: 1, compat: 2, blocks: 5, ..ProgramShape::default() };
        Self::random_of(topic, seed, &shape, 50..400)
    }

    fn random_of(topic: Topic, seed: u64, shape: &ProgramShape, steps: Range<usize>) -> (Program, Self) {
        let mut rng = Rng::with_seed(seed ^ 0x636f_6e66);
        let newest = &["sapphire-rapids"][..];
        let names = match topic {
            Topic::Events => newest,
            Topic::Range | Topic::Stop => &["skylake", "icelake", "sapphire-rapids"],
            Topic::Pmi | Topic::Overflow | Topic::Full | Topic::Wrap => &["skylake", "sapphire-rapids"],
            _ => &["broadwell", "skylake", "icelake", "sapphire-rapids"],
        };
        let name = names[rng.usize(..names.len())];
        let profile = IntelProfile::by_name(name).expect("a profile");
        let shape = ProgramShape {
            user: if rng.u8(..5) == 0 && topic != Topic::Level { 0 } else { 1 + rng.usize(..shape.user) },
            ptwrite: topic == Topic::Events,
            ..shape.clone()
        };
        let program = Program::generate(seed, &shape);
        let mut config = Self {
            profile,
            settings: IntelSettings {
                pmi_skid: rng.u32(..100),
                visibility: rng.u32(..100),
                long_tnt: rng.bool(),
                deferred_tips: rng.bool(),
                psb_before_pge: rng.bool(),
                ..IntelSettings::default()
            },
            ctl: ctl::BRANCH_EN | packets(name, &mut rng),
            filter: Filter::all(),
            output: if name == "broadwell" || rng.bool() { TraceOutput::Region } else { TraceOutput::Range },
            clears_status: rng.bool(),
            rates: EventRates::default(),
            steps: rng.usize(steps),
        };
        config.apply_topic(topic, &program, &mut rng);
        // A separate generator keeps the other choices of a seed the same.
        let mut rng = Rng::with_seed(seed ^ 0x6f74_6865);
        let settings = &mut config.settings;
        settings.return_elsewhere = if rng.bool() { ReturnElsewhere::Pops } else { ReturnElsewhere::Empties };
        settings.compress_after_overflow = rng.bool();
        settings.maintenance = rng.bool();
        (program, config)
    }

    fn apply_topic(&mut self, topic: Topic, program: &Program, rng: &mut Rng) {
        match topic {
            Topic::Everything => {}
            Topic::Level => {
                self.filter.os = rng.bool();
                self.filter.user = !self.filter.os;
            }
            Topic::Cr3 => {
                self.filter.cr3 = Some([0x0010_0000, 0x0020_0000][rng.usize(..2)]);
                self.sometimes_filter_by_level(rng);
            }
            Topic::Range => {
                let count = 1 + rng.usize(..self.profile.address_ranges as usize);
                self.filter.ranges = (0..count).map(|_| function(program, rng)).collect();
                self.sometimes_filter_by_level(rng);
            }
            Topic::Stop => {
                self.filter.stop = Some(function(program, rng));
                if self.profile.address_ranges > 1 && rng.bool() {
                    self.filter.ranges =
                        (1..self.profile.address_ranges).map(|_| function(program, rng)).collect();
                }
                self.sometimes_filter_by_level(rng);
            }
            Topic::Pmi => {
                let count = 3 + rng.usize(..4);
                self.output = TraceOutput::Regions { count, pmi: rng.usize(..count - 1) };
                self.ctl |= ctl::CYC_EN | ctl::TSC_EN | ctl::DIS_RETC;
                self.settings.pmi_skid = rng.u32(..20);
                self.steps = 8000 + rng.usize(..8000);
            }
            Topic::Full | Topic::Wrap => {
                let count = 1 + rng.usize(..3);
                self.output = if topic == Topic::Full {
                    TraceOutput::Full { count }
                } else {
                    TraceOutput::Ring { count }
                };
                self.ctl |= ctl::CYC_EN | ctl::DIS_RETC;
                self.ctl &= !(0xf << ctl::PSB_FREQ);
                self.steps = 8000 + rng.usize(..8000);
            }
            Topic::Overflow => {
                self.settings.overflow = Some(Overflow { capacity: 128 + rng.u32(..100), drain: 1 });
                self.settings.visibility = 16;
                // Many trace bytes per instruction: a CYC for each packet, an MTC for each tick of the crystal.
                self.ctl &= !(0xf << ctl::CYC_THRESH | 0xf << ctl::MTC_FREQ);
                self.ctl |= ctl::DIS_RETC | ctl::CYC_EN | if rng.bool() { ctl::MTC_EN } else { 0 };
                if rng.bool() {
                    self.filter.ranges = vec![function(program, rng), function(program, rng)];
                }
            }
            Topic::Events => {
                self.ctl |= ctl::PTW_EN | if rng.bool() { ctl::FUP_ON_PTW } else { 0 };
                self.ctl |= if rng.bool() { ctl::EVENT_EN } else { 0 };
                self.sometimes_filter_by_level(rng);
            }
        }
    }

    /// Sets the implementation-specific choices to those that libipt can decode. At a RET with a TIP libipt does not
    /// pop its return stack, and an OVF clears its last IP.
    pub fn make_decodable_by_libipt(&mut self) {
        self.settings.return_elsewhere = ReturnElsewhere::Empties;
        self.settings.compress_after_overflow = false;
    }

    /// Adds a filter by privilege level in some of the cases.
    fn sometimes_filter_by_level(&mut self, rng: &mut Rng) {
        match rng.u8(..6) {
            0 => self.filter.os = false,
            1 => self.filter.user = false,
            _ => {}
        }
    }

    /// Returns the value of IA32_RTIT_CTL with TraceEn set.
    #[must_use]
    pub fn ctl(&self) -> u64 {
        let when = |condition: bool, bit: u64| if condition { bit } else { 0 };
        let mut value = self.ctl
            | ctl::TRACE_EN
            | when(self.filter.os, ctl::OS)
            | when(self.filter.user, ctl::USER)
            | when(self.filter.cr3.is_some(), ctl::CR3_FILTER)
            | when(self.output != TraceOutput::Range, ctl::TOPA);
        for (at, (_, cfg)) in self.ranges().enumerate() {
            value |= cfg << (ctl::ADDR_CFG + 4 * at as u32);
        }
        value
    }

    /// Returns the address ranges in the order of their registers, with their ADDRn_CFG values.
    pub fn ranges(&self) -> impl Iterator<Item = (RangeInclusive<u64>, u64)> {
        let stop = self.filter.stop.iter().map(|range| (range.clone(), ctl::ADDR_STOP));
        stop.chain(self.filter.ranges.iter().map(|range| (range.clone(), ctl::ADDR_FILTER)))
    }
}

/// Draws the packet enables from those that the processor supports.
fn packets(name: &str, rng: &mut Rng) -> u64 {
    let mut value = 0;
    let mut maybe = |bit: u64| {
        if rng.bool() {
            value |= bit
        }
    };
    maybe(ctl::TSC_EN);
    maybe(ctl::DIS_RETC);
    if name == "broadwell" {
        return value;
    }
    maybe(ctl::MTC_EN);
    maybe(ctl::CYC_EN);
    if value & ctl::MTC_EN != 0 {
        value |= [0, 3, 6, 9][rng.usize(..4)] << ctl::MTC_FREQ;
    }
    if value & ctl::CYC_EN != 0 {
        // Ice Lake lacks the largest threshold.
        let longest = if name == "icelake" { 12 } else { 13 };
        value |= rng.u64(..14).min(longest) << ctl::CYC_THRESH;
    }
    value | rng.u64(..3) << ctl::PSB_FREQ
}

/// Returns the addresses of one function, or a range that begins with one function and ends with another.
fn function(program: &Program, rng: &mut Rng) -> RangeInclusive<u64> {
    let functions = program.functions();
    let first = &functions[rng.usize(..functions.len())];
    let same = |level: CodeLevel| functions.iter().filter(move |function| function.level == level);
    let last = same(first.level).filter(|function| function.range.start() >= first.range.start());
    let last: Vec<_> = last.collect();
    *first.range.start()..=*last[rng.usize(..last.len())].range.end()
}
