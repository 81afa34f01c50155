//! Instructions at which the clocks of threads meet.

/// Returns true if threads hand something over by this instruction, or wait for it: a locked instruction, XCHG with
/// memory, PAUSE. What comes after it in one thread is later than what came before it in another: the clocks of threads
/// meet here.
pub(super) fn meets_threads(instruction: &[u8]) -> bool {
    const LOCK: u8 = 0xf0;
    const REPEAT: u8 = 0xf3;
    let is_prefix =
        |byte: u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let prefixes = instruction.iter().take_while(|byte| is_prefix(**byte)).count();
    let (prefixes, opcode) = instruction.split_at(prefixes);
    match opcode {
        [0x86 | 0x87, modrm, ..] if modrm >> 6 != 3 => true,
        [0x90, ..] if prefixes.contains(&REPEAT) => true,
        _ => prefixes.contains(&LOCK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_meet_at_locked_instructions_and_where_they_spin() {
        let rows: [(&[u8], bool); 14] = [
            // lock cmpxchg [rdi], ecx; with REX.W; with a segment before it
            (&[0xf0, 0x0f, 0xb1, 0x0f], true),
            (&[0xf0, 0x48, 0x0f, 0xb1, 0x0f], true),
            (&[0x64, 0xf0, 0xff, 0x0f], true),
            // xchg [rdi], eax; xchg [rdi], al; xchg edi, eax
            (&[0x87, 0x07], true),
            (&[0x86, 0x07], true),
            (&[0x48, 0x87, 0x07], true),
            (&[0x87, 0xc7], false),
            // pause; nop; rep ret
            (&[0xf3, 0x90], true),
            (&[0x90], false),
            (&[0xf3, 0xc3], false),
            // mov [rdi], eax; its displacement looks like the prefix
            (&[0x89, 0x07], false),
            (&[0x8b, 0x47, 0xf0], false),
            (&[0xf0], true),
            (&[], false),
        ];
        for (bytes, meets) in rows {
            assert_eq!(meets_threads(bytes), meets, "{bytes:02x?}");
        }
    }
}
