//! Follows the program into another one that it executes.

use super::{PluginThread, counts, environment, lock, program_memory, wire::Kind};
use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_void},
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    ptr,
    sync::OnceLock,
};

unsafe extern "C" {
    fn execve(
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn eaccess(path: *const c_char, mode: c_int) -> c_int;
    fn fcntl(file: c_int, command: c_int, ...) -> c_int;
    fn prctl(option: c_int, ...) -> c_int;
    fn geteuid() -> u32;
    fn getegid() -> u32;
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize;
}

const F_GETFD: c_int = 1;
const F_SETFD: c_int = 2;
const FD_CLOEXEC: c_int = 1;

const READ: c_int = 4;
const EXECUTE: c_int = 1;

/// Returns true if the effective user may do this with a file.
fn may(path: &CStr, mode: c_int) -> bool {
    // SAFETY: takes a text and a number.
    unsafe { eaccess(path.as_ptr(), mode) == 0 }
}

/// Where a program that is executed finds the plugin and the rings: paths of descriptors of the recorder.
#[derive(Clone, Debug)]
pub struct Origin {
    pub plugin: String,
    pub rings: String,
    /// Threads and processes that are started are followed.
    pub follow: bool,
    /// Executions are counted, and not reported one by one.
    pub count: bool,
    /// The emulator gives a program its environment in reverse.
    pub reverses: bool,
}

impl Origin {
    /// Returns true if a program that is executed now can open both: not with another user's rights, nor where the
    /// system's files are not. In another namespace's `/proc` a process can have the recorder's number.
    fn can_be_opened(&self) -> bool {
        let readable = |path: &String| CString::new(path.as_str()).is_ok_and(|path| may(&path, READ));
        [&self.plugin, &self.rings].into_iter().all(readable) && FILES.get() == Some(&self.files())
    }

    /// Notes which files they are.
    pub(super) fn note(&self) {
        let _ = FILES.set(self.files());
    }

    /// Returns the device and the number of each file that is there.
    fn files(&self) -> [Option<(u64, u64)>; 2] {
        [&self.plugin, &self.rings]
            .map(|path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino())))
    }
}

/// The plugin and the rings of this process: devices and numbers.
static FILES: OnceLock<[Option<(u64, u64)>; 2]> = OnceLock::new();

/// Returns true if who executes a file gets rights by that. The system gives them to the file that it executes, which
/// would be the emulator.
fn gives_rights(path: &CStr) -> bool {
    const PR_GET_NO_NEW_PRIVS: c_int = 39;
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010;
    // SAFETY: takes nothing and returns a number.
    let user = unsafe { geteuid() };
    // SAFETY: as above.
    let group = unsafe { getegid() };
    // SAFETY: takes and returns numbers.
    let never = unsafe { prctl(PR_GET_NO_NEW_PRIVS, 0_u64, 0_u64, 0_u64, 0_u64) == 1 };
    let Ok(file) = fs::metadata(OsStr::from_bytes(path.to_bytes())) else { return false };
    // SAFETY: two texts, and room for nothing: only the size of what is there is returned.
    let has_capabilities =
        || unsafe { getxattr(path.as_ptr(), c"security.capability".as_ptr(), ptr::null_mut(), 0) > 0 };
    !never
        && (file.mode() & SET_USER != 0 && file.uid() != user
            || file.mode() & SET_GROUP == SET_GROUP && file.gid() != group
            || user != 0 && has_capabilities())
}

/// The name of a file that a program executes, as in execveat(2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) folder: c_int,
    /// The address of the path.
    pub(super) path: u64,
    pub(super) flags: c_int,
}

const AT_FDCWD: c_int = -100;
const AT_SYMLINK_NOFOLLOW: c_int = 0x100;
const AT_EMPTY_PATH: c_int = 0x1000;

impl Named {
    /// Names a file as execve(2) does.
    pub(super) const fn by(path: u64) -> Self {
        Self { folder: AT_FDCWD, path, flags: 0 }
    }

    /// Returns a path of the file whose path from the folder is this one.
    fn whole(self, path: CString) -> Option<CString> {
        let text = path.to_bytes();
        let folder = format!("/proc/self/fd/{}", self.folder);
        match text {
            [] if self.flags & AT_EMPTY_PATH != 0 && self.folder >= 0 => CString::new(folder).ok(),
            [] | [b'/', ..] => Some(path),
            _ if self.folder == AT_FDCWD => Some(path),
            _ => CString::new([folder.as_bytes(), b"/", text].concat()).ok(),
        }
    }
}

/// Executes another program under the emulator instead of beside it. If that is not possible, the emulator executes it
/// as it does without a plugin, or reports to the program what is wrong.
pub(super) fn follow_exec(thread: &mut PluginThread, named: Named, arguments: u64, environment: u64) {
    let Some(origin) = lock().as_ref().map(|process| process.origin.clone()) else { return };
    thread.ring.write(Kind::Exec, &[]);
    if origin.count {
        counts::show_all();
    }
    if !origin.follow || thread.ring.recorder_is_gone() {
        return;
    }
    let given = || {
        let path = named.whole(program_memory::text(named.path)?)?;
        Some((path, program_memory::texts(arguments)?, program_memory::texts(environment)?))
    };
    // The emulator reports to the program what it cannot read.
    let Some((path, given, environment)) = given() else { return };
    let path = if own_file(&path) == Some("exe") { own_program().unwrap_or(path) } else { path };
    let can_be = named.flags & AT_SYMLINK_NOFOLLOW == 0 && origin.can_be_opened();
    let command = command(&origin, &path, &given, &environment);
    let Some(command) = command.filter(|command| can_be && !gives_rights(&command.file)) else {
        thread.ring.write(Kind::NotFollowed, &[path.as_bytes()]);
        return;
    };
    let descriptor = |name: &str| name.strip_prefix("fd/")?.split('/').next()?.parse().ok();
    let closed = own_file(&path).and_then(descriptor).and_then(keep_open);
    // SAFETY: both lists end with a null, and live until the call returns, if it does.
    unsafe {
        execve(
            c"/proc/self/exe".as_ptr(),
            addresses(&command.line).as_ptr().cast(),
            addresses(&command.environment).as_ptr().cast(),
        )
    };
    if let Some(file) = closed {
        // SAFETY: takes numbers.
        unsafe { fcntl(file, F_SETFD, FD_CLOEXEC) };
    }
}

/// Returns the name of a file in the process's folder in `/proc`.
fn own_file(path: &CStr) -> Option<&str> {
    let path = path.to_str().ok()?;
    if let Some(number) = path.strip_prefix("/dev/fd/") {
        return path.strip_prefix("/dev/").filter(|_| number.parse::<c_int>().is_ok());
    }
    let (process, name) = path.strip_prefix("/proc/")?.split_once('/')?;
    let is_own = matches!(process, "self" | "thread-self") || process.parse() == Ok(std::process::id());
    is_own.then_some(name)
}

/// Returns the path of the program that the emulator executes, and not its own.
fn own_program() -> Option<CString> {
    let process = lock();
    CString::new(process.as_ref()?.program.split(|byte| *byte == 0).next()?).ok()
}

/// Returns true if a descriptor is open for writing.
pub(super) fn is_writable(file: u64) -> bool {
    const F_GETFL: c_int = 3;
    const O_ACCMODE: c_int = 3;
    // SAFETY: takes and returns numbers.
    let flags = unsafe { fcntl(file as c_int, F_GETFL) };
    flags >= 0 && flags & O_ACCMODE != 0
}

/// Keeps a descriptor open while a program is executed: the system has opened the program by then, but the emulator
/// opens it afterwards. Returns the descriptor if it would have been closed.
fn keep_open(file: c_int) -> Option<c_int> {
    // SAFETY: takes and returns numbers.
    let flags = unsafe { fcntl(file, F_GETFD) };
    if flags < 0 || flags & FD_CLOEXEC == 0 {
        return None;
    }
    // SAFETY: as above.
    unsafe { fcntl(file, F_SETFD, flags & !FD_CLOEXEC) };
    Some(file)
}

/// The arguments and the environment that the emulator is executed with.
#[derive(Clone, Debug)]
pub struct EmulatorCommand {
    /// The file that the emulator executes.
    pub file: CString,
    pub line: Vec<CString>,
    pub environment: Vec<CString>,
}

/// Returns the addresses of texts, and a zero: the list that the system takes, as long as the texts live.
pub fn addresses(texts: &[CString]) -> Vec<usize> {
    texts.iter().map(|text| text.as_ptr().expose_provenance()).chain([0]).collect()
}

/// Returns the command by which the emulator executes a program with this plugin; `None` if it cannot: the file is
/// neither a 64-bit program for this processor nor a script for such a program.
pub fn command(
    origin: &Origin,
    path: &CStr,
    arguments: &[CString],
    environment: &[CString],
) -> Option<EmulatorCommand> {
    let (mut path, mut arguments) = (path.to_owned(), arguments.to_vec());
    // A script names the program that it is executed by, which may be a script again.
    for _ in 0..4 {
        if !may(&path, EXECUTE) {
            return None;
        }
        let mut begin = [0; 256];
        let read = fs::File::open(OsStr::from_bytes(path.as_bytes()))
            .and_then(|mut file| std::io::Read::read(&mut file, &mut begin))
            .ok()?;
        let begin = &begin[..read];
        if let Some(line) = begin.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
            let (program, argument) = match line.iter().position(|byte| matches!(byte, b' ' | b'\t')) {
                Some(at) => (&line[..at], line[at..].trim_ascii_start()),
                None => (line, &[][..]),
            };
            let program = CString::new(program).ok()?;
            let own = [program.clone()].into_iter();
            let argument = (!argument.is_empty()).then(|| CString::new(argument)).transpose().ok()?;
            let rest = arguments.iter().skip(1).cloned();
            arguments = own.chain(argument).chain([path]).chain(rest).collect();
            path = program;
            continue;
        }
        // ELF, 64 bits, and the machine.
        let machine = begin.get(18..20).map(|bytes| [bytes[0], bytes[1]]);
        if !begin.starts_with(b"\x7fELF\x02") || machine != Some([62, 0]) {
            return None;
        }
        let Origin { plugin, rings, .. } = origin;
        let [follow, count, reverses] = [origin.follow, origin.count, origin.reverses].map(u8::from);
        let flags = format!("follow={follow},count={count},reverses={reverses}");
        let plugin = format!("{plugin},plugin={plugin},rings={rings},{flags}");
        let name = arguments.first().cloned().unwrap_or_else(|| path.clone());
        let (options, environment) = environment::of_emulator(environment, origin.reverses)?;
        let leading = ["qemu-x86_64", "-cpu", "max", "-plugin", &plugin];
        let leading = leading.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>().ok()?;
        let own = leading.into_iter().chain(options).chain([BEFORE_PROGRAM.into()]);
        let line = own.chain([name, path.clone()]).chain(arguments.into_iter().skip(1)).collect();
        return Some(EmulatorCommand { file: path, line, environment });
    }
    None
}

/// The last of the emulator's own arguments: what the program is called comes next, then its file.
const BEFORE_PROGRAM: &CStr = c"-0";

/// Returns the arguments in a command line that are the emulator's, and the program's.
pub(super) fn of_emulator_and_program<'a, 'b>(line: &'b [&'a [u8]]) -> Option<[&'b [&'a [u8]]; 2]> {
    let last = line.iter().position(|word| *word == BEFORE_PROGRAM.to_bytes_with_nul())?;
    Some([&line[..last], &line[last + 1..]])
}

/// Returns the path of a file from the root and without links, as the system names the file where it is mapped: the
/// recording is looked at in other folders. Both texts end with a zero.
pub(super) fn whole_path(path: &[u8]) -> Vec<u8> {
    let named = path.strip_suffix(b"\0").unwrap_or(path);
    fs::canonicalize(OsStr::from_bytes(named))
        .map_or_else(|_| path.to_vec(), |whole| [whole.as_os_str().as_bytes(), b"\0"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_own_files_in_proc_are_known_by_each_of_their_names() {
        let pid = std::process::id();
        for (path, name) in [
            ("/proc/self/exe", Some("exe")),
            ("/proc/thread-self/fd/3", Some("fd/3")),
            (&format!("/proc/{pid}/exe"), Some("exe")),
            ("/dev/fd/17", Some("fd/17")),
            ("/dev/fd/x", None),
            (&format!("/proc/{}/exe", pid + 1), None),
            ("/proc/self", None),
            ("/bin/true", None),
        ] {
            let path = CString::new(path).unwrap();
            assert_eq!(own_file(&path), name, "{path:?}");
        }
    }

    #[test]
    fn a_file_can_be_named_by_a_descriptor() {
        for (folder, flags, path, whole) in [
            (AT_FDCWD, 0, "a/b", "a/b"),
            (AT_FDCWD, AT_EMPTY_PATH, "", ""),
            (7, 0, "/a", "/a"),
            (7, 0, "a/b", "/proc/self/fd/7/a/b"),
            (7, AT_EMPTY_PATH, "", "/proc/self/fd/7"),
            (7, 0, "", ""),
        ] {
            let named = Named { folder, path: 0, flags };
            assert_eq!(
                named.whole(CString::new(path).unwrap()),
                CString::new(whole).ok(),
                "{named:?} {path}"
            );
        }
    }

    #[test]
    fn another_file_at_the_place_of_the_plugin_is_not_loaded() {
        let [plugin, rings, other] =
            ["null", "zero", "full"].map(|name| fs::File::open(format!("/dev/{name}")).unwrap());
        let path = |file: &fs::File| format!("/proc/self/fd/{}", file.as_raw_fd());
        let (plugin, rings) = (path(&plugin), path(&rings));
        let origin = Origin { plugin, rings, follow: true, count: false, reverses: true };
        assert!(!origin.can_be_opened());
        origin.note();
        assert!(origin.can_be_opened());
        assert!(!Origin { rings: path(&other), ..origin.clone() }.can_be_opened());
        assert!(!Origin { plugin: "/proc/0/fd/3".into(), ..origin }.can_be_opened());
    }

    #[test]
    fn only_a_descriptor_that_would_be_closed_is_kept_open() {
        let file = fs::File::open("/dev/null").unwrap();
        assert_eq!(keep_open(file.as_raw_fd()), Some(file.as_raw_fd()));
        assert_eq!(keep_open(file.as_raw_fd()), None);
        assert_eq!(keep_open(-1), None);
    }
}
