//! What the driver says of an absence, a refusal, a fault: whoever reads a log has nothing but these words.

use core::fmt::Display;
use pugmark_decoder_core::ibs::Caps;
use pugmark_kernel::amd::branches::{self, BranchRefusal, BranchesAbsent};
use pugmark_kernel::amd::counters::{self, CountersAbsent, CountersRefusal};
use pugmark_kernel::amd::ibs::{self, IbsAbsent, IbsRefusal, UnlockError};
use pugmark_kernel::amd::{EilvtError, LvtEntry, NotAmd};
use pugmark_kernel::bts::BtsRefusal;
use pugmark_kernel::buffer::{BufferError, Mode};
use pugmark_kernel::config::Refusal;
use pugmark_kernel::cpuid::{CpuidField, Feature, NoProcessorTrace};
use pugmark_kernel::detect::DetectError;
use pugmark_kernel::ds::{
    self, AreaError, DsAbsent, DsRefusal, Gate, Half, LinearRequest, MemoryType, Place, PlanError, Rule,
    Warning,
};
use pugmark_kernel::lbr::{self, LbrAbsent, LbrRefusal};
use pugmark_kernel::memory::Request;
use pugmark_kernel::msr::amd::DbgExtnCfg;
use pugmark_kernel::msr::{
    ApicBase, DebugCtl, GeneralProtection, MiscEnable, OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus,
};
use pugmark_kernel::pebs::{Counter, Event, PebsAbsent, PebsRefusal};
use pugmark_kernel::pt::{self, OperationalError};
use pugmark_kernel::slot::SlotError;
use pugmark_kernel::topa::TopaError;
use pugmark_pfm::register::{IbsFetchCtl, IbsOpCtl, PerfEvtSel};

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
        (&NoProcessorTrace::HighestLeaf { highest: 0xd }, "CPUID.14H is not there: CPUID.0:EAX is 0xd"),
        (&NoProcessorTrace::NotEnumerated, "CPUID.07H.0:EBX[25] (Intel Processor Trace) is not there"),
        (
            &DetectError::Cpuid(NoProcessorTrace::NotEnumerated),
            "CPUID.07H.0:EBX[25] (Intel Processor Trace) is not there",
        ),
        (
            &DetectError::NoMemoryOutput,
            "neither CPUID.14H.0:ECX[0] (ToPA output) nor CPUID.14H.0:ECX[2] (single-range output) is there",
        ),
        (&DetectError::Fault(FAULT), "CPUID announces Intel PT, but RDMSR 0x570 raised #GP(0)"),
        (
            &DetectError::NotBacked { written: 0x7f, read: 0 },
            "CPUID announces Intel PT, but IA32_RTIT_OUTPUT_MASK_PTRS reads 0x0 after 0x7f was written",
        ),
        (
            &DetectError::AlreadyEnabled { ctl: RtitCtl::TRACE_EN },
            "somebody else uses Intel PT: IA32_RTIT_CTL is 0x1",
        ),
        (&Refusal::Missing(Feature::Topa), "CPUID.14H.0:ECX[0] (ToPA output) is not there"),
        (
            &Refusal::Encoding { field: CpuidField::MTC_FREQS, value: 9, allowed: 0x249 },
            "CPUID.14H.1:EAX[31:16] (MTC frequencies) is 0x0249: 9 is not among them",
        ),
        (
            &Refusal::Ranges { wanted: 3, there: 2 },
            "CPUID.14H.1:EAX[2:0] (address ranges) is 2: 3 are wanted",
        ),
        (&Refusal::Cr3 { cr3: 0x5001 }, "CR3 to match 0x5001: bits 4:0 must be 0"),
        (
            &Refusal::NotCanonical { address: 1 << 63 },
            "address 0x8000000000000000 of a range is not canonical",
        ),
        (&Refusal::RangeReversed { first: 0x20, last: 0x10 }, "address range 0x20..=0x10 is reversed"),
        (&Refusal::BranchEnErratum, "BranchEn must be set on this model (erratum BDM106)"),
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
            "single-range output only overwrites: not Circular { interrupt_every: 1 }",
        ),
        (
            &BufferError::SingleRangeErratum { bytes: 0x2000 },
            "single-range output of 0x2000 bytes is not reliable on this model (erratum TGL052)",
        ),
        (
            &BufferError::SingleRangeSize { bytes: 0x800 },
            "single-range output of 0x800 bytes: 4 KiB to 4 GiB by powers of two",
        ),
        (&BufferError::Spare { spare: 4, regions: 2 }, "4 of 2 regions are to stay free"),
        (&BufferError::InterruptEvery { interrupt_every: 3, regions: 2 }, "a PMI each 3 of 2 regions"),
    ]);
}

#[test]
fn of_starting_pt_and_of_its_slot() {
    let error = OperationalError {
        status: RtitStatus::ERROR,
        base: OutputBase(0x10_0000),
        pointers: OutputMaskPtrs::topa(3, 0x40),
    };
    let text = "operational error: status 0x10, output base 0x100000, entry 3, offset 0x40";
    assert_texts(&[
        (&error, text),
        (&pt::StartError::OperationalError(error), text),
        (&pt::StartError::Config(Refusal::Cr3 { cr3: 1 }), "CR3 to match 0x1: bits 4:0 must be 0"),
        (
            &pt::StartError::Buffer(BufferError::Spare { spare: 4, regions: 2 }),
            "4 of 2 regions are to stay free",
        ),
        (
            &pt::StartError::OtherRecorder { on: DebugCtl::from_bits_retain(0xc0) },
            "another branch recorder is on: IA32_DEBUGCTL has 0xc0",
        ),
        (
            &pt::StartError::AlreadyEnabled { ctl: RtitCtl::TRACE_EN },
            "somebody else uses Intel PT: IA32_RTIT_CTL is 0x1",
        ),
        (&pt::StartError::Fault(FAULT), RDMSR),
        (&SlotError::InUse, "the slot is in use"),
        (&SlotError::Empty, "nothing is traced"),
        (&SlotError::Occupied, "there is a trace in the slot"),
        (&SlotError::Fault(FAULT), RDMSR),
    ]);
}

#[test]
fn of_the_debug_store() {
    let unavailable = DsAbsent::Unavailable {
        misc_enable: MiscEnable::from_bits_retain(0x1800),
        pebs: PebsAbsent::Unavailable,
    };
    assert_texts(&[
        (&DsAbsent::Vendor, "absent: not a processor of Intel's"),
        (&DsAbsent::Cpuid, "absent: CPUID.1:EDX[21] (debug store) is 0"),
        (
            &DsAbsent::Family { family: 6, model: 8 },
            "absent: no branch trace store is known on family 0x6, model 0x8",
        ),
        (
            &unavailable,
            "absent: IA32_MISC_ENABLE is 0x1800: BTS is not available; and no PEBS: IA32_MISC_ENABLE[12] (PEBS \
             unavailable) is 1",
        ),
        (&DsAbsent::Fault(FAULT), "absent: CPUID announces a debug store, but RDMSR 0x570 raised #GP(0)"),
        (
            &DsAbsent::NotBacked { written: 0xfc0, read: 0 },
            "absent: CPUID announces a debug store, but IA32_DS_AREA reads 0x0 after 0xfc0 was written",
        ),
        (&DsAbsent::InUse { control: 0xc0 }, "somebody else records branches: MSR 0x1d9 is 0xc0"),
        (&DsAbsent::AreaInUse { area: 0x1000 }, "somebody else uses the debug store: IA32_DS_AREA is 0x1000"),
        (&ds::StartError::Config(DsRefusal::Nothing), "neither branches nor samples are to be recorded"),
        (&ds::StartError::Area(AreaError::NoMemory { bytes: 24 }), "no linear memory for 24 bytes"),
        (&ds::StartError::OtherLayout, "the DS save area was made for a processor with another layout"),
        (
            &ds::StartError::OtherRecorder { control: 0xc0 },
            "somebody else records branches: MSR 0x1d9 is 0xc0",
        ),
        (
            &ds::StartError::ProcessorTrace { ctl: RtitCtl::TRACE_EN },
            "Intel PT traces, which excludes BTS: IA32_RTIT_CTL is 0x1",
        ),
        (
            &ds::StartError::AreaInUse { area: 0x1000 },
            "somebody else uses the debug store: IA32_DS_AREA is 0x1000",
        ),
        (
            &ds::StartError::CounterInUse { counter: Counter::General(2), control: 0x40_00c0 },
            "somebody else uses general-purpose counter 2: its control register is 0x4000c0",
        ),
        (&ds::StartError::OtherSampler { pebs_enable: 4 }, "somebody else samples: IA32_PEBS_ENABLE is 0x4"),
        (
            &ds::StartError::NotBacked { written: 0xc0, read: 0 },
            "CPUID announces a branch trace store, but MSR 0x1d9 reads 0x0 after 0xc0 was written",
        ),
        (
            &ds::StartError::ApicOff { base: ApicBase::from_bits_retain(0xfee0_0000) },
            "the local APIC, which the PMI comes through, is off: IA32_APIC_BASE is 0xfee00000",
        ),
        (&ds::StartError::Fault(FAULT), RDMSR),
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
        (&PlanError::Spare { spare: 9, records: 8 }, "9 of 8 records are to stay free"),
        (&PlanError::PebsIsNotCircular, "a PEBS buffer cannot be circular"),
        (
            &PlanError::NoPebs(PebsAbsent::NetBurst),
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
        (&DsRefusal::NoPebs(PebsAbsent::NetBurst), "the counters of family 0FH are not known to this driver"),
        (&DsRefusal::Pebs(PebsRefusal::NoCounters), "no counter is to sample"),
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
    let event = Event { select: 0xc0, umask: 1 };
    assert_texts(&[
        (&PebsAbsent::Unavailable, "IA32_MISC_ENABLE[12] (PEBS unavailable) is 1"),
        (&PebsAbsent::PerformanceMonitoring, "IA32_MISC_ENABLE[7] (performance monitoring available) is 0"),
        (&PebsAbsent::PerfCapabilities, "CPUID.1:ECX[15] (IA32_PERF_CAPABILITIES) is not there"),
        (&PebsAbsent::Narrow, "the DS area has 32-bit fields: CPUID.1:ECX[2] is 0, and IA-32e mode is off"),
        (
            &PebsAbsent::GlobalCtrl { version: 1 },
            "CPUID.0AH:EAX[7:0] is 1: IA32_PERF_GLOBAL_CTRL is not there",
        ),
        (
            &PebsAbsent::Format { number: 7 },
            "IA32_PERF_CAPABILITIES[11:8] names the unknown PEBS record format 7",
        ),
        (&PebsAbsent::NoCounter, "CPUID.0AH:EAX[15:8] is 0: there is no counter"),
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
            &PebsRefusal::Period { counter: fixed, period: 0, longest: 100 },
            "a period of 0 for fixed-function counter 1, which is 1 to 100",
        ),
        (
            &PebsRefusal::Spare { spare: 2, needed: 4 },
            "the PEBS buffer keeps 2 records free, and 4 may come until a PMI is served",
        ),
    ]);
}

#[test]
fn of_last_branches() {
    assert_texts(&[
        (&LbrAbsent::Vendor, "absent: the processor is not Intel's"),
        (
            &LbrAbsent::Model { family: 6, model: 8 },
            "absent: no last branch records are known on family 0x6, model 0x8",
        ),
        (
            &LbrAbsent::Format { number: 9 },
            "absent: IA32_PERF_CAPABILITIES[5:0] names the unknown LBR format 9",
        ),
        (&LbrAbsent::Depth, "absent: CPUID.1CH:EAX[7:0] names no depth"),
        (&LbrAbsent::NotBacked { address: 0x680 }, "absent: MSR 0x680 does not keep its bit 0"),
        (&LbrAbsent::Fault(FAULT), "absent: RDMSR 0x570 raised #GP(0)"),
        (&LbrRefusal::NoLevel, "neither CPL 0 nor what is above it is to be recorded"),
        (&LbrRefusal::Levels, "last branch records cannot be filtered by privilege level"),
        (&LbrRefusal::Classes, "last branch records cannot be filtered by kind"),
        (&LbrRefusal::CallStack, "there is no call-stack mode"),
        (&LbrRefusal::CallStackHasClasses, "call-stack mode records calls and returns, and nothing else"),
        (&LbrRefusal::Freeze, "there is no FREEZE_LBRS_ON_PMI"),
        (&LbrRefusal::CallStackFreezes, "call-stack mode does not go with FREEZE_LBRS_ON_PMI"),
        (&lbr::StartError::Config(LbrRefusal::CallStack), "there is no call-stack mode"),
        (
            &lbr::StartError::OtherRecorder { control: 1 },
            "somebody else records branches: its control register is 0x1",
        ),
        (
            &lbr::StartError::ProcessorTrace { ctl: RtitCtl::TRACE_EN },
            "Intel PT traces, which excludes last branch records: IA32_RTIT_CTL is 0x1",
        ),
        (&lbr::StartError::Fault(FAULT), RDMSR),
    ]);
}

const NOT_AMD: &str = "CPUID.0 names another vendor than AMD";

#[test]
fn of_amds_ibs() {
    assert_texts(&[
        (&IbsAbsent::NotAmd, NOT_AMD),
        (&IbsAbsent::Cpuid, "CPUID.8000_0001H:ECX[10] (Instruction Based Sampling) is not there"),
        (
            &IbsAbsent::InUse { fetch: IbsFetchCtl::EN, op: IbsOpCtl::EN },
            "somebody else samples: IbsFetchCtl is 0x1000000000000, IbsOpCtl 0x20000",
        ),
        (
            &IbsAbsent::NotBacked { written: IbsOpCtl::EN, read: IbsOpCtl::empty() },
            "IbsOpCtl holds 0x0 after a write of 0x20000",
        ),
        (&IbsAbsent::Fault(FAULT), RDMSR),
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
        (&ibs::StartError::Config(IbsRefusal::Nothing), "neither fetches nor ops are to be sampled"),
        (&ibs::StartError::NotRouted, "the interrupt of IBS is not routed"),
        (&ibs::StartError::Fault(FAULT), RDMSR),
        (&UnlockError::NotAmd, NOT_AMD),
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
        (&NotAmd, NOT_AMD),
        (&CountersAbsent::NotAmd, NOT_AMD),
        (&CountersAbsent::Cpuid, "this processor has no performance counters"),
        (&CountersAbsent::InUse, "somebody else uses all performance counters"),
        (
            &CountersAbsent::NotBacked { counter: 1, written: 0x5a, read: 0 },
            "performance counter 1 holds 0x0 after a write of 0x5a",
        ),
        (&CountersAbsent::Fault(FAULT), RDMSR),
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
        (&counters::StartError::Config(CountersRefusal::Nothing), "no event is to be counted"),
        (&counters::StartError::Fault(FAULT), RDMSR),
        (&BranchesAbsent::NotAmd, NOT_AMD),
        (&BranchesAbsent::Cpuid, "CPUID announces neither LBR version 2 nor branch sampling"),
        (
            &BranchesAbsent::InUse { config: DbgExtnCfg::LBRV2EN },
            "somebody else records branches: DBG_EXTN_CFG is 0x40",
        ),
        (
            &BranchesAbsent::NotBacked { written: 0x5a, read: 0 },
            "the first record holds 0x0 after a write of 0x5a",
        ),
        (&BranchesAbsent::Fault(FAULT), RDMSR),
        (&BranchRefusal::NoLevel, "neither CPL 0 nor what is above it is to be recorded"),
        (&BranchRefusal::Filter, "branch sampling takes all branches"),
        (&BranchRefusal::Freeze, "a PMI cannot freeze the last branches"),
        (&branches::StartError::Config(BranchRefusal::Filter), "branch sampling takes all branches"),
        (&branches::StartError::Fault(FAULT), RDMSR),
    ]);
}
