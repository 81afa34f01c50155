//! The guest's files: as the archive that Linux unpacks when it starts, and as a folder for tools that need a traced
//! program's code.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The initial files of a guest, by their paths in the guest.
#[derive(Clone, Debug, Default)]
pub struct Files(BTreeMap<String, Entry>);

#[derive(Clone, Debug)]
enum Entry {
    Folder,
    /// A file of the host, with its permissions.
    Host(PathBuf),
    /// A program.
    Script(Vec<u8>),
    Text(String),
    Link(String),
    /// A character device: its major and minor number.
    Device(u32, u32),
}

impl Files {
    /// Adds a folder, and its parents.
    pub fn folder(&mut self, path: &str) {
        self.add(path, Entry::Folder);
    }

    /// Adds a file of the host.
    pub fn host(&mut self, path: &str, file: &Path) {
        self.add(path, Entry::Host(file.into()));
    }

    /// Adds a program.
    pub fn script(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.add(path, Entry::Script(bytes.into()));
    }

    /// Adds a text.
    pub fn text(&mut self, path: &str, text: impl Into<String>) {
        self.add(path, Entry::Text(text.into()));
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.add(path, Entry::Link(target.into()));
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.add(path, Entry::Device(major, minor));
    }

    /// Returns true if there is something at a path.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.0.contains_key(path.trim_matches('/'))
    }

    fn add(&mut self, path: &str, entry: Entry) {
        let path = path.trim_matches('/');
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].into()).or_insert(Entry::Folder);
        }
        self.0.insert(path.into(), entry);
    }

    /// Returns all files as an archive (cpio, "newc"), which Linux takes as initramfs.
    ///
    /// # Errors
    /// If a file of the host cannot be read.
    pub fn archive(&self) -> Result<Vec<u8>> {
        let mut archive = Vec::new();
        for (index, (path, entry)) in self.0.iter().enumerate() {
            let (mode, bytes) = match entry {
                Entry::Folder => (0o040_755, vec![]),
                Entry::Host(file) => (0o100_000 | mode(file)?, read(file)?),
                Entry::Script(bytes) => (0o100_755, bytes.clone()),
                Entry::Text(text) => (0o100_644, text.clone().into_bytes()),
                Entry::Link(target) => (0o120_777, target.clone().into_bytes()),
                Entry::Device(..) => (0o020_600, vec![]),
            };
            let device = if let Entry::Device(major, minor) = entry { (*major, *minor) } else { (0, 0) };
            ensure!(
                u32::try_from(bytes.len()).is_ok(),
                "{path} is too large for an initramfs: {} bytes",
                bytes.len()
            );
            append(&mut archive, index as u32 + 1, path, mode, device, &bytes);
        }
        append(&mut archive, 0, "TRAILER!!!", 0, (0, 0), &[]);
        Ok(archive)
    }

    /// Writes all files except the devices into a folder that has none of them yet.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn write_to(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for (path, entry) in &self.0 {
            let path = folder.join(path);
            let written = match entry {
                Entry::Folder => fs::create_dir_all(&path),
                Entry::Host(file) => fs::copy(file, &path).map(|_| ()),
                Entry::Script(bytes) => fs::write(&path, bytes),
                Entry::Text(text) => fs::write(&path, text),
                Entry::Link(target) => symlink(target, &path),
                Entry::Device(..) => Ok(()),
            };
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

fn mode(file: &Path) -> Result<u32> {
    let data = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    if !data.is_file() {
        bail!("{} is no file", file.display());
    }
    Ok(data.permissions().mode() & 0o777)
}

/// Appends one file; `Documentation/driver-api/early-userspace/buffer-format.rst` of Linux has the format.
fn append(archive: &mut Vec<u8>, number: u32, path: &str, mode: u32, device: (u32, u32), bytes: &[u8]) {
    let links = 1 + u32::from(mode & 0o170_000 == 0o040_000);
    let (size, name_size) = (bytes.len() as u32, path.len() as u32 + 1);
    archive.extend(b"070701");
    for field in [number, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0] {
        archive.extend(format!("{field:08x}").bytes());
    }
    archive.extend(path.bytes().chain([0]));
    align(archive);
    archive.extend(bytes);
    align(archive);
}

fn align(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_archive_has_each_folder_before_what_is_in_it() {
        let mut files = Files::default();
        files.text("/a/b/c", "hello");
        files.device("/dev/console", 5, 1);
        files.link("/bin/sh", "busybox");
        let archive = files.archive().unwrap();
        assert_eq!(archive.len() % 4, 0);
        let text = String::from_utf8(archive).unwrap();
        let names =
            ["\0a\0", "a/b\0", "a/b/c\0", "bin\0", "bin/sh\0", "dev\0", "dev/console\0", "TRAILER!!!\0"];
        let places: Vec<_> =
            names.iter().map(|name| text.find(name.trim_start_matches('\0')).unwrap_or(usize::MAX)).collect();
        assert!(places.is_sorted() && places[7] != usize::MAX, "{places:?}");
        // Fields by the format's order: number, mode, user, group, links, time, size, device, device's number, name's
        // length.
        let entry = text.find("07070100000003").unwrap();
        let fields: Vec<u32> =
            (0..13).map(|at| u32::from_str_radix(&text[entry + 6 + at * 8..][..8], 16).unwrap()).collect();
        assert_eq!(fields, [3, 0o100_644, 0, 0, 1, 0, 5, 0, 0, 0, 0, 6, 0]);
        assert_eq!(&text[entry + 110..][..14], "a/b/c\0hello\0\0\0");
        assert!(text.contains(&format!("{:08x}{:08x}{:08x}{:08x}", 5, 1, 12, 0)));
    }

    #[test]
    fn the_same_files_go_into_a_folder() {
        let scratch = Scratch::new().unwrap();
        std::fs::write(scratch.file("host"), "of the host").unwrap();
        let mut files = Files::default();
        files.host("/usr/bin/x", &scratch.file("host"));
        files.link("/usr/bin/y", "x");
        files.device("/dev/console", 5, 1);
        files.write_to(&scratch.file("root")).unwrap();
        assert_eq!(std::fs::read_to_string(scratch.file("root/usr/bin/y")).unwrap(), "of the host");
        assert!(!scratch.file("root/dev/console").exists());
        // The archive keeps the host file's permission to execute.
        std::fs::set_permissions(scratch.file("host"), PermissionsExt::from_mode(0o751)).unwrap();
        let text = String::from_utf8(files.archive().unwrap()).unwrap();
        let entry = text.find("usr/bin/x").unwrap() - 110;
        assert_eq!(&text[entry..][..6], "070701");
        assert_eq!(u32::from_str_radix(&text[entry + 14..][..8], 16), Ok(0o100_751));
        files.host("/usr/bin/z", &scratch.file("missing"));
        assert!(files.archive().unwrap_err().to_string().contains("missing"));
        files.host("/usr/bin/z", &scratch.file("root"));
        assert!(files.archive().unwrap_err().to_string().contains("is no file"));
    }
}
