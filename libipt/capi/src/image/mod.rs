//! The image of the traced memory: `pt_image_*`.

pub(crate) mod block_cache;
pub mod cache;
pub(crate) mod code;
pub mod insn;
pub(crate) mod known_code;
pub(crate) mod section;
pub(crate) mod shape;

use self::{
    block_cache::BlockCache,
    cache::{Cache, owned},
    code::Extra,
    insn::PtInsn,
    known_code::KnownCode,
    section::{Mapping, Section},
    shape::{LONGEST, Shape},
};
use crate::error::Code;
use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem::take,
    ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

/// `struct pt_asid`: an address space.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PtAsid {
    pub(crate) size: usize,
    pub(crate) cr3: u64,
    pub(crate) vmcs: u64,
}

impl PtAsid {
    /// The value that stands for "not known" in each field.
    const UNKNOWN: u64 = u64::MAX;
    pub(crate) const ANY: Self = Self { size: size_of::<Self>(), cr3: Self::UNKNOWN, vmcs: Self::UNKNOWN };

    /// Copies the caller's structure; fields that it does not have are not known.
    ///
    /// # Safety
    /// `user` is null or points to as many bytes as its field `size` says, and at least to that field.
    unsafe fn from_user(user: *const Self) -> Self {
        let mut asid = Self::ANY;
        if !user.is_null() {
            let user = user.cast::<u8>();
            // SAFETY: the size is the first field, and readable by contract.
            let size = unsafe { user.cast::<usize>().read_unaligned() }.min(size_of::<Self>());
            // SAFETY: both have that many bytes.
            unsafe { ptr::copy_nonoverlapping(user, (&raw mut asid).cast::<u8>(), size) };
            asid.size = size_of::<Self>();
        }
        asid
    }

    /// Returns true if all fields that both know are equal, so both may be the same address space.
    fn matches(&self, other: &Self) -> bool {
        let same = |own, others| own == others || own == Self::UNKNOWN || others == Self::UNKNOWN;
        same(self.cr3, other.cr3) && same(self.vmcs, other.vmcs)
    }
}

/// A part of a section at an address.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    section: Arc<Section>,
    asid: PtAsid,
    address: u64,
    /// The offset in the section.
    offset: u64,
    size: u64,
    /// The identifier in the cache that the section came from; zero if it came from no cache.
    isid: c_int,
}

impl Mapped {
    fn end(&self) -> u64 {
        self.address.wrapping_add(self.size)
    }

    pub(crate) fn has(&self, ip: u64) -> bool {
        self.address <= ip && ip < self.end()
    }

    /// Returns the offset of an address in the section.
    pub(crate) fn offset_of(&self, ip: u64) -> u64 {
        self.offset.wrapping_add(ip.wrapping_sub(self.address))
    }

    /// Returns the bytes from an address on; none if the file cannot be mapped.
    #[inline]
    pub(crate) fn bytes<'a>(&self, mapping: &'a Mapping, ip: u64) -> &'a [u8] {
        let bytes = mapping.memory();
        let from = usize::try_from(self.offset_of(ip)).unwrap_or(usize::MAX);
        let end = usize::try_from(self.offset.saturating_add(self.size)).unwrap_or(usize::MAX);
        bytes.get(from..end.min(bytes.len())).unwrap_or_default()
    }

    fn part(&self, mapping: &Mapping) -> Part {
        (mapping.number, self.address, self.size, self.offset, self.isid)
    }

    /// Returns the code of the part, with its caches.
    ///
    /// # Safety
    /// The mapping lives as long as the result.
    unsafe fn known(&self, mapping: &Mapping) -> KnownCode {
        let Ok(offset) = usize::try_from(self.offset) else { return KnownCode::NONE };
        let (shapes, entries) = (mapping.shapes(offset), mapping.known_entries(offset));
        // SAFETY: the mapping owns all three, and neither moves nor drops them.
        unsafe { KnownCode::new(self.bytes(mapping, self.address), shapes, entries) }
    }

    /// Returns the block cache of the whole section.
    pub(crate) fn block_cache<'a>(&self, mapping: &'a Arc<Mapping>) -> Option<&'a BlockCache> {
        self.section.block_cache(mapping)
    }

    /// Reads as many bytes as the section has from an address on.
    pub(crate) fn read(&self, mapping: &Mapping, out: &mut [u8], ip: u64) -> Result<usize, Code> {
        if !self.has(ip) {
            return Err(Code::NotMapped);
        }
        let left = usize::try_from(self.end() - ip).unwrap_or(usize::MAX).min(out.len());
        self.section.read(mapping, self.offset_of(ip), &mut out[..left])
    }
}

impl PartialEq for Mapped {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.section, &other.section)
            && (self.asid.cr3, self.asid.vmcs) == (other.asid.cr3, other.asid.vmcs)
            && (self.address, self.offset, self.size) == (other.address, other.offset, other.size)
            && self.isid == other.isid
    }
}

/// `struct pt_image`.
#[derive(Debug)]
pub struct Image {
    name: Option<CString>,
    /// The sections, in libipt's search order.
    sections: Vec<Mapped>,
    /// The caller's callback, which reads memory outside all sections.
    callback: Option<ReadMemory>,
    context: *mut c_void,
    /// The mapping that a decoder reads during one call, so that it is not mapped again for every instruction.
    held: Option<Arc<Mapping>>,
    /// The version: new after each change of the sections or their order, and unique among all images.
    version: u64,
}

/// Returns a version that was never used.
fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// The caller's reader of memory.
type ReadMemory = unsafe extern "C" fn(*mut u8, usize, *const PtAsid, u64, *mut c_void) -> c_int;

/// A section of an image that stays mapped.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    section: Option<Box<(Mapped, Arc<Mapping>)>>,
    window: Window,
    parts: Parts,
}

/// A part of a mapping at an address: the mapping's number, the address, the size, the offset, and the section's
/// identifier.
type Part = (u64, u64, u64, u64, c_int);

/// The parts that were kept. Each has a unique number.
#[derive(Debug, Default)]
struct Parts {
    last: Vec<Part>,
    /// The number of parts before those.
    before: u64,
}

impl Parts {
    /// Returns the number of a part; never zero.
    fn number(&mut self, part: Part) -> u64 {
        /// The maximum number of parts in the list, so that its search is fast.
        const MOST: usize = 64;
        let at = self.last.iter().position(|known| *known == part).unwrap_or_else(|| {
            if self.last.len() == MOST {
                self.before += MOST as u64;
                self.last.clear();
            }
            self.last.push(part);
            self.last.len() - 1
        });
        self.before + at as u64 + 1
    }
}

/// The part of a kept section that is needed for each instruction.
#[derive(Debug)]
pub(crate) struct Window {
    /// The image's version while the section was its first one.
    version: u64,
    /// The first address.
    pub(crate) begin: u64,
    /// Zero if there is no section.
    size: u64,
    pub(crate) isid: c_int,
    /// The number of the mapping's part; zero if there is no part.
    pub(crate) number: u64,
    /// The code, by the distance from the first address.
    pub(crate) code: KnownCode,
}

impl Window {
    const NONE: Self = Self { version: 0, begin: 0, size: 0, isid: 0, number: 0, code: KnownCode::NONE };

    /// Returns the instruction at an address: its shape, if it was decoded in this mode, and its bytes.
    #[inline(always)]
    pub(crate) fn shape(&self, ip: u64, mode: c_int) -> Option<(Shape, &[u8; LONGEST])> {
        self.code.shape(ip.wrapping_sub(self.begin), mode)
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::NONE
    }
}

impl Kept {
    /// Forgets the kept section.
    pub(crate) fn forget(&mut self) {
        self.section = None;
        self.window = Window::default();
    }

    /// Switches to the section of an address, if it is another one, and returns the section's identifier.
    #[inline]
    pub(crate) fn update(&mut self, image: &mut Image, asid: &PtAsid, ip: u64) -> Result<c_int, Code> {
        let window = &self.window;
        if ip.wrapping_sub(window.begin) < window.size && image.version == window.version {
            return Ok(window.isid);
        }
        self.change(image, asid, ip)
    }

    #[inline(never)]
    fn change(&mut self, image: &mut Image, asid: &PtAsid, ip: u64) -> Result<c_int, Code> {
        let is_first = |kept: &Mapped| kept.has(ip) && image.sections.first() == Some(kept);
        // The old section is unmapped before the new one is mapped: both may be parts of the same file.
        let kept = match self.section.take().filter(|kept| is_first(&kept.0)) {
            Some(kept) => kept,
            None => {
                self.forget();
                let mapped = image.find(asid, ip).ok_or(Code::NotMapped)?.clone();
                let mapping = mapped.section.map()?;
                Box::new((mapped, mapping))
            }
        };
        let (mapped, mapping) = &*kept;
        let isid = mapped.isid;
        self.window = Window {
            version: image.version,
            begin: mapped.address,
            size: mapped.size,
            isid,
            number: self.parts.number(mapped.part(mapping)),
            // SAFETY: the window goes with the mapping, and is not used while the mapping is given away.
            code: unsafe { mapped.known(mapping) },
        };
        self.section = Some(kept);
        Ok(isid)
    }

    /// Returns the window, if the section is still the first one of an image of this version.
    #[inline(always)]
    pub(crate) fn window(&self, version: u64) -> Option<&Window> {
        // The window is not used while the section is given away.
        (version == self.window.version).then_some(&self.window)
    }

    /// Remembers an instruction of the kept section.
    pub(crate) fn remember(&mut self, insn: &PtInsn, extra: &Extra) {
        let Some((mapped, mapping)) = self.section.as_deref() else { return };
        mapping.remember(mapped.offset_of(insn.ip), insn, extra);
        // SAFETY: as in `change`.
        self.window.code = unsafe { mapped.known(mapping) };
    }

    /// Gives the section and its mapping away, until they are [put back](Self::put_back).
    pub(crate) fn take(&mut self) -> Option<Box<(Mapped, Arc<Mapping>)>> {
        self.section.take()
    }

    pub(crate) fn put_back(&mut self, section: Box<(Mapped, Arc<Mapping>)>) {
        // SAFETY: as in `change`.
        self.window.code = unsafe { section.0.known(&section.1) };
        self.section = Some(section);
    }

    /// Reads from the kept section.
    #[inline]
    pub(crate) fn read(&self, out: &mut [u8], ip: u64) -> Result<usize, Code> {
        let (mapped, mapping) = self.section.as_deref().ok_or(Code::NotMapped)?;
        mapped.read(mapping, out, ip)
    }
}

impl Image {
    /// Adds a whole section, and cuts away the parts of other sections that it hides.
    fn add(&mut self, section: Arc<Section>, asid: PtAsid, address: u64, isid: c_int) {
        let size = section.size;
        let new = Mapped { section, asid, address, offset: 0, size, isid };
        let (begin, end) = (new.address, new.end());
        let mut rest = vec![new];
        for old in take(&mut self.sections) {
            if !old.asid.matches(&asid) || end <= old.address || old.end() <= begin {
                self.sections.push(old);
                continue;
            }
            if old.address < begin {
                rest.push(Mapped { size: begin - old.address, ..old.clone() });
            }
            if end < old.end() {
                let hidden = end.wrapping_sub(old.address);
                let (offset, size) = (old.offset.wrapping_add(hidden), old.end() - end);
                rest.push(Mapped { address: end, offset, size, ..old });
            }
        }
        self.sections.extend(rest.into_iter().rev());
        self.version = next_version();
    }

    /// Returns an empty image.
    pub(crate) const fn new(name: Option<CString>) -> Self {
        Self { name, sections: vec![], callback: None, context: ptr::null_mut(), held: None, version: 0 }
    }

    /// Returns the section of an address. The next search begins there.
    fn find(&mut self, asid: &PtAsid, ip: u64) -> Option<&Mapped> {
        let at = self.sections.iter().position(|mapped| mapped.has(ip) && mapped.asid.matches(asid))?;
        if at > 0 {
            self.sections[..=at].rotate_right(1);
            self.version = next_version();
        }
        self.sections.first()
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Drops the mapping that the decoder has read, at the end of its call.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.held = None;
    }

    /// Reads as many bytes as one section has, or asks the caller's callback. Returns the number of bytes or an error,
    /// and the section's identifier if it is known.
    pub(crate) fn read(&mut self, out: &mut [u8], asid: &PtAsid, ip: u64) -> (c_int, Option<c_int>) {
        let mut known = None;
        if let Some(mapped) = self.find(asid, ip) {
            known = Some(mapped.isid);
            let mapping = mapped.section.map();
            let read = mapping.and_then(|mapping| Ok((mapped.read(&mapping, out, ip)?, mapping)));
            match read {
                Ok((size, mapping)) => {
                    self.held = Some(mapping);
                    // At most 15 bytes are read.
                    return (size as c_int, known);
                }
                Err(Code::NotMapped) => {}
                Err(error) => return (error.status(), known),
            }
        }
        let Some(callback) = self.callback else { return (Code::NotMapped.status(), known) };
        // SAFETY: the caller of `pt_image_set_callback` promised a function of this type.
        let status = unsafe { callback(out.as_mut_ptr(), out.len(), asid, ip, self.context) };
        (status, Some(0))
    }

    /// Removes sections of an address space, and returns their number.
    fn remove(&mut self, asid: &PtAsid, goes: impl Fn(&Section) -> bool) -> c_int {
        let before = self.sections.len();
        self.sections.retain(|mapped| !(mapped.asid.matches(asid) && goes(&mapped.section)));
        self.version = next_version();
        c_int::try_from(before - self.sections.len()).unwrap_or(c_int::MAX)
    }
}

/// Makes an empty image. The name, which may be null, is copied.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_alloc(name: *const c_char) -> *mut Image {
    // SAFETY: by contract.
    let name = unsafe { owned(name) };
    Box::into_raw(Box::new(Image::new(name)))
}

/// Frees the image.
///
/// # Safety
/// `image` is null or from [`pt_image_alloc`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_free(image: *mut Image) {
    if !image.is_null() {
        // SAFETY: `pt_image_alloc` made it from a box.
        drop(unsafe { Box::from_raw(image) });
    }
}

/// Returns the image's name, which lives as long as the image; null if it has none.
///
/// # Safety
/// `image` is null or from [`pt_image_alloc`], and nobody changes it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_name(image: *const Image) -> *const c_char {
    // SAFETY: by contract.
    let image = unsafe { image.as_ref() };
    image.and_then(|image| image.name.as_ref()).map_or(ptr::null(), |name| name.as_ptr())
}

/// Adds a part of a file.
///
/// # Safety
/// `image` is null or from [`pt_image_alloc`], and nobody else uses it during the call; `file` is null or a C string;
/// `asid` is null or points to as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_add_file(
    image: *mut Image,
    file: *const c_char,
    offset: u64,
    size: u64,
    asid: *const PtAsid,
    address: u64,
) -> c_int {
    // SAFETY: by contract.
    let Some(image) = (unsafe { image.as_mut() }) else { return Code::Invalid.status() };
    if file.is_null() {
        return Code::Invalid.status();
    }
    // SAFETY: by contract.
    let asid = unsafe { PtAsid::from_user(asid) };
    // SAFETY: it is not null, so it is a C string by contract.
    let file = unsafe { CStr::from_ptr(file) };
    let Some(section) = Section::new(file, offset, size, Weak::new()) else { return Code::Invalid.status() };
    image.add(section, asid, address, 0);
    0
}

/// Adds an entry of a cache.
///
/// # Safety
/// As for [`pt_image_add_file`]; `cache` is null or from `pt_iscache_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_add_cached(
    image: *mut Image,
    cache: *mut Cache,
    isid: c_int,
    asid: *const PtAsid,
) -> c_int {
    // SAFETY: by contract.
    let Some(image) = (unsafe { image.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    let Some(cache) = (unsafe { cache.as_ref() }) else { return Code::Invalid.status() };
    match cache.lookup(isid) {
        Ok((section, address)) => {
            // SAFETY: by contract.
            image.add(section, unsafe { PtAsid::from_user(asid) }, address, isid);
            0
        }
        Err(code) => code.status(),
    }
}

/// Adds all sections of another image. As in libipt, each visible rest of a partly hidden section is added as the whole
/// section, from its first byte on.
///
/// # Safety
/// Each is null or from [`pt_image_alloc`], and nobody else uses them during the call. They may be the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_copy(image: *mut Image, source: *const Image) -> c_int {
    if image.is_null() || source.is_null() {
        return Code::Invalid.status();
    }
    if ptr::eq(image, source) {
        return 0;
    }
    // SAFETY: it is not null, and is not the other one.
    let image = unsafe { &mut *image };
    // SAFETY: it is not null.
    let source = unsafe { &*source };
    for Mapped { section, asid, address, isid, .. } in source.sections.iter().cloned() {
        image.add(section, asid, address, isid);
    }
    0
}

/// Removes the sections of an address space that came from a file, and returns their number.
///
/// # Safety
/// As for [`pt_image_add_file`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_remove_by_filename(
    image: *mut Image,
    file: *const c_char,
    asid: *const PtAsid,
) -> c_int {
    // SAFETY: by contract.
    let Some(image) = (unsafe { image.as_mut() }) else { return Code::Invalid.status() };
    if file.is_null() {
        return Code::Invalid.status();
    }
    // SAFETY: it is not null, so it is a C string by contract.
    let file = unsafe { CStr::from_ptr(file) };
    // SAFETY: by contract.
    let asid = unsafe { PtAsid::from_user(asid) };
    image.remove(&asid, |section| section.file.as_c_str() == file)
}

/// Removes all sections of an address space, and returns their number.
///
/// # Safety
/// As for [`pt_image_add_file`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_remove_by_asid(image: *mut Image, asid: *const PtAsid) -> c_int {
    // SAFETY: by contract.
    let Some(image) = (unsafe { image.as_mut() }) else { return Code::Invalid.status() };
    // SAFETY: by contract.
    let asid = unsafe { PtAsid::from_user(asid) };
    image.remove(&asid, |_| true)
}

/// Sets the callback that reads memory outside all sections; null removes it.
///
/// # Safety
/// `image` is null or from [`pt_image_alloc`], and nobody else uses it during the call. `callback` is null or a
/// function of the header's type, which writes at most as many bytes as it is asked for, and does not use the image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pt_image_set_callback(
    image: *mut Image,
    callback: Option<ReadMemory>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: by contract.
    let Some(image) = (unsafe { image.as_mut() }) else { return Code::Invalid.status() };
    (image.callback, image.context) = (callback, context);
    0
}
