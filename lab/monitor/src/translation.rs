//! Finds instructions after which cached address translations may be stale.

/// Returns whether an instruction with these bytes may flush the processor's translations: MOV to a control register,
/// INVLPG, INVPCID, WRMSR and the like. A few other instructions also return true, which only costs time.
#[must_use]
pub fn may_change(bytes: &[u8]) -> bool {
    let prefix = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let start = bytes.iter().position(|byte| !prefix(byte)).unwrap_or(bytes.len());
    match bytes[start..] {
        [0x0f, 0x22 | 0x30, ..] => true,
        [0x0f, 0x01, modrm, ..] => modrm >> 3 & 7 == 7,
        [0x0f, 0x38, 0x82, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::may_change;

    #[test]
    fn names_what_flushes_translations() {
        let rows: [(&[u8], bool); 10] = [
            (&[0x0f, 0x22, 0xd8], true),             // mov cr3, rax
            (&[0x41, 0x0f, 0x22, 0xd8], true),       // mov cr3, r8
            (&[0x0f, 0x01, 0x38], true),             // invlpg [rax]
            (&[0x67, 0x41, 0x0f, 0x01, 0x3b], true), // invlpg [r11d]
            (&[0x66, 0x0f, 0x38, 0x82, 0x00], true), // invpcid rax, [rax]
            (&[0x0f, 0x30], true),                   // wrmsr
            (&[0x0f, 0x20, 0xd8], false),            // mov rax, cr3
            (&[0x0f, 0x01, 0x18], false),            // lidt [rax]
            (&[0x90], false),
            (&[0x66], false),
        ];
        for (bytes, expected) in rows {
            assert_eq!(may_change(bytes), expected, "{bytes:x?}");
        }
    }
}
