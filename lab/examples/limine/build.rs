//! Links the kernel where Limine wants it: in the upper half of the addresses.

fn main() {
    let script = format!("{}/kernel.ld", std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rustc-link-arg-bins=-T{script}");
    println!("cargo:rustc-link-arg-bins=--no-pie");
}
