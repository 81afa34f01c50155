//! Memory as the tracing hardware accesses it.

/// Physical memory, and the translation of linear addresses to it.
pub trait PhysMemory {
    /// Fills `out` from `addr`. Returns false when part of the range is not memory; the content of `out` is then
    /// undefined.
    fn read(&self, addr: u64, out: &mut [u8]) -> bool;

    /// Stores `bytes` at `addr`. Returns false when part of the range is not memory; nothing needs to be stored then.
    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool;

    /// Translates the linear address of a byte, for an access by the processor itself at privilege level 0. Like any
    /// other access, it sets the accessed flags of the paging entries, and for a write the dirty flag.
    ///
    /// By default, as without paging, linear addresses are physical addresses.
    ///
    /// # Errors
    /// Returns the page fault of the access.
    fn translate(&mut self, addr: u64, write: bool) -> Result<Mapping, PageFault> {
        let _ = write;
        Ok(Mapping { physical: addr, supervisor: true, marked: true, ..Mapping::default() })
    }
}

/// The mapping of a linear address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The physical address.
    pub physical: u64,
    /// Software at privilege level 3 cannot access it.
    pub supervisor: bool,
    /// The accessed flags, and for a write the dirty flag, were set before the access.
    pub marked: bool,
    /// The size of its page.
    pub page: PageSize,
    /// The type of the memory.
    pub memory: Memory,
}

/// The size of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    #[default]
    K4,
    /// 2 MiB; a page of 4 MiB counts as two of them.
    M2,
    /// 1 GiB.
    G1,
}

/// The target of an access, and its cacheability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// Cached memory.
    #[default]
    Cached,
    /// Uncached memory.
    Uncached,
    /// A device (MMIO): no memory, and not cached.
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

/// Physical memory that is one contiguous slice.
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
