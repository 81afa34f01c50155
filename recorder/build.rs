//! Builds the plugin for QEMU that `pugmark record` carries along: a shared object of one file and
//! the standard library.

use std::{env, path::PathBuf, process::Command};

const FOLDER: &str = "src/linux/emulator";
const FILES: [&str; 22] = [
    "plugin.rs",
    "api.rs",
    "callbacks.rs",
    "calls.rs",
    "counts.rs",
    "deviations.rs",
    "dying.rs",
    "environment.rs",
    "exec.rs",
    "faults.rs",
    "fork.rs",
    "imports.rs",
    "leaving.rs",
    "machine_plugin/gates.rs",
    "machine_plugin/mod.rs",
    "machine_plugin/state.rs",
    "mapped.rs",
    "meeting.rs",
    "program_memory.rs",
    "rings.rs",
    "starter.rs",
    "wire.rs",
];

fn main() {
    for file in FILES {
        println!("cargo:rerun-if-changed={FOLDER}/{file}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    // Elsewhere nothing can be recorded.
    if (variable("CARGO_CFG_TARGET_OS"), variable("CARGO_CFG_TARGET_ARCH"))
        != ("linux".into(), "x86_64".into())
    {
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR")).join("plugin.so");
    // QEMU loads it, and is a distribution's: a static program beside it has another C library.
    let [target, host] = [variable("TARGET"), variable("HOST")];
    let target = if target.ends_with("-musl") { host } else { target };
    let status = Command::new(variable("RUSTC"))
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "pugmark_plugin"])
        .args(["-C", "opt-level=3", "-C", "panic=abort", "-C", "strip=symbols", "--target", &target])
        .arg("-o")
        .args([&out, &PathBuf::from(FOLDER).join("plugin.rs")])
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("the plugin for the emulator was not built: {other:?}"),
    }
}
