//! Compares the decoder with libipt 2.0.5, if it is there, on random control-flow graphs and on damaged
//! traces.
//!
//! Traces contain only packets that this version knows. This runs a hundred thousand of each in two minutes:
//!
//! ```text
//! PUGMARK_LONG=1 cargo test --release -p pugmark-qemu-tests --test differential -- --nocapture
//! ```

mod classes;
mod damage;
mod graphs;
mod minimal;
mod own_decoder;
mod short;
mod stream;
mod subject;
mod tampered;

/// How many cases a test runs.
fn cases() -> u64 {
    if std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1") { 100_000 } else { 4000 }
}

/// Reports that a test cannot do anything.
fn skipped() {
    println!("{}", pugmark_qemu_tests::libipt::REFERENCE.skipped());
}
