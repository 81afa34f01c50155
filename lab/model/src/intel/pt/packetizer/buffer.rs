//! The internal buffer: packet bytes that have not been written to memory.

/// The buffer's size: room for the largest capacity that can be set and for the largest burst of one event.
const SIZE: usize = 4096;

/// The length of the longest packet.
pub(crate) const PACKET: usize = 16;

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

    /// Appends the first `count` bytes of `packet`. If they do not fit, appends nothing and returns false.
    #[inline]
    pub(crate) fn push(&mut self, packet: &[u8; PACKET], count: usize) -> bool {
        let place = (self.start + self.len) % SIZE;
        // A copy of a fixed length is cheaper; what is too much is overwritten by the next packet.
        if self.len + PACKET <= SIZE
            && let Some(room) = self.bytes[place..].first_chunk_mut()
        {
            *room = *packet;
        } else if self.len + count > SIZE {
            return false;
        } else {
            packet[..count].iter().enumerate().for_each(|(n, byte)| self.bytes[(place + n) % SIZE] = *byte);
        }
        self.len += count;
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
            let chunk = core::array::from_fn(|i| next_in.wrapping_add(i as u8));
            assert!(buffer.push(&chunk, 7));
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
        assert!((0..SIZE / PACKET).all(|_| buffer.push(&[1; PACKET], PACKET)));
        assert!(!buffer.push(&[2; PACKET], 1));
        // A short packet, where a long one does not fit, overwrites nothing that is older.
        buffer.consume(2);
        assert!(buffer.push(&[2; PACKET], 2) && !buffer.push(&[2; PACKET], 1));
        while buffer.len() > 2 {
            let front = buffer.oldest_bytes(buffer.len() - 2);
            let count = front.len();
            assert!(front.iter().all(|byte| *byte == 1));
            buffer.consume(count);
        }
        assert_eq!(buffer.oldest_bytes(2)[0], 2);
    }
}
