//! The program that the emulator executes when it is asked what it does.
//!
//! It says in which order the emulator gives a program its environment: its exit status is the first letter of its
//! first variable.

use super::shared;
use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
};

/// Names of variables that come before and after all others, as long as these begin with letters.
pub(super) const FIRST: &str = "!";
pub(super) const LAST: &str = "~";

/// Where the program is loaded.
const BASE: u64 = 0x40_0000;
const HEADERS: usize = 64 + 56;
/// mov rax, [rsp] (the number of arguments); mov rdi, [rsp + 8*rax + 16] (the first variable, after them and a null);
/// movzx edi, byte [rdi]; mov eax, 60 (exit); syscall
const CODE: [u8; 19] =
    [0x48, 0x8b, 0x04, 0x24, 0x48, 0x8b, 0x7c, 0xc4, 0x10, 0x0f, 0xb6, 0x3f, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];

/// Makes the program, in a file without a name.
pub(super) fn program() -> io::Result<File> {
    let mut file = shared::file(c"pugmark-probe")?;
    file.write_all(&elf())?;
    file.set_permissions(PermissionsExt::from_mode(0o700))?;
    Ok(file)
}

/// Returns an executable file of one segment. Source: System V ABI, "Object Files" and "Program Loading".
fn elf() -> Vec<u8> {
    let size = (HEADERS + CODE.len()) as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // ET_EXEC, EM_X86_64, EV_CURRENT; the entry, and where the program headers are.
    [2_u16, 62].iter().for_each(|half| elf.extend(half.to_le_bytes()));
    elf.extend(1_u32.to_le_bytes());
    [BASE + HEADERS as u64, 64, 0].iter().for_each(|word| elf.extend(word.to_le_bytes()));
    elf.extend(0_u32.to_le_bytes());
    // Sizes and numbers of headers; there are no sections.
    [64_u16, 56, 1, 64, 0, 0].iter().for_each(|half| elf.extend(half.to_le_bytes()));
    // PT_LOAD, readable and executable.
    [1_u32, 5].iter().for_each(|half| elf.extend(half.to_le_bytes()));
    [0, BASE, BASE, size, size, 0x1000].iter().for_each(|word| elf.extend(word.to_le_bytes()));
    elf.extend(CODE);
    elf
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_program_says_which_variable_it_has_got_first() {
        let program = program().unwrap();
        for (variables, expected) in [([FIRST, "A"], FIRST), (["A", LAST], "A")] {
            let mut command = Command::new(shared::path(&program));
            let status = command.env_clear().envs(variables.map(|name| (name, ""))).status().unwrap();
            assert_eq!(status.code(), Some(expected.as_bytes()[0].into()), "{variables:?}");
        }
    }
}
