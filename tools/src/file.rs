//! Reads files that a recording or a command line names, without waiting for what never ends.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The largest file that is read whole.
const MOST_BYTES: u64 = 1 << 32;

/// Reads a file that another file names, or that may lie somewhere. Anything but a regular file is refused, because
/// reading it might block or never end.
///
/// # Errors
/// If there is no such file, it is no regular file, or it is larger than 4 GiB.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = File::options();
    // Opening a pipe without a writer does not wait.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.read(true).open(path)?;
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if data.len() > MOST_BYTES {
        return Err(io::Error::other("larger than 4 GiB"));
    }
    let mut bytes = vec![];
    bytes.try_reserve_exact(usize::try_from(data.len()).unwrap_or(usize::MAX))?;
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file that is read to its end. A pipe is waited for.
///
/// # Errors
/// If there is no such file, or it is a device, which may have no end.
pub fn open_finite(path: &Path) -> io::Result<File> {
    if is_device(&fs::metadata(path)?) {
        return Err(io::Error::other("a device, not a file"));
    }
    File::open(path)
}

/// Reads a file to its end, as [`open_finite`] opens it.
///
/// # Errors
/// If it cannot be opened or read.
pub fn read_finite(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    open_finite(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns true for a device, which has no size and may have no end.
#[cfg(unix)]
#[must_use]
pub fn is_device(data: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    data.file_type().is_char_device() || data.file_type().is_block_device()
}

/// Returns false: devices are files on Unix alone.
#[cfg(not(unix))]
#[must_use]
pub fn is_device(_: &fs::Metadata) -> bool {
    false
}

/// Returns the place of a path of another system whose files are below `root`. No path leads out of that folder.
#[must_use]
pub fn below(root: &Path, path: &Path) -> PathBuf {
    let mut found = root.to_path_buf();
    found.extend(path.components().filter(|part| matches!(part, std::path::Component::Normal(_))));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_has_no_end_is_refused_at_once() {
        for read in [read_finite, read_regular] {
            assert!(read(Path::new("/dev/zero")).is_err());
            assert!(read(&std::env::temp_dir()).is_err());
        }
        let folder = std::env::temp_dir().join(format!("pugmark-endless-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (pipe, link, sparse) = (folder.join("pipe"), folder.join("link"), folder.join("sparse"));
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        std::os::unix::fs::symlink(&link, &link).unwrap();
        File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
        for (file, expected) in [(&pipe, "not a regular file"), (&sparse, "larger than 4 GiB")] {
            assert_eq!(read_regular(file).unwrap_err().to_string(), expected);
        }
        assert!(read_regular(&link).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn no_path_leads_out_of_the_folder_that_stands_for_the_root() {
        for (path, expected) in [
            ("/usr/bin/x", "/r/usr/bin/x"),
            ("usr/./x", "/r/usr/x"),
            ("/../../etc/x", "/r/etc/x"),
            ("/a/../../x", "/r/a/x"),
            ("[vdso]", "/r/[vdso]"),
        ] {
            assert_eq!(below(Path::new("/r"), Path::new(path)), Path::new(expected), "{path}");
        }
    }
}
