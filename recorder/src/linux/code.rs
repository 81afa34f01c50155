//! The code of the traced program: snapshots of its pages as they were executed.

use super::{block::Block, maps::TaskMapping};
use pugmark_decoder_core::insn;
use pugmark_model::ExecMode;
use std::collections::{BTreeSet, HashMap, HashSet};

const PAGE: u64 = 4096;
pub(super) const PAGE_BYTES: usize = PAGE as usize;

/// Snapshots of the pages that could be executed.
///
/// A later snapshot may replace an earlier one as long as no executed instruction differs. If one differs, no single
/// image can explain the trace.
#[derive(Debug, Default)]
pub(super) struct CodeSnapshots {
    /// The snapshots, by page number.
    pages: HashMap<u64, Box<Page>>,
    /// The executable mappings at the last refresh.
    mappings: HashSet<TaskMapping>,
    /// The pages whose snapshots are new since they were asked for.
    fresh: BTreeSet<u64>,
}

#[derive(Debug)]
struct Page {
    bytes: [u8; PAGE_BYTES],
    volatile: bool,
    /// Bitmaps: where executed instructions begin, and all of their bytes.
    insn_starts: [u64; PAGE_BYTES / 64],
    executed: [u64; PAGE_BYTES / 64],
}

/// The error: executed code has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed;

/// Up to 15 bytes at an address: as many as an instruction can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FetchedBytes {
    bytes: [u8; insn::MAX_LEN],
    len: usize,
}

impl FetchedBytes {
    /// Returns the bytes.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reads memory at an address and returns the number of bytes that could be read.
pub(super) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> usize;

impl CodeSnapshots {
    /// Takes snapshots of the executable mappings that are new since the last call. After [`Changed`] the snapshots
    /// are as before.
    pub(super) fn refresh(&mut self, mappings: &[TaskMapping], read: Read<'_>) -> Result<(), Changed> {
        let executable: Vec<_> = mappings.iter().filter(|mapping| mapping.executable).collect();
        let fresh = executable.iter().filter(|mapping| !self.mappings.contains(**mapping));
        let mut pages = vec![];
        for mapping in fresh {
            for number in mapping.start / PAGE..mapping.end / PAGE {
                if let Some(page) = Page::read(number, mapping.volatile, read) {
                    pages.push((number, page));
                }
            }
        }
        let differs = |(number, page): &(u64, Box<Page>)| {
            self.pages.get(number).is_some_and(|old| !old.agrees_with(&page.bytes))
        };
        if pages.iter().any(differs) {
            return Err(Changed);
        }
        for (number, page) in pages {
            self.replace(number, page);
        }
        self.mappings = executable.into_iter().cloned().collect();
        Ok(())
    }

    /// Returns the bytes of the instruction at `ip`, which is about to be executed. They are empty if there is no
    /// snapshot of that page.
    pub(super) fn fetch(&mut self, ip: u64, mode: ExecMode, read: Read<'_>) -> Result<FetchedBytes, Changed> {
        let bytes = self.peek(ip);
        if self.pages.get(&(ip / PAGE)).is_some_and(|page| page.volatile) {
            let mut now = FetchedBytes::default();
            now.len = read(ip, &mut now.bytes);
            if now.as_slice() != bytes.as_slice() {
                self.read_again(ip / PAGE, read)?;
                self.read_again(ip.saturating_add(insn::MAX_LEN as u64 - 1) / PAGE, read)?;
                return Ok(self.mark_executed(ip, mode));
            }
        }
        let known =
            self.pages.get(&(ip / PAGE)).is_some_and(|page| bit(&page.insn_starts, (ip % PAGE) as usize));
        Ok(if known { bytes } else { self.mark_executed(ip, mode) })
    }

    /// Returns the bytes of the instruction at `ip`, which is about to be executed and is not traced. They are empty if
    /// there is no snapshot of that page.
    pub(super) fn look(&self, ip: u64, read: Read<'_>) -> FetchedBytes {
        let mut bytes = self.peek(ip);
        if self.pages.get(&(ip / PAGE)).is_some_and(|page| page.volatile) {
            bytes.len = read(ip, &mut bytes.bytes);
        }
        bytes
    }

    /// Notes that a block of instructions is executed; `page` returns the present content of a page. After [`Changed`]
    /// the snapshots are as before.
    pub(super) fn note<'p>(
        &mut self,
        block: &Block,
        page: &dyn Fn(u64) -> Option<&'p [u8]>,
    ) -> Result<(), Changed> {
        let executed = |address: u64| {
            let page = self.pages.get(&(address / PAGE))?;
            let at = (address % PAGE) as usize;
            bit(&page.executed, at).then_some(page.bytes[at])
        };
        let own = || (block.start..).zip(block.bytes.iter().copied());
        if own().any(|(address, byte)| executed(address).is_some_and(|before| before != byte)) {
            return Err(Changed);
        }
        let mut fresh = vec![];
        for number in block.start / PAGE..=(block.end() - 1) / PAGE {
            let mut bytes = [0; PAGE_BYTES];
            let before = self.pages.get(&number);
            let now = page(number).filter(|now| now.len() == PAGE_BYTES);
            match (now, before) {
                (Some(now), _) => bytes.copy_from_slice(now),
                (None, Some(before)) => bytes = before.bytes,
                (None, None) => {}
            }
            for (address, byte) in own().filter(|(address, _)| address / PAGE == number) {
                bytes[(address % PAGE) as usize] = byte;
            }
            // The usual case, and a page has hundreds of blocks.
            if before.is_some_and(|before| before.volatile && before.bytes == bytes) {
                continue;
            }
            // Executed code may have been replaced since.
            if let Some(before) = before.filter(|_| now.is_some()) {
                for at in (0..PAGE_BYTES).filter(|at| bit(&before.executed, *at)) {
                    bytes[at] = before.bytes[at];
                }
            }
            fresh.push((number, bytes));
        }
        for (number, bytes) in fresh {
            let empty = [0; PAGE_BYTES / 64];
            self.replace(
                number,
                Box::new(Page { bytes, volatile: true, insn_starts: empty, executed: empty }),
            );
        }
        for address in block.start..block.end() {
            if let Some(page) = self.pages.get_mut(&(address / PAGE)) {
                set(&mut page.executed, (address % PAGE) as usize);
            }
        }
        Ok(())
    }

    /// Makes all snapshots new.
    pub(super) fn renew(&mut self) {
        self.fresh = self.pages.keys().copied().collect();
    }

    /// Returns the snapshots that are new since the last call, as addresses and bytes, in order.
    pub(super) fn take_fresh(&mut self) -> Vec<(u64, &[u8; PAGE_BYTES])> {
        let fresh = std::mem::take(&mut self.fresh);
        let pages =
            fresh.into_iter().filter_map(|number| Some((number * PAGE, &self.pages.get(&number)?.bytes)));
        pages.collect()
    }

    /// Marks the instruction at `ip` as executed.
    fn mark_executed(&mut self, ip: u64, mode: ExecMode) -> FetchedBytes {
        let bytes = self.peek(ip);
        let len = insn::decode(bytes.as_slice(), mode, ip).map_or(0, |insn| insn.len);
        for at in ip..ip.saturating_add(u64::from(len)) {
            if let Some(page) = self.pages.get_mut(&(at / PAGE)) {
                set(&mut page.executed, (at % PAGE) as usize);
                if at == ip {
                    set(&mut page.insn_starts, (at % PAGE) as usize);
                }
            }
        }
        bytes
    }

    fn peek(&self, ip: u64) -> FetchedBytes {
        let mut found = FetchedBytes::default();
        let within = (ip % PAGE) as usize;
        let Some(page) = self.pages.get(&(ip / PAGE)) else { return found };
        let here = &page.bytes[within..(within + insn::MAX_LEN).min(PAGE_BYTES)];
        found.bytes[..here.len()].copy_from_slice(here);
        found.len = here.len();
        if found.len < insn::MAX_LEN
            && let Some(next) = self.pages.get(&(ip / PAGE + 1))
        {
            found.bytes[found.len..].copy_from_slice(&next.bytes[..insn::MAX_LEN - found.len]);
            found.len = insn::MAX_LEN;
        }
        found
    }

    fn read_again(&mut self, number: u64, read: Read<'_>) -> Result<(), Changed> {
        let Some(old) = self.pages.get(&number) else { return Ok(()) };
        let Some(new) = Page::read(number, old.volatile, read) else { return Ok(()) };
        if !old.agrees_with(&new.bytes) {
            return Err(Changed);
        }
        self.replace(number, new);
        Ok(())
    }

    /// Replaces an older snapshot by a newer one; the record of what was executed stays.
    fn replace(&mut self, number: u64, mut page: Box<Page>) {
        if let Some(old) = self.pages.get(&number) {
            (page.insn_starts, page.executed) = (old.insn_starts, old.executed);
        }
        self.pages.insert(number, page);
        self.fresh.insert(number);
    }
}

impl Page {
    fn read(number: u64, volatile: bool, read: Read<'_>) -> Option<Box<Self>> {
        let empty = [0; PAGE_BYTES / 64];
        let mut page =
            Box::new(Self { bytes: [0; PAGE_BYTES], volatile, insn_starts: empty, executed: empty });
        (read(number * PAGE, &mut page.bytes) == PAGE_BYTES).then_some(page)
    }

    /// Returns whether everything executed on this page is the same in `bytes`.
    fn agrees_with(&self, bytes: &[u8; PAGE_BYTES]) -> bool {
        self.bytes == *bytes
            || (0..PAGE_BYTES).all(|at| self.bytes[at] == bytes[at] || !bit(&self.executed, at))
    }
}

fn bit(map: &[u64; PAGE_BYTES / 64], at: usize) -> bool {
    map[at / 64] >> (at % 64) & 1 != 0
}

fn set(map: &mut [u64; PAGE_BYTES / 64], at: usize) {
    map[at / 64] |= 1 << (at % 64);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all snapshots; adjacent pages are one piece.
    fn sections(code: &CodeSnapshots) -> Vec<(u64, Vec<u8>)> {
        let mut sections: Vec<(u64, Vec<u8>)> = vec![];
        for (number, page) in code.pages.iter().collect::<std::collections::BTreeMap<_, _>>() {
            match sections.last_mut() {
                Some((base, bytes)) if *base + bytes.len() as u64 == number * PAGE => {
                    bytes.extend(page.bytes)
                }
                _ => sections.push((number * PAGE, page.bytes.to_vec())),
            }
        }
        sections
    }

    #[test]
    fn a_snapshot_is_fresh_once_and_again_when_it_changes() {
        let block = |start, bytes: &[u8]| Block::read(start, &vec![1; bytes.len()], bytes).unwrap();
        let mut code = CodeSnapshots::default();
        let fresh = |code: &mut CodeSnapshots| -> Vec<u64> {
            code.take_fresh().into_iter().map(|(address, _)| address).collect()
        };
        code.note(&block(0x3ffe, &[0x90, 0x91, 0x92]), &|_| None).unwrap();
        assert_eq!(fresh(&mut code), [0x3000, 0x4000]);
        code.note(&block(0x3ffe, &[0x90, 0x91]), &|_| None).unwrap();
        assert_eq!(fresh(&mut code), [0; 0]);
        code.note(&block(0x3000, &[0x93]), &|_| None).unwrap();
        assert_eq!(fresh(&mut code), [0x3000]);
    }

    /// Returns a reader of memory that begins at 0x1000.
    fn memory(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> usize + '_ {
        |address, out| {
            let from =
                address.checked_sub(PAGE).and_then(|from| bytes.get(from as usize..)).unwrap_or_default();
            let count = from.len().min(out.len());
            out[..count].copy_from_slice(&from[..count]);
            count
        }
    }

    fn mappings(lines: &str) -> Vec<TaskMapping> {
        TaskMapping::parse(lines)
    }

    /// Returns two pages of NOPs with a 5-byte MOV EAX, 1 across their border, at 0x1ffe.
    fn across() -> Vec<u8> {
        let mut bytes = vec![0x90; 2 * PAGE_BYTES];
        bytes[0xffe..0x1003].copy_from_slice(&[0xb8, 1, 0, 0, 0]);
        bytes
    }

    const VOLATILE: &str = "1000-3000 r-xp 0 0:0 0";
    const LASTING: &str = "1000-3000 r-xp 0 0:0 7 /x";

    #[test]
    fn code_that_was_executed_is_held_against_what_is_there_now() {
        // The address of the byte that changes, and what is then expected.
        for (changed, expected) in [
            (0x1ffd, Ok(())),
            (0x1ffe, Err(Changed)),
            (0x1fff, Err(Changed)),
            (0x2000, Err(Changed)),
            (0x2002, Err(Changed)),
            (0x2003, Ok(())),
        ] {
            let mut bytes = across();
            let mut code = CodeSnapshots::default();
            code.refresh(&mappings(VOLATILE), &memory(&bytes)).unwrap();
            let fetched = code.fetch(0x1ffe, ExecMode::Bits64, &memory(&bytes)).unwrap();
            assert_eq!(fetched.as_slice(), &bytes[0xffe..0xffe + insn::MAX_LEN]);
            bytes[changed - 0x1000] ^= 0x10;
            let again = code.fetch(0x1ffe, ExecMode::Bits64, &memory(&bytes));
            assert_eq!(again.map(drop), expected, "{changed:#x}");
            // Bytes not executed yet are updated if the fetch of another instruction reads them.
            if changed == 0x2003 {
                assert_eq!(again.unwrap().as_slice(), &bytes[0xffe..0xffe + insn::MAX_LEN]);
            }
            // A new mapping is compared with what was executed as well.
            let anew = mappings("1000-2000 r-xp 0 0:0 0\n2000-3000 r-xp 0 0:0 7 /x");
            assert_eq!(code.refresh(&anew, &memory(&bytes)), expected, "{changed:#x}");
        }
    }

    #[test]
    fn what_is_executed_again_is_noted_once_it_is_other_code() {
        let mut bytes = across();
        let mut code = CodeSnapshots::default();
        code.refresh(&mappings(VOLATILE), &memory(&bytes)).unwrap();
        code.fetch(0x1000, ExecMode::Bits64, &memory(&bytes)).unwrap();
        // Replace a NOP that was not executed by RET, and then by a NOP again.
        bytes[1] = 0xc3;
        assert_eq!(code.fetch(0x1001, ExecMode::Bits64, &memory(&bytes)).unwrap().as_slice()[0], 0xc3);
        bytes[1] = 0x90;
        assert_eq!(code.fetch(0x1001, ExecMode::Bits64, &memory(&bytes)), Err(Changed));
    }

    #[test]
    fn files_are_read_when_they_are_mapped_and_not_again() {
        let mut bytes = across();
        let mut code = CodeSnapshots::default();
        code.refresh(&mappings(LASTING), &memory(&bytes)).unwrap();
        let before = code.fetch(0x1ffe, ExecMode::Bits64, &memory(&bytes)).unwrap();
        bytes.fill(0xcc);
        assert_eq!(code.fetch(0x1ffe, ExecMode::Bits64, &memory(&bytes)), Ok(before));
        assert_eq!(code.refresh(&mappings(LASTING), &memory(&bytes)), Ok(()));
        assert_eq!(code.fetch(0x1ffe, ExecMode::Bits64, &memory(&bytes)), Ok(before));
        // Unmap the file, and map it again.
        assert_eq!(code.refresh(&[], &memory(&bytes)), Ok(()));
        assert_eq!(code.refresh(&mappings(LASTING), &memory(&bytes)), Err(Changed));
    }

    #[test]
    fn only_whole_pages_that_can_be_executed_are_kept_and_adjacent_ones_are_one_piece() {
        let bytes = [across(), vec![0x91; 3 * PAGE_BYTES + 1]].concat();
        let mut code = CodeSnapshots::default();
        let lines = "1000-2000 r-xp 0 0:0 7 /x\n2000-3000 r--p 0 0:0 7 /x\n3000-4000 r-xp 0 0:0 7 /y\n\
            4000-5000 r-xp 0 0:0 7 /z\n5000-7000 r-xp 0 0:0 7 /cut";
        code.refresh(&mappings(lines), &memory(&bytes)).unwrap();
        let expected = [(0x1000, bytes[..PAGE_BYTES].to_vec()), (0x3000, vec![0x91; 3 * PAGE_BYTES])];
        assert_eq!(sections(&code), expected);
        let mut fetch = |ip| code.fetch(ip, ExecMode::Bits64, &memory(&bytes)).unwrap().as_slice().len();
        assert_eq!([0x1ff0, 0x1ff1, 0x1ff2, 0x1fff].map(&mut fetch), [15, 15, 14, 1]);
        assert_eq!([0x3fff, 0x5ff1, 0x5ff2, 0x2000, 0x6000].map(&mut fetch), [15, 15, 14, 0, 0]);
    }

    #[test]
    fn a_block_is_noted_with_the_rest_of_its_pages_unless_it_was_other_code() {
        let block = |start, bytes: &[u8]| Block::read(start, &vec![1; bytes.len()], bytes).unwrap();
        let mut code = CodeSnapshots::default();
        // The block ends with its page; nothing else is known of that page.
        code.note(&block(0x1ffe, &[0x90, 0x91]), &|_| None).unwrap();
        let alone = [vec![0; 0xffe], vec![0x90, 0x91]].concat();
        assert_eq!(sections(&code), [(0x1000, alone.clone())]);
        // The block reaches into a page that is known. Where the page was executed, its bytes are older than the
        // block.
        let page = [0xcc; PAGE_BYTES];
        let known = |number| (number == 4).then_some(&page[..]);
        code.note(&block(0x3fff, &[0x92, 0x93]), &known).unwrap();
        code.note(&block(0x4005, &[0x94]), &known).unwrap();
        let mut both = [vec![0; PAGE_BYTES], vec![0xcc; PAGE_BYTES]].concat();
        both[0xfff..0x1001].copy_from_slice(&[0x92, 0x93]);
        both[0x1005] = 0x94;
        let expected = [(0x1000, alone), (0x3000, both)];
        assert_eq!(sections(&code), expected);
        // The same code again changes nothing; other code is refused, and so is code that overlaps it.
        assert_eq!(code.note(&block(0x3fff, &[0x92, 0x93]), &known), Ok(()));
        for (start, bytes) in [(0x3fff, &[0x92, 0x95][..]), (0x3ffe, &[0x90, 0x90]), (0x4000, &[0x92])] {
            assert_eq!(code.note(&block(start, bytes), &known), Err(Changed), "{start:x}");
        }
        assert_eq!(sections(&code), expected);
    }
}
