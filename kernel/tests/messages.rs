//! The driver's texts for an absence, a refusal or a fault: a reader of a log has only these words.

use core::fmt::Display;
use pugmark_decoder_core::ibs::Caps;
use pugmark_kernel::amd::branches::BranchRefusal;
use pugmark_kernel::amd::counters::CountersRefusal;
use pugmark_kernel::amd::ibs::{IbsRefusal, UnlockError};
use pugmark_kernel::amd::{EilvtError, LvtEntry};
use pugmark_kernel::intel::bts::BtsRefusal;
use pugmark_kernel::intel::counters::{IntelCounterFeature, IntelCountersRefusal};
use pugmark_kernel::intel::ds::{
    AreaError, DsRefusal, Gate, Half, LinearRequest, MemoryType, Place, PlanError, Rule, Warning,
};
use pugmark_kernel::intel::lbr::LbrRefusal;
use pugmark_kernel::intel::pebs::architectural::{ArchPebsBufferError, ArchPebsGroups, ArchPebsRefusal};
use pugmark_kernel::intel::pebs::{Counter, PebsRefusal, Periods, PreciseEvent};
use pugmark_kernel::intel::pt::LeftOn;
use pugmark_kernel::intel::pt::PtConfigRefusal;
use pugmark_kernel::intel::pt::TopaError;
use pugmark_kernel::intel::pt::{BufferError, Mode};
use pugmark_kernel::intel::pt::{CpuidField, Feature};
use pugmark_kernel::intel::pt::{OperationalError, PtRefusal};
use pugmark_kernel::lifecycle::{Absent, InUse, Missing, NotBacked, StartError};
use pugmark_kernel::memory::Request;
use pugmark_kernel::msr::amd::{IbsFetchCtl, IbsOpCtl, PerfEvtSel};
use pugmark_kernel::msr::{
    ApicBase, GeneralProtection, MiscEnable, OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus,
};
use pugmark_kernel::slot::SlotError;

const FAULT: GeneralProtection = GeneralProtection { address: 0x570, written: None };
const RDMSR: &str = "RDMSR 0x570 raised #GP(0)";

fn assert_texts(table: &[(&dyn Display, &str)]) {
    for (row, (value, text)) in table.iter().enumerate() {
        assert_eq!(value.to_string(), *text, "row {row}");
    }
}

#[test]
fn of_detecting_and_configuring_pt() {
    assert_texts(&[
        (&PtConfigRefusal::Missing(Feature::Topa), "CPUID.14H.0:ECX[0] (ToPA output) is not there"),
        (
            &PtConfigRefusal::Encoding { field: CpuidField::MTC_FREQS, value: 9, allowed: 0x249 },
            "CPUID.14H.1:EAX[31:16] (MTC frequencies) is 0x0249, a bit for each value: 9 is not allowed",
        ),
        (
            &PtConfigRefusal::Ranges { wanted: 3, there: 2 },
            "CPUID.14H.1:EAX[2:0] (address ranges) is 2, and the configuration has 3",
        ),
        (&PtConfigRefusal::Cr3 { cr3: 0x5001 }, "CR3 to match 0x5001: bits 4:0 must be 0"),
        (
            &PtConfigRefusal::NotCanonical { address: 1 << 63 },
            "address 0x8000000000000000 of a range is not canonical",
        ),
        (
            &PtConfigRefusal::RangeReversed { first: 0x20, last: 0x10 },
            "address range 0x20..=0x10 is reversed",
        ),
        (&PtConfigRefusal::BranchEnErratum, "BranchEn must be set on this model (erratum BDM106)"),
    ]);
}

#[test]
fn of_the_memory_that_pt_writes() {
    let no_memory = TopaError::NoMemory(Request { size: 0x1000, align: 0x2000, limit: 1 << 39 });
    assert_texts(&[
        (
            &TopaError::RegionSize { bytes: 0x3000 },
            "no ToPA region has 0x3000 bytes: 4 KiB to 128 MiB by powers of two",
        ),
        (
            &TopaError::Misaligned { address: 0x1800, align: 0x1000 },
            "physical address 0x1800 is not a multiple of 0x1000",
        ),
        (
            &TopaError::AboveLimit { address: 0x2000, limit: 0x1000 },
            "physical address 0x2000 does not end below 0x1000",
        ),
        (&TopaError::Regions { regions: 0 }, "a ToPA of 0 regions"),
        (&TopaError::RegionsPerTable { regions: 512 }, "a ToPA table of 512 regions: 1 to 511"),
        (&no_memory, "no memory of 0x1000 bytes aligned to 0x2000 below 0x8000000000"),
        (&BufferError::Topa(no_memory), "no memory of 0x1000 bytes aligned to 0x2000 below 0x8000000000"),
        (
            &BufferError::Missing(Feature::SingleRange),
            "CPUID.14H.0:ECX[2] (single-range output) is not there",
        ),
        (
            &BufferError::SingleRangeOverwrites { mode: Mode::Circular { interrupt_every: 1 } },
            "single-range output supports the mode Overwrite only, not Circular { interrupt_every: 1 }",
        ),
        (
            &BufferError::SingleRangeErratum { bytes: 0x2000 },
            "single-range output of 0x2000 bytes is not reliable on this model (erratum TGL052)",
        ),
        (
            &BufferError::SingleRangeSize { bytes: 0x800 },
            "single-range output of 0x800 bytes: 4 KiB to 4 GiB by powers of two",
        ),
        (
            &BufferError::Spare { spare: 4, regions: 2 },
            "4 spare regions of 2: at least 1 must be spare and at least 1 not",
        ),
        (
            &BufferError::InterruptEvery { interrupt_every: 3, regions: 2 },
            "a PMI every 3 of 2 regions: at least 1 and less than all",
        ),
    ]);
}

#[test]
fn of_starting_pt_and_of_its_slot() {
    let error = OperationalError {
        status: RtitStatus::ERROR,
        base: OutputBase(0x10_0000),
        pointers: OutputMaskPtrs::topa(3, 0x40),
        entry: Some(0x20_0006),
    };
    let text = "operational error: status 0x10, output base 0x100000, offset 0x40, entry 3, \
                which is 0x200006 in the table";
    let range =
        OperationalError { pointers: OutputMaskPtrs::single_range(0xfff, 0x40), entry: None, ..error };
    let of_a_range = "operational error: status 0x10, output base 0x100000, offset 0x40, entry 31";
    assert_texts(&[
        (&error, text),
        (&range, of_a_range),
        (
            &LeftOn {
                ctl: RtitCtl::TRACE_EN | RtitCtl::TOPA,
                status: RtitStatus::STOPPED,
                base: OutputBase(0x10_0000),
                pointers: OutputMaskPtrs::topa(3, 0x40),
            },
            "Intel PT was left on: control 0x101, status 0x20, output base 0x100000, offset 0x40, entry 3",
        ),
        (&StartError::Refused(PtRefusal::Memory(error)), text),
        (
            &StartError::Refused(PtRefusal::Config(PtConfigRefusal::Cr3 { cr3: 1 })),
            "CR3 to match 0x1: bits 4:0 must be 0",
        ),
        (
            &StartError::Refused(PtRefusal::Buffer(BufferError::Spare { spare: 4, regions: 2 })),
            "4 spare regions of 2: at least 1 must be spare and at least 1 not",
        ),
        (&SlotError::InUse, "the slot is in use"),
        (&SlotError::Empty, "nothing is traced"),
        (&SlotError::Occupied, "there is a trace in the slot"),
        (&SlotError::Fault(FAULT), RDMSR),
    ]);
}

#[test]
fn of_what_is_absent_whatever_it_is() {
    let unavailable =
        Absent::NothingToStore { misc_enable: MiscEnable::from_bits_retain(0x1800), pebs: Missing::Pebs };
    let not_backed = NotBacked { address: 0x600, written: 0xfc0, read: 0 };
    assert_texts(&[
        (
            &Absent::Missing(Missing::Ibs),
            "absent: CPUID.8000_0001H:ECX[10] (Instruction Based Sampling) is not there",
        ),
        (
            &unavailable,
            "absent: IA32_MISC_ENABLE is 0x1800: BTS is not available; and no PEBS: IA32_MISC_ENABLE[12] (PEBS \
             unavailable) is 1",
        ),
        (&Absent::InUse(InUse::AllCounters), "somebody else uses all performance counters"),
        (&Absent::NotBacked(not_backed), "announced, but MSR 0x600 reads 0x0 after 0xfc0 was written"),
        (&Absent::Fault(FAULT), "announced, but RDMSR 0x570 raised #GP(0)"),
        (&not_backed, "MSR 0x600 reads 0x0 after 0xfc0 was written"),
        (&Missing::Intel, "not a processor of Intel's"),
        (&Missing::Amd, NOT_AMD),
        (&Missing::ProcessorTraceLeaf { highest: 0xd }, "CPUID.14H is not there: CPUID.0:EAX is 0xd"),
        (&Missing::ProcessorTrace, "CPUID.07H.0:EBX[25] (Intel Processor Trace) is not there"),
        (
            &Missing::TraceOutput,
            "neither CPUID.14H.0:ECX[0] (ToPA output) nor CPUID.14H.0:ECX[2] (single-range output) is there",
        ),
        (&Missing::DebugStore, "CPUID.1:EDX[21] (debug store) is 0"),
        (
            &Missing::BranchStoreModel { family: 6, model: 8 },
            "no branch trace store is known on family 0x6, model 0x8",
        ),
        (&Missing::Pebs, "IA32_MISC_ENABLE[12] (PEBS unavailable) is 1"),
        (&Missing::PerformanceMonitoring, "IA32_MISC_ENABLE[7] (performance monitoring available) is 0"),
        (&Missing::NetBurstPebs, "the counters of family 0FH are not known to this driver"),
        (&Missing::PerfCapabilities, "CPUID.1:ECX[15] (IA32_PERF_CAPABILITIES) is not there"),
        (&Missing::WideRecords, "the DS area has 32-bit fields: CPUID.1:ECX[2] is 0, and IA-32e mode is off"),
        (&Missing::GlobalCtrl { version: 1 }, "CPUID.0AH:EAX[7:0] is 1: IA32_PERF_GLOBAL_CTRL is not there"),
        (
            &Missing::PebsFormat { number: 7 },
            "IA32_PERF_CAPABILITIES[11:8] names the unknown PEBS record format 7",
        ),
        (&Missing::PebsErrata { family: 6, model: 0xf }, "errata make PEBS useless on family 0x6, model 0xf"),
        (
            &Missing::PebsMicrocode { revision: 0x14, needed: 0x28 },
            "microcode 0x14 makes PEBS useless, which needs 0x28",
        ),
        (&Missing::PebsTraceOutput, "IA32_PERF_CAPABILITIES[16] (PEBS output to Intel PT) is 0"),
        (
            &Missing::ArchitecturalPebs,
            "CPUID.23H.0:EAX[5:4], or the version of counters: no architectural PEBS",
        ),
        (&Missing::SamplingCounter, "CPUID.0AH:EAX[15:8] is 0: there is no counter"),
        (
            &Missing::LastBranchModel { family: 6, model: 8 },
            "no last branch records are known on family 0x6, model 0x8",
        ),
        (
            &Missing::LastBranchFormat { number: 9 },
            "IA32_PERF_CAPABILITIES[5:0] names the unknown LBR format 9",
        ),
        (&Missing::LastBranchDepth, "CPUID.1CH:EAX[7:0] names no depth"),
        (&Missing::Counters, "this processor has no performance counters"),
        (&Missing::BranchRecorder, "CPUID announces neither LBR version 2 nor branch sampling"),
    ]);
}

#[test]
fn of_who_else_uses_it_and_of_a_start() {
    let other = InUse::BranchRecorder { address: 0x1d9, control: 0xc0 };
    assert_texts(&[
        (
            &InUse::ProcessorTrace { ctl: RtitCtl::TRACE_EN },
            "somebody else uses Intel PT: IA32_RTIT_CTL is 0x1",
        ),
        (&other, "somebody else records branches: MSR 0x1d9 is 0xc0"),
        (&InUse::DebugStore { area: 0x1000 }, "somebody else uses the debug store: IA32_DS_AREA is 0x1000"),
        (
            &InUse::Counter { counter: Counter::General(2), control: 0x40_00c0 },
            "somebody else uses general-purpose counter 2: its control register is 0x4000c0",
        ),
        (&InUse::Sampler { pebs_enable: 4 }, "somebody else samples: IA32_PEBS_ENABLE is 0x4"),
        (&InUse::AllCounters, "somebody else uses all performance counters"),
        (
            &InUse::Ibs { fetch: IbsFetchCtl::EN, op: IbsOpCtl::EN },
            "somebody else samples: IbsFetchCtl is 0x1000000000000, IbsOpCtl 0x20000",
        ),
        (&StartError::Refused(DsRefusal::Nothing), "neither branches nor samples are to be recorded"),
        (&StartError::<DsRefusal>::InUse(other), "somebody else records branches: MSR 0x1d9 is 0xc0"),
        (
            &StartError::<DsRefusal>::NotBacked(NotBacked { address: 0x1d9, written: 0xc0, read: 0 }),
            "announced, but MSR 0x1d9 reads 0x0 after 0xc0 was written",
        ),
        (&StartError::<DsRefusal>::Fault(FAULT), RDMSR),
    ]);
}

#[test]
fn of_the_area_of_the_debug_store() {
    let place = Place { address: 0x5000, space: 1 };
    let request = LinearRequest { size: 0x2000, limit: None };
    assert_texts(&[
        (
            &Rule::NotPresent(place),
            "the page at 0x5000 in address space 1 is not present: the DS save area must be mapped wherever the \
             processor may trace, also in isolated page tables",
        ),
        (
            &Rule::Pageable(place),
            "the page at 0x5000 in address space 1 may be taken away while the processor records",
        ),
        (&Rule::NotWritable(place), "the page at 0x5000 in address space 1 is not writable"),
        (&Rule::UserAccessible(place), "the page at 0x5000 in address space 1 is accessible to user code"),
        (&Rule::NotAccessed(place), "the page at 0x5000 in address space 1 is not marked accessed"),
        (&Rule::NotDirty(place), "the page at 0x5000 in address space 1 is not marked dirty"),
        (
            &Rule::MappedElsewhere(place),
            "the page at 0x5000 in address space 1 is another one than in address space 0",
        ),
        (&Rule::HoldsCode(place), "the page at 0x5000 in address space 1 holds code"),
        (&Rule::Bit20 { address: 0x10_0000 }, "bit 20 of 0x100000 is set, and A20M# could be asserted"),
        (
            &Rule::NotCanonical { address: 1 << 47, bits: 48 },
            "0x800000000000 is not canonical with 48 bits of linear address",
        ),
        (&Rule::NoAddressSpace, "the kernel names no address space to check"),
        (&Warning::CacheLine { address: 0x5004 }, "the buffer at 0x5004 does not begin on a cache line"),
        (
            &Warning::Remainder { bytes: 100, record_bytes: 24 },
            "a buffer of 100 bytes is no multiple of its records' 24",
        ),
        (
            &Warning::NotWriteBack { address: 0x5000, memory_type: MemoryType::Uncacheable },
            "the page at 0x5000 is Uncacheable and not write-back memory",
        ),
        (&Warning::FewSpare { spare: 3 }, "only 3 records are kept free for the time until a PMI is served"),
        (
            &AreaError::BadBlock { address: 0x5010, request },
            "the kernel's memory at 0x5010 is not what was asked for: 0x2000 bytes on a page boundary",
        ),
        (&AreaError::Rule(Rule::NoAddressSpace), "the kernel names no address space to check"),
        (
            &AreaError::Warning(Warning::FewSpare { spare: 3 }),
            "only 3 records are kept free for the time until a PMI is served",
        ),
        (&AreaError::Plan(PlanError::NoBuffer), "no buffer is asked for"),
        (
            &PlanError::PageOffset { page_offset: 0xfff },
            "a buffer cannot start at offset 0xfff of a page: a multiple of 4 below 4096",
        ),
        (
            &PlanError::TooSmall { bytes: 23, record_bytes: 24 },
            "a buffer of 23 bytes does not hold one record of 24",
        ),
        (
            &PlanError::Spare { spare: 9, records: 8 },
            "9 spare records of 8: at least 1 must be spare and at least 1 not",
        ),
        (&PlanError::PebsIsNotCircular, "a PEBS buffer cannot be circular"),
        (
            &PlanError::NoPebs(Missing::NetBurstPebs),
            "no buffer for samples: the counters of family 0FH are not known to this driver",
        ),
        (&PlanError::FixedFormat, "the PEBS records of this processor have no groups to choose"),
        (&PlanError::Branches { branches: 33 }, "33 last branches in a PEBS record"),
    ]);
}

#[test]
fn of_what_the_debug_store_is_to_record() {
    assert_texts(&[
        (&DsRefusal::NoBuffer(Half::Bts), "the DS save area has no BTS buffer"),
        (&DsRefusal::NoBuffer(Half::Pebs), "the DS save area has no PEBS buffer"),
        (
            &DsRefusal::Bts(BtsRefusal::Unavailable),
            "IA32_MISC_ENABLE[11] (branch trace storage unavailable) is 1",
        ),
        (&BtsRefusal::CplQualified, "CPUID.1:ECX[4] (CPL-qualified debug store) is not there"),
        (
            &DsRefusal::NoPebs(Missing::NetBurstPebs),
            "the counters of family 0FH are not known to this driver",
        ),
        (&DsRefusal::Pebs(PebsRefusal::NoCounters), "no counter is to sample"),
        (&DsRefusal::Area(AreaError::NoMemory { bytes: 24 }), "no linear memory for 24 bytes"),
        (&DsRefusal::OtherLayout, "the DS save area was made for a processor with another layout"),
        (
            &DsRefusal::ApicOff(ApicBase::from_bits_retain(0xfee0_0000)),
            "the local APIC, which the PMI comes through, is off: IA32_APIC_BASE is 0xfee00000",
        ),
        (&DsRefusal::NoGate, "a buffer asks for PMIs, and the configuration names no gate for them"),
        (
            &DsRefusal::NotAnInterruptGate(Gate(0x8f00_0008_0000)),
            "the gate of the PMI must be an interrupt gate: its descriptor begins 0x8f0000080000",
        ),
    ]);
}

#[test]
fn of_samples() {
    let (general, fixed) = (Counter::General(0), Counter::Fixed(1));
    let event = PreciseEvent { select: 0xc0, umask: 1 };
    assert_texts(&[
        (&PebsRefusal::NoLevel, "neither CPL 0 nor what is above it is to be sampled"),
        (&PebsRefusal::NoCounter(fixed), "fixed-function counter 1 does not sample"),
        (
            &PebsRefusal::NotPrecise { event, counter: general, counters: 0 },
            "event 0xc0, unit mask 0x01, is not precise on this processor",
        ),
        (
            &PebsRefusal::NotPrecise { event, counter: general, counters: 2 },
            "event 0xc0, unit mask 0x01, does not sample on general-purpose counter 0, but on those of 0b10",
        ),
        (
            &PebsRefusal::Period {
                counter: fixed,
                period: 0,
                periods: Periods { shortest: 1, longest: 100, step: 1 },
            },
            "a period of 0 for fixed-function counter 1, which takes 1 to 100",
        ),
        (
            &PebsRefusal::Period {
                counter: general,
                period: 100,
                periods: Periods { shortest: 128, longest: 1 << 31, step: 64 },
            },
            "a period of 100 for general-purpose counter 0, which takes multiples of 64 from 128 to 2147483648",
        ),
        (
            &PebsRefusal::Microcode(general),
            "the processor's microcode uses general-purpose counter 0 for transactions",
        ),
        (
            &PebsRefusal::Spare { spare: 2, needed: 4 },
            "the PEBS buffer keeps 2 records free, and 4 may come until a PMI is served",
        ),
        (
            &PebsRefusal::NoLoadLatency(general),
            "general-purpose counter 0 does not sample loads by their latency",
        ),
        (&PebsRefusal::LatencyThreshold { threshold: 2 }, "a latency threshold of 2 cycles, the lowest is 3"),
        (
            &PebsRefusal::NotAlone(general),
            "general-purpose counter 0 samples loads by their latency, and no other counter may sample meanwhile",
        ),
    ]);
}

#[test]
fn of_architectural_samples() {
    let request = Request { size: 0x2000, align: 0x2000, limit: 1 << 46 };
    assert_texts(&[
        (&ArchPebsRefusal::NoCounters, "no counter is to sample"),
        (&ArchPebsRefusal::NoLevel, "neither CPL 0 nor what is above it is to be sampled"),
        (&ArchPebsRefusal::NoCounter(Counter::Fixed(1)), "fixed-function counter 1 does not sample"),
        (
            &ArchPebsRefusal::Period { counter: Counter::General(0), period: 0 },
            "a period of 0 for general-purpose counter 0, which takes 1 to 2147483648",
        ),
        (
            &ArchPebsRefusal::Groups(ArchPebsGroups::ZMM_HIGH),
            "CPUID.23H.4:EBX lacks groups of the records: 0x400000",
        ),
        (
            &ArchPebsBufferError::Size { bytes: 3 },
            "a buffer of 3 bytes: a power of two from 4096 to 134217728 is needed",
        ),
        (
            &ArchPebsBufferError::Spare { spare: 8, bytes: 4096 },
            "8 spare bytes of 4096: a multiple of 16 is needed, and not all",
        ),
        (
            &ArchPebsBufferError::NoMemory(request),
            "no memory: 0x2000 bytes, aligned to 0x2000, below 0x400000000000",
        ),
        (
            &ArchPebsBufferError::NotAsRequested { address: 0x1000, request },
            "0x2000 bytes at 0x1000, not aligned to 0x2000 or not below 0x400000000000",
        ),
    ]);
}

#[test]
fn of_intels_counters() {
    assert_texts(&[
        (&IntelCountersRefusal::Nothing, "there is no event to count"),
        (
            &IntelCountersRefusal::NoFeature { event: 2, feature: IntelCounterFeature::AutoReload },
            "event 2 of the list: CPUID.23H.2 (auto counter reload) is not there",
        ),
        (
            &IntelCountersRefusal::NoFeature { event: 2, feature: IntelCounterFeature::BranchRecords },
            "event 2 of the list: CPUID.1CH:ECX[19:16] (events in last branch records) is not there",
        ),
        (
            &IntelCountersRefusal::ReloadPlaces { event: 0, places: 0b100 },
            "event 0 of the list: it is reloaded by those of 0b100, which the list lacks",
        ),
        (
            &IntelCountersRefusal::ReloadPeriod { event: 0, period: 3_000_000_000 },
            "event 0 of the list: a period of 3000000000, the longest is 2147483648",
        ),
    ]);
}

#[test]
fn of_last_branches() {
    assert_texts(&[
        (&LbrRefusal::NoLevel, "neither CPL 0 nor what is above it is to be recorded"),
        (&LbrRefusal::Levels, "last branch records cannot be filtered by privilege level"),
        (&LbrRefusal::Classes, "last branch records cannot be filtered by kind"),
        (&LbrRefusal::CallStack, "there is no call-stack mode"),
        (&LbrRefusal::CallStackHasClasses, "call-stack mode records calls and returns, and nothing else"),
        (&LbrRefusal::Freeze, "there is no FREEZE_LBRS_ON_PMI"),
        (&LbrRefusal::CallStackFreezes, "call-stack mode does not go with FREEZE_LBRS_ON_PMI"),
    ]);
}

const NOT_AMD: &str = "CPUID.0 names another vendor than AMD";

#[test]
fn of_amds_ibs() {
    assert_texts(&[
        (&IbsRefusal::NotRouted, "the interrupt of IBS is not routed"),
        (&IbsRefusal::Nothing, "neither fetches nor ops are to be sampled"),
        (&IbsRefusal::Missing(Caps(1 << 4)), "CPUID.8000_001BH:EAX[4] is not there"),
        (
            &IbsRefusal::Period { period: 0x81, least: 0x90, most: 0xffff0 },
            "the period 0x81 is no multiple of 16 from 0x90 to 0xffff0",
        ),
        (&IbsRefusal::RandomPeriod { period: 0xf0 }, "the random period 0xf0 is below 0x100"),
        (
            &IbsRefusal::Latency { cycles: 100, most: 2048 },
            "the latency 100 is no multiple of 128 from 128 to 2048",
        ),
        (&UnlockError::Missing(Missing::Amd), NOT_AMD),
        (&UnlockError::NotLocked, "only on family 17h, models 00h to 1Fh, firmware locks the units"),
        (&UnlockError::Fault(FAULT), RDMSR),
        (&EilvtError::NoEntry { n: 4, count: 3 }, "extended LVT entry 4 is not there: there are 3"),
        (
            &EilvtError::InUse { n: 1, entry: LvtEntry::NMI },
            "somebody else uses extended LVT entry 1: it is 0x400",
        ),
        (&EilvtError::NoneFree { count: 4 }, "all 4 extended LVT entries are used"),
        (&EilvtError::NotAssigned { ibs_ctl: 3 }, "no extended LVT entry is assigned to IBS: IBS_CTL is 0x3"),
        (&EilvtError::Fault(FAULT), RDMSR),
    ]);
}

#[test]
fn of_amds_counters_and_branches() {
    assert_texts(&[
        (&CountersRefusal::Nothing, "no event is to be counted"),
        (
            &CountersRefusal::Reserved { event: 1, bits: PerfEvtSel::PC },
            "event 1: the bits 0x80000 are reserved on this processor",
        ),
        (
            &CountersRefusal::NoLevel { event: 1 },
            "event 1: neither CPL 0 nor what is above it is to be counted",
        ),
        (
            &CountersRefusal::Period { event: 1, period: 0 },
            "event 1: the period 0x0 is not 1 to 0x800000000000",
        ),
        (&CountersRefusal::NoCounter { event: 1 }, "event 1: no counter counts it"),
        (
            &CountersRefusal::NotEnough { needed: 2, free: 0b100 },
            "2 counters are needed, and those in 0b100 are free and do not suffice",
        ),
        (&BranchRefusal::NoLevel, "neither CPL 0 nor what is above it is to be recorded"),
        (&BranchRefusal::Filter, "branch sampling takes all branches"),
        (&BranchRefusal::Freeze, "a PMI cannot freeze the last branches"),
    ]);
}
