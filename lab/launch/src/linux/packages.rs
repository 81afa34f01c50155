//! Kernels and programs for a guest: those of the system, or from Debian's packages, which are downloaded and unpacked
//! into a folder. Nothing is installed.

use crate::linux_kernel::vmlinux;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::channel::checksum;
use super::debian::DebianKernel;
use super::libraries::libraries;
use super::named::with_functions;
use super::version::LinuxVersion;

/// The package that depends on Debian's newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The beginning of the names of packages with a kernel.
const IMAGE: &str = "linux-image-";
/// The package with a shell and its tools in one program without libraries.
const BUSYBOX: &str = "busybox-static";
/// A shell's command that unpacks the packages of a folder into its folder `files`.
const UNPACK: &str = "mkdir -p files; for file in *.deb; do dpkg-deb -x \"$file\" files || exit 1; done";
/// The folder of the system's kernels.
const BOOT: &str = "/boot";
/// The beginning of their names; the rest is the version that `uname -r` prints.
const VMLINUZ: &str = "vmlinuz-";

/// Gets packages.
#[derive(Debug)]
pub struct Packages {
    /// The folder that they are downloaded into.
    pub folder: PathBuf,
    /// A package that would have to be downloaded is an error.
    pub no_install: bool,
    /// Receives each command before it runs.
    pub tell: fn(&str),
}

impl Packages {
    /// Returns the ELF file of a kernel: that of the system, or of Debian's package.
    ///
    /// # Errors
    /// If there is none, or a file cannot be read or written.
    pub fn kernel_for(&self, version: &LinuxVersion) -> Result<PathBuf> {
        match version {
            LinuxVersion::Newest => match newest_installed(Path::new(BOOT)) {
                Some(file) => self.unpacked(&file),
                None => self.kernel(),
            },
            LinuxVersion::Debian(kernel) => self.kernel_of(*kernel),
            LinuxVersion::File(file) => self.unpacked(file),
            LinuxVersion::Release(release) => {
                let installed = Path::new(BOOT).join(format!("{VMLINUZ}{release}"));
                if installed.exists() {
                    self.unpacked(&installed)
                } else {
                    self.package(&format!("{IMAGE}{release}"))
                }
            }
        }
    }

    /// Returns the ELF file of Debian's newest kernel for virtual machines; where apt knows none or it may not be
    /// downloaded, that of the newest one that was downloaded before.
    ///
    /// # Errors
    /// If the system has no apt or does not know the package, or a download is needed and not allowed.
    pub fn kernel(&self) -> Result<PathBuf> {
        let output = Command::new("apt-cache").args(["depends", KERNEL]).output();
        let known =
            output.as_ref().ok().and_then(|output| dependency(&String::from_utf8_lossy(&output.stdout)));
        let known = match (known, self.newest_package()) {
            (Some(_), Some(package)) if self.no_install => Some(package),
            (known, newest) => known.or(newest),
        };
        if let Some(package) = known {
            return self.package(&package);
        }
        match output {
            Ok(_) => {
                bail!("apt knows no package {KERNEL}: try `apt-get update`, or name the file of a kernel")
            }
            Err(error) => bail!(
                "there is no kernel: none in {BOOT} can be read, and Debian's apt, which gets {KERNEL}, cannot be \
                 started ({error}); name the file of a kernel"
            ),
        }
    }

    /// Returns the ELF file of a kernel with the names of its functions. `symbols` gets the text of its
    /// /proc/kallsyms, if the names are not known yet.
    ///
    /// # Errors
    /// If a file cannot be read or written, or those of `symbols`.
    pub fn named(&self, elf: &Path, symbols: impl FnOnce() -> Result<String>) -> Result<PathBuf> {
        let bytes = fs::read(elf).with_context(|| format!("cannot read {}", elf.display()))?;
        let named = self.folder.join(format!("vmlinux-{}-named", &checksum(&bytes)[..16]));
        if !named.exists() {
            let bytes = with_functions(bytes, &symbols()?).with_context(|| elf.display().to_string())?;
            fs::create_dir_all(&self.folder)
                .with_context(|| format!("cannot make {}", self.folder.display()))?;
            write_whole(&named, &bytes)?;
        }
        Ok(named)
    }

    /// Returns the ELF file of a kernel in its package.
    fn package(&self, package: &str) -> Result<PathBuf> {
        let files = self.files(package)?;
        let elf = files.with_file_name("vmlinux");
        if !elf.exists() {
            unpack_kernel(&kernel_file(&files)?, &elf)?;
        }
        Ok(elf)
    }

    /// Returns the newest of the packages with kernels that are unpacked.
    fn newest_package(&self) -> Option<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().filter_map(Result::ok);
        let unpacked = entries.filter(|entry| entry.path().join("unpacked").exists());
        let names = unpacked.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(IMAGE)).max_by_key(|name| numbers(name))
    }

    /// Returns the ELF file in a kernel's file, unpacked into the folder unless it is one itself.
    fn unpacked(&self, file: &Path) -> Result<PathBuf> {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        if bytes.starts_with(b"\x7fELF") {
            return Ok(file.into());
        }
        let name = format!("vmlinux-{}", &checksum(&bytes)[..16]);
        let elf = self.folder.join(name);
        if !elf.exists() {
            fs::create_dir_all(&self.folder)
                .with_context(|| format!("cannot make {}", self.folder.display()))?;
            let bytes = vmlinux(bytes).with_context(|| file.display().to_string())?;
            write_whole(&elf, &bytes)?;
        }
        Ok(elf)
    }

    /// Returns the ELF file of the newest kernel in a release of Debian, independent of this system's release.
    ///
    /// # Errors
    /// If the system has no apt, or the kernel would have to be downloaded and may not be.
    pub fn kernel_of(&self, kernel: DebianKernel) -> Result<PathBuf> {
        let folder = self.folder.join(kernel.to_string());
        let elf = folder.join("vmlinux");
        if elf.exists() {
            return Ok(elf);
        }
        let (package, options) =
            (kernel.package(), "apt-get update and download, with an own list of sources");
        ensure!(!self.no_install, "{kernel} is missing; this gets it, in {}: {options}", folder.display());
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let _one = one_at_a_time(&folder)?;
        let options = kernel.apt_options(&folder)?;
        let get = |command: &str| self.get(&kernel.to_string(), command, &folder);
        get(&format!("apt-get {options} update"))?;
        let text = get(&format!("apt-cache {options} depends {package}"))?;
        let newest = dependency(&text).with_context(|| format!("{kernel} has no package {package}"))?;
        get(&format!("apt-get {options} download {newest}"))?;
        run(UNPACK, &folder)?;
        unpack_kernel(&kernel_file(&folder.join("files"))?, &elf)?;
        Ok(elf)
    }

    /// Returns a busybox that needs no libraries: that of the system, or Debian's.
    ///
    /// # Errors
    /// Those of [`Self::kernel`].
    pub fn busybox(&self) -> Result<PathBuf> {
        let installed = program(Path::new("/"), "busybox").ok();
        match installed.filter(|file| libraries(file).is_ok_and(|libraries| libraries.is_empty())) {
            Some(file) => Ok(file),
            None => program(&self.files(BUSYBOX)?, "busybox"),
        }
    }

    /// Returns the folder with a package's files. Downloads and unpacks the package if necessary.
    ///
    /// # Errors
    /// If the system's apt has no such package, or a download is needed and not allowed.
    pub fn files(&self, package: &str) -> Result<PathBuf> {
        let folder = self.folder.join(package);
        let (files, unpacked) = (folder.join("files"), folder.join("unpacked"));
        if unpacked.exists() {
            return Ok(files);
        }
        let download = format!("apt-get download {package}");
        ensure!(!self.no_install, "{package} is missing; this gets it, in {}: {download}", folder.display());
        fs::create_dir_all(&files).with_context(|| format!("cannot make {}", files.display()))?;
        let _one = one_at_a_time(&folder)?;
        if !unpacked.exists() {
            self.get(package, &download, &folder)?;
            run(UNPACK, &folder)?;
            fs::write(&unpacked, "")?;
        }
        Ok(files)
    }

    /// Tells a shell's command that gets `what`, runs it, and returns its output.
    fn get(&self, what: &str, command: &str, folder: &Path) -> Result<String> {
        (self.tell)(&format!("{what} is missing; getting it, in {}: {command}", folder.display()));
        run(command, folder)
    }
}

/// Runs a shell's command, and returns its output.
fn run(command: &str, folder: &Path) -> Result<String> {
    let output = Command::new("sh").args(["-c", command]).current_dir(folder).output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "`{command}` failed: {}", text.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns a program among the files of its package. Since Debian 13, packages have programs in `/usr/bin` only.
fn program(files: &Path, name: &str) -> Result<PathBuf> {
    let found =
        ["bin", "usr/bin"].into_iter().map(|folder| files.join(folder).join(name)).find(|file| file.exists());
    found.with_context(|| format!("{} has no {name}", files.display()))
}

/// Extracts the ELF file from a kernel's file.
///
/// # Errors
/// If there is none in it, or a file cannot be read or written.
pub fn unpack_kernel(file: &Path, elf: &Path) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    write_whole(elf, &vmlinux(bytes).with_context(|| file.display().to_string())?)
}

/// Writes a file that is either whole or not there, whoever else writes it, too.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Waits until no other process gets a package in this folder. The lock ends with the returned file.
fn one_at_a_time(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let locked = File::create(&path).and_then(|file| file.lock().map(|()| file));
    locked.with_context(|| format!("cannot lock {}", path.display()))
}

/// Returns the newest of the kernels in a folder that can be read.
fn newest_installed(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(VMLINUZ)).collect();
    names.sort_by_key(|name| numbers(name));
    names.iter().rev().map(|name| folder.join(name)).find(|file| File::open(file).is_ok())
}

/// Returns the numbers in a version, in order.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Returns the kernel in the output of `apt-cache depends`.
fn dependency(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))?;
    Some(format!("{IMAGE}{name}"))
}

/// Returns the kernel's file among the files of its package.
fn kernel_file(files: &Path) -> Result<PathBuf> {
    let boot = files.join("boot");
    for entry in fs::read_dir(&boot).with_context(|| format!("cannot read {}", boot.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(VMLINUZ) {
            return Ok(entry.path());
        }
    }
    bail!("{} has no kernel", boot.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_either_folder() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        assert!(program(scratch.folder(), "busybox").is_err());
        for folder in ["usr/bin", "bin"] {
            let folder = scratch.folder().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("busybox"), "").unwrap();
            assert_eq!(program(scratch.folder(), "busybox").unwrap(), folder.join("busybox"));
        }
    }

    #[test]
    fn the_newest_kernel_of_a_folder_has_the_highest_numbers() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        assert_eq!(newest_installed(&scratch.file("no")), None);
        for name in
            ["vmlinuz-6.1.0-9-amd64", "vmlinuz-6.1.0-10-cloud-amd64", "vmlinuz-5.19.0", "initrd.img-7.0"]
        {
            fs::write(scratch.file(name), "").unwrap();
        }
        assert_eq!(newest_installed(scratch.folder()), Some(scratch.file("vmlinuz-6.1.0-10-cloud-amd64")));
    }

    #[test]
    fn a_kernel_is_unpacked_once_and_an_elf_file_never() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let packages = Packages { folder: scratch.file("cache"), no_install: true, tell: |_| {} };
        let elf = scratch.file("vmlinux");
        fs::write(&elf, b"\x7fELF, a kernel").unwrap();
        assert_eq!(packages.kernel_for(&LinuxVersion::File(elf.clone())).unwrap(), elf);
        fs::write(&elf, "no kernel").unwrap();
        let error = format!("{:#}", packages.kernel_for(&LinuxVersion::File(elf)).unwrap_err());
        assert!(error.ends_with("/vmlinux: neither an ELF file nor a Linux kernel (bzImage)"), "{error}");
        let error = packages.kernel_for(&LinuxVersion::Release("0.1".into())).unwrap_err().to_string();
        assert!(
            error.contains("linux-image-0.1 is missing") && error.contains("apt-get download"),
            "{error}"
        );
    }

    #[test]
    fn the_newest_kernel_is_what_the_package_without_a_number_depends_on() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n  Suggests: x\n";
        assert_eq!(dependency(text).as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(dependency("E: No packages found\n"), None);
    }
}
