//! Debian's packages, downloaded and unpacked into cargo's target folder: nothing is installed.

use anyhow::{Context, Result, bail, ensure};
use pugmark_launch::linux_kernel::vmlinux;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::debian::DebianKernel;
use crate::images::target_folder;

/// The package that depends on Debian's newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The package with a shell and its tools in one program without libraries.
const BUSYBOX: &str = "busybox-static";
/// Packages with guests that tests boot. Debian 13 has another version of Xen.
pub const GUESTS: [&str; 3] = ["memtest86+", "ipxe", "xen-hypervisor-4.17-amd64"];
/// A shell's command that unpacks the packages of a folder into its folder `files`.
const UNPACK: &str = "mkdir -p files; for file in *.deb; do dpkg-deb -x \"$file\" files || exit 1; done";

/// Gets packages.
pub struct Packages<'a> {
    /// A package that would have to be downloaded is an error.
    pub no_install: bool,
    /// Receives each command before it runs.
    pub tell: &'a mut dyn FnMut(&str),
}

/// Returns the folder with the files that a Linux guest needs.
#[must_use]
pub fn folder() -> PathBuf {
    target_folder().join("linux")
}

impl Packages<'_> {
    /// Returns the ELF file of Debian's newest kernel.
    ///
    /// # Errors
    /// If the system has no apt or does not know the package, or a download is needed and not allowed.
    pub fn kernel(&mut self) -> Result<PathBuf> {
        let output =
            Command::new("apt-cache").args(["depends", KERNEL]).output().context("cannot start apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let package = dependency(&text).with_context(|| {
            format!("apt knows no package {KERNEL}: try `apt-get update`, or give a kernel by --kernel")
        })?;
        let files = self.files(&package)?;
        let elf = files.with_file_name("vmlinux");
        if !elf.exists() {
            unpack_kernel(&kernel_file(&files)?, &elf)?;
        }
        Ok(elf)
    }

    /// Returns the ELF file of the newest kernel in a release of Debian, independent of this system's release.
    ///
    /// # Errors
    /// If the system has no apt, or the kernel would have to be downloaded and may not be.
    pub fn kernel_of(&mut self, kernel: DebianKernel) -> Result<PathBuf> {
        let folder = folder().join(kernel.to_string());
        let elf = folder.join("vmlinux");
        if elf.exists() {
            return Ok(elf);
        }
        let (package, options) =
            (kernel.package(), "apt-get update and download, with an own list of sources");
        ensure!(!self.no_install, "{kernel} is missing; this gets it, in {}: {options}", folder.display());
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let options = kernel.apt_options(&folder)?;
        let mut run = |command: &str| self.run(&kernel.to_string(), command, &folder);
        run(&format!("apt-get {options} update"))?;
        let text = run(&format!("apt-cache {options} depends {package}"))?;
        let newest = dependency(&text).with_context(|| format!("{kernel} has no package {package}"))?;
        run(&format!("apt-get {options} download {newest}"))?;
        run(UNPACK)?;
        unpack_kernel(&kernel_file(&folder.join("files"))?, &elf)?;
        Ok(elf)
    }

    /// Returns Debian's busybox, which needs no libraries.
    ///
    /// # Errors
    /// Those of [`Self::kernel`].
    pub fn busybox(&mut self) -> Result<PathBuf> {
        program(&self.files(BUSYBOX)?, "busybox")
    }

    /// Returns the folder with a package's files. Downloads and unpacks the package if necessary.
    ///
    /// # Errors
    /// If the system's apt has no such package, or a download is needed and not allowed.
    pub fn files(&mut self, package: &str) -> Result<PathBuf> {
        let folder = folder().join(package);
        let (files, unpacked) = (folder.join("files"), folder.join("unpacked"));
        if unpacked.exists() {
            return Ok(files);
        }
        let download = format!("apt-get download {package}");
        ensure!(!self.no_install, "{package} is missing; this gets it, in {}: {download}", folder.display());
        fs::create_dir_all(&files).with_context(|| format!("cannot make {}", files.display()))?;
        self.run(package, &download, &folder)?;
        self.run(package, UNPACK, &folder)?;
        fs::write(&unpacked, "")?;
        Ok(files)
    }

    /// Runs a shell's command that gets `what`, and returns its output.
    fn run(&mut self, what: &str, command: &str, folder: &Path) -> Result<String> {
        (self.tell)(&format!("{what} is missing; getting it, in {}: {command}", folder.display()));
        let output = Command::new("sh").args(["-c", command]).current_dir(folder).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "`{command}` failed: {}", text.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
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
    let bytes = vmlinux(bytes).with_context(|| file.display().to_string())?;
    fs::write(elf, bytes).with_context(|| format!("cannot write {}", elf.display()))
}

/// Returns the kernel in the output of `apt-cache depends`.
fn dependency(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))?;
    Some(format!("linux-image-{name}"))
}

/// Returns the kernel's file among the files of its package.
fn kernel_file(files: &Path) -> Result<PathBuf> {
    let boot = files.join("boot");
    for entry in fs::read_dir(&boot).with_context(|| format!("cannot read {}", boot.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("vmlinuz-") {
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
    fn the_newest_kernel_is_what_the_package_without_a_number_depends_on() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n  Suggests: x\n";
        assert_eq!(dependency(text).as_deref(), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(dependency("E: No packages found\n"), None);
    }
}
