//! `cargo xtask bare`: this tree on a bare Debian system, used by a newcomer according to README.

use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_harness::images::{target_folder, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::setup::{self, SetupOptions};

/// The packages that README assumes, beside rustup: a C linker, and git for the tree.
const PACKAGES: &str = "gcc,libc6-dev,git,ca-certificates";
/// The home folder in the system, which has the tree.
const HOME: &str = "root";
const TREE: &str = "root/pugmark";
/// The programs of rustup, the crates, and the choice of a toolchain, in the home folder.
const RUSTUP: [&str; 3] = [".cargo/bin", ".cargo/registry", ".rustup/settings.toml"];
/// The certificates that the machine's administrator trusts beside Debian's, as those of a proxy.
const CERTIFICATES: &str = "usr/local/share/ca-certificates";
/// Folders of the machine that the system sees, too.
const SHARED: [&str; 3] = ["proc", "sys", "dev"];

#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask bare                                  README's two commands on Debian 13
  cargo xtask bare --release bookworm run           one of them on Debian 12
  cargo xtask bare \"linux -- perf stat true\" \"test tests/qemu_log\"")]
pub(crate) struct BareOptions {
    #[command(flatten)]
    setup: SetupOptions,
    /// Debian's name of the release
    #[arg(long, value_name = "NAME", default_value = "trixie")]
    release: String,
    /// The archive with Debian's packages
    #[arg(long, value_name = "ADDRESS", default_value = "http://deb.debian.org/debian")]
    mirror: String,
    /// Make the system anew, even if it is there
    #[arg(long)]
    fresh: bool,
    /// Commands of `cargo xtask` to run there, each with its arguments
    #[arg(default_values = ["run", "test"])]
    commands: Vec<String>,
}

/// Makes the system, clones this tree's last commit into it, and runs the commands there.
pub(crate) fn bare(options: &BareOptions) -> Result<ExitCode> {
    setup::prepare_bare(options.setup.no_install)?;
    let root = target_folder().join("bare").join(&options.release);
    if options.fresh && root.exists() {
        remove(&root)?;
    }
    if !root.join("etc/debian_version").exists() {
        make(&root, &options.release, &options.mirror)?;
    }
    take_toolchain(&root)?;
    update_tree(&root)?;
    let mut failed = false;
    for command in &options.commands {
        let begin = Instant::now();
        let status = run(&root, command)?;
        let (seconds, release) = (begin.elapsed().as_secs(), &options.release);
        println!(
            "bare {release}: cargo xtask {command}: {status}, {}:{:02} minutes",
            seconds / 60,
            seconds % 60
        );
        failed |= !status.success();
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Makes a system with only the packages that README assumes.
fn make(root: &Path, release: &str, mirror: &str) -> Result<()> {
    let folder = root.parent().context("the system has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = Command::new("mmdebstrap");
    command.args(["--variant=minbase", &format!("--include={PACKAGES}"), release]).arg(root).arg(mirror);
    succeed(&mut command)?;
    let resolver = fs::read("/etc/resolv.conf").context("cannot read /etc/resolv.conf")?;
    fs::write(root.join("etc/resolv.conf"), resolver).context("cannot write the system's resolv.conf")?;
    trust_certificates(root)
}

/// Copies the machine's trusted certificates into the system, which needs them behind a proxy with its own certificate.
fn trust_certificates(root: &Path) -> Result<()> {
    let own = Path::new("/").join(CERTIFICATES);
    if !own.exists() {
        return Ok(());
    }
    succeed(Command::new("cp").args(["-a", "-T"]).arg(own).arg(root.join(CERTIFICATES)))?;
    succeed(Command::new("chroot").arg(root).arg("update-ca-certificates"))
}

/// Removes a system. Nothing of the machine is mounted there: [`run`] mounts in its own namespace.
fn remove(root: &Path) -> Result<()> {
    fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))
}

/// Copies rustup, the toolchain in use, and the crates that cargo has downloaded: the system need not download them
/// again.
fn take_toolchain(root: &Path) -> Result<()> {
    let home = std::env::home_dir().context("HOME is not set")?;
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(workspace()).output();
    let sysroot = PathBuf::from(String::from_utf8(output.context("cannot start rustc")?.stdout)?.trim_end());
    for from in RUSTUP.map(|path| home.join(path)).into_iter().chain([sysroot]) {
        let path = from.strip_prefix(&home).context("the toolchain is not one of rustup's")?;
        let to = root.join(HOME).join(path);
        if !to.exists() {
            let folder = to.parent().context("it has no folder")?;
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            succeed(Command::new("cp").arg("-a").arg(&from).arg(&to))?;
        }
    }
    Ok(())
}

/// Brings this tree's last commit into the system. Build products there are kept.
fn update_tree(root: &Path) -> Result<()> {
    let tree = root.join(TREE);
    let git = |folder: &Path| {
        let mut git = Command::new("git");
        git.arg("-C").arg(folder);
        git
    };
    if !tree.exists() {
        succeed(Command::new("git").args(["clone", "--quiet"]).arg(workspace()).arg(&tree))?;
    }
    succeed(git(&tree).args(["fetch", "--quiet"]).arg(workspace()).arg("HEAD"))?;
    succeed(git(&tree).args(["reset", "--quiet", "--hard", "FETCH_HEAD"]))
}

/// Runs a command of `cargo xtask` in the system, in a namespace in which the machine's folders are mounted there.
fn run(root: &Path, command: &str) -> Result<std::process::ExitStatus> {
    let script = in_system(root, command);
    println!("$ {script}");
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-ec", &script]);
    unshare.status().context("cannot start unshare")
}

/// Returns the script that mounts, and changes into the system.
fn in_system(root: &Path, command: &str) -> String {
    let root = root.display();
    let mounts = SHARED.map(|folder| format!("mount --rbind /{folder} {root}/{folder}")).join("; ");
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    format!(
        "{mounts}; exec env -i HOME=/{HOME} TERM=dumb PATH=/{HOME}/.cargo/bin:{path} chroot {root} \
         sh -ec 'cd /{TREE}; exec cargo xtask {command}'"
    )
}

/// Runs a command that must succeed.
fn succeed(command: &mut Command) -> Result<()> {
    println!("$ {command:?}");
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_in_the_system_with_the_machines_folders() {
        let script = in_system(&PathBuf::from("/t/bare/trixie"), "run --only sort");
        assert!(
            script.starts_with("mount --rbind /proc /t/bare/trixie/proc; mount --rbind /sys "),
            "{script}"
        );
        assert!(
            script.ends_with(&format!("sh -ec 'cd /{TREE}; exec cargo xtask run --only sort'")),
            "{script}"
        );
    }
}
