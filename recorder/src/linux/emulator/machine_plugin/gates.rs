//! The handlers of interrupts and exceptions, as the guest's interrupt descriptor table names them.
//!
//! Source: SDM vol. 3, Interrupt and Exception Handling, "IDT Descriptors", "64-Bit Mode IDT"; for real-address mode
//! the chapter 8086 Emulation, "Interrupt and Exception Handling".

use super::state::State;
use std::collections::HashMap;

/// The bit of a gate's second word that says that the gate is present.
const PRESENT: u64 = 1 << 47;
/// The number of vectors.
const VECTORS: usize = 256;
/// The vectors of exceptions that push an error code.
const WITH_ERROR_CODE: [u16; 10] = [8, 10, 11, 12, 13, 14, 17, 21, 29, 30];
/// The vector of a handler that several vectors share.
pub(super) const SEVERAL: u16 = VECTORS as u16;

/// The handlers as they were read last.
#[derive(Default)]
pub(super) struct Gates {
    table: Vec<u8>,
    kind: (bool, bool),
    vectors: HashMap<u64, u16>,
}

impl Gates {
    /// Reads the table again, if it is there. `read` reads the guest's memory.
    pub(super) fn refresh(&mut self, state: &State, read: impl Fn(u64, &mut [u8]) -> bool) {
        let Some((base, limit)) = state.idt else { return };
        let kind = (state.protected, state.long);
        let size = VECTORS * entry_bytes(kind);
        let mut table = vec![0; size.min(limit as usize + 1)];
        if !read(base, &mut table) || (self.table == table && self.kind == kind) {
            return;
        }
        self.vectors.clear();
        for (vector, entry) in (0..).zip(table.chunks_exact(entry_bytes(kind))) {
            if let Some(handler) = handler(entry) {
                self.vectors.entry(handler).and_modify(|known| *known = SEVERAL).or_insert(vector);
            }
        }
        (self.table, self.kind) = (table, kind);
    }

    /// Returns the vector of the handler at a linear address, or [`SEVERAL`]; `None` if there is no handler.
    pub(super) fn vector(&self, address: u64) -> Option<u16> {
        self.vectors.get(&address).copied()
    }
}

/// Returns true if an exception with this vector pushes an error code.
pub(super) fn pushes_error_code(state: &State, vector: u16) -> bool {
    state.protected && WITH_ERROR_CODE.contains(&vector)
}

fn entry_bytes((protected, long): (bool, bool)) -> usize {
    match (protected, long) {
        (_, true) => 16,
        (true, false) => 8,
        (false, false) => 4,
    }
}

/// Returns the linear address of a handler; segments other than those of real-address mode are taken to begin at 0.
fn handler(entry: &[u8]) -> Option<u64> {
    let word = |at: usize| u64::from(entry[at]) | u64::from(entry[at + 1]) << 8;
    if let [_, _, _, _] = entry {
        return Some((word(2) << 4) + word(0));
    }
    let gate = u64::from_le_bytes(*entry.first_chunk()?);
    let upper = entry
        .get(8..12)
        .map_or(0, |upper| u64::from_le_bytes([0, 0, 0, 0, upper[0], upper[1], upper[2], upper[3]]));
    (gate & PRESENT != 0).then_some(upper | gate >> 32 & 0xffff_0000 | gate & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_are_found_in_each_form_of_the_table() {
        let real = [0x57, 0xef, 0x00, 0xf0].to_vec();
        let gate = |offset: u64| {
            let half = offset & 0xffff | 0x10 << 16 | (offset >> 16 & 0xffff) << 48 | 0x8e << 40;
            half.to_le_bytes().to_vec()
        };
        let long = |offset: u64| [gate(offset & 0xffff_ffff), (offset >> 32).to_le_bytes().to_vec()].concat();
        let state = |protected, long, entry: u64| State {
            protected,
            long,
            idt: Some((0x1000, 2 * entry - 1)),
            ..State::default()
        };
        for (state, entries, handler) in [
            (state(false, false, 4), [vec![0; 4], real], 0xf_ef57),
            (state(true, false, 8), [vec![0; 8], gate(0xc012_3456)], 0xc012_3456),
            (state(true, true, 16), [vec![0; 16], long(0xffff_ffff_8160_0ab0)], 0xffff_ffff_8160_0ab0),
        ] {
            let table = entries.concat();
            let mut gates = Gates::default();
            gates.refresh(&state, |address, bytes| {
                bytes.copy_from_slice(&table);
                address == 0x1000
            });
            assert_eq!((gates.vector(handler), gates.vector(handler + 1)), (Some(1), None), "{state:?}");
            // The first gate is not present; in real-address mode there is no such bit.
            assert_eq!(gates.vector(0), (!state.protected).then_some(0));
            // A table that cannot be read stays as it was.
            gates.refresh(&State { idt: Some((0, 7)), ..state }, |_, _| false);
            assert_eq!(gates.vector(handler), Some(1));
        }
    }

    #[test]
    fn a_handler_of_several_vectors_has_none_of_its_own() {
        let state = State { idt: Some((0, 0x3ff)), ..State::default() };
        let mut gates = Gates::default();
        gates.refresh(&state, |_, bytes| {
            bytes.chunks_mut(4).for_each(|entry| entry.copy_from_slice(&[0x53, 0xff, 0x00, 0xf0]));
            true
        });
        assert_eq!(gates.vector(0xf_ff53), Some(SEVERAL));
        assert!(!pushes_error_code(&state, 13) && pushes_error_code(&State { protected: true, ..state }, 13));
    }
}
