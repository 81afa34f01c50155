//! The functions of the emulator that the plugin calls, in all versions of its interface.
//!
//! Source: QEMU's `include/qemu/qemu-plugin.h` of versions 7.2 (interface 1), 10.0 (4) and 11.1 (7).

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

pub type PluginId = u64;
/// A block or an instruction while it is translated.
pub type Opaque = *const c_void;
pub type ExecutionCallback = extern "C" fn(c_uint, *mut c_void);
/// The address of a function that the emulator calls, in the form of the emulator's version.
pub type Callback = *const c_void;

/// Versions from this one on have inline operations by virtual processor instead of those at any address.
const BY_PROCESSOR: c_int = 2;
/// Versions from this one on copy an instruction's bytes.
const COPIES_BYTES: c_int = 3;
/// Versions from this one on call back with data that was registered, and without the plugin's number.
pub const WITH_DATA: c_int = 7;

/// The emulator's words of itself when it loads a plugin.
#[repr(C)]
pub struct Info {
    target: *const c_char,
    least: c_int,
    /// The version of the interface: whatever version a plugin asks for, it gets this one.
    pub version: c_int,
    /// It emulates a whole machine.
    pub is_machine: bool,
    processors: c_int,
    /// A machine's: how many virtual processors there can be.
    pub most_processors: c_int,
}

impl Info {
    /// Returns the name of the architecture that is emulated.
    pub fn target(&self) -> &str {
        // SAFETY: the emulator gives out a text, which stays.
        unsafe { CStr::from_ptr(self.target) }.to_str().unwrap_or_default()
    }
}

/// The functions of the emulator, found by name, so that this file can also be part of a program that has none.
pub struct Api {
    pub version: c_int,
    pub on_translation: Register,
    pub on_vcpu_exit: Register,
    pub on_call: Register,
    pub on_return: Register,
    pub on_block: extern "C" fn(Opaque, ExecutionCallback, c_int, *mut c_void),
    pub on_instruction: extern "C" fn(Opaque, ExecutionCallback, c_int, *mut c_void),
    pub add: Add,
    pub block_length: extern "C" fn(Opaque) -> usize,
    pub block_instruction: extern "C" fn(Opaque, usize) -> Opaque,
    bytes: Bytes,
    instruction_length: extern "C" fn(Opaque) -> usize,
    pub instruction_address: extern "C" fn(Opaque) -> u64,
    pub instruction_in_memory: extern "C" fn(Opaque) -> *const u8,
    /// Versions from 2 on have these.
    pub registers: Option<VcpuRegisters>,
}

/// The registers of the calling thread's virtual processor, in arrays of glib.
pub struct VcpuRegisters {
    list: extern "C" fn() -> *const Array<u8>,
    element_size: extern "C" fn(*const Array<u8>) -> c_uint,
    new_bytes: extern "C" fn() -> *mut Array<u64>,
    read: extern "C" fn(*mut c_void, *mut Array<u64>) -> c_int,
}

/// The begin of glib's `GArray` and `GByteArray`.
#[repr(C)]
struct Array<T> {
    data: *const T,
    length: c_uint,
}

/// The begin of a register's description.
#[repr(C)]
struct NamedRegister {
    handle: *mut c_void,
    name: *const c_char,
}

/// A function that takes a callback of the plugin.
#[derive(Clone, Copy)]
pub enum Register {
    Plain(extern "C" fn(PluginId, Callback)),
    WithData(extern "C" fn(PluginId, Callback, *mut c_void)),
}

/// The inline addition before an instruction.
#[derive(Clone, Copy)]
pub enum Add {
    /// To a number at an address, whichever thread executes the instruction.
    At(AtAddress),
    /// To the number of the virtual processor that executes it.
    ByProcessor(ByProcessor),
}

/// Additions at an address.
#[derive(Clone, Copy)]
pub struct AtAddress {
    to_instruction: extern "C" fn(Opaque, c_int, *mut c_void, u64),
    to_block: extern "C" fn(Opaque, c_int, *mut c_void, u64),
}

/// Numbers of the emulator, of which each virtual processor has its own.
#[derive(Clone, Copy)]
pub struct ByProcessor {
    /// One number.
    board: Board,
    new: extern "C" fn(usize) -> Board,
    to_instruction: extern "C" fn(Opaque, c_int, BoardEntry, u64),
    to_block: extern "C" fn(Opaque, c_int, BoardEntry, u64),
    find: extern "C" fn(Board, c_uint) -> *mut u64,
    pub on_exit: extern "C" fn(PluginId, Callback, *mut c_void),
}

/// The address of some of the emulator's numbers.
pub type Board = usize;

/// A number in them.
#[repr(C)]
struct BoardEntry {
    board: Board,
    offset: usize,
}

enum Bytes {
    At(extern "C" fn(Opaque) -> *const u8),
    Copied(extern "C" fn(Opaque, *mut u8, usize) -> usize),
}

const ADD_U64: c_int = 0;

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Returns the address of a function or variable of the running program.
pub fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks up a name in what is loaded.
    let found = unsafe { dlsym(null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

macro_rules! found {
    ($name:literal) => {
        // SAFETY: the emulator declares the function of this name with the type that is wanted here.
        unsafe { std::mem::transmute(function($name)?) }
    };
}

impl Register {
    #[allow(clippy::missing_transmute_annotations, reason = "each variant has its type")]
    fn find(name: &CStr, version: c_int) -> Option<Self> {
        let found = function(name)?;
        Some(if version < WITH_DATA {
            // SAFETY: the emulator declares the function with this type.
            Self::Plain(unsafe { std::mem::transmute(found) })
        } else {
            // SAFETY: the emulator declares the function with this type.
            Self::WithData(unsafe { std::mem::transmute(found) })
        })
    }

    pub fn register(self, id: PluginId, callback: Callback) {
        match self {
            Self::Plain(register) => register(id, callback),
            Self::WithData(register) => register(id, callback, null_mut()),
        }
    }
}

impl AtAddress {
    #[allow(clippy::missing_transmute_annotations, reason = "each field has its type")]
    fn find() -> Option<Self> {
        Some(Self {
            to_instruction: found!(c"qemu_plugin_register_vcpu_insn_exec_inline"),
            to_block: found!(c"qemu_plugin_register_vcpu_tb_exec_inline"),
        })
    }

    /// Adds a count before each execution of an instruction.
    pub fn count(&self, instruction: Opaque, number: *mut c_void, count: u64) {
        (self.to_instruction)(instruction, ADD_U64, number, count);
    }

    /// Adds 1 before each execution of a block.
    pub fn count_block(&self, block: Opaque, number: *mut c_void) {
        (self.to_block)(block, ADD_U64, number, 1);
    }
}

impl ByProcessor {
    /// The count of numbers in what [`new_board`](Self::new_board) makes.
    pub const ENTRIES: usize = 1024;

    #[allow(clippy::missing_transmute_annotations, reason = "each field has its type")]
    fn find() -> Option<Self> {
        let new: extern "C" fn(usize) -> Board = found!(c"qemu_plugin_scoreboard_new");
        Some(Self {
            board: new(size_of::<u64>()),
            new,
            to_instruction: found!(c"qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu"),
            to_block: found!(c"qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu"),
            find: found!(c"qemu_plugin_scoreboard_find"),
            on_exit: found!(c"qemu_plugin_register_atexit_cb"),
        })
    }

    /// Adds a count before each execution of an instruction.
    pub fn count(&self, instruction: Opaque, count: u64) {
        (self.to_instruction)(instruction, ADD_U64, BoardEntry { board: self.board, offset: 0 }, count);
    }

    /// Returns the number of a virtual processor, which must be that of the calling thread, or stand still.
    pub fn get(&self, index: c_uint) -> u64 {
        // SAFETY: the emulator gives out where the number is, which only that processor's thread changes.
        unsafe { (self.find)(self.board, index).read_volatile() }
    }

    /// Makes [`ENTRIES`](Self::ENTRIES) numbers for each virtual processor.
    pub fn new_board(&self) -> Board {
        (self.new)(Self::ENTRIES * size_of::<u64>())
    }

    /// Adds 1 before each execution of a block to one of those numbers.
    pub fn count_block(&self, block: Opaque, board: Board, entry: usize) {
        let offset = entry * size_of::<u64>();
        (self.to_block)(block, ADD_U64, BoardEntry { board, offset }, 1);
    }

    /// Returns one of those numbers of a virtual processor.
    pub fn entry(&self, board: Board, index: c_uint, entry: usize) -> u64 {
        assert!(entry < Self::ENTRIES);
        // SAFETY: the emulator gives out where the numbers are. Another thread may add to one meanwhile.
        unsafe { (self.find)(board, index).wrapping_add(entry).read_volatile() }
    }

    /// Sets those numbers to 0. The virtual processor must be that of the calling thread.
    pub fn clear(&self, board: Board, index: c_uint) {
        // SAFETY: the emulator gives out where the numbers are, which only that processor's thread changes.
        unsafe { (self.find)(board, index).write_bytes(0, Self::ENTRIES) };
    }
}

impl VcpuRegisters {
    #[allow(clippy::missing_transmute_annotations, reason = "each field has its type")]
    fn find() -> Option<Self> {
        Some(Self {
            list: found!(c"qemu_plugin_get_registers"),
            element_size: found!(c"g_array_get_element_size"),
            new_bytes: found!(c"g_byte_array_new"),
            read: found!(c"qemu_plugin_read_register"),
        })
    }

    /// Returns registers of 8 bytes by their names. The arrays stay: a process reads its registers once, at its end.
    pub fn read<const N: usize>(&self, names: [&CStr; N]) -> [Option<u64>; N] {
        let list = (self.list)();
        let size = (self.element_size)(list) as usize;
        // SAFETY: the emulator has made the array.
        let Array { data, length } = unsafe { list.read() };
        let described = |number: usize| {
            // SAFETY: each element begins with the description.
            unsafe { data.wrapping_add(number * size).cast::<NamedRegister>().read() }
        };
        names.map(|name| {
            let is_it = |NamedRegister { name: own, .. }: &NamedRegister| {
                // SAFETY: a text that stays.
                unsafe { CStr::from_ptr(*own) == name }
            };
            let NamedRegister { handle, .. } = (0..length as usize).map(described).find(is_it)?;
            let bytes = (self.new_bytes)();
            (self.read)(handle, bytes);
            // SAFETY: glib has made the array, and the emulator has filled it.
            let Array { data, length } = unsafe { bytes.read() };
            // SAFETY: there are as many bytes.
            (length as usize == size_of::<u64>()).then(|| unsafe { data.read_unaligned() })
        })
    }
}

impl Api {
    /// Finds all functions in the running program; `None` if that is not the emulator.
    #[allow(clippy::missing_transmute_annotations, reason = "each field has its type above")]
    pub fn find(version: c_int) -> Option<Self> {
        Some(Self {
            version,
            on_translation: Register::find(c"qemu_plugin_register_vcpu_tb_trans_cb", version)?,
            on_vcpu_exit: Register::find(c"qemu_plugin_register_vcpu_exit_cb", version)?,
            on_call: Register::find(c"qemu_plugin_register_vcpu_syscall_cb", version)?,
            on_return: Register::find(c"qemu_plugin_register_vcpu_syscall_ret_cb", version)?,
            on_block: found!(c"qemu_plugin_register_vcpu_tb_exec_cb"),
            on_instruction: found!(c"qemu_plugin_register_vcpu_insn_exec_cb"),
            add: if version < BY_PROCESSOR {
                Add::At(AtAddress::find()?)
            } else {
                Add::ByProcessor(ByProcessor::find()?)
            },
            block_length: found!(c"qemu_plugin_tb_n_insns"),
            block_instruction: found!(c"qemu_plugin_tb_get_insn"),
            bytes: if version < COPIES_BYTES {
                Bytes::At(found!(c"qemu_plugin_insn_data"))
            } else {
                Bytes::Copied(found!(c"qemu_plugin_insn_data"))
            },
            instruction_length: found!(c"qemu_plugin_insn_size"),
            instruction_address: found!(c"qemu_plugin_insn_vaddr"),
            instruction_in_memory: found!(c"qemu_plugin_insn_haddr"),
            registers: VcpuRegisters::find(),
        })
    }

    /// Appends the bytes of an instruction. Returns how many there are.
    pub fn read_instruction(&self, instruction: Opaque, code: &mut Vec<u8>) -> u8 {
        let (begin, length) = (code.len(), (self.instruction_length)(instruction));
        match self.bytes {
            // SAFETY: the emulator gives out the instruction's bytes, as many as it is long.
            Bytes::At(at) => code.extend(unsafe { std::slice::from_raw_parts(at(instruction), length) }),
            Bytes::Copied(copy) => {
                code.resize(begin + length, 0);
                copy(instruction, code[begin..].as_mut_ptr(), length);
            }
        }
        // No instruction has more than 15 bytes.
        length as u8
    }
}
