//! `cargo xtask deny`: checks licences, sources and known faults of the dependencies with cargo-deny and `deny.toml`.

use anyhow::{Context, Result};
use pugmark_builds::cargo::{cargo, command};
use std::process::Stdio;

use crate::setup::{self, SetupOptions};

/// Checks everything; installs cargo-deny unless `no_install` is set.
pub(crate) fn deny(options: SetupOptions) -> Result<()> {
    setup::prepare_deny(options.no_install)?;
    cargo(&["deny", "--locked", "check", "licenses", "bans", "sources"], &[])?;
    // The advisories are on a server.
    let fetched = command(&["deny", "--locked", "fetch", "db"])
        .stderr(Stdio::null())
        .status()
        .context("cannot start cargo")?
        .success();
    if fetched {
        cargo(&["deny", "--locked", "check", "--disable-fetch", "advisories"], &[])
    } else {
        println!("advisories: not checked, their list cannot be fetched");
        Ok(())
    }
}

/// Checks the same if cargo-deny is installed; building it takes longer than the tests.
pub(crate) fn deny_if_there() -> Result<()> {
    if setup::has_deny() {
        return deny(SetupOptions { no_install: true });
    }
    println!(
        "licences and advisories: not checked, cargo-deny is not installed (`cargo xtask deny` installs it)"
    );
    Ok(())
}
