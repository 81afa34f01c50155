//! Sections that are compressed, unpacked up to a limit: a few bytes can stand for terabytes.

use miniz_oxide::inflate::decompress_slice_iter_to_slice;
use object::{CompressionFormat, ObjectSection};
use std::fmt;
use std::io::Read;
use std::sync::Arc;

/// The limit of all that is unpacked from a file: this many times its size, and this much more.
const MOST_TIMES: usize = 2;
const MOST_MORE: usize = 128 << 20;
/// Memory for the dictionary of xz, in KiB: that of its greatest compression.
const XZ_KIB: u32 = 65 << 10;

/// The number of bytes that may still be unpacked from a file.
#[derive(Debug)]
pub(super) struct UnpackLimit(usize);

/// Why a section is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnpackError {
    /// It would take more memory than is allowed.
    TooLarge,
    /// It is damaged, or packed in a way that is not known.
    Damaged,
}

impl fmt::Display for UnpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "it unpacks to more than the memory that is allowed for a file of this size",
            Self::Damaged => "it cannot be unpacked",
        })
    }
}

impl UnpackLimit {
    /// Makes the limit for a file of this size.
    pub(super) const fn of(bytes: usize) -> Self {
        Self(bytes.saturating_mul(MOST_TIMES).saturating_add(MOST_MORE))
    }

    /// Returns the bytes of a section, which may be compressed.
    pub(super) fn unpack(&mut self, section: &object::Section<'_, '_>) -> Result<Arc<[u8]>, UnpackError> {
        let packed = section.compressed_data().map_err(|_| UnpackError::Damaged)?;
        let size = usize::try_from(packed.uncompressed_size).map_err(|_| UnpackError::TooLarge)?;
        // Sections may overlap, so those that are not compressed count, too.
        self.0 = self.0.checked_sub(size).ok_or(UnpackError::TooLarge)?;
        if packed.format == CompressionFormat::None {
            return Ok(packed.data.into());
        }
        // Nothing is held twice.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, size).collect();
        let out = Arc::get_mut(&mut bytes).ok_or(UnpackError::Damaged)?;
        let is_whole = match packed.format {
            CompressionFormat::Zlib => {
                decompress_slice_iter_to_slice(out, std::iter::once(packed.data), true, false) == Ok(size)
            }
            CompressionFormat::Zstandard => {
                let stream = ruzstd::decoding::StreamingDecoder::new(packed.data);
                stream.is_ok_and(|mut stream| stream.read_exact(out).is_ok())
            }
            _ => false,
        };
        if is_whole { Ok(bytes) } else { Err(UnpackError::Damaged) }
    }

    /// Returns the bytes that xz has packed.
    pub(super) fn unpack_xz(&mut self, packed: &[u8]) -> Result<Vec<u8>, UnpackError> {
        let most = self.0 as u64;
        let stream = lzma_rust2::XzReader::new_mem_limit(packed, false, XZ_KIB);
        let mut bytes = vec![];
        stream.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|_| UnpackError::Damaged)?;
        self.0 = self.0.checked_sub(bytes.len()).ok_or(UnpackError::TooLarge)?;
        Ok(bytes)
    }
}
