//! Debian's packages for guests, downloaded and unpacked into cargo's target folder: nothing is installed.

use pugmark_launch::linux::Packages;
use std::path::PathBuf;

use crate::images::target_folder;

/// Packages with guests that tests boot. Debian 13 has another version of Xen.
pub const GUESTS: [&str; 3] = ["memtest86+", "ipxe", "xen-hypervisor-4.17-amd64"];

/// Returns the folder with the files that a Linux guest needs.
#[must_use]
pub fn folder() -> PathBuf {
    target_folder().join("linux")
}

/// Returns the packages in that folder, and those that can be downloaded into it unless `no_install`.
#[must_use]
pub fn packages(no_install: bool) -> Packages {
    Packages { folder: folder(), no_install, tell: |command| println!("{command}") }
}
