//! Gives the shared library the soname that programs linked with libipt look for.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libipt.so.2");
    println!("cargo::rerun-if-changed=build.rs");
}
