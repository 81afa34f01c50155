//! The plugin and the rings, which the emulator gets from the recorder as files without names.
//!
//! A program finds them as descriptors of the recorder in `/proc`: nobody else can replace the plugin, and nothing is
//! left when the recorder ends, however it ends.

use super::plugin::{
    Origin,
    wire::{RINGS_BYTES, Rings},
};
use std::{
    ffi::{CStr, c_long},
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, FromRawFd},
    ptr::null_mut,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
};

/// The plugin, which the build script makes.
static PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plugin.so"));

/// The plugin and the rings.
pub(super) struct Shared {
    _life: Life,
    pub(super) rings: Arc<Rings>,
    file: File,
    plugin: File,
}

impl Shared {
    pub(super) fn new() -> io::Result<Self> {
        let mut plugin = file(c"pugmark-plugin")?;
        plugin.write_all(PLUGIN)?;
        let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: takes numbers.
        if unsafe { libc::fcntl(plugin.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let file = file(c"pugmark-rings")?;
        if largest_file()? < RINGS_BYTES as u64 {
            let error = "the rings are a large file, of which little is used: lift `ulimit -f`";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
        }
        file.set_len(RINGS_BYTES as u64)?;
        let rings = Arc::new(Rings::map(&file)?);
        Ok(Self { _life: Life::begin(&rings)?, rings, file, plugin })
    }

    /// Returns where a program finds them.
    pub(super) fn origin(&self, follow: bool) -> Origin {
        let path = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Origin { plugin: path(&self.plugin), rings: path(&self.file), follow }
    }
}

fn file(name: &CStr) -> io::Result<File> {
    // SAFETY: takes a text and a number.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(file) })
}

/// Returns how large a file of this process may be.
fn largest_file() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills in two numbers.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

/// A thread whose end the system notes in the rings. It ends with this value, or with the process.
struct Life {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _list: Box<RobustList>,
}

/// A list of one robust futex, in the system's layout. Source: Linux, `struct robust_list_head`.
#[repr(C)]
struct RobustList {
    /// The first entry.
    next: *mut *mut RobustList,
    /// Where its futex is, counted from the entry.
    futex_offset: c_long,
    pending: *mut *mut RobustList,
    /// The entry: the next one, which is the list itself.
    entry: *mut RobustList,
}

impl Life {
    fn begin(rings: &Rings) -> io::Result<Self> {
        let word = rings.header().recorder.as_ptr();
        let mut list = Box::new(RobustList {
            next: null_mut(),
            futex_offset: 0,
            pending: null_mut(),
            entry: null_mut(),
        });
        let address: *mut RobustList = &raw mut *list;
        list.entry = address;
        list.next = &raw mut list.entry;
        list.futex_offset = (word as isize).wrapping_sub(list.next as isize) as c_long;
        let ((ends, end), (begins, begun)) = (channel::<()>(), channel());
        let (address, word) = (address as usize, word as usize);
        let thread = thread::Builder::new().name("life".into()).spawn(move || {
            // SAFETY: the list lives longer than this thread, which has no other robust futexes.
            let set = unsafe { libc::syscall(libc::SYS_set_robust_list, address, 3 * size_of::<usize>()) };
            let set = if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
            // SAFETY: the rings stay mapped until this thread has ended.
            let word = unsafe { &*(word as *const std::sync::atomic::AtomicU32) };
            // SAFETY: takes nothing.
            word.store(unsafe { libc::gettid() }.cast_unsigned(), Relaxed);
            // Who began this waits for it.
            let _ = begins.send(set);
            let _ = end.recv();
        })?;
        let life = Self { ends: Some(ends), thread: Some(thread), _list: list };
        begun.recv().map_err(io::Error::other)??;
        Ok(life)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_end_of_the_recorder_is_seen_in_the_rings() {
        let shared = Shared::new().unwrap();
        let rings = shared.rings.clone();
        assert!(!rings.recorder_is_gone());
        drop(shared);
        assert!(rings.recorder_is_gone());
    }

    #[test]
    fn nobody_can_change_the_plugin_that_programs_load() {
        let shared = Shared::new().unwrap();
        let origin = shared.origin(true);
        assert_eq!(fs::read(&origin.plugin).unwrap(), PLUGIN);
        assert!(fs::write(&origin.plugin, b"other").is_err());
        assert_eq!(fs::metadata(&origin.rings).unwrap().len(), RINGS_BYTES as u64);
    }
}
