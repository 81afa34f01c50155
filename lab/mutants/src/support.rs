//! The crate that instrumented code queries at each place. `cargo xtask mutants` writes it into the copy of the
//! workspace and appends the number of places; it is not part of the workspace itself.
//!
//! After the first query of a place, one byte answers further ones, so that instrumented code is hardly slower. In
//! constants no mutant is ever chosen: the compiler evaluates them before a choice is possible.
#![feature(core_intrinsics, const_eval_select)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// For each place, 1 if it is known to be unchanged.
static UNCHANGED: [AtomicU8; PLACES] = [const { AtomicU8::new(0) }; PLACES];
static CHOICE: OnceLock<Choice> = OnceLock::new();

struct Choice {
    /// The place, and the number of its mutant.
    mutant: Option<(u32, u8)>,
    /// The file with a byte for each place, set at its first query. All processes write into the same file.
    reached: Option<File>,
}

/// Returns the chosen mutant of the place, counted from 1; 0 if none is chosen.
#[inline(always)]
pub const fn at(place: u32) -> u8 {
    std::intrinsics::const_eval_select((place,), in_a_constant, in_a_run)
}

const fn in_a_constant(_: u32) -> u8 {
    0
}

#[inline(always)]
fn in_a_run(place: u32) -> u8 {
    if UNCHANGED[place as usize].load(Ordering::Relaxed) == 1 { 0 } else { ask(place) }
}

#[cold]
#[inline(never)]
fn ask(place: u32) -> u8 {
    let choice = CHOICE.get_or_init(|| {
        let mutant = std::env::var("PUGMARK_MUTANT").ok().and_then(|text| {
            let (place, mutant) = text.split_once(':')?;
            Some((place.parse().ok()?, mutant.parse().ok()?))
        });
        let reached = std::env::var_os("PUGMARK_MUTANTS_REACHED");
        Choice { mutant, reached: reached.and_then(|path| File::options().write(true).open(path).ok()) }
    });
    match choice.mutant {
        Some((chosen, mutant)) if chosen == place => return mutant,
        _ => {}
    }
    UNCHANGED[place as usize].store(1, Ordering::Relaxed);
    if let Some(file) = &choice.reached {
        // A place that could not be noted is reported as not reached, so the loss is visible.
        let _ = file.write_at(&[1], u64::from(place));
    }
    0
}
