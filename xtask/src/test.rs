//! `cargo xtask test`.

use crate::cargo::cargo;
use crate::{Done, SetupOptions, setup};

/// Runs every test there is: unit, model, host integration, QEMU and documentation tests.
///
/// The QEMU tests come last and one at a time: each boots a machine that keeps both cores busy.
pub(crate) fn test(options: SetupOptions) -> Done {
    setup::prepare(options.no_install)?;
    cargo(&["test", "--workspace", "--exclude", "pugmark-qemu-tests"], &[])?;
    cargo(&["test", "--package", "pugmark-qemu-tests", "--", "--test-threads", "1", "--nocapture"], &[])
}
