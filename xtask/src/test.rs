//! `cargo xtask test`.

use crate::cargo::cargo;
use crate::{Done, SetupOptions, setup};

/// Runs every test there is: unit, model, host integration, QEMU and documentation tests.
///
/// The QEMU tests come last and two at a time: each boots a machine that keeps one processor busy.
pub(crate) fn test(options: SetupOptions) -> Done {
    setup::prepare(options.no_install)?;
    cargo(&["test", "--workspace", "--exclude", "pugmark-qemu-tests"], &[])?;
    cargo(&["test", "--package", "pugmark-qemu-tests", "--", "--test-threads", "2", "--nocapture"], &[])
}
