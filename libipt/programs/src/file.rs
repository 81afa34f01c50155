//! Reads `FILE[:FROM[-TO]]`: a file or a part of it.

use pugmark_tools::{file::is_device, number};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::{fmt, str::FromStr};

/// A file and the range of its bytes to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The file.
    pub name: String,
    /// The first byte.
    pub from: u64,
    /// The offset after the last byte, or `None` for the file's end.
    pub to: Option<u64>,
}

impl FromStr for FileRange {
    type Err = FileError;

    /// Splits an argument: the range is what follows the last colon, if that is one number or two; otherwise the whole
    /// argument is the name.
    fn from_str(argument: &str) -> Result<Self, FileError> {
        let range = argument.rsplit_once(':').and_then(|(name, range)| Some((name, split_range(range)?)));
        let Some((name, (from, to))) = range else {
            return Ok(Self { name: argument.into(), from: 0, to: None });
        };
        if to.is_some_and(|to| to <= from) {
            return Err(FileError::EmptyRange(argument.into()));
        }
        Ok(Self { name: name.into(), from, to })
    }
}

impl FileRange {
    /// Reads the bytes.
    ///
    /// # Errors
    /// If there is no such file, or the file does not hold the whole range.
    pub fn load(&self) -> Result<Vec<u8>, FileError> {
        let (bytes, size) = self.read().map_err(|error| self.open_error(&error))?;
        if self.from >= size {
            return Err(FileError::Offset { name: self.name.clone(), offset: self.from });
        }
        match self.to {
            Some(to) if to > size => Err(FileError::Range { name: self.name.clone(), to }),
            _ => Ok(bytes),
        }
    }

    /// Reads the bytes of the range that are in the file.
    ///
    /// # Errors
    /// If there is no such file, or the range begins after its end.
    pub fn load_clipped(&self) -> Result<Vec<u8>, FileError> {
        let (bytes, size) = self.read().map_err(|error| self.open_error(&error))?;
        match self.from > size {
            true => Err(FileError::Offset { name: self.name.clone(), offset: self.from }),
            false => Ok(bytes),
        }
    }

    /// Returns the bytes that are in the file, and the file's size. Anything but a regular file is read to its end.
    fn read(&self) -> io::Result<(Vec<u8>, u64)> {
        let mut file = File::open(&self.name)?;
        let metadata = file.metadata()?;
        let mut bytes = Vec::new();
        if metadata.is_file() {
            let size = metadata.len();
            let to = self.to.map_or(size, |to| to.min(size));
            if let Some(len) = to.checked_sub(self.from) {
                file.seek(SeekFrom::Start(self.from))?;
                bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))?;
                file.take(len).read_to_end(&mut bytes)?;
            }
            return Ok((bytes, size));
        }
        // A device has no size, and may have no end.
        if !is_device(&metadata) {
            file.read_to_end(&mut bytes)?;
        }
        let size = bytes.len();
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(size);
        bytes.truncate(self.to.map_or(size, place));
        bytes.drain(..place(self.from).min(bytes.len()));
        Ok((bytes, size as u64))
    }

    fn open_error(&self, error: &io::Error) -> FileError {
        let name = self.name.clone();
        match error.kind() {
            io::ErrorKind::IsADirectory => FileError::Folder { name },
            _ => FileError::Open { name, errno: error.raw_os_error() },
        }
    }
}

/// Why the bytes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The range of this argument ends before it begins.
    EmptyRange(String),
    /// The file cannot be read.
    Open {
        /// Its name.
        name: String,
        /// The system's error number.
        errno: Option<i32>,
    },
    /// The path is a folder, for which libipt's programs fail to allocate memory.
    Folder {
        /// Its name.
        name: String,
    },
    /// The range begins after the file's end.
    Offset {
        /// The file's name.
        name: String,
        /// Where it begins.
        offset: u64,
    },
    /// The range ends after the file's end.
    Range {
        /// The file's name.
        name: String,
        /// Where it ends.
        to: u64,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyRange(argument) => write!(f, "bad file {argument}: invalid argument."),
            Self::Open { name, errno } => write!(f, "failed to open {name}: {}.", errno.unwrap_or(0)),
            Self::Folder { name } => write!(f, "failed to allocated memory {name}."),
            Self::Offset { name, offset } => write!(f, "bad offset {offset:#x} into {name}."),
            Self::Range { name, to } => write!(f, "bad range {to:#x} in {name}."),
        }
    }
}

impl std::error::Error for FileError {}

/// `NUM` or `NUM-NUM`.
fn split_range(range: &str) -> Option<(u64, Option<u64>)> {
    match number::split(range).filter(|_| !range.is_empty())? {
        (from, "") => Some((from, None)),
        // Like libipt, read a missing number after the sign as 0.
        (from, to) => Some((from, Some(number::parse_or_zero(to.strip_prefix('-')?)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn splits_the_range_from_the_name() {
        for (argument, name, from, to) in [
            ("a.pt", "a.pt", 0, None),
            ("a.pt:8", "a.pt", 8, None),
            ("a.pt:0x10-0x20", "a.pt", 16, Some(32)),
            ("a:b:010-9", "a:b", 8, Some(9)),
            ("a.pt:", "a.pt:", 0, None),
            ("a.pt:x", "a.pt:x", 0, None),
            ("a.pt:1-x", "a.pt:1-x", 0, None),
            ("a.pt:1-2 ", "a.pt:1-2 ", 0, None),
            ("a.pt:1+2", "a.pt:1+2", 0, None),
        ] {
            let expected = FileRange { name: name.into(), from, to };
            assert_eq!(argument.parse(), Ok(expected), "{argument:?}");
        }
        for argument in ["a.pt:0x20-0x10", "a.pt:5-5", "a.pt:1-", "a.pt:-"] {
            assert_eq!(argument.parse::<FileRange>(), Err(FileError::EmptyRange(argument.into())));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_no_file_has_the_bytes_that_come() {
        use std::{io::Write, os::fd::AsRawFd};
        let load = |from, to| {
            let (reader, mut writer) = io::pipe().unwrap();
            writer.write_all(&[0, 1, 2, 3]).unwrap();
            drop(writer);
            let name = format!("/proc/self/fd/{}", reader.as_raw_fd());
            FileRange { name: name.clone(), from, to }.load().map_err(|error| (error.to_string(), name))
        };
        let failed = |text: &str, found: Result<Vec<u8>, (String, String)>| {
            let (error, name) = found.unwrap_err();
            assert_eq!(error, text.replace("NAME", &name));
        };
        assert_eq!(load(0, None), Ok(vec![0, 1, 2, 3]));
        assert_eq!(load(1, Some(3)), Ok(vec![1, 2]));
        assert_eq!(load(3, Some(4)), Ok(vec![3]));
        failed("bad offset 0x4 into NAME.", load(4, None));
        failed("bad range 0x5 in NAME.", load(1, Some(5)));
    }

    #[test]
    fn loads_what_is_in_the_range_and_refuses_what_is_not() {
        let path = std::env::temp_dir().join(format!("pugmark-file-{}", std::process::id()));
        let name = path.to_str().unwrap().to_string();
        fs::write(&path, [0, 1, 2, 3]).unwrap();
        let load = |from, to| FileRange { name: name.clone(), from, to }.load();
        assert_eq!(load(0, None), Ok(vec![0, 1, 2, 3]));
        assert_eq!(load(1, Some(3)), Ok(vec![1, 2]));
        assert_eq!(load(3, Some(4)), Ok(vec![3]));
        assert_eq!(load(4, None), Err(FileError::Offset { name: name.clone(), offset: 4 }));
        assert_eq!(load(0, Some(5)), Err(FileError::Range { name: name.clone(), to: 5 }));
        let clipped = |from, to| FileRange { name: name.clone(), from, to }.load_clipped();
        assert_eq!((clipped(1, Some(9)), clipped(4, None)), (Ok(vec![1, 2, 3]), Ok(vec![])));
        assert_eq!(clipped(5, None), Err(FileError::Offset { name: name.clone(), offset: 5 }));
        fs::write(&path, []).unwrap();
        assert_eq!(load(0, None), Err(FileError::Offset { name: name.clone(), offset: 0 }));
        fs::remove_file(&path).unwrap();
        assert_eq!(load(0, None), Err(FileError::Open { name: name.clone(), errno: Some(2) }));
        fs::create_dir(&path).unwrap();
        let error = load(0, None).unwrap_err();
        assert_eq!(error, FileError::Folder { name: name.clone() });
        assert_eq!(error.to_string(), format!("failed to allocated memory {name}."));
        fs::remove_dir(&path).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_has_no_end_is_refused_at_once() {
        let load = |name: &str| FileRange { name: name.into(), from: 0, to: None }.load();
        assert_eq!(load("/dev/zero"), Err(FileError::Offset { name: "/dev/zero".into(), offset: 0 }));
    }
}
