//! Branch records, and the flow that they describe.

extern crate std;

mod flow;
mod records;

use std::{vec, vec::Vec};

use super::{BranchRecord, Layout};

fn record(from: u64, to: u64) -> BranchRecord {
    BranchRecord { from, to, predicted: false }
}

fn bytes_of(records: &[(u64, u64)], layout: Layout) -> Vec<u8> {
    let mut bytes = vec![0; records.len() * layout.record_bytes()];
    for (out, &(from, to)) in bytes.chunks_exact_mut(layout.record_bytes()).zip(records) {
        record(from, to).emit(layout, out).expect("a record fits");
    }
    bytes
}
