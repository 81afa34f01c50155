//! What is decoded for the measurement.

use pugmark_qemu_tests::libipt_speed::FileSection;

/// A trace and its code.
pub(super) struct Load {
    pub(super) name: String,
    pub(super) trace: Vec<u8>,
    pub(super) code: Vec<(u64, Vec<u8>)>,
    pub(super) files: Vec<FileSection>,
}
