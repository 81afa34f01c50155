//! `cargo xtask ci`.

use crate::cargo::cargo;
use crate::{Done, SetupOptions, test};

/// Format, lints and documentation with warnings denied, then all tests.
pub(crate) fn ci(options: SetupOptions) -> Done {
    // The kernel that is not ours is a workspace of its own.
    for manifest in ["Cargo.toml", "qemu-tests/foreign-kernel/Cargo.toml"] {
        cargo(&["fmt", "--all", "--check", "--manifest-path", manifest], &[])?;
    }
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    cargo(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    test::test(options)
}
