//! Views of recorded programs, each held against a program that shows the same.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod annotate;
mod between;
mod gdb;
mod profiles;
mod rebuilt;
mod stripped;
mod times;
mod unseen;

use pugmark_harness::scratch::Scratch;
use std::{
    fs,
    process::{Command, Output},
};

const PUGMARK: &str = env!("CARGO_BIN_EXE_pugmark");

/// A folder with a program, its source, and the recording `rec` of it.
struct Recorded(Scratch);

impl Recorded {
    /// Compiles a program in C and records it, step by step.
    fn new(source: &str, compiler: &[&str], recorder: &[&str]) -> Self {
        let recorded = Self(Scratch::new().unwrap());
        fs::write(recorded.0.file("program.c"), source).unwrap();
        recorded.run("cc", &[&["-g", "-o", "program", "program.c"], compiler].concat());
        let record = ["record", "--engine", "stepping", "-o", "rec"];
        // A program that ends by a signal is no failure here.
        let output = recorded.output(PUGMARK, &[&record, recorder, &["--", "./program"]].concat()).unwrap();
        assert!(recorded.0.file("rec/truth.json").exists(), "{}", String::from_utf8_lossy(&output.stderr));
        recorded
    }

    /// Runs a program in the folder; `None` if there is none of this name.
    fn output(&self, program: &str, arguments: &[&str]) -> Option<Output> {
        Command::new(program).args(arguments).current_dir(self.0.folder()).output().ok()
    }

    /// Returns what a program prints that succeeds.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.output(program, arguments).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn pugmark(&self, arguments: &[&str]) -> String {
        self.run(PUGMARK, arguments)
    }

    /// Returns the exit status of a command that fails, and what it says.
    fn refused(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.output(PUGMARK, arguments).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}
