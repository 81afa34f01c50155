//! Joint work of several processors, each traced by Intel PT. The harness judges each of these by a test of its own, so
//! they run only if the command line names them, each in a machine of its own.

mod dense;
mod migration;
mod ping_pong;
mod sinks;
mod traces;

use pugmark_boot::command_line::CommandLine;
use pugmark_boot::symbols::Symbols;

use crate::runner::RunError;

/// The arguments of an SMP workload.
pub(crate) struct SmpWorkload<'a> {
    pub(crate) symbols: &'a Symbols<'a>,
    pub(crate) command_line: &'a CommandLine<'a>,
    /// Receives the name and the result of each run.
    pub(crate) report: &'a (dyn Fn(&str, Result<(), RunError>) + Sync),
}

/// The function that runs an SMP workload.
type Run = fn(&SmpWorkload<'_>);

/// All SMP workloads, with their names.
pub(crate) const ALL: [(&str, Run); 4] = [
    ("dense", dense::run),
    ("migration", migration::run),
    ("ping-pong", ping_pong::run),
    ("sinks", sinks::run),
];
