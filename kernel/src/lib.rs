//! See the package description.
#![no_std]
