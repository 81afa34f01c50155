//! `pt_iscache_*` and `pt_image_*` of both libraries.

use crate::{
    damage,
    library::{Handle, Library, both},
};
use fastrand::Rng;
use std::{
    ffi::{CStr, CString, c_char, c_int},
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    ptr::{null, null_mut},
};

/// Files of several sizes, in a folder that is removed at the end, and the name of one that does not exist.
struct Files(PathBuf, Vec<CString>);

const SIZES: [usize; 4] = [0x180, 0x1000, 0x2345, 0x12000];

impl Files {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-capi-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut rng = Rng::with_seed(1);
        let mut names = vec![];
        for size in SIZES {
            let path = folder.join(size.to_string());
            fs::write(&path, (0..size).map(|_| rng.u8(..)).collect::<Vec<_>>()).unwrap();
            names.push(c_name(&path));
        }
        names.push(c_name(&folder.join("missing")));
        Self(folder, names)
    }

    fn pick(&self, rng: &mut Rng) -> &CStr {
        &self.1[rng.usize(..self.1.len())]
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn c_name(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Returns an offset, a size or a limit around the sizes of the files and of pages.
fn number(rng: &mut Rng) -> u64 {
    match rng.u8(..8) {
        0 => u64::MAX - rng.u64(..3),
        1 => rng.u64(..0x13000),
        2..4 => SIZES[rng.usize(..4)] as u64 + rng.u64(..3) - 1,
        _ => rng.u64(..4) * 0x100,
    }
}

/// Returns an address near others.
fn address(rng: &mut Rng) -> u64 {
    0x1000 * rng.u64(..4) + 0x80 * rng.u64(..3)
}

/// Returns an address space, as long as its first word says, or none at all.
fn asid(rng: &mut Rng) -> Option<[u64; 3]> {
    let mut word = || if rng.bool() { u64::MAX } else { rng.u64(1..3) };
    let (cr3, vmcs) = (word(), word());
    rng.bool().then(|| [[8, 16, 24, 24, 32][rng.usize(..5)], cr3, vmcs])
}

/// The status of a call, and the bytes that it wrote.
type Answer = (c_int, Vec<u8>);

/// Reads into a buffer of zeros.
fn read(library: &Library, cache: Handle, size: u64, isid: c_int, address: u64) -> Answer {
    let mut bytes = vec![0; size.min(0x20000) as usize];
    // SAFETY: the buffer has that many bytes, or more than the function reads at once.
    let status = unsafe { (library.pt_iscache_read)(cache, bytes.as_mut_ptr(), size, isid, address) };
    (status, bytes)
}

#[test]
fn a_cache_gives_the_same_identifiers_and_bytes() {
    let Some(both) = both() else { return };
    let files = Files::new("cache");
    let mut bytes = 0;
    for seed in 0..damage::count() / 10 {
        let mut rng = Rng::with_seed(seed);
        // SAFETY: null is allowed.
        let caches = both.map(|library| unsafe { (library.pt_iscache_alloc)(null()) });
        for _ in 0..60 {
            let (file, offset, size) = (files.pick(&mut rng), number(&mut rng), number(&mut rng));
            let (isid, at) = (rng.i32(-2..12), address(&mut rng).wrapping_add(number(&mut rng)));
            let isid = if rng.u8(..32) == 0 { 0x10000 + isid } else { isid };
            let (base, which) = (address(&mut rng), rng.u8(..8));
            let [theirs, ours] = [0, 1].map(|index| {
                let (library, cache) = (both[index], caches[index]);
                match which {
                    // SAFETY: the cache is alive.
                    0 => (unsafe { (library.pt_iscache_set_limit)(cache, offset) }, vec![]),
                    1..3 => {
                        // SAFETY: the cache is alive, and the name is a string.
                        let add = unsafe {
                            (library.pt_iscache_add_file)(cache, file.as_ptr(), offset, size, base)
                        };
                        (add, vec![])
                    }
                    _ => read(library, cache, size, isid, at),
                }
            });
            assert_eq!(
                theirs, ours,
                "seed {seed}: {which} {file:?} {offset:#x} {size:#x} {base:#x} {isid} {at:#x}"
            );
            bytes += if which > 2 { theirs.0.max(0) } else { 0 };
        }
        for (library, cache) in both.iter().zip(caches) {
            // SAFETY: the cache is not used afterwards.
            unsafe { (library.pt_iscache_free)(cache) };
        }
    }
    assert!(bytes > 100_000, "{bytes}");
}

#[test]
fn a_file_that_has_changed_is_seen_when_its_mapping_is_not_kept_any_more() {
    let Some(both) = both() else { return };
    // A mapping begins at a page, so bytes before the section count too.
    let rows = [(0, 0), (0, 0x7ff), (0, 0x800), (0, u64::MAX), (0x80, 0x87f), (0x80, 0x880)];
    for (offset, limit) in rows {
        let files = Files::new(&format!("changed-{offset:x}-{limit:x}"));
        // SAFETY: null is allowed.
        let caches = both.map(|library| unsafe { (library.pt_iscache_alloc)(null()) });
        let on_each = |call: &dyn Fn(&Library, Handle) -> Answer| {
            let [theirs, ours] = [0, 1].map(|index| call(both[index], caches[index]));
            assert_eq!(theirs, ours, "{limit:#x}");
            theirs.0
        };
        for (index, file) in files.1[..4].iter().enumerate() {
            let at = (index as u64) << 20;
            // SAFETY: the cache is alive, and the name is a string.
            on_each(&|library, cache| unsafe {
                ((library.pt_iscache_add_file)(cache, file.as_ptr(), offset, 0x800, at), vec![])
            });
        }
        // SAFETY: the cache is alive.
        on_each(&|library, cache| unsafe { ((library.pt_iscache_set_limit)(cache, limit), vec![]) });
        let read_all = || {
            [0, 1, 2, 3].map(|index| {
                on_each(&|library, cache| read(library, cache, 16, index + 1, (index as u64) << 20))
            })
        };
        assert_eq!(read_all(), [16; 4]);
        for size in SIZES {
            let mut file = OpenOptions::new().append(true).open(files.0.join(size.to_string())).unwrap();
            file.write_all(b"more").unwrap();
        }
        // The last one was used most recently, and is kept if there is room for any.
        assert_eq!(read_all()[3], if limit < 0x800 + offset { -17 } else { 16 });
        // SAFETY: the cache is alive.
        on_each(&|library, cache| unsafe { ((library.pt_iscache_set_limit)(cache, 0), vec![]) });
        assert_eq!(read_all(), [-17; 4]);
        for (library, cache) in both.iter().zip(caches) {
            // SAFETY: the cache is not used afterwards.
            unsafe { (library.pt_iscache_free)(cache) };
        }
    }
}

#[test]
fn an_image_hides_and_removes_the_same_number_of_sections() {
    let Some(both) = both() else { return };
    let files = Files::new("image");
    let mut removed = 0;
    for seed in 0..damage::count() / 10 {
        let mut rng = Rng::with_seed(seed);
        // SAFETY: null is allowed.
        let caches = both.map(|library| unsafe { (library.pt_iscache_alloc)(null()) });
        // SAFETY: null is allowed.
        let images = [0, 1].map(|_| both.map(|library| unsafe { (library.pt_image_alloc)(null()) }));
        for _ in 0..60 {
            let (image, other) = (rng.usize(..2), rng.usize(..2));
            let (file, offset, size) = (files.pick(&mut rng), number(&mut rng), number(&mut rng));
            let (base, isid, asid) = (address(&mut rng), rng.i32(-1..10), asid(&mut rng));
            let space = asid.as_ref().map_or(null(), |asid| &raw const *asid);
            let which = rng.u8(..16);
            let [theirs, ours] = [0, 1].map(|index| {
                let (library, cache) = (both[index], caches[index]);
                let (image, other) = (images[image][index], images[other][index]);
                let file = file.as_ptr();
                // SAFETY: cache and images are alive, the name is a string, the address space as long as it says.
                unsafe {
                    match which {
                        0 => (library.pt_image_remove_by_filename)(image, file, space),
                        1 => (library.pt_image_remove_by_asid)(image, space),
                        2 => (library.pt_image_copy)(image, other),
                        3..6 => (library.pt_iscache_add_file)(cache, file, offset, size, base),
                        6..9 => (library.pt_image_add_cached)(image, cache, isid, space),
                        _ => (library.pt_image_add_file)(image, file, offset, size, space, base),
                    }
                }
            });
            assert_eq!(
                theirs, ours,
                "seed {seed}: {which} {file:?} {offset:#x} {size:#x} {base:#x} {isid} {asid:?}"
            );
            removed += if which < 2 { theirs } else { 0 };
        }
        for (index, library) in both.iter().enumerate() {
            for image in images {
                // SAFETY: the image is alive.
                unsafe { (library.pt_image_free)(image[index]) };
            }
            // SAFETY: the cache is not used afterwards.
            unsafe { (library.pt_iscache_free)(caches[index]) };
        }
    }
    assert!(removed > 100, "{removed}");
}

#[test]
fn names_are_copied_and_null_is_refused() {
    let Some(both) = both() else { return };
    let files = Files::new("null");
    let (file, nothing) = (files.1[0].as_ptr(), null_mut());
    let [theirs, ours] = both.map(|library| {
        let mut name = CString::new("name").unwrap().into_bytes_with_nul();
        // SAFETY: the name is a string; null is allowed for all arguments but those that are live objects.
        unsafe {
            let text = |name: *const c_char| (!name.is_null()).then(|| CStr::from_ptr(name).to_owned());
            let cache = (library.pt_iscache_alloc)(name.as_ptr().cast());
            let image = (library.pt_image_alloc)(name.as_ptr().cast());
            let unnamed = (library.pt_image_alloc)(null());
            name.fill(b'x');
            let names = [
                text((library.pt_iscache_name)(cache)),
                text((library.pt_image_name)(image)),
                text((library.pt_image_name)(unnamed)),
                text((library.pt_image_name)(nothing)),
                text((library.pt_iscache_name)(nothing)),
            ];
            let byte = &raw mut name[0];
            let statuses = [
                (library.pt_iscache_set_limit)(nothing, 0),
                (library.pt_iscache_add_file)(nothing, file, 0, 1, 0),
                (library.pt_iscache_add_file)(cache, null(), 0, 1, 0),
                (library.pt_iscache_read)(nothing, byte, 1, 1, 0),
                (library.pt_iscache_read)(cache, null_mut(), 1, 1, 0),
                (library.pt_iscache_read)(cache, byte, 0, 1, 0),
                (library.pt_image_add_file)(nothing, file, 0, 1, null(), 0),
                (library.pt_image_add_file)(image, null(), 0, 1, null(), 0),
                (library.pt_image_add_cached)(nothing, cache, 1, null()),
                (library.pt_image_add_cached)(image, nothing, 1, null()),
                (library.pt_image_copy)(image, nothing),
                (library.pt_image_copy)(nothing, image),
                (library.pt_image_remove_by_filename)(nothing, file, null()),
                (library.pt_image_remove_by_filename)(image, null(), null()),
                (library.pt_image_remove_by_asid)(nothing, null()),
            ];
            for image in [image, unnamed, nothing] {
                (library.pt_image_free)(image);
            }
            (library.pt_iscache_free)(cache);
            (library.pt_iscache_free)(nothing);
            (names, statuses)
        }
    });
    assert_eq!(theirs, ours);
}
