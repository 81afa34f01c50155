//! The state of a virtual processor and the memory of its guest, as the emulator itself can show them.
//!
//! The plugin interface gives no registers before version 2, and never the base and mode of a code segment, nor where
//! the interrupt descriptor table is. The emulator's own `cpu_dump_state`, which its monitor's `info registers` prints,
//! has all of them, and QEMU exports it.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

use super::super::api::function;

type FindProcessor = extern "C" fn(c_int) -> *mut c_void;
type Dump = extern "C" fn(*mut c_void, *mut c_void, c_int);

/// The functions of the emulator that are not in the plugin interface.
pub(super) struct Machine {
    processor: FindProcessor,
    dump: Dump,
    access: extern "C" fn(*mut c_void, u64, *mut u8, usize, bool) -> c_int,
}

unsafe extern "C" {
    fn open_memstream(text: *mut *mut c_char, size: *mut usize) -> *mut c_void;
    fn fclose(file: *mut c_void) -> c_int;
    fn free(memory: *mut c_void);
}

impl Machine {
    /// Finds the functions; `None` if this QEMU does not export them.
    #[allow(clippy::missing_transmute_annotations, reason = "each field has its type above")]
    pub(super) fn find() -> Option<Self> {
        let (processor, dump) = (function(c"qemu_get_cpu")?, function(c"cpu_dump_state")?);
        let access = function(c"cpu_memory_rw_debug")?;
        Some(Self {
            // SAFETY: QEMU declares the function with this type.
            processor: unsafe { std::mem::transmute(processor) },
            // SAFETY: as above.
            dump: unsafe { std::mem::transmute(dump) },
            // SAFETY: as above.
            access: unsafe { std::mem::transmute(access) },
        })
    }

    /// Returns true if virtual processors run on threads of their own, unless it is known that they do not.
    pub(super) fn has_threads() -> bool {
        // SAFETY: QEMU declares a variable of this type, which no longer changes.
        function(c"mttcg_enabled").is_none_or(|enabled| unsafe { *enabled.cast::<bool>() })
    }

    /// Reads the state of a virtual processor, which must be that of the calling thread, between two blocks.
    pub(super) fn state(&self, index: c_uint) -> State {
        shown(self.processor, self.dump, index).map(|text| State::parse(&text)).unwrap_or_default()
    }

    /// Reads memory of the guest at a linear address. Returns false if it is not mapped.
    pub(super) fn read(&self, index: c_uint, address: u64, bytes: &mut [u8]) -> bool {
        let processor = (self.processor)(index.cast_signed());
        !processor.is_null() && (self.access)(processor, address, bytes.as_mut_ptr(), bytes.len(), false) == 0
    }
}

/// Returns the registers of a virtual processor in words, if this QEMU exports the functions. It must be the calling
/// thread's, and execute nothing now.
#[allow(clippy::missing_transmute_annotations, reason = "each variable has its type")]
pub(in super::super) fn text(index: c_uint) -> Option<String> {
    // SAFETY: QEMU declares the function with this type.
    let processor: FindProcessor = unsafe { std::mem::transmute(function(c"qemu_get_cpu")?) };
    // SAFETY: as above.
    let dump: Dump = unsafe { std::mem::transmute(function(c"cpu_dump_state")?) };
    shown(processor, dump, index)
}

/// Lets the emulator print a virtual processor's registers.
fn shown(processor: FindProcessor, dump: Dump, index: c_uint) -> Option<String> {
    let processor = processor(index.cast_signed());
    let (mut text, mut size) = (null_mut(), 0);
    // SAFETY: fills in two variables, which live until the file is closed.
    let file = unsafe { open_memstream(&raw mut text, &raw mut size) };
    if processor.is_null() || file.is_null() {
        return None;
    }
    dump(processor, file, 0);
    // SAFETY: the file is open, and this closes it.
    unsafe { fclose(file) };
    // SAFETY: closing has put a text there that ends with a zero.
    let shown = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: the text is the caller's, and nobody has it any more.
    unsafe { free(text.cast()) };
    Some(shown)
}

/// The registers that decide how code is executed, and where interrupts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Bits of an instruction's default size: 16, 32 or 64.
    pub(super) bits: u8,
    pub(super) cpl: u8,
    pub(super) cs_base: u64,
    /// The linear address of the top of the stack.
    pub(super) stack: u64,
    pub(super) cr3: u64,
    /// The interrupt descriptor table: base and limit; `None` in compatibility mode, where QEMU prints half a base.
    pub(super) idt: Option<(u64, u64)>,
    /// CR0.PE.
    pub(super) protected: bool,
    /// IA32_EFER.LMA.
    pub(super) long: bool,
}

/// Bits of the second half of a segment descriptor: L, D/B. Source: SDM vol. 3, Protected-Mode Memory Management,
/// "Segment Descriptors".
const LONG: u64 = 1 << 21;
const BIG: u64 = 1 << 22;
const PE: u64 = 1;
const LMA: u64 = 1 << 10;

impl State {
    /// Reads the text of QEMU's `info registers`.
    fn parse(text: &str) -> Self {
        let value = |name: &str| number(text, name).first().copied().unwrap_or_default();
        let segment = |name: &str| match number(text, name)[..] {
            [_, base, _, flags] => (base, flags),
            _ => (0, 0),
        };
        let ((cs_base, cs), (ss_base, ss)) = (segment("CS ="), segment("SS ="));
        let idt = number(text, "IDT=");
        let (protected, long) = (value("CR0=") & PE != 0, value("EFER=") & LMA != 0);
        let bits = match (long && cs & LONG != 0, cs & BIG != 0) {
            (true, _) => 64,
            (false, true) => 32,
            (false, false) => 16,
        };
        let stack = match bits {
            64 => value("RSP="),
            _ => {
                let pointer = value("ESP=");
                let mask = if ss & BIG != 0 { 0xffff_ffff } else { 0xffff };
                (ss_base + (pointer & mask)) & 0xffff_ffff
            }
        };
        Self {
            bits,
            cpl: value("CPL=") as u8 & 3,
            cs_base: if bits == 64 { 0 } else { cs_base },
            stack,
            cr3: value("CR3="),
            idt: idt.first().copied().zip(idt.get(1).copied()).filter(|_| bits == 64 || !long),
            protected,
            long,
        }
    }
}

/// Returns up to four hexadecimal numbers that follow a name.
fn number(text: &str, name: &str) -> Vec<u64> {
    let Some((_, rest)) = text.split_once(name) else { return vec![] };
    let line = rest.lines().next().unwrap_or_default();
    line.split_whitespace().map_while(|word| u64::from_str_radix(word, 16).ok()).take(4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_read_in_each_mode() {
        let reset = "EAX=00000000 EBX=00000000\nESI=00000000 EDI=00000000 EBP=00000000 ESP=00006ffe\n\
            EIP=0000fff0 EFL=00000002 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0\n\
            CS =f000 ffff0000 0000ffff 00009b00\nSS =0700 00007000 0000ffff 00009300\n\
            GDT=     00000000 0000ffff\nIDT=     00000000 0000ffff\n\
            CR0=60000010 CR2=00000000 CR3=00000000 CR4=00000000\nEFER=0000000000000000\n";
        let long = "RAX=0000000000000001 RSP=ffffc90000013f58\nRIP=ffffffff81000000 RFL=00000046 [---Z-P-] CPL=0 II=0\n\
            CS =0010 0000000000000000 ffffffff 00af9b00 DPL=0 CS64 [-RA]\n\
            SS =0018 0000000000000000 ffffffff 00cf9300 DPL=0 DS   [-WA]\n\
            IDT=     fffffe0000000000 00000fff\n\
            CR0=80050033 CR2=0000000000000000 CR3=0000000002a0c000 CR4=000006b0\nEFER=0000000000000d01\n";
        let protected = "ESP=00007000\nCPL=3\nCS =001b 00010000 ffffffff 00cffa00 DPL=3 CS32 [-R-]\n\
            SS =0023 00020000 ffffffff 00cff300 DPL=3 DS   [-WA]\nIDT=     00018000 000007ff\n\
            CR0=80000011 CR3=00010000\nEFER=0000000000000000\n";
        let state = |bits, cpl, cs_base, stack, cr3, idt, protected, long| State {
            bits,
            cpl,
            cs_base,
            stack,
            cr3,
            idt,
            protected,
            long,
        };
        let rows = [
            (reset, state(16, 0, 0xffff_0000, 0xdffe, 0, Some((0, 0xffff)), false, false)),
            (
                long,
                state(
                    64,
                    0,
                    0,
                    0xffff_c900_0001_3f58,
                    0x2a0_c000,
                    Some((0xffff_fe00_0000_0000, 0xfff)),
                    true,
                    true,
                ),
            ),
            (protected, state(32, 3, 0x1_0000, 0x2_7000, 0x1_0000, Some((0x1_8000, 0x7ff)), true, false)),
        ];
        for (text, expected) in rows {
            assert_eq!(State::parse(text), expected);
        }
        // In compatibility mode QEMU prints the lower half of the table's base.
        let compatible = protected.replace("EFER=0000000000000000", "EFER=0000000000000500");
        assert_eq!(State::parse(&compatible).idt, None);
        assert_eq!(State::parse("").bits, 16);
    }
}
