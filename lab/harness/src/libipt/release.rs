//! The releases of libipt with which tests compare: Debian's packages of each, and their locations.
//!
//! A test names the release whose results it expects. A machine with another one installed uses that release's package
//! from Debian, unpacked beside cargo's builds; `cargo xtask test` gets it.

use std::{
    ffi::c_char,
    path::{Path, PathBuf},
};

/// The name by which the loader finds the installed library.
const SONAME: &str = "libipt.so.2";
/// The folder of libraries, in a package and, below the root, in the system.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Folders in which a system may have it. A name without a folder means the already loaded library, if there is one of
/// another release.
const INSTALLED: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
/// The folder of the installed header.
const INCLUDE: &str = "/usr/include";
/// The folder in Debian's archive with all packages of libipt.
const POOL: &str = "http://deb.debian.org/debian/pool/main/i/intel-processor-trace";

/// A file of Debian's archive: its name, and its SHA-256.
pub type Download = (&'static str, &'static str);

/// A release of libipt.
#[derive(Debug)]
pub struct Release {
    /// Major number, minor number, patch.
    pub version: (u8, u8, u16),
    /// Debian's packages with the library and the header.
    pub packages: [Download; 2],
    /// Its sources, as Debian has them.
    pub sources: Download,
    /// The size of its `struct pt_event` in bytes.
    pub event_size: usize,
}

/// Debian 12's release, with whose results our libipt.so.2 agrees.
pub static V2_0_5: Release = Release {
    version: (2, 0, 5),
    packages: [
        ("libipt2_2.0.5-1_amd64.deb", "d3687e2b7654a6450dbdfbadde216ce08cd84f52155f70cd7104309f897e62e5"),
        ("libipt-dev_2.0.5-1_amd64.deb", "ca0ce87bfa129609427146cee38c611176371c0936332b723f2bd217c083a58f"),
    ],
    sources: (
        "intel-processor-trace_2.0.5.orig.tar.gz",
        "95acf499fdf0a0f5ebd07587bb443c702b1fd79f7d869749824234388b9bff80",
    ),
    event_size: 64,
};

/// Debian 13's release.
pub static V2_1_2: Release = Release {
    version: (2, 1, 2),
    packages: [
        ("libipt2_2.1.2-1_amd64.deb", "33cfc9090194a993bfab1da4a70a03b4a2d2863894c1d4b506dd4ac093a0073e"),
        ("libipt-dev_2.1.2-1_amd64.deb", "7f46f2426f02cc4dbeb983b9302f0b067f408bf357f0f31891f030f224776ca5"),
    ],
    sources: (
        "intel-processor-trace_2.1.2.orig.tar.gz",
        "713d3e76b6c3073b122a9f5b6c025bc301a0436582f132caf782814363acf60f",
    ),
    event_size: 72,
};

/// All releases.
pub static RELEASES: [&Release; 2] = [&V2_0_5, &V2_1_2];

/// `struct pt_version`.
#[repr(C)]
pub(crate) struct Version {
    pub(crate) major: u8,
    pub(crate) minor: u8,
    pub(crate) patch: u16,
    pub(crate) build: u32,
    pub(crate) ext: *const c_char,
}

impl Release {
    /// Opens the library: the installed one if it is this release, or else the unpacked one. `None` if there is
    /// neither.
    #[must_use]
    pub fn open(&self) -> Option<libloading::Library> {
        let files =
            [PathBuf::from(SONAME)].into_iter().chain(self.folders().map(|folder| folder.join(SONAME)));
        files.filter_map(|file| open(&file)).find(|library| self.is(library))
    }

    /// Returns the folder of the library that [`Self::open`] opens.
    #[must_use]
    pub fn installed_in(&self) -> Option<PathBuf> {
        self.folders().find(|folder| open(&folder.join(SONAME)).is_some_and(|library| self.is(&library)))
    }

    /// Returns the folders in which the library may be.
    fn folders(&self) -> impl Iterator<Item = PathBuf> {
        let unpacked = self.unpacked().map(|folder| folder.join(LIBRARIES));
        INSTALLED.into_iter().map(PathBuf::from).chain(unpacked)
    }

    /// Returns the folder of its header `intel-pt.h`, if there is one.
    #[must_use]
    pub fn include(&self) -> Option<PathBuf> {
        let unpacked = self.unpacked().map(|folder| folder.join("usr/include"));
        let is_its = |folder: &PathBuf| {
            let text = std::fs::read_to_string(folder.join("intel-pt.h")).unwrap_or_default();
            self.is_header(&text)
        };
        [PathBuf::from(INCLUDE)].into_iter().chain(unpacked).find(is_its)
    }

    /// Returns the name of the folder, in cargo's target folder, with its unpacked packages.
    #[must_use]
    pub fn folder_name(&self) -> String {
        let (major, minor, patch) = self.version;
        format!("libipt-{major}.{minor}.{patch}")
    }

    /// Returns the line that a test prints if it needs this release and [`Self::open`] finds none.
    #[must_use]
    pub fn skipped(&self) -> String {
        format!("skipped: {} is not installed", self.folder_name())
    }

    /// Returns the folder with its unpacked packages: above the running program, which is in a build folder.
    fn unpacked(&self) -> Option<PathBuf> {
        let program = std::env::current_exe().ok()?;
        program.ancestors().map(|folder| folder.join(self.folder_name())).find(|folder| folder.is_dir())
    }

    /// Returns whether the library reports this release.
    fn is(&self, library: &libloading::Library) -> bool {
        // SAFETY: the header of every release declares the function with this type.
        let function = unsafe { library.get::<unsafe extern "C" fn() -> Version>(b"pt_library_version") };
        function.is_ok_and(|function| {
            // SAFETY: it has no arguments and returns constants.
            let Version { major, minor, patch, build: _, ext: _ } = unsafe { function() };
            (major, minor, patch) == self.version
        })
    }

    /// Returns whether this is the text of its header, in which each release defines its numbers.
    fn is_header(&self, text: &str) -> bool {
        let (major, minor, patch) = self.version;
        [("MAJOR", u16::from(major)), ("MINOR", u16::from(minor)), ("PATCH", patch)]
            .iter()
            .all(|(name, number)| text.contains(&format!("#define LIBIPT_VERSION_{name} {number}\n")))
    }
}

/// Returns the address of a file of Debian's archive.
#[must_use]
pub fn address((name, _): Download) -> String {
    format!("{POOL}/{name}")
}

/// Opens a library that is libipt.
fn open(file: &Path) -> Option<libloading::Library> {
    // SAFETY: libipt has no constructors and no destructors.
    unsafe { libloading::Library::new(file) }.ok()
}
