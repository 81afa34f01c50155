//! Boots kernel images in QEMU and judges their runs: by the guest's own verdict, and by the log (the "truth") of the
//! instructions that really retired, written by the monitor below the guest.
//!
//! ```no_run
//! use pugmark_harness::expected::check;
//! use pugmark_harness::images::Images;
//! use pugmark_harness::judge::{Evidence, Source};
//! use pugmark_harness::machine::Machine;
//!
//! # fn main() -> anyhow::Result<()> {
//! let images = Images::build()?;
//! let symbols = images.guest_symbols()?;
//! let outcome = Machine::on_monitor(&images, "profile=skylake", "only=sort").run(|line| println!("{line}"))?;
//! for run in &outcome.transcript.runs {
//!     let evidence = Evidence { run, truth: &outcome.truth, symbols: &symbols, image: &images.guest };
//!     match check(Source::Pt, "skylake", &evidence)? {
//!         Some(verdict) => println!("{}: {verdict}", run.name),
//!         None => println!("{}: declined, as expected", run.name),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod agreement;
pub mod boots;
pub mod cd;
pub mod code;
pub mod esp;
pub mod examples;
pub mod exec_log;
pub mod expected;
pub mod filter;
pub mod images;
pub mod instructions;
pub mod judge;
pub mod libipt;
pub mod libipt_speed;
pub mod linux;
pub mod machine;
pub mod qemu_log;
pub mod report;
pub mod sweep;
pub mod symbols;
#[cfg(test)]
mod testing;
pub mod traces;
pub mod violations;
pub mod workloads;

pub use pugmark_launch::{qemu, scratch, time_limits, truth};
