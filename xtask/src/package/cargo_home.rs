//! A home for cargo in which no package of the workspace was unpacked yet, and a target folder without them.
//!
//! To build a package that depends on another one of the workspace, cargo puts that one into a registry in the target
//! folder. From there cargo unpacks it into its home, once for each version, and builds it once, because a package of a
//! registry never changes: a later build would use the stale package.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Makes a home beside a target folder, with everything in the user's own except packages from such registries, and
/// forgets what was built of ours in the target folder. Returns the home.
pub(crate) fn fresh_cargo_home(target: &Path) -> io::Result<PathBuf> {
    for built in fs::read_dir(target.join("debug/.fingerprint")).into_iter().flatten().flatten() {
        if built.file_name().to_string_lossy().starts_with("pugmark-") {
            fs::remove_dir_all(built.path())?;
        }
    }
    let folder = target.with_extension("cargo-home");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let own = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let own = own.ok_or_else(|| io::Error::other("neither CARGO_HOME nor HOME is set"))?;
    // A registry without a host is a folder.
    link(&own, &folder, &|name| name != "registry")?;
    link(&own.join("registry"), &folder.join("registry"), &|name| name != "src")?;
    link(&own.join("registry/src"), &folder.join("registry/src"), &|name| !name.starts_with('-'))?;
    Ok(folder)
}

/// Links the contents of a folder into a new one.
fn link(from: &Path, to: &Path, is_wanted: &dyn Fn(&str) -> bool) -> io::Result<()> {
    fs::create_dir_all(to)?;
    if !from.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if is_wanted(&entry.file_name().to_string_lossy()) {
            symlink(std::path::absolute(entry.path())?, to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
