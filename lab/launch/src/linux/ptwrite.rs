//! The guest's program `ptwrite`, which writes numbers into its own trace.

/// Number of values, from 0.
pub const COUNT: u64 = 500;

/// Executes PTWRITE with each number below [`COUNT`], in ascending order.
pub(super) const CODE: &[u8] = &[
    0x31, 0xc9, // xor ecx, ecx
    0xf3, 0x48, 0x0f, 0xae, 0xe1, // next: ptwrite rcx
    0xff, 0xc1, // inc ecx
    0x81, 0xf9, 0xf4, 0x01, 0x00, 0x00, // cmp ecx, 500
    0x75, 0xf1, // jne next
    0x31, 0xff, // xor edi, edi
    0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60: exit
    0x0f, 0x05, // syscall
];
