//! Starts QEMU with the monitor below a guest, and reads the monitor's log.
//!
//! ```no_run
//! use pugmark_launch::boot::{Boot, BootSource, Console};
//! use pugmark_launch::scratch::Scratch;
//!
//! # fn main() -> anyhow::Result<()> {
//! let boot = Boot {
//!     monitor: "/usr/lib/pugmark/pugmark-monitor".into(),
//!     options: "profile=skylake".into(),
//!     source: BootSource::Cdrom("system.iso".into()),
//!     uefi: false,
//!     recorder: vec![],
//!     processors: 1,
//!     memory: 256,
//!     logs_each: false,
//!     limit: None,
//!     arguments: vec![],
//! };
//! let booted = boot.run(&Scratch::new()?, Console::Terminal, || false, |line| eprintln!("{line}"))?;
//! for sum in booted.truth.summed() {
//!     println!("processor {}, level {}: {} instructions", sum.cpu, sum.cpl, sum.instructions);
//! }
//! # Ok(())
//! # }
//! ```

pub mod boot;
pub mod layout;
pub mod linux;
pub mod linux_kernel;
pub mod monitor_lines;
pub mod process;
pub mod qemu;
pub mod scratch;
pub mod time_limits;
pub mod truth;
mod uefi;
