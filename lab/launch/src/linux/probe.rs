//! The trace of a probe: the monitor traces the guest from its first instruction on. The trace becomes a recording that
//! `pugmark` reads.

use anyhow::{Context, Result, ensure};
use memmap2::MmapOptions;
use pugmark_truth::probe::{PACKETS, ProbeLog, ProbeRecord, REGION_BYTES};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::code_file::{also_lower, code_file, kallsyms};
use crate::scratch::open;
use crate::truth::{Record, Truth, hash};

const PAGE: u64 = 4096;
/// Offset of the kernel's addresses from those at which it executes before it has page tables.
///
/// Source: Linux, Documentation/arch/x86/x86_64/mm.rst: the kernel's text is mapped to physical address 0.
const KERNEL_OFFSET: u64 = 0xffff_ffff_8000_0000;

/// The trace of a probe.
#[derive(Debug)]
pub struct ProbeTrace {
    /// The parts, in order. Within each no code changes.
    pub parts: Vec<ProbePart>,
}

/// A part of the trace of a probe.
#[derive(Debug)]
pub struct ProbePart {
    /// The packets.
    pub packets: Vec<u8>,
    /// The session of its instructions in the truth.
    pub session: u16,
    /// The code that had executed at the part's end, by its pages; code that has not executed is 0.
    pub pages: BTreeMap<u64, Vec<u8>>,
}

impl ProbeTrace {
    /// Reads the data that the probe in a machine has left in its region.
    ///
    /// # Errors
    /// If the file of the machine's memory cannot be read, there was no probe, or it has not ended.
    pub fn read(ram: &Path, region: u64) -> Result<Self> {
        let file = open(ram)?;
        // SAFETY: QEMU may still write to the file, but the monitor no longer writes to this region: the probe has
        // ended, which is checked before anything else is read.
        let map = unsafe { MmapOptions::new().offset(region).len(REGION_BYTES as usize).map(&file) };
        Self::of(&map.context("cannot map the machine's memory")?)
    }

    fn of(region: &[u8]) -> Result<Self> {
        let log = ProbeLog::new(region).context("the monitor has put no probe there")?;
        ensure!(log.is_finished(), "the guest ended before the probe did: trace fewer instructions");
        let packets = &region[PACKETS as usize..];
        let (mut parts, mut begin) = (Vec::new(), 0);
        let mut pages: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for record in log.records() {
            match record {
                ProbeRecord::Code(code) => {
                    for (&byte, address) in code.bytes().iter().zip(code.ip..) {
                        let page =
                            pages.entry(address & !(PAGE - 1)).or_insert_with(|| vec![0; PAGE as usize]);
                        page[(address % PAGE) as usize] = byte;
                    }
                }
                ProbeRecord::PartEnd { packets: end, session } => {
                    let end = end as usize;
                    let packets = packets.get(begin..end).context("the probe's log is damaged")?.to_vec();
                    parts.push(ProbePart { packets, session, pages: pages.clone() });
                    begin = end;
                }
            }
        }
        ensure!(begin < packets.len(), "the probe's memory was full: trace fewer instructions");
        Ok(Self { parts })
    }

    /// Returns the number of instructions in the parts.
    #[must_use]
    pub fn instructions(&self, truth: &Truth) -> u64 {
        self.parts.iter().map(|part| truth.session(part.session).len() as u64).sum()
    }

    /// Writes a folder that `pugmark` reads as a recording, with the number and hash of each part's instructions from
    /// the log. `symbols` is the text of the guest's /proc/kallsyms.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path, truth: &Truth, symbols: &str) -> Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let folder = fs::canonicalize(folder)?;
        let write = |path: &Path, bytes: &[u8]| {
            fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
        };
        let program = folder.join("linux.elf");
        if let Some(last) = self.parts.last() {
            let pages: BTreeSet<u64> = last.pages.keys().copied().collect();
            let functions = also_lower(kallsyms(symbols), KERNEL_OFFSET, &pages);
            write(&program, &code_file(&pieces(&last.pages), functions))?;
        }
        let mut index = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let name = if number == 0 { ".".to_owned() } else { (number + 1).to_string() };
            let inner = folder.join(&name);
            fs::create_dir_all(&inner)?;
            let (mut code, mut sections) = (Vec::new(), Vec::new());
            for (address, bytes) in pieces(&part.pages) {
                sections.push(json!({
                    "file": "code.bin", "offset": code.len(), "len": bytes.len(), "vaddr": address
                }));
                code.extend(bytes);
            }
            let addresses: Vec<u64> =
                truth.session(part.session).iter().map(|record: &Record| record.rip).collect();
            let description = json!({
                "count": addresses.len(), "hash": format!("{:#018x}", hash(&addresses)), "bytes": part.packets.len(),
            });
            write(&inner.join("trace.pt"), &part.packets)?;
            write(&inner.join("code.bin"), &code)?;
            write(&inner.join("image.json"), json!({ "sections": sections }).to_string().as_bytes())?;
            write(&inner.join("truth.json"), description.to_string().as_bytes())?;
            index.push(json!({ "dir": name, "task": 1, "comm": "Linux", "exe": program }));
        }
        write(&folder.join("recording.json"), json!({ "parts": index }).to_string().as_bytes())
    }
}

/// Joins contiguous pages.
fn pieces(pages: &BTreeMap<u64, Vec<u8>>) -> Vec<(u64, Vec<u8>)> {
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    for (&address, page) in pages {
        match pieces.last_mut() {
            Some((begin, bytes)) if begin.wrapping_add(bytes.len() as u64) == address => bytes.extend(page),
            _ => pieces.push((address, page.clone())),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::truth::RecordFlags;
    use pugmark_truth::probe::ProbeWriter;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Returns a region in which a probe has traced two parts, with a total of this many bytes of packets.
    fn region(bytes: u64, finished: bool) -> Vec<u8> {
        let words: Vec<AtomicU64> = (0..REGION_BYTES / 8).map(|at| AtomicU64::new(at << 8 | 1)).collect();
        let mut writer = ProbeWriter::new(&words[..PACKETS as usize / 8]).unwrap();
        assert!(writer.add_code(0x1ffe, &[1, 2, 3]) && writer.add_code(0x5000, &[9]));
        assert!(writer.end_part(8, 1));
        assert!(writer.add_code(0x1ffe, &[4, 5]) && writer.end_part(bytes, 2));
        if finished {
            writer.finish();
        }
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    #[test]
    fn each_part_has_its_packets_and_the_code_as_it_was() {
        let trace = ProbeTrace::of(&region(24, true)).unwrap();
        let [first, second] = &trace.parts[..] else { panic!("{} parts", trace.parts.len()) };
        let packets = |words: std::ops::Range<u64>| -> Vec<u8> {
            words.flat_map(|at| ((PACKETS / 8 + at) << 8 | 1).to_le_bytes()).collect()
        };
        assert_eq!((&first.packets, first.session), (&packets(0..1), 1));
        assert_eq!((&second.packets, second.session), (&packets(1..3), 2));
        for (part, expected) in [(first, [1, 2, 3, 9]), (second, [4, 5, 3, 9])] {
            let pages = &part.pages;
            assert_eq!(pages.keys().copied().collect::<Vec<_>>(), [0x1000, 0x2000, 0x5000]);
            assert_eq!(
                [pages[&0x1000][0xffe], pages[&0x1000][0xfff], pages[&0x2000][0], pages[&0x5000][0]],
                expected
            );
            assert_eq!(pages[&0x2000][1], 0);
            let pieces: Vec<_> = pieces(pages).iter().map(|(at, bytes)| (*at, bytes.len())).collect();
            assert_eq!(pieces, [(0x1000, 0x2000), (0x5000, 0x1000)]);
        }
    }

    #[test]
    fn a_probe_that_has_not_ended_or_was_full_is_refused() {
        let error = |region: &[u8]| ProbeTrace::of(region).unwrap_err().to_string();
        assert!(error(&region(24, false)).contains("ended before the probe"));
        assert!(error(&region(REGION_BYTES - PACKETS, true)).contains("memory was full"));
        assert!(error(&region(4, true)).contains("damaged"), "a part that ends before it begins");
        assert!(error(&[0; PACKETS as usize]).contains("no probe"));
    }

    #[test]
    fn the_folder_is_a_recording_with_the_truth_of_each_part() {
        let mut truth = Truth::default();
        for (rip, session) in [(0x1ffe, 1), (0x5000, 1), (0x1ffe, 2)] {
            truth.take_in(Record { rip, cr3: 0, session, flags: RecordFlags::new(0), cpu: 0 });
        }
        let trace = ProbeTrace::of(&region(24, true)).unwrap();
        assert_eq!(trace.instructions(&truth), 3);
        let scratch = Scratch::new().unwrap();
        let folder = scratch.file("boot.rec");
        fs::create_dir_all(folder.join("9")).unwrap();
        trace.write(&folder, &truth, "ffffffff80005000 T entry\n").unwrap();
        assert!(!folder.join("9").exists(), "an older recording is gone");
        let json = |name: &str| -> serde_json::Value {
            serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
        };
        assert_eq!(json("truth.json")["count"], 2);
        assert_eq!(json("2/truth.json")["hash"], format!("{:#018x}", hash(&[0x1ffe])));
        assert_eq!(json("2/image.json")["sections"][1]["offset"], 0x2000);
        assert_eq!(fs::read(folder.join("2/code.bin")).unwrap()[0xffe], 4);
        assert_eq!(json("recording.json")["parts"][1]["dir"], "2");
        let elf = fs::read(folder.join("linux.elf")).unwrap();
        let elf = object::File::parse(&elf[..]).unwrap();
        let symbols: Vec<_> =
            object::Object::symbols(&elf).map(|symbol| object::ObjectSymbol::address(&symbol)).collect();
        assert_eq!(symbols, [0xffff_ffff_8000_5000, 0x5000]);
    }
}
