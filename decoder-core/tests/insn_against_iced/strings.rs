//! Byte strings that are likely to be instructions, and real code.

use fastrand::Rng;
use pugmark_decoder_core::mode::ExecMode;

/// Prefixes. Those that change a length are listed more often.
const PREFIXES: [u8; 14] =
    [0x66, 0x66, 0x66, 0x67, 0x67, 0xf2, 0xf3, 0xf3, 0xf0, 0x2e, 0x65, 0x40, 0x48, 0x4f];

/// Escapes that are too rare in random bytes.
const ESCAPES: [&[u8]; 12] = [
    &[0x0f],
    &[0x0f],
    &[0x0f],
    &[0x0f, 0x38],
    &[0x0f, 0x3a],
    &[0x0f, 0x0f],
    &[0x0f, 0x01],
    &[0xc4],
    &[0xc5],
    &[0x62],
    &[0x8f],
    &[0xd5],
];

/// A reproducible series of strings.
pub(crate) struct Strings {
    rng: Rng,
}

impl Strings {
    /// Creates the series of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed) }
    }

    /// Returns the next string, and an address for it that `mode` allows.
    pub(crate) fn next(&mut self, mode: ExecMode) -> ([u8; 20], u64) {
        let rng = &mut self.rng;
        let mut bytes = [0; 20];
        rng.fill(&mut bytes);
        let mut at = 0;
        // Some strings have too many prefixes, which makes them too long.
        let more = if rng.u8(..) == 0 { 230 } else { 90 };
        while at < 14 && rng.u8(..) < more {
            bytes[at] = PREFIXES[rng.usize(..PREFIXES.len())];
            at += 1;
        }
        if rng.u8(..) < 150 {
            let escape = ESCAPES[rng.usize(..ESCAPES.len())];
            bytes[at..at + escape.len()].copy_from_slice(escape);
            at += escape.len();
            // Plausible maps for the vector prefixes.
            if matches!(escape[0], 0x62 | 0xc4 | 0x8f) && rng.bool() {
                let map = if escape[0] == 0x8f { 8 + rng.u8(..3) } else { 1 + rng.u8(..7) };
                bytes[at] = rng.u8(..) & if escape[0] == 0x62 { 0xf0 } else { 0xe0 } | map;
            }
        }
        let ip = match mode {
            ExecMode::Bits16 => rng.u16(..).into(),
            ExecMode::Bits32 => rng.u32(..).into(),
            ExecMode::Bits64 => rng.u64(..),
        };
        (bytes, ip)
    }
}

/// Iterates over the executable sections of this test and of the programs in /usr/bin.
pub(crate) fn texts() -> impl Iterator<Item = Vec<u8>> {
    let this = std::env::current_exe().ok();
    let mut others: Vec<_> =
        std::fs::read_dir("/usr/bin").into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    others.sort();
    this.into_iter()
        .chain(others)
        .filter_map(|path| std::fs::read(path).ok())
        .flat_map(|file| executable(&file))
}

/// Returns the bytes of an x86-64 ELF file's executable segments.
fn executable(file: &[u8]) -> Vec<Vec<u8>> {
    const PT_LOAD: u32 = 1;
    const PF_X: u32 = 1;
    let u64_at = |at: usize| Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?) as usize);
    let u32_at = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    let u16_at = |at: usize| Some(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?) as usize);
    if !file.starts_with(b"\x7fELF\x02\x01") || u16_at(18) != Some(62) {
        return Vec::new();
    }
    let segment = |index: usize| {
        let header = u64_at(32)? + index * u16_at(54)?;
        let code = u32_at(header)? == PT_LOAD && u32_at(header + 4)? & PF_X != 0;
        let (offset, size) = (u64_at(header + 8)?, u64_at(header + 32)?);
        if code { file.get(offset..offset + size).map(<[u8]>::to_vec) } else { None }
    };
    (0..u16_at(56).unwrap_or(0)).filter_map(segment).collect()
}
