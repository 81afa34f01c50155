//! Prepares a guest from the start info, on all processors of the machine.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::AtomicU64;

use pugmark_model::CpuidResult;
use pugmark_model::amd::Northbridge;
use pugmark_monitor::acpi;
use pugmark_monitor::apic_timer::TimerRate;
use pugmark_monitor::bios::BiosError;
use pugmark_monitor::boot_info::{BootInfo, MemoryKind, MemoryRange, Module};
use pugmark_monitor::clock::EveryNth;
use pugmark_monitor::cmdline::{self, MonitorOptions};
use pugmark_monitor::firmware_map;
use pugmark_monitor::guest::{
    Cpu, DescriptorTableRegister as TableRegister, GuestMemory, Lookahead, Segment,
};
use pugmark_monitor::guest_map::{GuestMap, GuestRam, LOCAL_APIC, MONITOR, PageTable};
use pugmark_monitor::hardware::Hardware;
use pugmark_monitor::loader::{self, EntryState, ModuleFile};
use pugmark_monitor::permission_map::{self, MSR_MAP_BYTES, PORT_MAP_BYTES};
use pugmark_monitor::pic_pace::PicPace;
use pugmark_monitor::pvh::StartInfo;
use pugmark_monitor::single_step::NO_CONDITION;
use pugmark_monitor::vmcb::Vmcb;
use pugmark_truth::probe::REGION_BYTES;
use pugmark_truth::{LogMode, LogWriter};

use crate::image::bios;
use crate::image::clock::{OwnClock, SharedClock, TimerRegisters};
use crate::image::firmware as firmware_devices;
use crate::image::fw_cfg;
use crate::image::io;
use crate::image::local_apic::LocalApic;
use crate::image::nested::{HolePage, Nested};
use crate::image::peers::Peers;
use crate::image::physical::Physical;
use crate::image::reported::ReportedViolations;
use crate::image::startup;
use crate::image::svm::{NoSvm, enable_svm};
use crate::image::uefi;
use crate::image::vcpu::Vcpu;
use crate::image::vmrun::Sse;

/// The reason why there is no guest to run.
pub(crate) enum SetupError {
    /// There is no PVH start info at this address.
    StartInfo(u64),
    /// The machine has no RAM below this address, which the guest and the log need.
    Memory(u64),
    /// This location of the log is not above the guest's RAM and the monitor.
    LogPlace(Module),
    Svm(NoSvm),
    CommandLine(String),
    NoGuest,
    /// This location of a file is not in the RAM above the monitor.
    NoFile(Module),
    Guest(loader::LoadError),
    Bios(BiosError),
    Truth(pugmark_truth::TruthError),
    /// The probe's region is invalid, or the processor has no Intel PT.
    Probe,
    /// The processor with this local APIC ID does not start.
    Processor(u8),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StartInfo(address) => write!(f, "no PVH start info at {address:#x}"),
            Self::Memory(end) => {
                let mib = end.div_ceil(1 << 20);
                write!(f, "the guest and the truth log need RAM up to {end:#x}: give QEMU -m {mib}M or more")
            }
            Self::LogPlace(Module { start, bytes }) => write!(
                f,
                "the log of {bytes:#x} bytes at {start:#x} is not above the guest's RAM and the monitor, or not at a \
                 multiple of 8: say another place by log=0xADDRESS+0xBYTES"
            ),
            Self::Svm(error) => error.fmt(f),
            Self::CommandLine(error) => write!(f, "the monitor's command line: {error}"),
            Self::NoGuest => write!(f, "no guest kernel: give its file to QEMU by -initrd"),
            Self::NoFile(Module { start, bytes }) => {
                write!(
                    f,
                    "the file of {bytes:#x} bytes at {start:#x} is not in RAM above the guest's and the monitor"
                )
            }
            Self::Guest(error) => write!(f, "the guest kernel cannot be loaded: {error}"),
            Self::Bios(error) => error.fmt(f),
            Self::Truth(error) => write!(f, "truth log: {error}"),
            Self::Probe => write!(
                f,
                "a probe needs a processor with Intel PT, and RAM above the guest's and the log, at a multiple of \
                 {REGION_BYTES:#x}"
            ),
            Self::Processor(id) => write!(f, "the processor with local APIC ID {id} does not start"),
        }
    }
}

impl From<cmdline::OptionError<'_>> for SetupError {
    fn from(error: cmdline::OptionError<'_>) -> Self {
        Self::CommandLine(alloc::format!("{error}"))
    }
}

/// Makes the guest's processors, loads the kernel that came as a module, and parks all processors except the first.
/// Returns the first one, ready to run the kernel.
pub(crate) fn set_up_machine(start_info: u64) -> Result<Vcpu, SetupError> {
    // SAFETY: the boot code identity-mapped the first 4 GiB. This value is only used for reads.
    let machine = unsafe { Physical::below(1 << 32) };
    let info = StartInfo::read(start_info, &machine).ok_or(SetupError::StartInfo(start_info))?;
    let line = command_line(info.command_line, &machine);
    let options = MonitorOptions::parse(&line)?;
    let log = options.log;
    let hole = options.ram.hole();
    let is_in_hole = MONITOR.end <= log.start && log.end() <= hole.end;
    if !is_in_hole && log.start < above_guest(options.ram) || !log.start.is_multiple_of(8) {
        return Err(SetupError::LogPlace(log));
    }
    let end = if options.truth { log.end().max(options.ram.end()) } else { options.ram.end() };
    if !has_ram(&info.memory, end) {
        return Err(SetupError::Memory(end));
    }
    if options.probe.is_some_and(|region| !has_room_for_probe(region, &options, &info.memory)) {
        return Err(SetupError::Probe);
    }
    enable_svm().map_err(SetupError::Svm)?;

    let firmware: &'static [(u64, u64)] = firmware(&info.memory, options.ram).collect::<Vec<_>>().leak();
    // SAFETY: this memory is the guest's alone: the image and its heap are not in it. It is written only while the
    // guest does not run, or as one of the guest's processors would write it.
    let mut memory = unsafe { Physical::guest(options.ram, options.probe, firmware) };
    let saved = uefi::saved().map(|saved| (saved, TimerRegisters::read()));
    let rsdp =
        saved.as_ref().map_or(info.rsdp, |(saved, _)| acpi::root_of_uefi(saved.system_table, &machine));
    let first_state = if let Some((saved, _)) = &saved {
        saved.cpu()
    } else if options.bios {
        bios::install(&info.memory, options.ram, &mut memory).map_err(SetupError::Bios)?
    } else {
        initial_state(load(&info, &options, &mut memory)?)
    };
    firmware_devices::show_ram(options.ram);
    let has_fw_cfg = fw_cfg::find(options.ram);
    let northbridge: &'static Northbridge = Box::leak(Box::new(options.profile.northbridge()));
    let ids = processors(rsdp, &machine);
    let plan = MachinePlan {
        clock: {
            let alone = ids.len() == 1 || options.clock == 0;
            Box::leak(Box::new(SharedClock::new(options.clock, alone, options.profile.tsc_hz())))
        },
        map: GuestMap { ram: options.ram, firmware },
        maps: PermissionMaps::new(&hardware(&options, northbridge), northbridge, has_fw_cfg),
        northbridge,
        memory: memory.clone(),
        truth: options
            .truth
            .then(|| truth_log(log, options.log_mode))
            .transpose()
            .map_err(SetupError::Truth)?,
        options,
    };
    let mut vcpus = Peers::new(&ids).map(|peers| plan.vcpu(peers));
    let mut first = vcpus.next().expect("this processor is the first");
    first.cpu = Cpu { physical_address_bits: first.cpu.physical_address_bits, ..first_state };
    if let Some((saved, timer)) = &saved {
        first.take_over(saved, *timer);
    }
    startup::start(vcpus.collect(), &mut memory).map_err(SetupError::Processor)?;
    if let Some(region) = options.probe {
        // SAFETY: memory exists there, above the guest's and the monitor, and nothing else is placed in it.
        let begun = unsafe { first.begin_probe(region, options.probe_instructions) };
        if !begun {
            return Err(SetupError::Probe);
        }
    }
    Ok(first)
}

/// The common part of the guest's processors.
struct MachinePlan<'a> {
    options: MonitorOptions<'a>,
    map: GuestMap<'a>,
    maps: &'static PermissionMaps,
    northbridge: &'static Northbridge,
    memory: Physical,
    truth: Option<LogWriter<'static>>,
    clock: &'static SharedClock,
}

impl MachinePlan<'_> {
    /// Makes a processor in the state after power-up. It has its own nested tables, so that only this processor sees
    /// its window in place of the local APIC's page.
    fn vcpu(&self, peers: Peers) -> Vcpu {
        let hole = &raw const HOLE as u64;
        let (nested_cr3, local_apic_table) = nested_tables(&self.map);
        let processor = hardware(&self.options, self.northbridge);
        let clock = OwnClock::new(self.clock, timer_rate(&processor, self.clock.frequency()));
        Vcpu {
            peers,
            cpu: Cpu {
                // CD, NW, ET.
                cr0: 0x6000_0010,
                physical_address_bits: core::arch::x86_64::__cpuid_count(0x8000_0008, 0).eax as u8,
                ..Cpu::default()
            },
            sse: Sse::ZERO,
            vmcb: control_block(nested_cr3, self.maps),
            lookahead: Box::new(Lookahead::new()),
            reports_accesses: self.options.accesses,
            reported: ReportedViolations::new(processor.all_violations()),
            profile: self.options.profile,
            processor,
            northbridge: self.northbridge,
            nested: Nested::new(nested_cr3, hole),
            stepped_alone: None,
            local_apic: LocalApic::new(local_apic_table, peers, self.options.x2apic),
            clock,
            memory: self.memory.clone(),
            nmi_pending: false,
            pic: PicPace::default(),
            repeating_rip: None,
            last_ip: 0,
            at_rip: 0,
            emulated_without_exit: false,
            session: 0,
            step_policy: self.options.step,
            time_records: EveryNth::new(self.options.times),
            // An interrupt raised by one instruction of a stretch must not be due before the last instruction.
            max_stretch: self.options.stretch.min(self.options.skid() as usize),
            stepped: 0,
            stepping_entries: 0,
            probe: None,
            truth: self.truth,
        }
    }
}

fn hardware(options: &MonitorOptions<'_>, northbridge: &'static Northbridge) -> Hardware {
    Hardware::new(options.profile, options.settings, options.amd, northbridge)
}

/// Returns the rate of the guest's timer: the crystal clock of CPUID leaf 15H, else about 100 MHz.
fn timer_rate(processor: &Hardware, frequency: u64) -> TimerRate {
    let CpuidResult { eax, ebx, .. } =
        processor.cpuid(0x15, 0, CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 });
    match (eax, ebx) {
        (0, _) | (_, 0) => TimerRate { counts: 1, ticks: (frequency / 100_000_000).max(1) as u32 },
        (counts, ticks) => TimerRate { counts, ticks },
    }
}

/// Returns the local APIC IDs of all processors, with this one first.
fn processors(rsdp: u64, machine: &Physical) -> Vec<u8> {
    let own = (core::arch::x86_64::__cpuid_count(1, 0).ebx >> 24) as u8;
    let others = acpi::processors(rsdp, machine).into_iter().filter(|&id| id != own);
    core::iter::once(own).chain(others).collect()
}

/// Reads the zero-terminated string at `address`; bytes that are not ASCII are dropped.
fn command_line(address: u64, machine: &Physical) -> String {
    let mut line = String::new();
    let mut byte = [0];
    let mut at = address;
    while address != 0 && machine.read(at, &mut byte) && byte[0] != 0 {
        if byte[0].is_ascii() {
            line.push(char::from(byte[0]));
        }
        at += 1;
    }
    line
}

fn has_ram(memory: &[MemoryRange], end: u64) -> bool {
    memory.iter().any(|range| range.kind == MemoryKind::Ram && range.start <= 1 << 20 && range.end() >= end)
}

/// Returns whether this address is valid for a probe's region.
fn has_room_for_probe(region: u64, options: &MonitorOptions<'_>, memory: &[MemoryRange]) -> bool {
    let Some(end) = region.checked_add(REGION_BYTES).filter(|_| region.is_multiple_of(REGION_BYTES)) else {
        return false;
    };
    let is_apart = !options.truth || end <= options.log.start || options.log.end() <= region;
    let within = |range: &MemoryRange| range.start <= region && end <= range.end();
    let in_ram = memory.iter().any(|range| range.kind == MemoryKind::Ram && within(range));
    in_ram && is_apart && region >= above_guest(options.ram)
}

/// Returns the ranges above the guest's RAM that the firmware left for kernels to read: mainly ACPI tables.
fn firmware(memory: &[MemoryRange], ram: GuestRam) -> impl Iterator<Item = (u64, u64)> {
    let above =
        move |range: &&MemoryRange| range.start >= above_guest(ram) && range.end() <= GuestRam::MAX_END;
    let kept = |range: &&MemoryRange| range.kind != MemoryKind::Ram;
    memory.iter().filter(above).filter(kept).map(|range| (range.start & !0xfff, range.end()))
}

fn load(
    info: &StartInfo,
    options: &MonitorOptions<'_>,
    memory: &mut Physical,
) -> Result<EntryState, SetupError> {
    let own = info.modules.first().copied().map(|module| (module, ""));
    let (kernel, modules) = match (options.kernel, own) {
        (Some(kernel), _) => (kernel, options.modules),
        (None, Some((kernel, _))) => (kernel, [own, None, None, None]),
        (None, None) => return Err(SetupError::NoGuest),
    };
    let bytes = |place| {
        // SAFETY: `set_up_machine` reads the files before the guest runs, and nothing else writes them.
        unsafe { file(place, above_guest(options.ram), &info.memory) }.ok_or(SetupError::NoFile(place))
    };
    let words =
        modules.map(|module| module.map_or("", |(_, words)| words).replace(cmdline::WORDS_SPACE, " "));
    let modules = modules.into_iter().flatten().zip(&words);
    let modules: Vec<ModuleFile<'_>> = modules
        .map(|((place, _), words)| Ok(ModuleFile { bytes: bytes(place)?, words }))
        .collect::<Result<_, SetupError>>()?;
    let kernel = bytes(kernel)?;
    let map = firmware_map::of_guest(&info.memory, options.ram);
    let given = BootInfo { command_line: options.guest, modules: &[], memory: &map, rsdp: info.rsdp };
    loader::load(kernel, &modules, &given, options.ram, memory).map_err(SetupError::Guest)
}

/// Returns the first address that is neither the guest's RAM nor the monitor's.
fn above_guest(ram: GuestRam) -> u64 {
    ram.end().max(MONITOR.end)
}

/// Returns a file that QEMU has put into memory; `None` if it is not in RAM from `above` on.
///
/// # Safety
/// Nothing may write to it while the result is used.
unsafe fn file<'a>(place: Module, above: u64, memory: &[MemoryRange]) -> Option<&'a [u8]> {
    let end = place.start.checked_add(place.bytes)?;
    let within = |range: &MemoryRange| range.start <= place.start && end <= range.end();
    let in_ram = memory.iter().any(|range| range.kind == MemoryKind::Ram && within(range));
    // SAFETY: the boot code identity-mapped this RAM. It is above the guest's memory and the monitor's heap; the log is
    // made later, and the caller promises the rest.
    (in_ram && place.start >= above && end <= 1 << 32)
        .then(|| unsafe { core::slice::from_raw_parts(place.start as *const u8, place.bytes as usize) })
}

fn truth_log(place: Module, mode: LogMode) -> Result<LogWriter<'static>, pugmark_truth::TruthError> {
    // SAFETY: `set_up_machine` found aligned RAM there, above the guest's and the monitor, and only the log's atomics
    // touch it after the guest's files have been read.
    let words =
        unsafe { core::slice::from_raw_parts(place.start as *const AtomicU64, place.bytes as usize / 8) };
    LogWriter::with_mode(words, mode)
}

/// The page that the guest reads in holes of its memory.
static HOLE: HolePage = HolePage::NEW;

/// Builds the nested tables. Returns the root's address, and the table whose first entry is the local APIC's page.
fn nested_tables(map: &GuestMap<'_>) -> (u64, &'static mut PageTable) {
    let mut tables: Vec<*mut PageTable> = Vec::new();
    let root = map.build(|| {
        let table: &'static mut PageTable = Box::leak(Box::new(PageTable::EMPTY));
        tables.push(table);
        (tables[tables.len() - 1] as u64, table)
    });
    let neighbour = |table: &&*mut PageTable| {
        // SAFETY: the tables were leaked above, and `build` no longer uses its references.
        let table = unsafe { &***table };
        table.0[0] == 0 && table.0[1] & !0xfff == LOCAL_APIC + 0x1000
    };
    let local_apic = *tables.iter().find(neighbour).expect("the map leaves out the local APIC's page alone");
    // SAFETY: as above; no other reference to this table is kept.
    (root, unsafe { &mut *local_apic })
}

/// The permission maps of the control block.
#[repr(C, align(4096))]
struct PermissionMaps {
    msrs: [u8; MSR_MAP_BYTES],
    ports: [u8; PORT_MAP_BYTES],
}

impl PermissionMaps {
    /// Makes the maps of intercepts for a guest with this `processor`.
    fn new(processor: &Hardware, northbridge: &Northbridge, has_fw_cfg: bool) -> &'static Self {
        let maps = Box::leak(Box::new(Self { msrs: [0; MSR_MAP_BYTES], ports: [0; PORT_MAP_BYTES] }));
        for msr in permission_map::mapped_msrs() {
            let own = processor.owns_msr(msr);
            let (read, write) = if own { (true, true) } else { processor.msr_handler(msr).exits() };
            permission_map::intercept_msr(&mut maps.msrs, msr, read, write);
        }
        io::intercept(&mut maps.ports, northbridge.is_present(), has_fw_cfg);
        maps
    }
}

fn control_block(nested_cr3: u64, maps: &'static PermissionMaps) -> Box<Vmcb> {
    let mut vmcb = Box::new(Vmcb::ZERO);
    vmcb.control.msrpm_base = maps.msrs.as_ptr() as u64;
    vmcb.control.iopm_base = maps.ports.as_ptr() as u64;
    vmcb.control.asid = 1;
    vmcb.control.nested_control = 1;
    vmcb.control.nested_cr3 = nested_cr3;
    // The PAT of a processor after reset.
    vmcb.save.g_pat = 0x0007_0406_0007_0406;
    vmcb
}

/// Returns the initial state: 32-bit protected mode, paging off, flat segments. PVH and multiboot2 both require it.
fn initial_state(start: EntryState) -> Cpu {
    const CODE: u16 = 0xc9b;
    const DATA: u16 = 0xc93;
    const BUSY_TSS: u16 = 0x08b;
    let flat = |selector, attributes| Segment { selector, attributes, limit: u32::MAX, base: 0 };
    let data = flat(0x10, DATA);
    let mut cpu = Cpu {
        rip: start.entry.into(),
        rflags: 2,
        // ET, PE.
        cr0: 0x11,
        dr6: NO_CONDITION,
        dr7: 0x400,
        cs: flat(0x8, CODE),
        ss: data,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        tr: Segment { selector: 0, attributes: BUSY_TSS, limit: 0x67, base: 0 },
        idtr: TableRegister { base: 0, limit: 0 },
        ..Cpu::default()
    };
    cpu.gpr[0] = start.eax.into();
    cpu.gpr[3] = start.ebx.into();
    cpu
}
