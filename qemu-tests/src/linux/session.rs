//! The guest's program `session`, which tells the monitor what the log's records from here on belong to.

/// Where the program is in memory.
const ADDRESS: u64 = 0x40_0000;
/// The sizes of an ELF file's header and of one program header.
const HEADERS: [u64; 2] = [64, 56];

/// `session N`: asks Linux for the monitor's port (ioperm), and writes N to it. Ends with status 0 if it may.
const CODE: &[u8] = &[
    0x48, 0x8b, 0x74, 0x24, 0x10, // mov rsi, [rsp + 16]: the first argument
    0x31, 0xdb, // xor ebx, ebx
    0x0f, 0xb6, 0x06, // next: movzx eax, byte [rsi]
    0x2c, 0x30, // sub al, '0'
    0x72, 0x0a, // jb end
    0x6b, 0xdb, 0x0a, // imul ebx, ebx, 10
    0x01, 0xc3, // add ebx, eax
    0x48, 0xff, 0xc6, // inc rsi
    0xeb, 0xef, // jmp next
    0xbf, 0x00, 0xe7, 0x00, 0x00, // end: mov edi, 0xe700
    0xbe, 0x04, 0x00, 0x00, 0x00, // mov esi, 4
    0xba, 0x01, 0x00, 0x00, 0x00, // mov edx, 1
    0xb8, 0xad, 0x00, 0x00, 0x00, // mov eax, 173: ioperm
    0x0f, 0x05, // syscall
    0x85, 0xc0, // test eax, eax
    0x75, 0x0a, // jnz exit
    0xba, 0x00, 0xe7, 0x00, 0x00, // mov edx, 0xe700
    0x89, 0xd8, // mov eax, ebx
    0xef, // out dx, eax
    0x31, 0xc0, // xor eax, eax
    0x89, 0xc7, // exit: mov edi, eax
    0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60: exit
    0x0f, 0x05, // syscall
];

/// The program as an ELF file for Linux.
pub(super) fn program() -> Vec<u8> {
    let [header, program_header] = HEADERS;
    let size = header + program_header + CODE.len() as u64;
    // 64 bits, little-endian, an executable for x86-64.
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for field in [ADDRESS + header + program_header, header, 0] {
        file.extend(field.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for field in [header as u16, program_header as u16, 1, 64, 0, 0] {
        file.extend(field.to_le_bytes());
    }
    // One segment to load, that can be read and executed: the whole file.
    for field in [1u32, 5] {
        file.extend(field.to_le_bytes());
    }
    for field in [0, ADDRESS, ADDRESS, size, size, 0x1000] {
        file.extend(field.to_le_bytes());
    }
    file.extend(CODE);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSegment};

    #[test]
    fn the_program_is_an_elf_file_that_begins_with_the_code() {
        let bytes = program();
        let file = object::File::parse(&bytes[..]).unwrap();
        let segment = file.segments().next().unwrap();
        let at = (file.entry() - segment.address()) as usize;
        assert_eq!(segment.data().unwrap()[at..], *CODE);
        assert_eq!(segment.size(), bytes.len() as u64);
    }
}
