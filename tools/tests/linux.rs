//! Runs `perf record` in Debian's Linux on the monitor, and compares the results of perf's own decoder and of ours with
//! the monitor's log.
//!
//! ```sh
//! PUGMARK_LONG=1 cargo test -p pugmark-tools --test linux -- --nocapture     # the whole table
//! ```

use anyhow::{Result, ensure};
use pugmark_harness::linux::packages::{self, Packages};
use pugmark_harness::linux::verify::{Verified, Verify, all, short};
use std::path::PathBuf;

/// Finds the requirements for booting Linux; otherwise reports that the test is skipped.
fn find() -> Option<Verify> {
    let mut packages = Packages { no_install: true, tell: &mut |_| {} };
    let perf = PathBuf::from("/usr/bin/perf");
    let found = packages.kernel().and_then(|kernel| Ok((kernel, packages.busybox()?)));
    let Ok((kernel, busybox)) = found else {
        println!("skipped: Debian's Linux is not installed");
        return None;
    };
    if !perf.exists() {
        println!("skipped: perf is not installed");
        return None;
    }
    let (pugmark, kept) = (env!("CARGO_BIN_EXE_pugmark").into(), packages::folder().join("wrong"));
    Some(Verify { kernel, busybox, perf, pugmark, kept })
}

#[test]
fn what_perf_and_pugmark_decode_of_programs_in_linux_is_what_retired() -> Result<()> {
    let Some(verify) = find() else { return Ok(()) };
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    verify.run(&if long { all() } else { short() }, |row, result| match result {
        Ok(Verified { compared, bytes, .. }) => {
            println!("{row}: {compared} are the truth's, {bytes} bytes");
        }
        Err(error) => wrong.push(format!("{row}: {error:#}")),
    })?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
