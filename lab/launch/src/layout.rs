//! The locations, in a machine's memory, of all that a guest of the monitor does not see.

use anyhow::{Context, Result, ensure};
use pugmark_truth::probe::REGION_BYTES;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use crate::qemu::with_path;

const MIB: u64 = 1 << 20;
/// The guest's usual memory in MiB: all that is below the monitor.
pub const DEFAULT_MEMORY: u64 = 256;
/// The end of the monitor, in MiB. A guest's memory does not end within it.
const MONITOR_END: u64 = 320;
/// Below this are a guest of up to [`DEFAULT_MEMORY`], the monitor, and its log.
const LOG_END: u64 = 512 * MIB;
/// The log's size if the guest's memory ends above the monitor: some eleven million instructions.
const LOG_BYTES: u64 = 256 * MIB;
/// The size of one instruction in the log.
const LOG_RECORD: u64 = 24;
/// Size of the memory at the end that is left to the firmware.
const FIRMWARE_BYTES: u64 = 32 * MIB;
/// The start of devices' memory in QEMU's machine, independent of its size.
const MEMORY_END: u64 = 3072 * MIB;
/// The character that stands for a space in the words of a module.
const WORDS_SPACE: &str = "\u{1f}";
/// The guest's usual memory in MiB if UEFI firmware boots it.
pub const DEFAULT_UEFI_MEMORY: u64 = 512;
/// The least memory of such a guest: the firmware occupies the last part of it, above the monitor.
const LEAST_UEFI_MEMORY: u64 = 384;
/// The size of a log that only has sums, in a guest's memory.
const SUMS_BYTES: u64 = MIB;

/// The memory layout of a machine with a monitor: addresses, and sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The end of the guest's memory in MiB.
    memory: u64,
    /// The log, if it is not at its usual place.
    log: Option<(u64, u64)>,
    /// The address of the monitor's own trace.
    pub probe: Option<u64>,
    /// The guest's files: its kernel, and the kernel's modules.
    files: Vec<(u64, u64)>,
    /// The end of the memory.
    end: u64,
}

impl Layout {
    /// Places everything above the guest's memory, which is `memory` MiB, and above the monitor: files of these sizes,
    /// and the trace of `probe` instructions.
    ///
    /// # Errors
    /// If that is too much, or the guest's memory would end within the monitor.
    pub fn new(memory: u64, files: &[u64], probe: Option<u64>) -> Result<Self> {
        let too_much =
            || format!("a guest of the monitor cannot have {memory} MiB of memory: that is too much");
        ensure!(memory < MEMORY_END / MIB, too_much());
        ensure!(
            (2..=DEFAULT_MEMORY).contains(&memory) || memory > MONITOR_END,
            "a guest of the monitor has from 2 to {DEFAULT_MEMORY} MiB of memory, or more than {MONITOR_END}: {memory} \
             would end within the monitor"
        );
        // With some room for instructions after the traced ones.
        let log_bytes =
            probe.map_or(0, |count| count.saturating_mul(LOG_RECORD).saturating_add(LOG_BYTES / 4));
        let log_bytes = log_bytes.clamp(LOG_BYTES, MEMORY_END).next_multiple_of(MIB);
        let elsewhere = memory > DEFAULT_MEMORY || probe.is_some();
        let log = elsewhere.then_some(((memory * MIB).max(LOG_END), log_bytes));
        let at = log.map_or(LOG_END, |(address, bytes)| address + bytes);
        let probe = probe.map(|_| at.next_multiple_of(REGION_BYTES));
        let mut at = probe.map_or(at, |region| region + REGION_BYTES);
        let mut places = vec![];
        for &bytes in files {
            places.push((at, bytes));
            let end = at.checked_add(bytes).filter(|end| *end <= MEMORY_END).with_context(too_much)?;
            at = end.next_multiple_of(MIB);
        }
        // The firmware has tables at the very end, and uses memory before them while it starts.
        let end = at + FIRMWARE_BYTES;
        ensure!(end <= MEMORY_END, too_much());
        Ok(Self { memory, log, probe, files: places, end })
    }

    /// Places the monitor and its log, which has each instruction if `logs_each`, in a hole of the guest's memory: UEFI
    /// firmware, which is part of the guest, has occupied the last part of the memory before the monitor starts.
    ///
    /// # Errors
    /// If the memory is too small for the firmware, or too large.
    pub fn in_hole(memory: u64, logs_each: bool) -> Result<Self> {
        ensure!(
            memory >= LEAST_UEFI_MEMORY,
            "a guest that UEFI boots has {LEAST_UEFI_MEMORY} MiB of memory or more, not {memory}"
        );
        let log_bytes = if logs_each { LOG_BYTES } else { SUMS_BYTES };
        let hole = MONITOR_END * MIB + log_bytes - DEFAULT_MEMORY * MIB;
        let end = memory.checked_mul(MIB).and_then(|bytes| bytes.checked_add(hole));
        let end = end.filter(|end| *end <= MEMORY_END).with_context(|| {
            format!("a guest of the monitor cannot have {memory} MiB of memory: that is too much")
        })?;
        let log = Some((MONITOR_END * MIB, log_bytes));
        Ok(Self { memory: end / MIB, log, probe: None, files: vec![], end })
    }

    /// Returns the size in bytes of the monitor and a log that follows it.
    #[must_use]
    pub fn hole_bytes(&self) -> u64 {
        let log_bytes = self.log.map_or(0, |(_, bytes)| bytes);
        (MONITOR_END - DEFAULT_MEMORY) * MIB + log_bytes
    }

    /// Returns the memory of the whole machine in MiB.
    #[must_use]
    pub const fn machine_memory(&self) -> u64 {
        self.end / MIB
    }

    /// Returns the options with which the monitor uses this layout; `words` are those of each module.
    #[must_use]
    pub fn monitor_options(&self, words: &[&str]) -> String {
        let mut options = format!("ram={}", self.memory);
        let log = self.log.map(|log| ("log", log));
        let names = std::iter::once("kernel").chain(std::iter::repeat("module"));
        let mut words = words.iter();
        for (name, (address, bytes)) in log.into_iter().chain(names.zip(self.files.clone())) {
            // Writing to a string cannot fail.
            let _ = write!(options, " {name}={address:#x}+{bytes:#x}");
            if name == "module"
                && let Some(words) = words.next().filter(|words| !words.is_empty())
            {
                let words: Vec<&str> = words.split_ascii_whitespace().collect();
                let _ = write!(options, ":{}", words.join(WORDS_SPACE));
            }
        }
        if let Some(region) = self.probe {
            let _ = write!(options, " probe={region:#x}");
        }
        options
    }

    /// Returns QEMU's arguments that put the files there.
    #[must_use]
    pub fn loaders(&self, files: &[&Path]) -> Vec<OsString> {
        let loader = |((address, _), file): (&(u64, u64), &&Path)| {
            let device = format!("loader,addr={address:#x},force-raw=on,file=");
            ["-device".into(), with_path(&device, file)]
        };
        self.files.iter().zip(files).flat_map(loader).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_above_the_guest_and_the_monitor_and_nothing_overlaps() {
        for (memory, log) in [
            (128, None),
            (256, None),
            (400, Some((LOG_END, LOG_BYTES))),
            (1024, Some((1024 * MIB, LOG_BYTES))),
        ] {
            let layout = Layout::new(memory, &[53 * MIB + 7, 36 * MIB + 1], None).unwrap();
            assert_eq!(layout.log, log, "{memory}");
            let above = log.map_or(LOG_END, |(address, bytes)| address + bytes);
            assert_eq!(layout.files, [(above, 53 * MIB + 7), (above + 54 * MIB, 36 * MIB + 1)]);
            assert_eq!(layout.end, above + (54 + 37 + 32) * MIB);
        }
        // A probe is above the log, at a multiple of its size.
        for (probe, log, region) in [(1, 256, 768), (16 * MIB, 448, 960), (20 * MIB, 544, 1088)] {
            let layout = Layout::new(256, &[MIB, MIB], Some(probe)).unwrap();
            let expected = (Some((LOG_END, log * MIB)), Some(region * MIB));
            assert_eq!((layout.log, layout.probe), expected, "{probe}");
            assert_eq!(layout.files[0].0, (region + 64) * MIB);
        }
        assert!(Layout::new(256, &[MIB, MIB], Some(u64::MAX)).is_err());
    }

    #[test]
    fn a_guests_memory_does_not_end_within_the_monitor_and_leaves_room() {
        for (memory, files, message) in [
            (0, &[][..], "from 2 to 256 MiB"),
            (1, &[], "from 2 to 256 MiB"),
            (257, &[], "end within the monitor"),
            (320, &[], "end within the monitor"),
            (2800, &[53 * MIB], "2800 MiB of memory: that is too much"),
            (u64::MAX, &[], "too much"),
            (256, &[u64::MAX], "too much"),
        ] {
            let error = Layout::new(memory, files, None).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        for memory in [2, 256, 321, 2700] {
            assert!(Layout::new(memory, &[], None).is_ok(), "{memory}");
        }
    }

    #[test]
    fn firmware_has_memory_below_and_above_the_monitor_and_its_log() {
        let options = |memory, logs_each| Layout::in_hole(memory, logs_each).unwrap().monitor_options(&[]);
        assert_eq!(options(512, false), "ram=577 log=0x14000000+0x100000");
        assert_eq!(options(384, true), "ram=704 log=0x14000000+0x10000000");
        let layout = Layout::in_hole(512, true).unwrap();
        assert_eq!((layout.machine_memory(), layout.hole_bytes()), (512 + 320, 320 * MIB));
        for (memory, message) in [
            (0, "384 MiB of memory or more, not 0"),
            (383, "384 MiB of memory or more, not 383"),
            (3008, "3008 MiB of memory: that is too much"),
            (u64::MAX, "too much"),
        ] {
            let error = Layout::in_hole(memory, false).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert!(Layout::in_hole(3007, false).is_ok());
    }

    #[test]
    fn monitor_and_qemu_agree_on_the_places() {
        let layout = Layout::new(256, &[0x1000, 7], None).unwrap();
        let options = layout.monitor_options(&[]);
        assert_eq!(options, "ram=256 kernel=0x20000000+0x1000 module=0x20100000+0x7");
        let three = Layout::new(256, &[0x1000, 7, 9], None).unwrap();
        let files = "kernel=0x20000000+0x1000 module=0x20100000+0x7 module=0x20200000+0x9:k\u{1f}a=1\u{1f}b";
        assert_eq!(three.monitor_options(&["", " k a=1   b"]), format!("ram=256 {files}"));
        let loaders = layout.loaders(&[Path::new("/k"), Path::new("/i,j")]);
        let loader = |place: &str| format!("loader,addr={place}");
        let expected = [
            "-device".to_owned(),
            loader("0x20000000,force-raw=on,file=/k"),
            "-device".to_owned(),
            loader("0x20100000,force-raw=on,file=/i,,j"),
        ];
        assert_eq!(loaders, expected.map(OsString::from));
        assert_eq!(layout.machine_memory(), 512 + 2 + 32);
        let layout = Layout::new(400, &[], Some(1)).unwrap();
        assert_eq!(layout.monitor_options(&[]), "ram=400 log=0x20000000+0x10000000 probe=0x30000000");
        assert_eq!(Layout::new(64, &[], None).unwrap().monitor_options(&[]), "ram=64");
    }
}
