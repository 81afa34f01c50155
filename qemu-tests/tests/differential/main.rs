//! The decoder against Debian's libipt 2.0.5, where it is installed: random control-flow graphs, and damaged traces.
//!
//! Traces are restricted to the packets that this version knows. This takes a hundred thousand of each in two minutes:
//!
//! ```text
//! PUGMARK_LONG=1 cargo test --release -p pugmark-qemu-tests --test differential -- --nocapture
//! ```

mod classes;
mod damage;
mod graphs;
mod minimal;
mod own;
mod short;
mod stream;
mod subject;
mod tampered;

/// How many cases a test takes.
fn cases() -> u64 {
    if std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1") { 100_000 } else { 4000 }
}

/// What a test says that cannot do anything.
fn skipped() {
    println!("skipped: libipt is not installed");
}
