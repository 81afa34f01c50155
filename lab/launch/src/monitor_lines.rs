//! The monitor's own lines, which it writes to a separate channel: for QEMU a debug console whose output is a file.
//!
//! The guest's lines use another channel. An empty line in the file means that the guest was about to end a line on its
//! first serial port, which defines the order of both.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::qemu::with_path;

/// Port of the monitor's debug console.
const PORT: u16 = 0xe8;

/// Returns QEMU's arguments that write the monitor's lines into this file.
#[must_use]
pub fn arguments(file: &Path) -> [OsString; 4] {
    [
        "-chardev".into(),
        with_path("file,id=monitor,path=", file),
        "-device".into(),
        format!("isa-debugcon,iobase={PORT:#x},chardev=monitor").into(),
    ]
}

/// The reader of such a file, while QEMU writes it.
#[derive(Debug)]
pub struct MonitorLines {
    path: PathBuf,
    /// The file, once it exists.
    file: Option<File>,
    /// The bytes that were read but not processed.
    text: Vec<u8>,
}

impl MonitorLines {
    /// Returns a reader of the file at `path`, which need not exist yet.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path, file: None, text: Vec::new() }
    }

    /// Returns the lines from before the guest ended its next line, which has been read already.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn before_guest_line(&mut self) -> Result<Vec<String>> {
        let lines = self.until_guest_line()?;
        if self.text.first() == Some(&b'\n') {
            self.text.remove(0);
        }
        Ok(lines)
    }

    /// Returns the lines that have been written so far and are not after the guest's next line.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn until_guest_line(&mut self) -> Result<Vec<String>> {
        self.read()?;
        let mut lines = Vec::new();
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n').filter(|end| *end > 0) {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        Ok(lines)
    }

    /// Returns all remaining lines, regardless of the guest's: of a guest that has ended, or whose lines are not read.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn rest(&mut self) -> Result<Vec<String>> {
        let mut lines = self.until_guest_line()?;
        while self.text.first() == Some(&b'\n') {
            lines.extend(self.before_guest_line()?);
            lines.extend(self.until_guest_line()?);
        }
        Ok(lines)
    }

    fn read(&mut self) -> Result<()> {
        let cannot_read = || format!("cannot read {}", self.path.display());
        if self.file.is_none() {
            self.file = match File::open(&self.path) {
                // QEMU has not created it yet, or the machine has no monitor.
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                file => Some(file.with_context(cannot_read)?),
            };
        }
        if let Some(file) = &mut self.file {
            file.read_to_end(&mut self.text).with_context(cannot_read)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::io::Write;

    #[test]
    fn each_line_comes_before_the_line_that_the_guest_had_not_ended() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.file("monitor");
        let mut lines = MonitorLines::new(path.clone());
        let none: [&str; 0] = [];
        assert_eq!(lines.before_guest_line().unwrap(), none, "before QEMU has made the file");
        let mut file = File::create(path).unwrap();
        let mut write = |text: &str| file.write_all(text.as_bytes()).unwrap();
        write("one\n\ntwo\nthr");
        assert_eq!(lines.until_guest_line().unwrap(), ["one"]);
        assert_eq!(lines.until_guest_line().unwrap(), none, "the rest is after the guest's line");
        assert_eq!(lines.before_guest_line().unwrap(), none);
        assert_eq!(lines.until_guest_line().unwrap(), ["two"]);
        write("ee\n\n\n");
        assert_eq!(lines.before_guest_line().unwrap(), ["three"]);
        assert_eq!(lines.before_guest_line().unwrap(), none);
        write("four\n\n\nfive\nsi");
        assert_eq!(lines.rest().unwrap(), ["four", "five"]);
        write("x\n");
        assert_eq!(lines.rest().unwrap(), ["six"]);
    }
}
