//! A temporary folder for one machine's files.
//!
//! The `tempfile` crate cannot be used: through rustix it switches on bitflags' `std` feature. Cargo unifies features
//! over a whole build, so the images, which have no `std`, would no longer link when the whole workspace is built at
//! once.

use anyhow::{Context, Result};
use std::fs::File;
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
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
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
    fn each_is_new_and_goes_away() {
        let [one, other] = [(); 2].map(|()| Scratch::new().unwrap());
        std::fs::write(one.file("x"), "x").unwrap();
        assert_ne!(one.file("x"), other.file("x"));
        let path = one.file("x");
        drop(one);
        assert!(!path.exists() && !path.parent().unwrap().exists());
    }
}
