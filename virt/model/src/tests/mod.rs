//! The model as a whole: MSR writes and instructions in, memory and packets out.

mod branch_store;
mod branches;
mod counters;
mod debug_store;
mod event_trace;
mod events;
mod filtering;
mod last_branches;
mod machine;
mod output;
mod overflow;
mod pmi;
mod power_and_ptwrite;
mod psb;
mod registers;
mod samples;
mod save_area;
mod timing;
