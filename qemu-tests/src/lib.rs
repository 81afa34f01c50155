//! Boots kernel images in QEMU and judges what they did: by the guest's own verdict, and by the log that the monitor
//! below the guest writes of the instructions that really retired (the "truth").
//!
//! ```no_run
//! use pugmark_qemu_tests::{images::Images, judge, machine::Machine};
//!
//! # fn main() -> anyhow::Result<()> {
//! let images = Images::build()?;
//! let outcome = Machine::on_monitor(&images, "profile=skylake", "only=sort").run(|line| println!("{line}"))?;
//! for run in &outcome.transcript.runs {
//!     let verdict = judge::judge(run, &outcome.truth, &images.guest_symbols()?)?;
//!     println!("{}: {verdict}", run.name);
//! }
//! # Ok(())
//! # }
//! ```

pub mod agreement;
pub mod amd_matrix;
pub mod branch_matrix;
pub mod branches;
pub mod code;
pub mod conduct;
pub mod counts;
pub mod exec_log;
pub mod filter;
pub mod images;
pub mod instructions;
pub mod judge;
pub mod last;
pub mod libipt;
pub mod libipt_speed;
pub mod machine;
pub mod matrix;
pub mod patience;
pub mod precise;
pub mod report;
pub mod samples;
pub mod scratch;
pub mod store_matrix;
pub mod sweep;
pub mod symbols;
#[cfg(test)]
mod testing;
pub mod traces;
pub mod truth;
#[cfg(test)]
mod verdicts;
pub mod witness;
