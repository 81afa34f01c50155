//! Which program a task runs, as the system reports it.

use libc::pid_t;
use std::{fs, io};

/// A thread, its process, and the program that it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadInfo {
    /// The process.
    pub pid: pid_t,
    /// The thread's number; that of the process for its first thread.
    pub tid: pid_t,
    /// The thread's name: the first 15 bytes of the program's file name, unless the program has changed it.
    pub comm: String,
    /// The program and its arguments.
    pub arguments: Vec<String>,
}

impl ThreadInfo {
    /// Reads the data of a thread that has not ended.
    pub(super) fn read(thread: pid_t) -> io::Result<Self> {
        let arguments = fs::read(format!("/proc/{thread}/cmdline"))?;
        let arguments = arguments.strip_suffix(&[0]).unwrap_or(&arguments).split(|byte| *byte == 0);
        Ok(Self {
            pid: process_of(thread)?,
            tid: thread,
            comm: comm(thread)?,
            arguments: arguments.map(|word| String::from_utf8_lossy(word).into_owned()).collect(),
        })
    }

    /// Reads the thread's name again. For a thread that has ended, the last name that was read stays.
    pub(super) fn read_comm(&mut self) {
        if let Ok(comm) = comm(self.tid) {
            self.comm = comm;
        }
    }
}

/// Returns the process of a thread that has not ended.
pub(super) fn process_of(thread: pid_t) -> io::Result<pid_t> {
    number(thread, "Tgid:")?
        .ok_or_else(|| io::Error::other("the status of the thread does not name its process"))
}

/// Returns true if this process traces a thread.
pub(super) fn is_traced_here(thread: pid_t) -> bool {
    let tracer = number(thread, "TracerPid:").ok().flatten();
    tracer == Some(std::process::id().cast_signed())
}

/// Returns true if a SIGTRAP has yet to be delivered to a thread.
pub(super) fn has_pending_trap(thread: pid_t) -> bool {
    let signals = status(thread, "SigPnd:").ok().flatten();
    signals
        .and_then(|set| u64::from_str_radix(&set, 16).ok())
        .is_some_and(|set| set >> (libc::SIGTRAP - 1) & 1 != 0)
}

fn number(thread: pid_t, name: &str) -> io::Result<Option<pid_t>> {
    Ok(status(thread, name)?.and_then(|number| number.parse().ok()))
}

/// Returns a line of the status of a thread.
fn status(thread: pid_t, name: &str) -> io::Result<Option<String>> {
    let status = fs::read_to_string(format!("/proc/{thread}/status"))?;
    Ok(status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().into())))
}

/// Returns the threads of a process that has not ended, the first one first.
pub(super) fn threads_of(process: pid_t) -> io::Result<Vec<pid_t>> {
    let names = fs::read_dir(format!("/proc/{process}/task"))?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    let mut threads: Vec<pid_t> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    threads.sort_by_key(|thread| (*thread != process, *thread));
    Ok(threads)
}

fn comm(thread: pid_t) -> io::Result<String> {
    let comm = fs::read(format!("/proc/{thread}/comm"))?;
    Ok(String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_process_its_name_and_its_arguments() {
        let own = std::process::id().cast_signed();
        let mut info = ThreadInfo::read(own).unwrap();
        assert_eq!((info.pid, info.tid), (own, own));
        let arguments: Vec<_> = std::env::args().collect();
        assert_eq!(info.arguments, arguments);
        // The kernel keeps the first 15 bytes of the file's name.
        let file = std::env::current_exe().unwrap();
        assert!(!info.comm.is_empty() && file.file_name().unwrap().to_str().unwrap().starts_with(&info.comm));
        let before = info.clone();
        info.comm.clear();
        info.read_comm();
        assert_eq!(info, before);
    }
}
