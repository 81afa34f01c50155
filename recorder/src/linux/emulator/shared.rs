//! The plugin and the rings, which the emulator gets from the recorder as files without names.
//!
//! A program finds them as descriptors of the recorder in `/proc`: nobody else can replace the plugin, and nothing is
//! left when the recorder ends, however it ends.

use super::{
    loading::LoadedPlugin,
    plugin::{Origin, rings::Rings},
};
use std::{
    ffi::{CStr, c_long},
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd},
    ptr::null_mut,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
};

/// The fewest bytes that the rings take: those of some hundred programs or threads. How many got no ring is said at the
/// end of the recording.
const FEWEST_BYTES: u64 = 1 << 30;

/// The plugin and the rings.
pub(super) struct Shared {
    _life: Life,
    pub(super) rings: Arc<Rings>,
    file: File,
    plugin: LoadedPlugin,
}

impl Shared {
    pub(super) fn new(plugin: LoadedPlugin) -> io::Result<Self> {
        let file = file(c"pugmark-rings")?;
        let size = Rings::file_size(largest_file()?);
        if size < Rings::file_size(FEWEST_BYTES) {
            let error = format!(
                "{} bytes are too few for the file that the emulator writes to: lift `ulimit -f`",
                largest_file()?
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
        }
        file.set_len(size)?;
        let rings = Arc::new(Rings::map(&file)?);
        Ok(Self { _life: Life::begin(&rings)?, rings, file, plugin })
    }

    /// Returns where a program finds them.
    pub(super) fn origin(&self, follow: bool, count: bool) -> Origin {
        let (plugin, rings) = (self.plugin.path(), path(&self.file));
        Origin { plugin, rings, follow, count, reverses: self.plugin.reverses }
    }
}

/// Returns where a program finds a file of this process.
pub(super) fn path(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Makes a file without a name.
pub(super) fn file(name: &CStr) -> io::Result<File> {
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

    impl Shared {
        /// Makes rings for tests that write into them.
        pub(in super::super) fn for_tests() -> Self {
            Self::new(LoadedPlugin::new(1).unwrap()).unwrap()
        }
    }

    #[test]
    fn the_end_of_the_recorder_is_seen_in_the_rings() {
        let shared = Shared::for_tests();
        let rings = shared.rings.clone();
        assert!(!rings.recorder_is_gone());
        drop(shared);
        assert!(rings.recorder_is_gone());
    }
}
