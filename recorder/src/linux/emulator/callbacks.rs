//! The functions that the emulator calls, in both forms: with the plugin's number first, and since version 7 of the
//! interface without it and with the registered data last.

use super::{
    api::{Add, Api, Opaque, PluginId, WITH_DATA},
    calls, machine_plugin, thread_ends, threads_stand_still, translates,
};
use std::ffi::{c_uint, c_void};

/// Lets the emulator call the plugin.
pub(super) fn register(api: &Api, id: PluginId) {
    let with_data = api.version >= WITH_DATA;
    let choose = |plain: *const c_void, data: *const c_void| if with_data { data } else { plain };
    api.on_translation
        .register(id, choose(plain::translates as *const c_void, data::translates as *const c_void));
    api.on_vcpu_exit
        .register(id, choose(plain::vcpu_ends as *const c_void, data::vcpu_ends as *const c_void));
    api.on_call.register(id, choose(plain::before_call as *const c_void, data::before_call as *const c_void));
    api.on_return.register(id, choose(plain::after_call as *const c_void, data::after_call as *const c_void));
    if let Add::ByProcessor(counts) = api.add {
        let exits = choose(plain::exits as *const c_void, data::exits as *const c_void);
        (counts.on_exit)(id, exits, std::ptr::null_mut());
    }
}

/// Lets the emulator of a whole machine call the plugin.
pub(super) fn register_for_machine(api: &Api, id: PluginId) {
    let with_data = api.version >= WITH_DATA;
    let choose = |plain: *const c_void, data: *const c_void| if with_data { data } else { plain };
    let translates =
        choose(plain::machine_translates as *const c_void, data::machine_translates as *const c_void);
    api.on_translation.register(id, translates);
    if let Add::ByProcessor(counts) = api.add {
        let ends = choose(plain::machine_ends as *const c_void, data::machine_ends as *const c_void);
        (counts.on_exit)(id, ends, std::ptr::null_mut());
    }
}

#[allow(clippy::too_many_arguments, reason = "the emulator passes eight of the system call's")]
mod plain {
    use super::*;

    pub(super) extern "C" fn translates(_: PluginId, block: Opaque) {
        super::translates(block);
    }

    pub(super) extern "C" fn vcpu_ends(_: PluginId, index: c_uint) {
        thread_ends(index);
    }

    pub(super) extern "C" fn before_call(
        _: PluginId,
        index: c_uint,
        number: i64,
        a1: u64,
        a2: u64,
        a3: u64,
        a4: u64,
        a5: u64,
        _: u64,
        _: u64,
        _: u64,
    ) {
        calls::before(index, number, [a1, a2, a3, a4, a5]);
    }

    pub(super) extern "C" fn after_call(_: PluginId, index: c_uint, number: i64, result: i64) {
        calls::after(index, number, result);
    }

    pub(super) extern "C" fn exits(_: PluginId, _: *mut c_void) {
        threads_stand_still();
    }

    pub(super) extern "C" fn machine_translates(_: PluginId, block: Opaque) {
        machine_plugin::translates(block);
    }

    pub(super) extern "C" fn machine_ends(_: PluginId, _: *mut c_void) {
        machine_plugin::ends();
    }
}

#[allow(clippy::too_many_arguments, reason = "the emulator passes eight of the system call's")]
mod data {
    use super::*;

    pub(super) extern "C" fn translates(block: Opaque, _: *mut c_void) {
        super::translates(block);
    }

    pub(super) extern "C" fn vcpu_ends(index: c_uint, _: *mut c_void) {
        thread_ends(index);
    }

    pub(super) extern "C" fn before_call(
        index: c_uint,
        number: i64,
        a1: u64,
        a2: u64,
        a3: u64,
        a4: u64,
        a5: u64,
        _: u64,
        _: u64,
        _: u64,
        _: *mut c_void,
    ) {
        calls::before(index, number, [a1, a2, a3, a4, a5]);
    }

    pub(super) extern "C" fn after_call(index: c_uint, number: i64, result: i64, _: *mut c_void) {
        calls::after(index, number, result);
    }

    pub(super) extern "C" fn exits(_: *mut c_void) {
        threads_stand_still();
    }

    pub(super) extern "C" fn machine_translates(block: Opaque, _: *mut c_void) {
        machine_plugin::translates(block);
    }

    pub(super) extern "C" fn machine_ends(_: *mut c_void) {
        machine_plugin::ends();
    }
}
