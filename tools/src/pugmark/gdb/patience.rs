//! Keeps GDB waiting while a recording is decoded.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

/// The way to GDB, and a thread that sends an acknowledgement again and again while an answer is worked on: GDB waits
/// for one two seconds (`remotetimeout`), from the last byte on, and passes over acknowledgements before it.
///
/// Source: GDB's manual, Remote Protocol, "Packet Acknowledgment"; gdb/remote.c, `getpkt`.
#[derive(Clone)]
pub(super) struct Patience {
    to: Arc<Mutex<dyn Write + Send>>,
    is_busy: Arc<AtomicBool>,
    /// The thread ends when the last of these is dropped.
    _end: Sender<()>,
}

impl Patience {
    /// Starts to send.
    pub(super) fn new(to: impl Write + Send + 'static, every: Duration) -> Self {
        let to: Arc<Mutex<dyn Write + Send>> = Arc::new(Mutex::new(to));
        let is_busy = Arc::new(AtomicBool::new(true));
        let (_end, ended) = channel();
        let sender = (to.clone(), is_busy.clone());
        let send = move || {
            let (to, is_busy) = sender;
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                if is_busy.load(Ordering::Relaxed) && write(&to, b"+").is_err() {
                    return;
                }
            }
        };
        // Without the thread only what takes long fails.
        let _ = thread::Builder::new().spawn(send);
        Self { to, is_busy, _end }
    }

    /// Notes whether an answer is worked on.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
    }

    /// Sends bytes, none of the thread's among them.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        write(&self.to, bytes)
    }
}

fn write(to: &Mutex<dyn Write + Send>, bytes: &[u8]) -> io::Result<()> {
    let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
    to.write_all(bytes)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn acknowledgements_are_sent_while_it_is_busy_and_until_it_is_dropped() {
        let (send, sent) = channel();
        let patience = Patience::new(Passed(send), Duration::from_millis(1));
        assert_eq!([sent.recv().unwrap(), sent.recv().unwrap()], [b"+", b"+"]);
        patience.set_busy(false);
        patience.send(b"answer").unwrap();
        let mut rest = sent.iter().skip_while(|bytes| bytes == b"+");
        assert_eq!(rest.next().unwrap(), b"answer");
        drop(patience);
        // The writer goes with the thread; one acknowledgement may have been on its way.
        assert!(rest.count() <= 1);
    }
}
