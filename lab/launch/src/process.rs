//! A running QEMU.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::qemu::CANNOT_START;

/// Interval of checks for the end.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// A running machine; dropping this ends it.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts the machine.
    ///
    /// # Errors
    /// If QEMU cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        command.spawn().map(Self).context(CANNOT_START)
    }

    /// Returns standard output, once.
    ///
    /// # Errors
    /// If it is not a pipe, or was returned before.
    pub fn output(&mut self) -> Result<ChildStdout> {
        self.0.stdout.take().context("standard output was not piped")
    }

    /// Returns the status and the standard error output, if the machine has ended.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn ended(&mut self) -> Result<Option<(i32, String)>> {
        if self.status()?.is_none() {
            return Ok(None);
        }
        self.wait().map(Some)
    }

    /// Returns the status, if the machine has ended.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }

    /// Waits until the machine ends by itself, for this time at most; then ends it.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn end(&mut self, grace: Duration) -> Result<()> {
        let asked = Instant::now();
        while self.status()?.is_none() {
            if asked.elapsed() > grace {
                self.0.kill()?;
                self.0.wait()?;
            }
            std::thread::sleep(CHECK_EVERY);
        }
        Ok(())
    }

    /// Asks a recorder to end: it has a trace to write.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn ask(&mut self) -> Result<()> {
        if self.status()?.is_none() {
            // SAFETY: it takes numbers. The process is not waited for yet, so the number is its own.
            unsafe { libc::kill(self.0.id().cast_signed(), libc::SIGTERM) };
        }
        Ok(())
    }

    /// Returns the lines of standard output. A separate thread reads them, so that the receiver can keep a deadline.
    ///
    /// # Errors
    /// Those of [`Self::output`].
    pub fn lines(&mut self) -> Result<Receiver<String>> {
        let (sender, receiver) = channel();
        let output = BufReader::new(self.output()?);
        std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    break;
                }
            }
        });
        Ok(receiver)
    }

    /// Waits for the machine's end, and returns the status and the standard error output. The status is the negated
    /// number of a signal that has ended it.
    ///
    /// # Errors
    /// If the output cannot be read.
    pub fn wait(&mut self) -> Result<(i32, String)> {
        let mut stderr = String::new();
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_string(&mut stderr)?;
        }
        let status = self.0.wait()?;
        Ok((status.code().unwrap_or_else(|| -status.signal().unwrap_or_default()), stderr))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The machine may have ended by itself; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
