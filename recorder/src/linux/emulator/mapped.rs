//! The program's mappings: those of the process except the emulator's own.

use std::{collections::HashSet, fs, sync::OnceLock};

/// Where the mappings begin that were there before the program was.
static OWN: OnceLock<HashSet<Vec<u8>>> = OnceLock::new();

/// Notes the emulator's own mappings, before the program is loaded.
pub(super) fn note_own() {
    let maps = fs::read("/proc/self/maps").unwrap_or_default();
    let _ = OWN.set(maps.split(|byte| *byte == b'\n').map(|line| begin(line).to_vec()).collect());
}

/// Returns the lines of `/proc/self/maps` that are the program's.
pub(super) fn by_program() -> Option<Vec<u8>> {
    let maps = fs::read("/proc/self/maps").ok()?;
    let lines = maps.split_inclusive(|byte| *byte == b'\n');
    Some(
        lines
            .filter(|line| !OWN.get().is_some_and(|own| own.contains(begin(line))))
            .flatten()
            .copied()
            .collect(),
    )
}

/// Returns the address at the begin of a line.
fn begin(line: &[u8]) -> &[u8] {
    line.split(|byte| *byte == b'-').next().unwrap_or_default()
}
