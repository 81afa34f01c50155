//! A temporary folder for one machine's files.
//!
//! The `tempfile` crate cannot be used: through rustix it switches on bitflags' `std` feature. Cargo unifies features
//! over a whole build, so the images, which have no `std`, would no longer link when the whole workspace is built at
//! once.

use anyhow::{Context, Result};
use std::ffi::CString;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder. Dropping this removes the folder and everything in it.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a folder, in memory if the system has `/dev/shm`: the file of the machine's RAM is large and constantly
    /// rewritten, which would be slow on a disk.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new() -> Result<Self> {
        Self::with_room(0)
    }

    /// Makes a folder as [`Self::new`] does, where this many bytes have room: a container's `/dev/shm` may be small.
    ///
    /// # Errors
    /// If there is no such place, or the folder cannot be made.
    pub fn with_room(bytes: u64) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
        let has_room = |place: &&PathBuf| free(place).is_some_and(|free| free >= bytes);
        let parent = places.iter().find(has_room).with_context(|| {
            let free =
                |place: &PathBuf| format!("{} MiB in {}", free(place).unwrap_or(0) >> 20, place.display());
            format!(
                "no room for a machine's memory of {} MiB: there are {}; TMPDIR can name another place",
                bytes >> 20,
                places.each_ref().map(free).join(", ")
            )
        })?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("pugmark-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file in the folder.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the free bytes of a folder's file system; `None` if there is no such folder.
fn free(folder: &Path) -> Option<u64> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut data = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero, and the structure is large enough for the answer.
    let answer = unsafe { libc::statvfs(path.as_ptr(), data.as_mut_ptr()) };
    // SAFETY: the call has filled it, if it returned 0.
    (answer == 0).then(|| unsafe { data.assume_init() }).map(|data| data.f_bavail * data.f_frsize)
}

/// Opens a file that QEMU writes.
///
/// # Errors
/// If it cannot be opened.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_room_is_not_taken() {
        assert!(Scratch::with_room(1 << 20).is_ok());
        let error = Scratch::with_room(u64::MAX).unwrap_err().to_string();
        assert!(
            error.starts_with("no room for a machine's memory") && error.contains(" MiB in /dev/shm, "),
            "{error}"
        );
        assert_eq!(free(Path::new("/no/such/folder")), None);
    }

    #[test]
    fn each_is_new_and_goes_away() {
        let [one, other] = [(); 2].map(|()| Scratch::new().unwrap());
        std::fs::write(one.file("x"), "x").unwrap();
        assert_ne!(one.file("x"), other.file("x"));
        let path = one.file("x");
        drop(one);
        assert!(!path.exists() && !path.parent().unwrap().exists());
    }
}
