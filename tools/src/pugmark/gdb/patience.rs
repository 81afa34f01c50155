//! Keeps GDB waiting while a recording is decoded.

use std::{
    io::Write,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

/// A thread that sends an acknowledgement again and again, up to its drop: GDB gives an answer two seconds
/// (`remotetimeout`), from the last byte on, and passes over acknowledgements before it.
///
/// Source: GDB's manual, Remote Protocol, "Packet Acknowledgment"; gdb/remote.c, `getpkt`.
pub(super) struct Patience(Option<(Sender<()>, JoinHandle<()>)>);

impl Patience {
    /// Starts to send.
    pub(super) fn new(mut to: impl Write + Send + 'static, every: Duration) -> Self {
        let (end, ended) = channel();
        let send = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                if to.write_all(b"+").and_then(|()| to.flush()).is_err() {
                    return;
                }
            }
        };
        // Without the thread only a long recording fails.
        Self(thread::Builder::new().spawn(send).ok().map(|thread| (end, thread)))
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            // It does not panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A writer that passes on what is written.
    struct Passed(Sender<Vec<u8>>);

    impl Write for Passed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn acknowledgements_are_sent_until_it_is_dropped() {
        let (send, sent) = channel();
        let patience = Patience::new(Passed(send), Duration::from_millis(1));
        assert_eq!([sent.recv().unwrap(), sent.recv().unwrap()], [b"+", b"+"]);
        drop(patience);
        // The writer has gone with the thread.
        assert!(sent.iter().all(|bytes| bytes == b"+"));
    }
}
