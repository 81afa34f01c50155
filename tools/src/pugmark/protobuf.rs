//! Messages of protocol buffers, as some formats of profiles have them.
//!
//! Source: Protocol Buffers, "Encoding".

/// The fields of a message, in order.
#[derive(Default)]
pub(super) struct Message(pub(super) Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Adds a number.
    pub(super) fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    /// Adds a string or another message.
    pub(super) fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_as_many_groups_of_seven_bits_as_it_needs() {
        // 150 and 300 are the examples of Protocol Buffers, "Encoding".
        let rows: [(u64, &[u8]); 7] = [
            (0, b"\x00"),
            (1, b"\x01"),
            (127, b"\x7f"),
            (128, b"\x80\x01"),
            (150, b"\x96\x01"),
            (300, b"\xac\x02"),
            (u64::MAX, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ];
        for (value, bytes) in rows {
            let mut message = Message::default();
            message.varint(value);
            assert_eq!(message.0, bytes, "{value}");
        }
        // The examples' messages: field 1 is 150; field 2 is the text "testing".
        assert_eq!(Message::default().number(1, 150).0, b"\x08\x96\x01");
        assert_eq!(Message::default().bytes(2, b"testing").0, b"\x12\x07testing");
    }
}
