//! Checks that the machine has the programs and libraries that are needed, and installs those that are missing.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use pugmark_harness::images::{BY_FIRMWARE, firmware_target, target_folder, workspace};
use pugmark_harness::libipt::release::{self, Download, RELEASES, Release};
use pugmark_harness::linux::{DebianKernel, packages};
use pugmark_harness::qemu::{self, QEMU};
use std::path::Path;
use std::process::Command;

/// The treatment of a machine that lacks programs.
#[derive(Args, Clone, Copy)]
pub(crate) struct SetupOptions {
    /// Do not install what is missing: stop and print the command that would
    #[arg(long)]
    pub(crate) no_install: bool,
}

/// The oldest QEMU with which the monitor was tested.
const OLDEST_QEMU: (u32, u32) = (7, 2);

/// A system's package manager: the system's names in `/etc/os-release`, the shell command that installs packages, and
/// the packages' names.
struct PackageManager {
    systems: &'static [&'static str],
    install: &'static str,
    qemu: &'static str,
    grub: &'static str,
    ovmf: &'static str,
    cxx: &'static str,
    /// Empty if the system has no such package.
    ipt: &'static str,
    pfm: &'static str,
    perf: &'static str,
    qemu_user: &'static str,
    chromium: &'static str,
    firefox: &'static str,
    groff: &'static str,
    lcov: &'static str,
    clang: &'static str,
    valgrind: &'static str,
    gdb: &'static str,
    yasm: &'static str,
    pkg_config: &'static str,
    /// lz4, zstd and xz.
    packers: &'static str,
    /// Empty if the system has no such package.
    mmdebstrap: &'static str,
    /// The C compiler and library of aarch64; empty if the system has no such package.
    aarch64: &'static str,
}

/// A function that returns the names of the packages with a program or library.
type Packages = fn(&PackageManager) -> &str;

const PACKAGE_MANAGERS: &[PackageManager] = &[
    PackageManager {
        systems: &["debian", "ubuntu"],
        install: "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends",
        qemu: "qemu-system-x86",
        grub: "grub-common grub-pc-bin grub-efi-amd64-bin xorriso mtools",
        ovmf: "ovmf",
        cxx: "g++",
        ipt: "libipt-dev",
        pfm: "libpfm4-dev",
        perf: "linux-perf",
        qemu_user: "qemu-user",
        chromium: "chromium",
        firefox: "firefox-esr",
        groff: "groff",
        lcov: "lcov",
        clang: "clang llvm",
        valgrind: "valgrind",
        gdb: "gdb",
        yasm: "yasm",
        pkg_config: "pkg-config",
        packers: "lz4 zstd xz-utils",
        mmdebstrap: "mmdebstrap",
        aarch64: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    },
    PackageManager {
        systems: &["fedora", "rhel"],
        install: "dnf install --assumeyes",
        qemu: "qemu-system-x86-core",
        grub: "grub2-tools-extra grub2-pc-modules grub2-efi-x64-modules xorriso mtools",
        ovmf: "edk2-ovmf",
        cxx: "gcc-c++",
        ipt: "libipt-devel",
        pfm: "libpfm-devel",
        perf: "perf",
        qemu_user: "qemu-user",
        chromium: "chromium",
        firefox: "firefox",
        groff: "groff",
        lcov: "lcov",
        clang: "clang llvm",
        valgrind: "valgrind",
        gdb: "gdb",
        yasm: "yasm",
        pkg_config: "pkgconf-pkg-config",
        packers: "lz4 zstd xz",
        mmdebstrap: "mmdebstrap",
        aarch64: "",
    },
    PackageManager {
        systems: &["arch"],
        install: "pacman --sync --noconfirm",
        qemu: "qemu-system-x86",
        grub: "grub libisoburn mtools",
        ovmf: "edk2-ovmf",
        cxx: "gcc",
        ipt: "libipt",
        pfm: "libpfm",
        perf: "perf",
        qemu_user: "qemu-user",
        chromium: "chromium",
        firefox: "firefox",
        groff: "groff",
        lcov: "lcov",
        clang: "clang llvm",
        valgrind: "valgrind",
        gdb: "gdb",
        yasm: "yasm",
        pkg_config: "pkgconf",
        packers: "lz4 zstd xz",
        mmdebstrap: "",
        aarch64: "",
    },
    PackageManager {
        systems: &["opensuse", "suse"],
        install: "zypper --non-interactive install",
        qemu: "qemu-x86",
        grub: "grub2 grub2-i386-pc grub2-x86_64-efi xorriso mtools",
        ovmf: "qemu-ovmf-x86_64",
        cxx: "gcc-c++",
        ipt: "libipt-devel",
        pfm: "libpfm-devel",
        perf: "perf",
        qemu_user: "qemu-linux-user",
        chromium: "chromium",
        firefox: "MozillaFirefox",
        groff: "groff",
        lcov: "lcov",
        clang: "clang llvm",
        valgrind: "valgrind",
        gdb: "gdb",
        yasm: "yasm",
        pkg_config: "pkg-config",
        packers: "lz4 zstd xz",
        mmdebstrap: "",
        aarch64: "",
    },
    PackageManager {
        systems: &["alpine"],
        install: "apk add",
        qemu: "qemu-system-x86_64",
        grub: "grub grub-bios grub-efi xorriso mtools",
        ovmf: "ovmf",
        cxx: "g++",
        ipt: "",
        pfm: "",
        perf: "perf",
        qemu_user: "qemu-x86_64",
        chromium: "chromium",
        firefox: "firefox-esr",
        groff: "groff",
        lcov: "lcov",
        clang: "clang llvm",
        valgrind: "valgrind",
        gdb: "gdb",
        yasm: "yasm",
        pkg_config: "pkgconf",
        packers: "lz4 zstd xz",
        mmdebstrap: "",
        aarch64: "",
    },
];

/// Checks that QEMU and a linker exist; installs QEMU unless `no_install` is set.
pub(crate) fn prepare(no_install: bool) -> Result<()> {
    ensure!(
        answers("cc", "--version"),
        "there is no linker: install a C compiler driver (`cc`), on Debian with `apt-get install gcc libc6-dev`"
    );
    require(QEMU, |manager| manager.qemu, no_install)?;
    let version = qemu::version()?;
    ensure!(
        version >= OLDEST_QEMU,
        "{QEMU} is version {}.{}, but version {}.{} or newer is needed",
        version.0,
        version.1,
        OLDEST_QEMU.0,
        OLDEST_QEMU.1
    );
    Ok(())
}

/// An optional program or library that tests compare with, or skip: its name, a check that it is installed, and its
/// packages.
type Optional = (&'static str, fn(&str) -> bool, Packages);

const OPTIONAL: [Optional; 19] = [
    ("libipt.so.2", is_library, |manager| manager.ipt),
    // The library alone may be installed for another program, such as GDB.
    ("intel-pt.h", |name| Path::new("/usr/include").join(name).exists(), |manager| manager.ipt),
    ("libpfm.so.4", is_library, |manager| manager.pfm),
    ("OVMF", |name| Path::new("/usr/share").join(name).exists(), |manager| manager.ovmf),
    ("grub-mkrescue", |name| answers(name, "--version"), |manager| manager.grub),
    ("qemu-x86_64", |name| answers(name, "--version"), |manager| manager.qemu_user),
    ("chromium", |name| answers(name, "--version"), |manager| manager.chromium),
    (
        "firefox-esr",
        |name| answers(name, "--version") || answers("firefox", "--version"),
        |manager| manager.firefox,
    ),
    ("groff", |name| answers(name, "--version"), |manager| manager.groff),
    ("genhtml", |name| answers(name, "--version"), |manager| manager.lcov),
    ("clang", |name| answers(name, "--version"), |manager| manager.clang),
    ("yasm", |name| answers(name, "--version"), |manager| manager.yasm),
    ("valgrind", |name| answers(name, "--version"), |manager| manager.valgrind),
    ("gdb", |name| answers(name, "--version"), |manager| manager.gdb),
    ("c++", |name| answers(name, "--version"), |manager| manager.cxx),
    ("pkg-config", |name| answers(name, "--version"), |manager| manager.pkg_config),
    ("lz4", |name| answers(name, "--version"), |manager| manager.packers),
    ("zstd", |name| answers(name, "--version"), |manager| manager.packers),
    ("xz", |name| answers(name, "--version"), |manager| manager.packers),
];

/// Calls [`prepare`], and makes sure that the programs and libraries that tests compare with exist, and the Linux that
/// they boot. If they are missing, the tests report what they skip.
pub(crate) fn prepare_tests(no_install: bool) -> Result<()> {
    prepare(no_install)?;
    install_optional(OPTIONAL, no_install)?;
    if let Err(error) = require("perf", |manager| manager.perf, no_install) {
        println!("{error:#}");
    }
    for result in RELEASES
        .map(|release| libipt_release(release, no_install))
        .into_iter()
        .chain([libipt_sources(no_install), require_targets(&BY_FIRMWARE.map(firmware_target), no_install)])
    {
        if let Err(error) = result {
            println!("{error:#}");
        }
    }
    let packages = packages::packages(no_install);
    let kernels =
        || DebianKernel::ALL.into_iter().try_for_each(|kernel| packages.kernel_of(kernel).map(|_| ()));
    if let Err(error) = packages.kernel().and_then(|_| packages.busybox()).and_then(|_| kernels()) {
        println!("Linux is missing as a guest: {error:#}");
    }
    for package in packages::GUESTS {
        if let Err(error) = packages.files(package) {
            println!("a guest is missing: {error:#}");
        }
    }
    Ok(())
}

/// Installs the missing ones of these; reports those that cannot or may not be installed.
fn install_optional(optional: impl IntoIterator<Item = Optional>, no_install: bool) -> Result<()> {
    for (name, is_installed, packages) in optional {
        if is_installed(name) {
            continue;
        }
        match install_command(&os_release(), packages, is_root()?) {
            None => println!(
                "{name} is missing, and the name of its package on this system is not known: install it by hand"
            ),
            Some(command) if no_install => println!("{name} is missing; this installs it: {command}"),
            Some(command) => {
                if let Err(error) = install(name, &command) {
                    println!("{error:#}");
                }
            }
        }
    }
    Ok(())
}

/// The folder of libipt's sources in the build folder: its tests run with our library.
const LIBIPT_SOURCES: &str = "libipt-sources";
/// The command that gets the sources of 2.0.5 on a system without apt.
const LIBIPT_CLONE: &str = "git clone --quiet --depth 1 --branch v2.0.5 https://github.com/intel/libipt";

/// A crate with a slightly newer copy of the sources, for a machine that reaches neither.
const LIBIPT_CRATE: (&str, &str) = ("libipt-sys", "=0.1.4");

/// Gets libipt's sources into the build folder if they are not there.
fn libipt_sources(no_install: bool) -> Result<()> {
    let folder = target_folder().join(LIBIPT_SOURCES);
    if folder.exists() {
        return Ok(());
    }
    let archive = release::V2_0_5.sources;
    let unpack = format!("tar --strip-components=1 -xzf {}", archive.0);
    let clone = format!("{LIBIPT_CLONE} {}", folder.display());
    let get = in_new_folder(&folder, &[(archive, unpack)]);
    ensure!(!no_install, "the sources of libipt are missing; this gets them: {get}");
    install("the source archive of libipt", &get).or_else(|error| {
        println!("{error:#}");
        install("a copy of libipt's repository", &clone).or_else(|error| {
            println!("{error:#}");
            libipt_of_the_crate(&folder)
        })
    })
}

/// Gets the copy of libipt's sources in a crate.
fn libipt_of_the_crate(folder: &Path) -> Result<()> {
    let (name, version) = LIBIPT_CRATE;
    let package = target_folder().join("libipt-crate");
    std::fs::create_dir_all(&package)?;
    let manifest = format!(
        "[package]\nname = \"libipt-crate\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n\n[workspace]\n\n\
         [dependencies]\n{name} = \"{version}\"\n"
    );
    std::fs::write(package.join("Cargo.toml"), manifest)?;
    std::fs::write(package.join("lib.rs"), "")?;
    install(
        "the sources of libipt",
        &format!("cd {} && cargo vendor --quiet vendor > vendor.log", package.display()),
    )?;
    std::fs::rename(package.join("vendor").join(name).join("libipt"), folder)?;
    Ok(())
}

/// Gets the library and the header of a release of libipt into the build folder, unless the system has them.
fn libipt_release(release: &Release, no_install: bool) -> Result<()> {
    if release.open().is_some() && release.include().is_some() {
        return Ok(());
    }
    let name = release.folder_name();
    let packages = release.packages.map(|package| (package, format!("dpkg-deb -x {} .", package.0)));
    let get = in_new_folder(&target_folder().join(&name), &packages);
    ensure!(!no_install, "{name} is missing; this gets it: {get}");
    install(&name, &get)
}

/// Returns the command that gets files by apt, which checks them, unpacks each by its own command, and makes the folder
/// with their contents if all of that succeeds.
fn in_new_folder(folder: &Path, files: &[(Download, String)]) -> String {
    let part = folder.with_extension("part");
    let (folder, part) = (folder.display(), part.display());
    let file = |(download, unpack): &(Download, String)| {
        let (name, hash) = download;
        let address = release::address(*download);
        format!(
            "/usr/lib/apt/apt-helper -qq download-file {address} {name} SHA256:{hash} && {unpack} && rm {name}"
        )
    };
    let files = files.iter().map(file).collect::<Vec<_>>().join(" && ");
    format!(
        "rm -rf {part} && mkdir -p {part} && (cd {part} && {files}) && rm -rf {folder} && mv {part} {folder}"
    )
}

/// Returns true if the loader finds the library.
fn is_library(name: &str) -> bool {
    // SAFETY: these libraries have no other initialisers than any C library.
    unsafe { libloading::Library::new(name) }.is_ok()
}

/// Calls [`prepare`], and makes sure that perf exists, which goes into the Linux guest and reads its recordings.
pub(crate) fn prepare_linux(no_install: bool) -> Result<()> {
    prepare(no_install)?;
    require("perf", |manager| manager.perf, no_install)
}

/// Makes sure that the benchmark has libipt beside ours, or callgrind if it counts `instructions`, and QEMU's user-mode
/// emulator, in which a program is recorded in seconds instead of minutes. If they are missing, the benchmark reports
/// that it works without them.
pub(crate) fn prepare_bench(instructions: bool, no_install: bool) -> Result<()> {
    let beside = if instructions { "valgrind" } else { "libipt.so.2" };
    let needed = OPTIONAL.into_iter().filter(|(name, ..)| [beside, "qemu-x86_64"].contains(name));
    install_optional(needed, no_install)
}

/// Makes sure that a bare Debian system can be made, which needs root, because the system is a root folder.
pub(crate) fn prepare_bare(no_install: bool) -> Result<()> {
    ensure!(is_root()?, "only root can make a system and change into it: `sudo -E cargo xtask bare`");
    require("mmdebstrap", |manager| manager.mmdebstrap, no_install)
}

/// Makes sure that programs for aarch64 can be linked, and run in an emulator.
pub(crate) fn prepare_portable(no_install: bool) -> Result<()> {
    require("aarch64-linux-gnu-gcc", |manager| manager.aarch64, no_install)?;
    require("qemu-aarch64", |manager| manager.qemu_user, no_install)
}

/// Makes sure that the toolchain in use has the standard library for these targets.
pub(crate) fn require_targets(targets: &[&str], no_install: bool) -> Result<()> {
    let list = Command::new("rustup")
        .args(["target", "list", "--installed"])
        .current_dir(workspace())
        .output()
        .context("cannot start rustup")?;
    let installed = String::from_utf8_lossy(&list.stdout).into_owned();
    let is_there = |target: &str| installed.lines().any(|line| line == target);
    for target in targets.iter().filter(|target| !is_there(target)) {
        let command = format!("rustup target add {target}");
        ensure!(!no_install, "the standard library for {target} is missing; this installs it: {command}");
        install(target, &command)?;
    }
    Ok(())
}

/// Makes sure that GRUB can make a disk image.
pub(crate) fn prepare_grub(no_install: bool) -> Result<()> {
    ["grub-mkrescue", "xorriso", "mformat"]
        .into_iter()
        .try_for_each(|program| require(program, |manager| manager.grub, no_install))
}

/// Makes sure that cargo-fuzz exists, and a C++ compiler for libFuzzer, which comes as source.
pub(crate) fn prepare_fuzzing(no_install: bool) -> Result<()> {
    const INSTALL: &str = "cargo install cargo-fuzz --locked";
    require("c++", |manager| manager.cxx, no_install)?;
    require_tool("cargo-fuzz", INSTALL, no_install)
}

/// Returns true if cargo-deny is installed.
pub(crate) fn has_deny() -> bool {
    answers("cargo-deny", "--version")
}

/// Makes sure that cargo-deny is installed.
pub(crate) fn prepare_deny(no_install: bool) -> Result<()> {
    require_tool("cargo-deny", "cargo install cargo-deny --locked", no_install)
}

/// Makes sure that cargo-deb is installed.
pub(crate) fn prepare_deb(no_install: bool) -> Result<()> {
    require_tool("cargo-deb", "cargo install cargo-deb --locked", no_install)
}

/// Makes sure that mdbook is installed.
pub(crate) fn prepare_book(no_install: bool) -> Result<()> {
    require_tool("mdbook", "cargo install mdbook --locked --version ^0.4", no_install)
}

/// Makes sure that a cargo command exists.
fn require_tool(name: &str, command: &str, no_install: bool) -> Result<()> {
    if answers(name, "--version") {
        return Ok(());
    }
    ensure!(!no_install, "{name} is missing; this installs it: {command}");
    install(name, command)
}

/// Makes sure that a program exists; installs its packages unless `no_install` is set.
fn require(program: &str, packages: Packages, no_install: bool) -> Result<()> {
    if answers(program, "--version") {
        return Ok(());
    }
    let Some(command) = install_command(&os_release(), packages, is_root()?) else {
        bail!("{program} is missing, and this system's package manager is not known: install it by hand");
    };
    ensure!(!no_install, "{program} is missing; this installs it: {command}");
    install(program, &command)?;
    ensure!(answers(program, "--version"), "`{command}` succeeded, but `{program} --version` still fails");
    Ok(())
}

/// Runs an installation command.
fn install(what: &str, command: &str) -> Result<()> {
    println!("{what} is missing; installing it: {command}");
    let status = Command::new("sh").args(["-c", command]).status().context("cannot start sh")?;
    ensure!(status.success(), "`{command}` failed");
    Ok(())
}

fn os_release() -> String {
    std::fs::read_to_string("/etc/os-release").unwrap_or_default()
}

/// Returns the command that installs packages on the system that this `/etc/os-release` describes, if it has them.
fn install_command(os_release: &str, packages: Packages, root: bool) -> Option<String> {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.trim_matches('"').to_owned())
    };
    let names = format!("{} {}", value("ID").unwrap_or_default(), value("ID_LIKE").unwrap_or_default());
    let known = |manager: &&PackageManager| {
        names.split_whitespace().any(|name| manager.systems.iter().any(|system| name.starts_with(system)))
    };
    let manager = PACKAGE_MANAGERS.iter().find(known)?;
    let names = Some(packages(manager)).filter(|names| !names.is_empty())?;
    let install = format!("{} {names}", manager.install);
    Some(if root { install } else { format!("sudo sh -c '{install}'") })
}

fn answers(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
}

fn is_root() -> Result<bool> {
    let output = Command::new("id").arg("-u").output().context("cannot start id")?;
    Ok(output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_package_manager_by_the_systems_name() {
        for (release, program) in [
            ("PRETTY_NAME=\"Debian\"\nID=debian\n", Some("apt-get")),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Some("apt-get")),
            ("ID=fedora\n", Some("dnf")),
            ("ID=\"opensuse-leap\"\n", Some("zypper")),
            ("ID=plan9\n", None),
            ("", None),
        ] {
            let command = install_command(release, |manager| manager.qemu, true);
            assert_eq!(command.as_deref().and_then(|text| text.split(' ').next()), program, "{release:?}");
        }
    }

    #[test]
    fn knows_the_packages_of_what_tests_compare_with() {
        let commands = |release| OPTIONAL.map(|(_, _, packages)| install_command(release, packages, true));
        let debian = commands("ID=debian").map(|command| command.unwrap());
        let names = debian.each_ref().map(|command| command.rsplit(' ').next().unwrap());
        assert_eq!(
            names,
            [
                "libipt-dev",
                "libipt-dev",
                "libpfm4-dev",
                "ovmf",
                "mtools",
                "qemu-user",
                "chromium",
                "firefox-esr",
                "groff",
                "lcov",
                "llvm",
                "yasm",
                "valgrind",
                "gdb",
                "g++",
                "pkg-config",
                "xz-utils",
                "xz-utils",
                "xz-utils"
            ]
        );
        let [ipt, _, pfm, _, _, emulator, ..] = commands("ID=alpine");
        assert!(
            ipt.is_none()
                && pfm.is_none()
                && emulator.is_some_and(|command| command.ends_with(" qemu-x86_64"))
        );
    }

    #[test]
    fn asks_for_rights_without_root() {
        let command = install_command("ID=debian", |manager| manager.grub, false).unwrap();
        assert!(command.starts_with("sudo sh -c 'apt-get update && "), "{command}");
        assert!(command.ends_with(" xorriso mtools'"), "{command}");
    }
}
