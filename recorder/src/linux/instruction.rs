//! Instructions that stepping must treat specially.

use pugmark_model::ExecMode;

/// A step that is not simply one instruction of the program that retires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    /// A string instruction with a REP prefix, which is stepped iteration by iteration.
    Repeat,
    /// SYSCALL or SYSENTER.
    SystemCall,
    /// INT n or INT3.
    Interrupt {
        /// Its vector.
        vector: u8,
    },
    /// PUSHF, which pushes the flag that stepping has set.
    PushFlags,
    /// POPF.
    PopFlags {
        /// True if it pops 16 bits.
        short: bool,
    },
    /// MOV to SS: the next instruction is stepped together with it.
    LoadsSs,
    /// An instruction that can load CS.
    Far,
}

impl Special {
    /// Returns the kind of the instruction that begins with `bytes`.
    pub(super) fn of(bytes: &[u8], mode: ExecMode) -> Option<Self> {
        let rex = |byte: u8| mode == ExecMode::Bits64 && byte & 0xf0 == 0x40;
        let prefix = |byte: u8| {
            matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3) || rex(byte)
        };
        let begin = bytes.iter().position(|&byte| !prefix(byte))?;
        let (prefixes, opcode) = bytes.split_at(begin);
        let repeated = prefixes.iter().any(|byte| matches!(byte, 0xf2 | 0xf3));
        match *opcode {
            [0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf, ..] if repeated => Some(Self::Repeat),
            [0x0f, 0x05 | 0x34, ..] => Some(Self::SystemCall),
            [0xcc, ..] => Some(Self::Interrupt { vector: 3 }),
            [0xcd, vector, ..] => Some(Self::Interrupt { vector }),
            [0x9c, ..] => Some(Self::PushFlags),
            [0x9d, ..] => Some(Self::PopFlags { short: prefixes.contains(&0x66) }),
            [0x8e, modrm, ..] if modrm >> 3 & 7 == 2 => Some(Self::LoadsSs),
            [0xca | 0xcb | 0xcf | 0xea | 0x9a, ..] => Some(Self::Far),
            [0xff, modrm, ..] if matches!(modrm >> 3 & 7, 3 | 5) => Some(Self::Far),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ExecMode::{Bits32, Bits64};

    #[test]
    fn knows_them_after_prefixes() {
        let rows: [(ExecMode, &[u8], Option<Special>); 22] = [
            (Bits64, &[0xf3, 0xa4], Some(Special::Repeat)),
            (Bits64, &[0xf3, 0x48, 0xa5], Some(Special::Repeat)),
            (Bits64, &[0x66, 0xf2, 0xaf], Some(Special::Repeat)),
            (Bits64, &[0xa4], None),
            (Bits64, &[0xf3, 0xc3], None),
            (Bits64, &[0x0f, 0x05], Some(Special::SystemCall)),
            (Bits32, &[0x0f, 0x34], Some(Special::SystemCall)),
            (Bits64, &[0x0f, 0x06], None),
            (Bits64, &[0xcc], Some(Special::Interrupt { vector: 3 })),
            (Bits32, &[0xcd, 0x80], Some(Special::Interrupt { vector: 0x80 })),
            (Bits64, &[0x9c], Some(Special::PushFlags)),
            (Bits64, &[0x9d], Some(Special::PopFlags { short: false })),
            (Bits32, &[0x66, 0x9d], Some(Special::PopFlags { short: true })),
            (Bits64, &[0x8e, 0xd0], Some(Special::LoadsSs)),
            (Bits64, &[0x8e, 0xd8], None),
            (Bits64, &[0x48, 0xcb], Some(Special::Far)),
            (Bits64, &[0xff, 0x2c, 0x24], Some(Special::Far)),
            (Bits64, &[0xff, 0xe0], None),
            // 0x40 is INC EAX in 32-bit mode and a REX prefix in 64-bit mode.
            (Bits32, &[0x40, 0x9c], None),
            (Bits64, &[0x40, 0x9c], Some(Special::PushFlags)),
            (Bits64, &[0x66, 0x66], None),
            (Bits64, &[], None),
        ];
        for (mode, bytes, expected) in rows {
            assert_eq!(Special::of(bytes, mode), expected, "{bytes:02x?}");
        }
    }
}
