//! A folder for one machine's files.
//!
//! Not the `tempfile` crate: through rustix that switches on bitflags' `std` feature, cargo unifies features over
//! a whole build, and then the images, which have no `std`, no longer link when the workspace is built at once.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder, removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one, in memory where the system has a place for that: the file that is the machine's RAM is large
    /// and written all over, and nobody wants it on a disk.
    ///
    /// # Errors
    /// No folder can be made.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("pugmark-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Its path.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// A path in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is not worth more than a try.
        let _ = std::fs::remove_dir_all(&self.0);
    }
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
