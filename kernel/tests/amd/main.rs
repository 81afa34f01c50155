//! The driver on the model of AMD's processors: counters, Instruction Based Sampling, last branches.

mod accesses;
mod branches;
mod counters;
mod faults;
mod ibs;
mod interrupts;
mod machine;
mod turned_off;
mod unwinding;
