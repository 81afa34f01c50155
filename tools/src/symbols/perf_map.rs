//! Functions that a runtime has compiled while it ran, as it lists them in `/tmp/perf-PID.map`.
//!
//! Source: Linux, tools/perf/Documentation/jit-interface.txt.

use super::table::{FunctionTable, PaintedFunctions};
use crate::file::read_regular;
use std::path::{Path, PathBuf};

/// The largest file that is read. Its lines are few bytes each, and take some memory.
const MOST_BYTES: usize = 1 << 28;

/// Functions of one process.
#[derive(Clone, Debug, Default)]
pub struct JitSymbols {
    pub(super) table: FunctionTable,
    /// The name that `perf` has for their object file.
    pub(super) object: Box<str>,
}

impl JitSymbols {
    /// Reads lines such as `7f0000001000 2a LazyCompile:~main`: where a function begins, its size, and its name. A
    /// later function takes the place of earlier ones.
    #[must_use]
    pub fn parse(text: &str, pid: i32) -> Self {
        let mut functions = PaintedFunctions::default();
        for line in text.lines() {
            let mut words = line.splitn(3, ' ');
            let mut number = || {
                let word = words.next()?;
                u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
            };
            if let (Some(from), Some(size), Some(name)) = (number(), number(), words.next()) {
                functions.add(from..from.saturating_add(size), name.trim());
            }
        }
        Self { table: functions.into_table(), object: object(pid) }
    }

    /// Returns the functions that a kernel has made: where each begins, its size and its name, in the order of time.
    pub(crate) fn of_kernel<'n>(names: impl Iterator<Item = (u64, u32, &'n str)>) -> Self {
        let mut functions = PaintedFunctions::default();
        for (from, size, name) in names {
            functions.add(from..from.saturating_add(size.into()), name);
        }
        Self { table: functions.into_table(), object: Box::default() }
    }

    /// Finds the function at an address, and how far the address is in it.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(&str, u64)> {
        self.table.find(address)
    }

    /// Reads the functions of a process: from a copy in one of the folders, or where the runtime has written them below
    /// `root`.
    pub(super) fn of_process(pid: i32, folders: &[PathBuf], root: &Path) -> Option<Self> {
        let name = format!("perf-{pid}.map");
        let own = root.join("tmp");
        let mut files = folders.iter().chain([&own]).map(|folder| folder.join(&name));
        let found = files.find_map(|file| {
            let bytes = read_regular(&file).ok().filter(|_| is_trusted(&file))?;
            (bytes.len() <= MOST_BYTES).then_some(bytes)
        });
        found.map(|bytes| Self::parse(&String::from_utf8_lossy(&bytes), pid))
    }
}

/// Returns the name of the object file of a process's compiled functions, as `perf report` shows it.
pub(super) fn object(pid: i32) -> Box<str> {
    format!("[JIT] tid {pid}").into()
}

/// Returns whether a file is this user's or root's: everybody can write a file with such a name.
#[cfg(unix)]
fn is_trusted(file: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: it has no preconditions.
    let own = unsafe { libc::geteuid() };
    file.metadata().is_ok_and(|data| [0, own].contains(&data.uid()))
}

#[cfg(not(unix))]
fn is_trusted(_: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_names_functions_and_later_ones_take_the_place_of_earlier_ones() {
        let text = "1000 10 first\n0x1010 8 LazyCompile:~a b (x.js:1)\nno line\n1018\n1018 4\n1008 4 second\n\
                    1020 0 empty\nffffffffffffff00 ffff last\n";
        let map = JitSymbols::parse(text, 7);
        let found =
            [0xfff, 0x1000, 0x1008, 0x100c, 0x1017, 0x1018, 0x1020, u64::MAX - 1].map(|at| map.find(at));
        let expected = [
            None,
            Some(("first", 0)),
            Some(("second", 0)),
            Some(("first", 12)),
            Some(("LazyCompile:~a b (x.js:1)", 7)),
            None,
            None,
            Some(("last", 0xfe)),
        ];
        assert_eq!(found, expected);
        assert_eq!(&*map.object, "[JIT] tid 7");
    }

    #[test]
    fn a_map_is_read_from_beside_the_recording_or_from_the_systems_folder() {
        let folder = std::env::temp_dir().join(format!("pugmark-perf-map-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("tmp")).unwrap();
        let name = |beside: &[PathBuf]| {
            let map = JitSymbols::of_process(-7, beside, &folder)?;
            map.find(0x1000).map(|(name, _)| name.to_owned())
        };
        assert_eq!(name(std::slice::from_ref(&folder)), None);
        std::fs::write(folder.join("tmp/perf--7.map"), "1000 10 system\n").unwrap();
        assert_eq!(
            (name(&[]).as_deref(), name(std::slice::from_ref(&folder)).as_deref()),
            (Some("system"), Some("system"))
        );
        std::fs::write(folder.join("perf--7.map"), "1000 10 copy\n").unwrap();
        assert_eq!(
            (name(&[]).as_deref(), name(std::slice::from_ref(&folder)).as_deref()),
            (Some("system"), Some("copy"))
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
