//! The files of a release: static programs, the Debian package, and the crates as they would be published.

use anyhow::{Context, Result, ensure};
use pugmark_builds::cargo::{cargo, headline};
use pugmark_harness::images::{target_folder, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{DOCUMENTS, PACKAGES, debian_package, dry_publish};
use crate::setup::{self, SetupOptions};

/// The target of static programs, which any x86-64 Linux starts.
const STATIC: &str = "x86_64-unknown-linux-musl";
const PROGRAMS: [&str; 3] = ["pugmark", "ptdump", "ptxed"];

/// Makes all files of a release in `target/release-files`, with their SHA-256 sums, and starts the static program in a
/// folder that has nothing else, which needs root.
pub(super) fn release(setup: SetupOptions) -> Result<()> {
    let files = target_folder().join("release-files");
    if files.exists() {
        fs::remove_dir_all(&files).with_context(|| format!("cannot remove {}", files.display()))?;
    }
    fs::create_dir_all(&files)?;
    dry_publish()?;
    let package = debian_package(setup)?;
    let name = package.file_name().context("cargo-deb names no file")?;
    fs::copy(&package, files.join(name)).with_context(|| format!("cannot copy {}", package.display()))?;
    static_programs(setup, &files)?;
    headline("the sums");
    let sums = "sha256sum * > SHA256SUMS && cat SHA256SUMS";
    ensure!(
        Command::new("sh").args(["-c", sums]).current_dir(&files).status()?.success(),
        "sha256sum failed"
    );
    println!("{} has the files of the release", files.display());
    Ok(())
}

/// Packs the static programs with the rest of the Debian package's files, in folders for a prefix such as `/usr/local`.
fn static_programs(setup: SetupOptions, files: &Path) -> Result<()> {
    setup::require_targets(&[STATIC], setup.no_install)?;
    cargo(&[&["build", "--locked", "--release", "--target", STATIC], &PACKAGES[..]].concat(), &[])?;
    let target = target_folder();
    let name = format!("pugmark-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let folder = target.join("static").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let place = |path: &str| -> Result<PathBuf> {
        let path = folder.join(path);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    };
    let bin = place("bin")?;
    for program in PROGRAMS {
        super::strip(&target.join(STATIC).join("release").join(program), &bin.join(program))?;
    }
    let documents = target.join(DOCUMENTS);
    for (from, to) in [
        ("pugmark-monitor", "lib/pugmark"),
        ("man/.", "share/man/man1"),
        ("pugmark", "share/bash-completion/completions"),
        ("pugmark.fish", "share/fish/vendor_completions.d"),
        ("_pugmark", "share/zsh/vendor-completions"),
        ("licences.txt", "share/doc/pugmark"),
    ] {
        let copied = Command::new("cp").arg("-r").arg(documents.join(from)).arg(place(to)?).status()?;
        ensure!(copied.success(), "cannot copy {from}");
    }
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(workspace().join(file), folder.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    start_alone(&bin)?;
    let archive = files.join(format!("{name}.tar.gz"));
    let parent = folder.parent().context("the folder has no parent")?;
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "-C"]).arg(parent).arg("-czf").arg(&archive).arg(&name);
    ensure!(tar.status().context("cannot start tar")?.success(), "tar failed");
    Ok(())
}

/// Starts each program with the folder as its root: no library of the system is there.
fn start_alone(folder: &Path) -> Result<()> {
    for program in PROGRAMS {
        let mut alone = Command::new("chroot");
        alone.arg(folder).arg(format!("/{program}")).arg("--version");
        let output = alone.output().context("cannot start chroot")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} does not start alone, as root: {error}");
        print!("alone: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
