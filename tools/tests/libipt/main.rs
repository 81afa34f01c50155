//! ptdump and ptxed as programs that stand in for libipt's.

mod ptdump;
mod ptxed;
mod run;
mod scenarios;
mod sideband;
mod triggers;
mod vectors;
