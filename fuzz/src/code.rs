//! Code, chosen by input bytes.

use arbitrary::{Result, Unstructured};

/// Maximum number of bytes of a piece of code.
const LONGEST: usize = 256;

/// Instructions that change control flow or cause events, with their operands zero or omitted.
const HEADS: [&[u8]; 30] = [
    &[0x90],
    &[0xe8, 0, 0, 0, 0],
    &[0xc3],
    &[0xc2, 8, 0],
    &[0xff, 0xd0],
    &[0xff, 0xe0],
    &[0xff, 0x15, 0, 0, 0, 0],
    &[0x0f, 0x05],
    &[0x48, 0x0f, 0x07],
    &[0x48, 0xcf],
    &[0xcc],
    &[0xcd, 0x80],
    &[0x0f, 0x22, 0xd8],
    &[0x0f, 0x01, 0xc2],
    &[0x0f, 0x01, 0xc3],
    &[0x0f, 0xc7, 0x33],
    &[0xf3, 0x0f, 0xae, 0xe0],
    &[0xf3, 0x0f, 0x01, 0xec],
    &[0x0f, 0x0b],
    &[0x48, 0xff, 0x2d, 0, 0, 0, 0],
    &[0x48, 0xff, 0x1d, 0, 0, 0, 0],
    &[0xcb],
    &[0xc7, 0xf8, 0, 0, 0, 0],
    &[0x0f, 0x01, 0xd5],
    &[0xf4],
    &[0x0f, 0x30],
    &[0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0],
    &[0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1],
    &[0x0f, 0xff],
];

/// Makes code: branches within it, instructions that cause events, and arbitrary bytes.
///
/// # Errors
/// If there are not enough bytes to choose with.
pub fn made(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut code = vec![];
    let count = u.int_in_range(1..=48)?;
    for _ in 0..count {
        match u.int_in_range(0..=11)? {
            0..=2 => code.extend([0x70 + u.int_in_range(0..=15)?, u.arbitrary()?]),
            3 => code.extend([0xeb, u.arbitrary()?]),
            4 => {
                code.push(if u.arbitrary()? { 0xe8 } else { 0xe9 });
                code.extend(i32::from(u.arbitrary::<i8>()?).to_le_bytes());
            }
            5 => code.extend(u.arbitrary::<[u8; 3]>()?),
            6..=7 => code.extend([0x83, 0xc0, 1]),
            _ => code.extend(*u.choose(&HEADS)?),
        }
    }
    code.truncate(LONGEST);
    Ok(code)
}
