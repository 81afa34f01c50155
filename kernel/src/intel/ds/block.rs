//! One block of linear memory for the DS save area.

use super::AreaError;
use super::memory::{LinearMemory, LinearRequest};
use core::ptr::NonNull;
use x86_64::VirtAddr;

/// A block of linear memory, freed when dropped.
#[derive(Debug)]
pub(super) struct Block<L: LinearMemory> {
    memory: L,
    address: VirtAddr,
    request: LinearRequest,
    /// The offset in the first page at which the block's content begins.
    offset: u64,
    bytes: u64,
}

impl<L: LinearMemory> Block<L> {
    pub(super) fn allocate(
        memory: L,
        bytes: u64,
        offset: u16,
        limit: Option<u64>,
    ) -> Result<Self, AreaError> {
        let offset = u64::from(offset);
        // The fields also hold the address after the last record, and a threshold one record further on.
        let limit = limit.map(|limit| limit - PAGE);
        let size = bytes
            .checked_add(offset)
            .and_then(|bytes| bytes.checked_next_multiple_of(PAGE))
            .filter(|&size| isize::try_from(size).is_ok())
            .ok_or(AreaError::NoMemory { bytes })?;
        let request = LinearRequest { size, limit };
        let address = memory.allocate(request).ok_or(AreaError::NoMemory { bytes })?;
        let block = Self { memory, address, request, offset, bytes };
        let end = address.as_u64().checked_add(size);
        let fits = end.is_some_and(|end| limit.is_none_or(|limit| end <= limit));
        if !address.is_aligned(PAGE) || !fits {
            return Err(AreaError::BadBlock { address: address.as_u64(), request });
        }
        // The processor must find the pages marked accessed and dirty, and the old content must not be seen.
        // SAFETY: memory that was allocated for us, mapped as a whole.
        unsafe { block.memory.pointer(address).write_bytes(0, size as usize) };
        Ok(block)
    }

    pub(super) const fn memory(&self) -> &L {
        &self.memory
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn start(&self) -> u64 {
        self.address.as_u64() + self.offset
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        // SAFETY: the offset is within the first page.
        unsafe { self.memory.pointer(self.address).add(self.offset as usize) }
    }
}

impl<L: LinearMemory> Drop for Block<L> {
    fn drop(&mut self) {
        // SAFETY: allocated by `allocate` with this request. The processor does not record into it, because the session
        // that owns the area stops the recording first.
        unsafe { self.memory.free(self.address, self.request) }
    }
}

const PAGE: u64 = 0x1000;
