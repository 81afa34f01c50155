//! The connection to GDB.

use super::{patience::Patience, target::Replay};
use anyhow::{Result, anyhow};
use gdbstub::{
    conn::Connection,
    stub::{GdbStub, GdbStubError, state_machine::GdbStubStateMachine},
};
use std::{
    cell::RefCell,
    collections::VecDeque,
    convert::Infallible,
    io::{self, Read},
    sync::mpsc::{Receiver, channel},
    thread,
};

/// The bytes that GDB sends, read by a thread of its own: so it is seen when GDB interrupts a search.
struct Incoming {
    batches: Receiver<Vec<u8>>,
    left: RefCell<VecDeque<u8>>,
}

impl Incoming {
    fn new(mut from: impl Read + Send + 'static) -> io::Result<Self> {
        let (send, batches) = channel();
        thread::Builder::new().spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                match from.read(&mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => return,
                    Ok(count) if send.send(bytes[..count].to_vec()).is_err() => return,
                    Ok(_) => {}
                }
            }
        })?;
        Ok(Self { batches, left: RefCell::default() })
    }

    /// Returns the next byte; `None` if GDB has gone.
    fn next(&self) -> Option<u8> {
        let mut left = self.left.borrow_mut();
        while left.is_empty() {
            left.extend(self.batches.recv().ok()?);
        }
        left.pop_front()
    }

    /// Returns true if a byte is there.
    fn is_there(&self) -> bool {
        let mut left = self.left.borrow_mut();
        left.extend(self.batches.try_iter().flatten());
        !left.is_empty()
    }
}

/// The answers to GDB. Each is sent as a whole.
struct Outgoing {
    to: Patience,
    answer: Vec<u8>,
}

impl Connection for Outgoing {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.answer.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.send(&std::mem::take(&mut self.answer))
    }
}

impl Outgoing {
    /// Shows text to GDB's user, which is allowed until a stop is reported.
    ///
    /// Source: GDB's manual, Remote Protocol, "Stop Reply Packets", `O`.
    fn show(&mut self, text: &str) {
        let data: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        let packet = format!("O{data}");
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        self.answer.extend(format!("${packet}#{sum:02x}").bytes());
    }
}

/// Serves GDB until it goes.
///
/// # Errors
/// If the connection fails, or GDB sends something that is not of the protocol.
pub(super) fn serve(
    replay: &mut Replay<'_, '_>,
    from: impl Read + Send + 'static,
    to: &Patience,
) -> Result<()> {
    let incoming = Incoming::new(from)?;
    let wrong = |error: GdbStubError<Infallible, io::Error>| anyhow!("GDB's remote protocol: {error}");
    let mut stub =
        GdbStub::new(Outgoing { to: to.clone(), answer: vec![] }).run_state_machine(replay).map_err(wrong)?;
    loop {
        stub = match stub {
            GdbStubStateMachine::Idle(idle) => {
                to.set_busy(false);
                let Some(byte) = incoming.next() else { return Ok(()) };
                to.set_busy(true);
                idle.incoming_data(replay, byte)
            }
            GdbStubStateMachine::Running(mut running) => {
                let stop = replay.go(&|| incoming.is_there());
                for note in replay.threads.notes.drain(..) {
                    running.borrow_conn().show(&note);
                }
                match stop {
                    Some(stop) => running.report_stop(replay, stop),
                    None => match incoming.next() {
                        Some(byte) => running.incoming_data(replay, byte),
                        None => return Ok(()),
                    },
                }
            }
            GdbStubStateMachine::CtrlCInterrupt(interrupt) => {
                let stop = replay.interrupted();
                interrupt.interrupt_handled(replay, Some(stop))
            }
            GdbStubStateMachine::Disconnected(_) => return Ok(()),
        }
        .map_err(wrong)?;
    }
}
