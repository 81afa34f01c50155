//! The model as a whole: MSR writes and instructions in, memory and packets out.

mod branches;
mod event_trace;
mod events;
mod filtering;
mod machine;
mod output;
mod overflow;
mod pmi;
mod power_and_ptwrite;
mod psb;
mod registers;
mod timing;
