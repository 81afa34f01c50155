//! libipt, where it is installed, as a second reader of traces.
//!
//! The library is loaded at run time, so that nothing needs it to build. Debian has it in `libipt2`.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt,
    ptr::NonNull,
    slice,
    sync::OnceLock,
};

/// What libipt made of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// The addresses of the instructions, in order.
    pub addresses: Vec<u64>,
    /// The errors between them. After each, libipt went on at the next PSB.
    pub errors: Vec<DecodeError>,
    /// How many overflows it saw.
    pub overflows: u64,
}

/// An error of libipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Where libipt was in the trace, in bytes.
    pub offset: u64,
    /// How many instructions it had found before.
    pub after: usize,
    /// Its name for what is wrong.
    pub text: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}, after {} instructions: {}", self.offset, self.after, self.text)
    }
}

/// Decodes a trace by libipt's instruction flow decoder, going on at the next PSB after each error.
///
/// `sections` are the code: where it was, and its bytes; a later section hides what is behind it of earlier ones.
/// `None` when libipt is not installed. The number of instructions is limited to [`MOST_INSTRUCTIONS`], because
/// libipt does not see that a loop in the code has no end.
#[must_use]
pub fn decode(trace: &[u8], sections: &[(u64, &[u8])]) -> Option<Decoded> {
    decode_for(None, trace, sections)
}

/// A processor of Intel's by family, model and stepping.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The display family.
    pub family: u16,
    /// The display model.
    pub model: u8,
    /// The stepping.
    pub stepping: u8,
}

/// Code at an address.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Where its first byte is.
    pub base: u64,
    /// The code.
    pub bytes: &'a [u8],
    /// The address space that it is in; none: all.
    pub cr3: Option<u64>,
}

/// Like [`decode`], with the errata of a processor; one that libipt does not know has none.
#[must_use]
pub fn decode_for(cpu: Option<Cpu>, trace: &[u8], sections: &[(u64, &[u8])]) -> Option<Decoded> {
    let section = |&(base, bytes)| Section { base, bytes, cr3: None };
    decode_sections(cpu, trace, &sections.iter().map(section).collect::<Vec<_>>())
}

/// Like [`decode_for`], with code that differs by address space.
#[must_use]
pub fn decode_sections(cpu: Option<Cpu>, trace: &[u8], sections: &[Section<'_>]) -> Option<Decoded> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(Library::load).as_ref()?;
    let sections = Sections(sections);
    Some(Decoder::new(library, cpu, trace, &sections)?.run())
}

/// How many instructions [`decode`] gives at most; then it ends with an error that says so.
pub const MOST_INSTRUCTIONS: usize = 1 << 26;

type DecoderHandle = NonNull<c_void>;
type ReadMemory = unsafe extern "C" fn(*mut u8, usize, *const AddressSpace, u64, *mut c_void) -> c_int;

/// libipt's functions; the signatures are those of intel-pt.h, version 2.
struct Library {
    alloc_decoder: unsafe extern "C" fn(*const Config) -> Option<DecoderHandle>,
    free_decoder: unsafe extern "C" fn(DecoderHandle),
    sync_forward: unsafe extern "C" fn(DecoderHandle) -> c_int,
    get_offset: unsafe extern "C" fn(DecoderHandle, *mut u64) -> c_int,
    get_image: unsafe extern "C" fn(DecoderHandle) -> Option<NonNull<c_void>>,
    set_callback: unsafe extern "C" fn(NonNull<c_void>, Option<ReadMemory>, *const c_void) -> c_int,
    next: unsafe extern "C" fn(DecoderHandle, *mut Insn, usize) -> c_int,
    event: unsafe extern "C" fn(DecoderHandle, *mut Event, usize) -> c_int,
    errstr: unsafe extern "C" fn(c_int) -> *const c_char,
    cpu_errata: unsafe extern "C" fn(*mut [u32; 16], *const VendorCpu) -> c_int,
}

/// `struct pt_config` with its size in front: libipt takes what is missing behind for zero.
#[repr(C)]
struct Config {
    size: usize,
    begin: *const u8,
    end: *const u8,
    callback: usize,
    context: usize,
    cpu: VendorCpu,
    errata: [u32; 16],
}

/// `struct pt_cpu`.
#[repr(C)]
struct VendorCpu {
    vendor: c_int,
    cpu: Cpu,
}

const VENDOR_INTEL: c_int = 1;

/// `struct pt_insn`.
#[repr(C)]
#[derive(Default)]
struct Insn {
    ip: u64,
    isid: c_int,
    mode: c_int,
    class: c_int,
    raw: [u8; 15],
    size: u8,
    flags: u32,
}

/// `struct pt_event`. Not larger than that: libipt 2.0.5 clears the rest of a larger one, but at a wrong address.
#[repr(C)]
#[derive(Default)]
struct Event {
    kind: c_int,
    flags: u32,
    rest: [u64; 7],
}

const EVENT_OVERFLOW: c_int = 6;
const STATUS_EVENT_PENDING: c_int = 1 << 0;
const STATUS_END_OF_STREAM: c_int = 1 << 2;
const ERROR_END_OF_STREAM: c_int = 7;
const ERROR_NO_MEMORY_MAPPED: c_int = 13;

impl Library {
    fn load() -> Option<Self> {
        // SAFETY: libipt has no constructors and no destructors.
        let library = unsafe { libloading::Library::new("libipt.so.2") }.ok()?;
        // Its functions are used to the end of the program, so it is never unloaded.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        /// The function of this name, with the type of the field that it is assigned to.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: intel-pt.h declares the function of this name with this type.
                *unsafe { library.get($name) }.ok()?
            };
        }
        Some(Self {
            alloc_decoder: function!(b"pt_insn_alloc_decoder"),
            free_decoder: function!(b"pt_insn_free_decoder"),
            sync_forward: function!(b"pt_insn_sync_forward"),
            get_offset: function!(b"pt_insn_get_offset"),
            get_image: function!(b"pt_insn_get_image"),
            set_callback: function!(b"pt_image_set_callback"),
            next: function!(b"pt_insn_next"),
            event: function!(b"pt_insn_event"),
            errstr: function!(b"pt_errstr"),
            cpu_errata: function!(b"pt_cpu_errata"),
        })
    }

    fn error_text(&self, status: c_int) -> String {
        // SAFETY: it takes every number.
        let text = unsafe { (self.errstr)(-status) };
        // SAFETY: it returns a string constant of the library, which stays loaded.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// `struct pt_asid`.
#[repr(C)]
struct AddressSpace {
    _size: usize,
    cr3: u64,
    _vmcs: u64,
}

/// The code, as the callback sees it.
struct Sections<'a>(&'a [Section<'a>]);

impl Sections<'_> {
    fn byte(&self, address: u64, cr3: u64) -> Option<u8> {
        let there = |section: &&Section<'_>| section.cr3.is_none_or(|own| own == cr3);
        self.0.iter().rev().filter(there).find_map(|section| {
            let at = usize::try_from(address.checked_sub(section.base)?).ok()?;
            section.bytes.get(at).copied()
        })
    }

    fn read(&self, address: u64, cr3: u64, out: &mut [u8]) -> usize {
        let bytes = (0..).map_while(|at| self.byte(address.checked_add(at)?, cr3));
        out.iter_mut().zip(bytes).map(|(out, byte)| *out = byte).count()
    }
}

/// Reads code for libipt: `read_memory_callback_t`.
///
/// # Safety
/// `context` is what [`Decoder::new`] handed in, and `buffer` has room for `size` bytes.
unsafe extern "C" fn read_memory(
    buffer: *mut u8,
    size: usize,
    asid: *const AddressSpace,
    ip: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise; the decoder lives no longer than the sections.
    let sections = unsafe { &*context.cast_const().cast::<Sections<'_>>() };
    // SAFETY: the caller's promise; libipt zeroes the buffer or has it from its stack, and reads only what was read.
    let buffer = unsafe { slice::from_raw_parts_mut(buffer, size) };
    // SAFETY: libipt hands in the address space that it is decoding.
    let cr3 = unsafe { (*asid).cr3 };
    match sections.read(ip, cr3, buffer) {
        0 => -ERROR_NO_MEMORY_MAPPED,
        read => c_int::try_from(read).unwrap_or(c_int::MAX),
    }
}

/// An instruction flow decoder of libipt.
struct Decoder<'a> {
    libipt: &'a Library,
    handle: DecoderHandle,
    decoded: Decoded,
}

impl<'a> Decoder<'a> {
    fn new(
        libipt: &'a Library,
        cpu: Option<Cpu>,
        trace: &'a [u8],
        sections: &'a Sections<'a>,
    ) -> Option<Self> {
        let mut errata = [0; 16];
        let (vendor, cpu) =
            cpu.map_or((0, Cpu { family: 0, model: 0, stepping: 0 }), |cpu| (VENDOR_INTEL, cpu));
        let cpu = VendorCpu { vendor, cpu };
        // SAFETY: both are as large as intel-pt.h has them; a processor that is not known leaves the errata alone.
        unsafe { (libipt.cpu_errata)(&raw mut errata, &raw const cpu) };
        let range = trace.as_ptr_range();
        let size = size_of::<Config>();
        let config =
            Config { size, begin: range.start, end: range.end, callback: 0, context: 0, cpu, errata };
        // SAFETY: the trace outlives the decoder; libipt copies the configuration and only reads the trace.
        let handle = unsafe { (libipt.alloc_decoder)(&raw const config) }?;
        let decoder = Self { libipt, handle, decoded: Decoded::default() };
        // SAFETY: the decoder was allocated above and not freed.
        let image = unsafe { (libipt.get_image)(handle) }?;
        // SAFETY: the image is the decoder's; the sections outlive it.
        let status =
            unsafe { (libipt.set_callback)(image, Some(read_memory), (&raw const *sections).cast()) };
        (status >= 0).then_some(decoder)
    }

    fn run(mut self) -> Decoded {
        let mut last_sync_error = None;
        loop {
            // SAFETY: the decoder is allocated.
            let status = unsafe { (self.libipt.sync_forward)(self.handle) };
            if status == -ERROR_END_OF_STREAM {
                break;
            }
            if status < 0 {
                self.error(status);
                let offset = Some(self.offset());
                if last_sync_error >= offset {
                    break;
                }
                last_sync_error = offset;
                continue;
            }
            if let Err(status) = self.until_error(status)
                && status != -ERROR_END_OF_STREAM
            {
                self.error(status);
            }
            if self.decoded.addresses.len() >= MOST_INSTRUCTIONS {
                let (offset, after) = (self.offset(), MOST_INSTRUCTIONS);
                self.decoded.errors.push(DecodeError { offset, after, text: "too many instructions".into() });
                break;
            }
        }
        std::mem::take(&mut self.decoded)
    }

    fn until_error(&mut self, mut status: c_int) -> Result<(), c_int> {
        while self.decoded.addresses.len() < MOST_INSTRUCTIONS {
            while status & STATUS_EVENT_PENDING != 0 {
                let mut event = Event::default();
                // SAFETY: the decoder is allocated; the event has the size that is said.
                status = unsafe { (self.libipt.event)(self.handle, &raw mut event, size_of::<Event>()) };
                if status < 0 {
                    return Err(status);
                }
                self.decoded.overflows += u64::from(event.kind == EVENT_OVERFLOW);
            }
            if status & STATUS_END_OF_STREAM != 0 {
                return Ok(());
            }
            let mut insn = Insn::default();
            // SAFETY: the decoder is allocated; the instruction has the size that is said.
            status = unsafe { (self.libipt.next)(self.handle, &raw mut insn, size_of::<Insn>()) };
            // An error may come from what is behind an instruction; then there is the instruction as well.
            if status >= 0 || insn.class != 0 {
                self.decoded.addresses.push(insn.ip);
            }
            if status < 0 {
                return Err(status);
            }
        }
        Ok(())
    }

    fn error(&mut self, status: c_int) {
        let (offset, after) = (self.offset(), self.decoded.addresses.len());
        self.decoded.errors.push(DecodeError { offset, after, text: self.libipt.error_text(status) });
    }

    /// Where libipt is in the trace; 0 when it is out of sync.
    fn offset(&self) -> u64 {
        let mut offset = 0;
        // SAFETY: the decoder is allocated; it writes one number.
        unsafe { (self.libipt.get_offset)(self.handle, &raw mut offset) };
        offset
    }
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        // SAFETY: it was allocated and is not used any more.
        unsafe { (self.libipt.free_decoder)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";

    #[test]
    fn finds_the_instructions_of_a_small_trace() {
        // MODE.Exec (64 bit), FUP (1000), PSBEND, FUP (1003), TIP.PGD.
        let trace = [PSB, b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x3d\x03\x10\x01"].concat();
        let Some(decoded) = decode(&trace, &[(0x1000, &[0x90; 16])]) else {
            println!("skipped: libipt is not installed");
            return;
        };
        assert_eq!(decoded.addresses, [0x1000, 0x1001, 0x1002]);
        assert_eq!((decoded.errors, decoded.overflows), (vec![], 0));
    }

    #[test]
    fn goes_on_at_the_next_psb_after_an_error() {
        let start = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
        // FUP (1002), TIP (1000), a byte that begins no packet.
        let trace = [PSB, start, b"\x3d\x02\x10\x2d\0\x10\x09", PSB, start, b"\x3d\x02\x10\x01"].concat();
        let Some(decoded) = decode(&trace, &[(0x1000, &[0xcc; 2]), (0x1000, &[0x90; 2])]) else {
            println!("skipped: libipt is not installed");
            return;
        };
        // It looks one event ahead, so the error is before the first instruction.
        assert_eq!(decoded.addresses, [0x1000, 0x1001]);
        let errors: Vec<_> = decoded.errors.iter().map(|error| (error.after, &error.text[..])).collect();
        assert_eq!(errors, [(0, "unknown opcode")]);
    }

    #[test]
    fn reads_the_code_of_the_address_space() {
        // PIP (CR3 2000), MODE.Exec (64 bit), FUP (1000), PSBEND, FUP (1002), TIP.PGD.
        let pip = b"\x02\x43\0\x02\0\0\0\0";
        let trace = [PSB, pip, b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x3d\x02\x10\x01"].concat();
        let one_byte = Section { base: 0x1000, bytes: &[0x90; 16], cr3: Some(0x2000) };
        let two_bytes = Section { base: 0x1000, bytes: &[0x66, 0x90, 0x66, 0x90], cr3: Some(0x3000) };
        let Some(decoded) = decode_sections(None, &trace, &[one_byte, two_bytes]) else {
            println!("skipped: libipt is not installed");
            return;
        };
        assert_eq!((decoded.addresses, decoded.errors), (vec![0x1000, 0x1001], vec![]));
    }

    #[test]
    fn counts_overflows() {
        // OVF, FUP (1001), FUP (1002), TIP.PGD.
        let trace = [PSB, b"\x02\x23\x02\xf3\x7d\x01\x10\0\0\0\0\x3d\x02\x10\x01"].concat();
        let Some(decoded) = decode(&trace, &[(0x1000, &[0x90; 16])]) else {
            println!("skipped: libipt is not installed");
            return;
        };
        assert_eq!(decoded.overflows, 1);
    }
}
