//! `cargo xtask ci`.

use crate::cargo::cargo;
use crate::{Done, SetupOptions, test};

/// Format, lints and documentation with warnings denied, then all tests.
pub(crate) fn ci(options: SetupOptions) -> Done {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    cargo(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    test::test(options)
}
