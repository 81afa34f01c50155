//! Link options that make the kernel image, for every target.

use std::path::PathBuf;

fn main() {
    let script = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("image.ld");
    println!("cargo:rerun-if-changed={}", script.display());
    println!("cargo:rustc-link-arg-bins=-T{}", script.display());
    let bare = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none");
    // For a hosted target the C compiler's driver links; for a bare one the linker is called directly.
    let arguments: &[&str] = if bare {
        &["--no-pie", "-static", "--build-id=none", "--gc-sections", "-zmax-page-size=4096", "-znoexecstack"]
    } else {
        &[
            "-nostartfiles",
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,--build-id=none",
            "-Wl,--gc-sections",
            "-Wl,-z,max-page-size=4096",
            "-Wl,-z,noexecstack",
        ]
    };
    for argument in arguments {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
