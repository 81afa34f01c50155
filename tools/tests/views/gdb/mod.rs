//! `pugmark gdb`: GDB walks through recordings, and must be where `pugmark script` says that the program was. One test
//! talks to it without GDB.

mod protocol;
mod steps;
mod symbols;

use super::{PUGMARK, Recorded};
use std::fs;

impl Recorded {
    /// Returns the addresses of all instructions of a part, as `pugmark script` lists them, which fails if something is
    /// missing.
    fn addresses(&self, part: &str) -> Vec<u64> {
        let output = self.output(PUGMARK, &["script", "-F", "ip", part]).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| u64::from_str_radix(line.trim(), 16).unwrap()).collect()
    }

    /// Returns what GDB prints that gets the recording by its own standard input and output, with these options, and
    /// executes these commands; `None`, and the reason is printed, if it is not installed.
    fn gdb(&self, options: &str, commands: &[&str]) -> Option<String> {
        let target = format!("target remote | {PUGMARK} gdb --stdio {options}");
        self.gdb_at(&target, commands)
    }

    /// Returns the same, from the target that a command names.
    fn gdb_at(&self, target: &str, commands: &[&str]) -> Option<String> {
        // An error ends a file of commands, but not the commands after it on the command line.
        let all = [&[target], commands].concat();
        let commands: Vec<String> = all
            .iter()
            .enumerate()
            .map(|(number, command)| match command.contains('\n') {
                false => (*command).into(),
                true => {
                    let name = format!("commands-{number}");
                    fs::write(self.0.file(&name), format!("{command}\n")).unwrap();
                    format!("source {name}")
                }
            })
            .collect();
        let settings = ["set confirm off", "set sysroot /", "set debuginfod enabled off", "set width 0"];
        let settings = settings.iter().flat_map(|setting| ["-iex", setting]);
        let commands = commands.iter().flat_map(|command| ["-ex", command]);
        let arguments: Vec<_> = ["-nx", "-batch"].into_iter().chain(settings).chain(commands).collect();
        let Some(output) = self.output("gdb", &arguments) else {
            println!("skipped: gdb is not installed");
            return None;
        };
        let (text, errors) = (output.stdout, output.stderr);
        Some(String::from_utf8_lossy(&text).into_owned() + &String::from_utf8_lossy(&errors))
    }
}

/// Returns the numbers of the lines that begin with a word.
fn numbers(text: &str, word: &str) -> Vec<u64> {
    let numbers = text.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    numbers.map(|number| u64::from_str_radix(number.trim(), 16).unwrap()).collect()
}

/// Returns the numbers of the instructions that `monitor where` has printed.
fn places(text: &str) -> Vec<usize> {
    let places = text.lines().filter_map(|line| line.strip_prefix("instruction ")?.split_once(" of "));
    places.map(|(place, _)| place.parse().unwrap()).collect()
}
