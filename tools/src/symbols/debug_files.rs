//! Where the symbols and the debug information of an object file are, if they are not in the file itself: in a file of
//! its own, or in a part of the file that is compressed.
//!
//! Source: GDB, "Debugging Information in Separate Files" and "Debugging information in a special section"; elfutils,
//! debuginfod_find_debuginfo(3), "CACHE".

use super::packed::UnpackLimit;
use crate::file::read_regular;
use object::{Object, ObjectSection};
use std::env;
use std::path::{Path, PathBuf};

/// Where packages put the debug information that they take out of their programs.
const PACKAGES: &str = "usr/lib/debug";
/// The section with the symbols that a distribution leaves in its programs, an ELF file that xz has packed.
const MINI: &str = ".gnu_debugdata";

/// Where separate files are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebugFolders {
    /// The root of the system that the object files are of.
    root: PathBuf,
    /// The folder of files that came from a debuginfod server.
    cache: Option<PathBuf>,
}

/// A file with debug information, and its path.
#[derive(Debug)]
pub(super) struct DebugFile {
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

impl DebugFolders {
    /// Takes the folders of a system below `root`, and this user's cache.
    pub(crate) fn below(root: &Path) -> Self {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = |inner: &str| set("HOME").map(|home| home.join(inner));
        let old = || home(".debuginfod_client_cache").filter(|folder| folder.is_dir());
        let new =
            || set("XDG_CACHE_HOME").or_else(|| home(".cache")).map(|cache| cache.join("debuginfod_client"));
        Self { root: root.into(), cache: set("DEBUGINFOD_CACHE_PATH").or_else(old).or_else(new) }
    }

    /// Takes the folders of a system with this cache.
    #[cfg(test)]
    pub(super) fn with_cache(root: &Path, cache: &Path) -> Self {
        Self { root: root.into(), cache: Some(cache.into()) }
    }

    /// Finds the separate file of an object file that `is_wanted` takes: by its build ID; by the name that the file has
    /// for it, beside it, in `.debug` there, and in a folder for all such files; or in the cache.
    pub(super) fn find(
        &self,
        path: &Path,
        file: &object::File<'_>,
        is_wanted: impl Fn(&object::File<'_>) -> bool,
    ) -> Option<DebugFile> {
        let link = file.gnu_debuglink().ok().flatten();
        let checksum = link.map(|(_, checksum)| checksum);
        self.places(path, file, link.map(|(name, _)| name)).into_iter().find_map(|path| {
            let bytes = read_regular(&path).ok()?;
            let found = object::File::parse(&*bytes);
            let fits = found.is_ok_and(|found| is_of(&found, &bytes, file, checksum) && is_wanted(&found));
            fits.then_some(DebugFile { path, bytes })
        })
    }

    fn places(&self, path: &Path, file: &object::File<'_>, link: Option<&[u8]>) -> Vec<PathBuf> {
        let id = file.build_id().ok().flatten().filter(|id| id.len() > 1);
        let mut found: Vec<PathBuf> = id.map(|id| self.by_build_id(id)).into_iter().collect();
        let link = link.and_then(|name| std::str::from_utf8(name).ok());
        // A name with a folder would lead out of those where such files are.
        let link = link.filter(|name| !name.contains('/') && !matches!(*name, "" | "." | ".."));
        if let (Some(name), Some(folder)) = (link, path.parent()) {
            let inner =
                folder.strip_prefix(&self.root).or_else(|_| folder.strip_prefix("/")).unwrap_or(folder);
            found.extend([folder.join(name), folder.join(".debug").join(name)]);
            found.push(self.root.join(PACKAGES).join(inner).join(name));
        }
        if let (Some(id), Some(cache)) = (id, &self.cache) {
            found.push(cache.join(hex(id)).join("debuginfo"));
        }
        // The name may be the file's own.
        found.retain(|other| other != path);
        found
    }

    /// Returns the file of packages with the debug information for a build ID.
    fn by_build_id(&self, id: &[u8]) -> PathBuf {
        let hex = hex(id);
        let (folder, file) = hex.split_at(hex.len().min(2));
        self.root.join(PACKAGES).join(".build-id").join(folder).join(format!("{file}.debug"))
    }

    /// Finds the file with debug information that several files share.
    pub(super) fn common(&self, path: &Path, file: &object::File<'_>) -> Option<DebugFile> {
        let (name, id) = file.gnu_debugaltlink().ok().flatten()?;
        let beside = std::str::from_utf8(name).ok().and_then(|name| Some(path.parent()?.join(name)));
        [Some(self.by_build_id(id)), beside].into_iter().flatten().find_map(|path| {
            let bytes = read_regular(&path).ok()?;
            Some(DebugFile { path, bytes })
        })
    }
}

/// Returns whether a file has the debug information of another one: both have the same build ID, or `checksum` is that
/// of its bytes.
fn is_of(found: &object::File<'_>, bytes: &[u8], file: &object::File<'_>, checksum: Option<u32>) -> bool {
    match (found.build_id().ok().flatten(), file.build_id().ok().flatten()) {
        (Some(one), Some(other)) => one == other,
        _ => checksum.is_none_or(|checksum| checksum == crc32(bytes)),
    }
}

/// Computes the checksum of a separate file, or of a file of gzip.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1));
    let table: [u32; 256] = std::array::from_fn(|byte| (0..8).fold(byte as u32, |crc, _| step(crc)));
    !bytes.iter().fold(!0, |crc, byte| table[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

/// Unpacks the symbols that a distribution has left in a file.
pub(super) fn mini(file: &object::File<'_>, limit: &mut UnpackLimit) -> Option<Vec<u8>> {
    limit.unpack_xz(file.section_by_name(MINI)?.data().ok()?).ok()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_names_the_file_with_the_symbols() {
        let folders = DebugFolders::below(Path::new("/target"));
        let expected = Path::new("/target/usr/lib/debug/.build-id/ab/0cd0.debug");
        assert_eq!(folders.by_build_id(&[0xab, 0x0c, 0xd0]), expected);
        folders.by_build_id(&[]);
    }

    #[test]
    fn the_checksum_is_that_of_debug_links() {
        // Of the standard's check.
        assert_eq!([crc32(b"123456789"), crc32(b"")], [0xcbf4_3926, 0]);
    }
}
