//! The driver on the model of AMD's processors: counters and Instruction Based Sampling.

mod counters;
mod faults;
mod ibs;
mod interrupts;
mod machine;
