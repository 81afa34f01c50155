//! Memory as the tracing hardware reaches it.

/// Physical memory, and where linear addresses are in it.
pub trait PhysMemory {
    /// Fills `out` from `addr`. False when some of it is not memory; `out` is then of no meaning.
    fn read(&self, addr: u64, out: &mut [u8]) -> bool;

    /// Stores `bytes` at `addr`. False when some of it is not memory; nothing needs to be stored then.
    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool;

    /// Where a byte of linear memory is, for an access of the processor itself at privilege level 0. What it reaches it
    /// marks as accessed, and what it writes as dirty, as any other access does.
    ///
    /// Unless paging is on, linear addresses are physical ones.
    ///
    /// # Errors
    /// The page fault that the access is.
    fn translate(&mut self, addr: u64, write: bool) -> Result<Mapping, PageFault> {
        let _ = write;
        Ok(Mapping { physical: addr, supervisor: true, marked: true, ..Mapping::default() })
    }
}

/// How a linear address is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The physical address.
    pub physical: u64,
    /// Software of privilege level 3 cannot reach it.
    pub supervisor: bool,
    /// It was marked as accessed already, and for a write as dirty.
    pub marked: bool,
    /// The size of its page.
    pub page: PageSize,
    /// What is there.
    pub memory: Memory,
}

/// The size of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    #[default]
    K4,
    /// 2 MiB; one of 4 MiB is two of them.
    M2,
    /// 1 GiB.
    G1,
}

/// What answers an access, and whether caches may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Memory that is cached.
    #[default]
    Cached,
    /// Memory that is not.
    Uncached,
    /// No memory, and not cached: MMIO.
    Device,
}

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// The linear address, as CR2 has it.
    pub address: u64,
    /// The error code.
    pub code: u32,
}

/// Physical memory that is one slice.
#[derive(Debug)]
pub struct FlatMemory<'a> {
    /// The physical address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: &'a mut [u8],
}

impl FlatMemory<'_> {
    fn start(&self, addr: u64) -> Option<usize> {
        usize::try_from(addr.checked_sub(self.base)?).ok()
    }
}

impl PhysMemory for FlatMemory<'_> {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        let found = self.start(addr).and_then(|start| self.bytes.get(start..)?.get(..out.len()));
        found.inspect(|found| out.copy_from_slice(found)).is_some()
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool {
        let Some(start) = self.start(addr) else { return false };
        let found = self.bytes.get_mut(start..).and_then(|rest| rest.get_mut(..bytes.len()));
        found.map(|found| found.copy_from_slice(bytes)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_exactly_its_own_bytes() {
        let rows: [(u64, usize, bool); 6] = [
            (0x1000, 4, true),
            (0x1000, 5, false),
            (0x1003, 1, true),
            (0x1004, 1, false),
            (0xfff, 1, false),
            (u64::MAX, 1, false),
        ];
        for (addr, len, reached) in rows {
            let mut ram = [1u8, 2, 3, 4];
            let mut memory = FlatMemory { base: 0x1000, bytes: &mut ram };
            let mut buffer = [0u8; 8];
            assert_eq!(memory.read(addr, &mut buffer[..len]), reached, "read {addr:#x}");
            assert_eq!(memory.write(addr, &[9; 8][..len]), reached, "write {addr:#x}");
            assert_eq!(memory.bytes.contains(&9), reached, "write {addr:#x}");
        }
    }
}
