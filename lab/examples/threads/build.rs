//! Builds the program that the kernel embeds, and sets the kernel's link options.

use std::env;
use std::path::Path;
use std::process::Command;

#[path = "../build.rs"]
mod kernel;

/// The address at which the program is linked: no address of the kernel's.
const ADDRESS: &str = "0x8000000000";

fn main() {
    kernel::main();
    let variable = |name: &str| env::var(name).expect("cargo sets it");
    let program = Path::new(&variable("OUT_DIR")).join("program");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["program/main.rs", "--crate-name=program", "--crate-type=bin", "--edition=2024"]);
    rustc.args(["-Copt-level=1", "-Cpanic=abort", "--target", &variable("TARGET"), "-o"]).arg(&program);
    for option in [&format!("--image-base={ADDRESS}")[..], "--entry=start"] {
        rustc.arg(format!("-Clink-arg={}{option}", if kernel::is_bare() { "" } else { "-Wl," }));
    }
    for option in kernel::link_options() {
        rustc.arg(format!("-Clink-arg={option}"));
    }
    assert!(rustc.status().expect("rustc").success(), "rustc failed");
    println!("cargo:rerun-if-changed=program/main.rs");
}
