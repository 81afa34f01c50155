//! Behaviour that involves more than one unit, tested through the registers.

mod accesses;
mod branches;
mod counters;
mod cpuid;
mod errata;
mod fetch_sampling;
mod interrupts;
mod machine;
mod northbridge;
mod op_sampling;
mod registers;
mod second_controls;
