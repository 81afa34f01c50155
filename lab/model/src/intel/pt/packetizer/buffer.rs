//! The internal buffer: packet bytes that have not been written to memory.

/// The buffer's size: room for the largest capacity that can be set and for the largest burst of one event.
const SIZE: usize = 4096;

/// A ring of bytes.
#[derive(Debug)]
pub(crate) struct InternalBuffer {
    bytes: [u8; SIZE],
    start: usize,
    len: usize,
}

impl InternalBuffer {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; SIZE], start: 0, len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Appends `bytes`. If they do not fit, appends nothing and returns false.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        if self.len + bytes.len() > SIZE {
            return false;
        }
        let place = (self.start + self.len) % SIZE;
        self.len += bytes.len();
        if let Some(room) = self.bytes[place..].get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
        } else {
            let (before, after) = bytes.split_at(SIZE - place);
            self.bytes[place..].copy_from_slice(before);
            self.bytes[..after.len()].copy_from_slice(after);
        }
        true
    }

    /// Returns the oldest bytes: at most `most`, and only those in one contiguous piece.
    pub(crate) fn oldest_bytes(&self, most: usize) -> &[u8] {
        let len = self.len.min(most).min(SIZE - self.start);
        &self.bytes[self.start..self.start + len]
    }

    /// Removes the oldest `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        let count = count.min(self.len);
        self.start = (self.start + count) % SIZE;
        self.len -= count;
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_across_its_end_and_refuses_what_does_not_fit() {
        let mut buffer = InternalBuffer::new();
        let mut next_in = 0u8;
        let mut next_out = 0u8;
        for _ in 0..2000 {
            let chunk: [u8; 7] = core::array::from_fn(|i| next_in.wrapping_add(i as u8));
            assert!(buffer.push(&chunk));
            next_in = next_in.wrapping_add(7);
            while buffer.len() > 3 {
                let front = buffer.oldest_bytes(5);
                let len = front.len();
                for &byte in front {
                    assert_eq!(byte, next_out);
                    next_out = next_out.wrapping_add(1);
                }
                buffer.consume(len);
            }
        }
        buffer.clear();
        assert!(buffer.push(&[0; SIZE]));
        assert!(!buffer.push(&[0]));
    }
}
