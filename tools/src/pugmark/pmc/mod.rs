//! `pugmark pmc`: programs AMD's performance counters (PMCs) by libpfm's event names.
//!
//! `encode`, `list` and `info` correspond to libpfm4, `dispatch` to libpfm3.

mod batch;
mod dispatch;
mod encode;
mod info;
mod list;
pub(super) mod names;
mod row;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use pugmark_pfm::Levels;

/// The options of `pugmark pmc`.
#[derive(Args, Clone, Debug)]
pub struct PmcCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Print the event select of events, as libpfm4 makes it
    Encode(encode::EncodeOptions),
    /// Print the names of PMUs and processors, or the events of one
    List(list::ListOptions),
    /// Print the unit masks and modifiers of an event
    Info(info::InfoOptions),
    /// Assign events to counters, set up IBS, and print the registers to write, as libpfm3 does
    Dispatch(dispatch::DispatchOptions),
}

/// Runs `pugmark pmc`.
///
/// # Errors
/// libpfm's error, with its name and as text, or an error when the output is written.
pub fn run(command: &PmcCommand) -> Result<()> {
    match &command.action {
        Action::Encode(options) => encode::run(options),
        Action::List(options) => list::run(options),
        Action::Info(options) => info::run(options),
        Action::Dispatch(options) => dispatch::run(options),
    }
}

/// Reads privilege levels as given on the command line: libpfm's mask, or the letters `k`, `u` and `h`.
fn levels(text: &str) -> Result<Levels> {
    if let Some(bits) = number(text) {
        return Ok(Levels::from_bits_retain(bits));
    }
    let mut levels = Levels::empty();
    for letter in text.chars() {
        levels |= match letter {
            'k' => Levels::KERNEL,
            'u' => Levels::USER,
            'h' => Levels::HOST,
            _ => bail!("{letter:?} is not a privilege level: write letters of k, u and h, or a mask"),
        };
    }
    Ok(levels)
}

fn number(text: &str) -> Option<u32> {
    u32::try_from(crate::number::parse(text)?).ok()
}

#[cfg(test)]
mod tests;
