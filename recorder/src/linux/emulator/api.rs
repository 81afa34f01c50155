//! The functions of the emulator that the plugin calls.
//!
//! Source: QEMU's `include/qemu/qemu-plugin.h` of version 7.2 (API version 1).

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

pub type PluginId = u64;
/// A block or an instruction while it is translated.
pub type Opaque = *const c_void;
pub type TranslationCallback = extern "C" fn(PluginId, Opaque);
pub type ExecutionCallback = extern "C" fn(c_uint, *mut c_void);
pub type VcpuCallback = extern "C" fn(PluginId, c_uint);
pub type BeforeCall = extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub type AfterCall = extern "C" fn(PluginId, c_uint, i64, i64);

/// The functions of the emulator, found by name, so that this file can also be part of a program that has none.
pub struct Api {
    pub on_translation: extern "C" fn(PluginId, TranslationCallback),
    pub on_block: extern "C" fn(Opaque, ExecutionCallback, c_int, *mut c_void),
    pub on_instruction: extern "C" fn(Opaque, ExecutionCallback, c_int, *mut c_void),
    pub on_instruction_add: extern "C" fn(Opaque, c_int, *mut c_void, u64),
    pub on_vcpu: extern "C" fn(PluginId, VcpuCallback),
    pub on_vcpu_exit: extern "C" fn(PluginId, VcpuCallback),
    pub on_call: extern "C" fn(PluginId, BeforeCall),
    pub on_return: extern "C" fn(PluginId, AfterCall),
    pub block_length: extern "C" fn(Opaque) -> usize,
    pub block_instruction: extern "C" fn(Opaque, usize) -> Opaque,
    pub instruction_bytes: extern "C" fn(Opaque) -> *const u8,
    pub instruction_length: extern "C" fn(Opaque) -> usize,
    pub instruction_address: extern "C" fn(Opaque) -> u64,
    pub instruction_in_memory: extern "C" fn(Opaque) -> *const u8,
}

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

impl Api {
    /// Finds all functions in the running program; `None` if that is not the emulator.
    #[allow(clippy::missing_transmute_annotations, reason = "each field has its type above")]
    pub fn find() -> Option<Self> {
        fn function(name: &CStr) -> Option<*mut c_void> {
            // SAFETY: looks up a name in what is loaded.
            let found = unsafe { dlsym(null_mut(), name.as_ptr()) };
            (!found.is_null()).then_some(found)
        }
        macro_rules! found {
            ($name:literal) => {
                // SAFETY: the emulator declares the function of this name with the field's type.
                unsafe { std::mem::transmute(function($name)?) }
            };
        }
        Some(Self {
            on_translation: found!(c"qemu_plugin_register_vcpu_tb_trans_cb"),
            on_block: found!(c"qemu_plugin_register_vcpu_tb_exec_cb"),
            on_instruction: found!(c"qemu_plugin_register_vcpu_insn_exec_cb"),
            on_instruction_add: found!(c"qemu_plugin_register_vcpu_insn_exec_inline"),
            on_vcpu: found!(c"qemu_plugin_register_vcpu_init_cb"),
            on_vcpu_exit: found!(c"qemu_plugin_register_vcpu_exit_cb"),
            on_call: found!(c"qemu_plugin_register_vcpu_syscall_cb"),
            on_return: found!(c"qemu_plugin_register_vcpu_syscall_ret_cb"),
            block_length: found!(c"qemu_plugin_tb_n_insns"),
            block_instruction: found!(c"qemu_plugin_tb_get_insn"),
            instruction_bytes: found!(c"qemu_plugin_insn_data"),
            instruction_length: found!(c"qemu_plugin_insn_size"),
            instruction_address: found!(c"qemu_plugin_insn_vaddr"),
            instruction_in_memory: found!(c"qemu_plugin_insn_haddr"),
        })
    }
}
