//! The images under test: cargo builds them into its target folder.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::esp;
use crate::symbols::Symbols;

/// The two images: the guest kernel and the monitor below it.
#[derive(Clone, Debug)]
pub struct Images {
    /// The kernel that traces itself.
    pub guest: PathBuf,
    /// The monitor.
    pub monitor: PathBuf,
}

impl Images {
    /// Builds both images, optimised, once per process, and returns their paths.
    ///
    /// # Errors
    /// If the build fails.
    pub fn build() -> Result<Self> {
        static BUILT: OnceLock<Result<Images, String>> = OnceLock::new();
        BUILT
            .get_or_init(|| Self::build_now().map_err(|error| format!("{error:#}")))
            .clone()
            .map_err(anyhow::Error::msg)
    }

    fn build_now() -> Result<Self> {
        let manifest = workspace().join("Cargo.toml");
        let guest = cargo_build(&manifest, &["--release", "-p", "pugmark-boot", "--bins"])?;
        Ok(Self { guest: guest.join("pugmark-boot"), monitor: build_monitor()? })
    }

    /// Reads the guest kernel's symbols.
    ///
    /// # Errors
    /// If the image cannot be read.
    pub fn guest_symbols(&self) -> Result<Symbols> {
        Symbols::read(&self.guest)
    }
}

/// The profile of the workspace's manifest for the monitor.
const MONITOR: &str = "monitor";

/// Builds the monitor, and returns its path.
///
/// # Errors
/// If the build fails.
pub fn build_monitor() -> Result<PathBuf> {
    let manifest = workspace().join("Cargo.toml");
    let folder = cargo_build(&manifest, &["--profile", MONITOR, "-p", "pugmark-monitor", "--bins"])?;
    Ok(folder.join("pugmark-monitor"))
}

/// Builds the foreign kernel, which is a workspace of its own, and returns its path.
///
/// # Errors
/// If the build fails.
pub fn build_foreign_kernel() -> Result<PathBuf> {
    let manifest = workspace().join("lab/harness/foreign-kernel/Cargo.toml");
    let target = target_folder().join("foreign-kernel");
    let target = target.to_str().context("the target folder's name is no UTF-8")?;
    Ok(cargo_build(&manifest, &["--release", "--target-dir", target])?.join("foreign-kernel"))
}

/// Builds `pugmark`, the host's program, and returns its path.
///
/// # Errors
/// If the build fails.
pub fn build_pugmark() -> Result<PathBuf> {
    let manifest = workspace().join("Cargo.toml");
    Ok(cargo_build(&manifest, &["--release", "-p", "pugmark-tools", "--bin", "pugmark"])?.join("pugmark"))
}

/// Builds our libipt, and returns its path.
///
/// # Errors
/// If the build fails.
pub fn build_libipt() -> Result<PathBuf> {
    let manifest = workspace().join("Cargo.toml");
    Ok(cargo_build(&manifest, &["--release", "-p", "pugmark-capi"])?.join("libipt.so"))
}

/// The example kernels, in the order in which they are best read; each is a folder in `lab/examples/`.
pub const EXAMPLES: [&str; 10] =
    ["snapshot", "panic", "live", "lossless", "fuzz-target", "threads", "async", "c", "uefi", "limine"];

/// The examples that UEFI firmware boots from a disk: by itself, and by Limine.
pub const BY_FIRMWARE: [&str; 2] = ["uefi", "limine"];

/// Returns the target of an example that firmware boots.
#[must_use]
pub fn firmware_target(name: &str) -> &'static str {
    if name == BY_FIRMWARE[0] { "x86_64-unknown-uefi" } else { "x86_64-unknown-none" }
}

/// Returns the reason for which an example that firmware boots cannot be built or booted here, if there is one.
#[must_use]
pub fn missing_for(name: &str) -> Option<String> {
    let target = firmware_target(name);
    let libraries = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let is_there =
        libraries.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).exists());
    if !is_there {
        return Some(format!("the toolchain has no {target} (`rustup target add {target}`)"));
    }
    let loader = if name == BY_FIRMWARE[1] { esp::limine().err() } else { None };
    loader.map(|error| error.to_string()).or_else(|| esp::missing_firmware().map(str::to_owned))
}

/// Builds the example kernels, which are a workspace of their own but for the one in C and those of
/// [`BY_FIRMWARE`], and returns the path of the one with this name.
///
/// # Errors
/// If the build fails.
pub fn build_example(name: &str) -> Result<PathBuf> {
    if name == "c" {
        return build_example_in_c();
    }
    let manifest = workspace().join("lab/examples/Cargo.toml");
    let target = target_folder().join("example-kernels");
    let folder = target.to_str().context("the target folder's name is no UTF-8")?;
    let arguments = ["--release", "--target-dir", folder];
    if BY_FIRMWARE.contains(&name) {
        let (manifest, on) =
            (workspace().join(format!("lab/examples/{name}/Cargo.toml")), firmware_target(name));
        cargo_build(&manifest, &[&arguments[..], &["--target", on]].concat())?;
        let suffix = if name == BY_FIRMWARE[0] { ".efi" } else { "" };
        return Ok(target.join(on).join(format!("release/{name}-kernel{suffix}")));
    }
    Ok(cargo_build(&manifest, &arguments)?.join(name))
}

/// Builds the driver's library for kernels in C, and returns the path of the static library.
///
/// # Errors
/// If the build fails.
pub fn build_library_for_c() -> Result<PathBuf> {
    let manifest = workspace().join("Cargo.toml");
    let package = ["--release", "-p", "pugmark-kernel-c", "--features", "panic-handler"];
    let arguments = [&package[..], &["--crate-type", "staticlib"]].concat();
    Ok(cargo_command("rustc", &manifest, &arguments)?.join("libpugmark_kernel_c.a"))
}

/// Builds the example in C as its table says, and returns its path.
fn build_example_in_c() -> Result<PathBuf> {
    let library = build_library_for_c()?;
    let folder = target_folder().join("example-kernels");
    std::fs::create_dir_all(&folder)?;
    let image = folder.join("c");
    let output = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-nostdlib", "-static"])
        .args(["-fno-pic", "-no-pie", "-fno-stack-protector", "-fcf-protection=none", "-mno-red-zone"])
        .args(["-Wl,--build-id=none,--gc-sections", "-I../../kernel/c", "-I../machine/src", "-Tkernel.ld"])
        .args(["c/src/start.S", "c/src/machine.c", "c/src/main.c"])
        .arg(library)
        .arg("-o")
        .arg(&image)
        .current_dir(workspace().join("lab/examples"))
        .output()
        .context("cannot start cc")?;
    ensure!(output.status.success(), "cc failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(image)
}

/// Returns the workspace's root.
#[must_use]
pub fn workspace() -> PathBuf {
    workspace_of(std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from))
}

/// Returns the workspace of the package that cargo runs, which is in the folder `running`; otherwise the workspace in
/// which this program was built. The two differ if a tree was copied with its target folder: cargo does not rebuild the
/// copy, so the program still contains the path of the original.
fn workspace_of(running: Option<PathBuf>) -> PathBuf {
    let root = |package: &Path| {
        package
            .ancestors()
            .find(|folder| folder.join("lab/harness/Cargo.toml").is_file())
            .map(Path::to_path_buf)
    };
    running
        .and_then(|package| root(&package))
        .or_else(|| root(Path::new(env!("CARGO_MANIFEST_DIR"))))
        .unwrap_or_default()
}

/// Returns the folder into which cargo builds.
#[must_use]
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Runs `cargo build` and returns the folder of the binaries.
fn cargo_build(manifest: &Path, arguments: &[&str]) -> Result<PathBuf> {
    cargo_command("build", manifest, arguments)
}

/// Runs a command of cargo that builds, and returns the folder of the binaries.
fn cargo_command(command: &str, manifest: &Path, arguments: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([command, "--quiet", "--locked", "--manifest-path"])
        .arg(manifest)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cargo {command} {} failed:\n{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    let target = arguments.iter().position(|argument| *argument == "--target-dir");
    let target = target.map_or_else(target_folder, |position| PathBuf::from(arguments[position + 1]));
    let profile = arguments.iter().position(|argument| *argument == "--profile");
    Ok(target.join(profile.map_or("release", |position| arguments[position + 1])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_copied_tree_is_its_own_workspace() {
        let built = workspace_of(None);
        assert!(built.join("lab/harness/Cargo.toml").is_file());
        let copy = Scratch::new().unwrap();
        let package = copy.folder().join("xtask");
        // Not a copy yet: another project's package may run this.
        assert_eq!(workspace_of(Some(package.clone())), built);
        std::fs::create_dir_all(copy.folder().join("lab/harness")).unwrap();
        std::fs::write(copy.folder().join("lab/harness/Cargo.toml"), "").unwrap();
        assert_eq!(workspace_of(Some(package)), copy.folder());
    }
}
