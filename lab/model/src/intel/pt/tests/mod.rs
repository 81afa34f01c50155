//! Intel Processor Trace through a processor's registers: instructions in, packets and PMIs out.

mod branches;
mod event_trace;
mod events;
mod filtering;
mod init;
mod maintenance;
mod output;
mod overflow;
mod pmi;
mod power_and_ptwrite;
mod psb;
mod timing;
