//! Tests ptdump and ptxed as replacements of libipt's programs.

mod ptdump;
mod ptxed;
mod run;
mod scenarios;
mod sideband;
mod triggers;
mod vectors;
