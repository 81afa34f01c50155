//! Link options of the image: a static ELF file at the address that the linker script gives.

use std::{env, path::PathBuf};

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let script = manifest.join("image.ld");
    println!("cargo:rerun-if-changed={}", script.display());
    println!("cargo:rerun-if-changed=build.rs");
    let bare = env::var("CARGO_CFG_TARGET_OS").expect("cargo sets CARGO_CFG_TARGET_OS") == "none";
    // On a bare target cargo calls rust-lld itself; on a hosted one it calls the C compiler as a linker driver.
    let options: &[&str] = if bare {
        &["--no-pie", "--build-id=none", "-zmax-page-size=4096", "-znoexecstack", "--gc-sections"]
    } else {
        &[
            "-nostartfiles",
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-Wl,-z,max-page-size=4096",
            "-Wl,-z,noexecstack",
            "-Wl,--gc-sections",
        ]
    };
    println!("cargo:rustc-link-arg-bins=-T{}", script.display());
    for option in options {
        println!("cargo:rustc-link-arg-bins={option}");
    }
}
