//! Link options: a static ELF with the multiboot2 header at its beginning.

use std::env;

fn main() {
    let script = format!("{}/kernel.ld", env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
    let hosted =
        ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,--gc-sections"];
    let bare = ["--no-pie", "--build-id=none", "--gc-sections"];
    let is_bare = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none");
    for option in if is_bare { &bare[..] } else { &hosted[..] } {
        println!("cargo:rustc-link-arg-bins={option}");
    }
}
