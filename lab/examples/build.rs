//! Link options that make a kernel image of each example.

use std::env;

pub fn main() {
    let script = format!("{}/../kernel.ld", env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
    for option in link_options() {
        println!("cargo:rustc-link-arg-bins={option}");
    }
}

/// Returns the link options of code without an operating system.
pub fn link_options() -> &'static [&'static str] {
    // For a hosted target the C compiler's driver links; for a bare one the linker is called directly.
    match is_bare() {
        true => &["--no-pie", "--build-id=none", "--gc-sections"],
        false => {
            &["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,--gc-sections"]
        }
    }
}

/// Returns whether the target has no operating system.
pub fn is_bare() -> bool {
    env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none")
}
