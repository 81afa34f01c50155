//! `cargo xtask sanitize`: the tests of libipt.so.2 with AddressSanitizer, which notices each access outside an
//! allocation, or after its end, in code that C programs call and that maps files.

use anyhow::Result;
use pugmark_qemu_tests::images::target_folder;

use crate::nightly;

/// The test program exports the sanitizer's functions, because the shared library that it loads has none of its own.
const FLAGS: &str = "-Zsanitizer=address -Clink-arg=-rdynamic";

/// The tests load libraries and never unload them, which is no leak.
const OPTIONS: &str = "detect_leaks=0:abort_on_error=1";

/// The target is named, so that build scripts and procedural macros, which the compiler loads, are built without.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs the library's unit tests, and those that hold each of its functions against libipt's.
pub(crate) fn sanitize() -> Result<()> {
    let toolchain = toolchain().map_err(anyhow::Error::msg)?;
    let folder = target_folder().join("sanitize").display().to_string();
    let build = ["test", "--locked", "--target", TARGET, "--target-dir", &folder];
    let tests = ["--package", "pugmark-capi", "--lib", "--test", "beside_libipt"];
    let environment = [("RUSTFLAGS", FLAGS), ("ASAN_OPTIONS", OPTIONS)];
    nightly::cargo(&toolchain, &[&build[..], &tests].concat(), &environment)
}

/// Does the same. Returns why not, if the machine has no nightly toolchain.
pub(crate) fn in_ci() -> Result<Option<String>> {
    match toolchain() {
        Ok(_) => sanitize().map(|()| None),
        Err(reason) => Ok(Some(format!("AddressSanitizer: {reason}"))),
    }
}

/// A toolchain that is as new as the one with Miri: an old one does not build the workspace.
fn toolchain() -> Result<String, String> {
    nightly::with_components(&["miri", "rust-src"])
}
