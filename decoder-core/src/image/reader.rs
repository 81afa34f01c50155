//! A callback that supplies code in no section.

use super::Asid;
use core::fmt;

/// A source of code that is not in memory, on demand: from a debugger's target, a core file or a page cache.
///
/// The callback gets a buffer for the bytes, their address and the address space. It returns the number of bytes
/// written; 0 means that nothing is mapped there. It is called only for addresses in no section, at most up to the next
/// section.
///
/// A [`BlockCache`](crate::block_cache::BlockCache) keeps decoded code, and cannot distinguish one callback from
/// another. So when the code or the callback changes, call
/// [`BlockCache::forget`](crate::block_cache::BlockCache::forget).
///
/// ```
/// use core::cell::Cell;
/// use pugmark_decoder_core::image::{AddressSpace, CodeReader, Image, Section};
///
/// let asked = Cell::new(0);
/// let pages = |out: &mut [u8], ip: u64, _| match ip {
///     0x2000..0x3000 => {
///         asked.set(asked.get() + 1);
///         out.fill(0x90);
///         out.len().min(0x3000 - ip as usize)
///     }
///     _ => 0,
/// };
/// let sections = [Section { base: 0x2002, bytes: &[0xcc], space: AddressSpace::Any }];
/// let image = Image::new(&sections).with_reader(CodeReader::new(&pages));
/// let mut bytes = [0; 5];
/// assert_eq!(image.read(0x2000, None, &mut bytes), 5);
/// assert_eq!((bytes, asked.get()), ([0x90, 0x90, 0xcc, 0x90, 0x90], 2));
/// assert_eq!(image.read(0x2fff, None, &mut bytes), 1);
/// ```
#[derive(Clone, Copy)]
pub struct CodeReader<'a>(&'a ReadCallback<'a>);

type ReadCallback<'a> = dyn Fn(&mut [u8], u64, Asid) -> usize + 'a;

impl<'a> CodeReader<'a> {
    /// Creates a reader that calls `callback`.
    pub const fn new(callback: &'a impl Fn(&mut [u8], u64, Asid) -> usize) -> Self {
        Self(callback)
    }

    /// Reads from `ip` on and returns the number of bytes.
    pub(super) fn read(self, out: &mut [u8], ip: u64, space: Asid) -> usize {
        self.0(out, ip, space).min(out.len())
    }
}

impl fmt::Debug for CodeReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CodeReader(..)")
    }
}
