//! Follows the program into another one that it executes.

use super::{PluginThread, counts, lock, program_memory, wire::Kind};
use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int},
    fs,
    os::unix::ffi::OsStrExt,
    ptr,
};

unsafe extern "C" {
    fn execve(
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn eaccess(path: *const c_char, mode: c_int) -> c_int;
}

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
}

impl Origin {
    /// Returns true if a program that is executed now can open both: not with another user's rights, nor where the
    /// system's files are not.
    fn can_be_opened(&self) -> bool {
        [&self.plugin, &self.rings]
            .into_iter()
            .all(|path| CString::new(path.as_str()).is_ok_and(|path| may(&path, READ)))
    }
}

/// Executes another program under the emulator instead of beside it. If that is not possible, the emulator executes it
/// as it does without a plugin, or reports to the program what is wrong.
pub(super) fn follow_exec(thread: &mut PluginThread, path: u64, arguments: u64, environment: u64) {
    let Some(origin) = lock().as_ref().map(|process| process.origin.clone()) else { return };
    thread.ring.write(Kind::Exec, &[]);
    if origin.count {
        counts::show_all();
    }
    if !origin.follow || thread.ring.recorder_is_gone() {
        return;
    }
    let given = || {
        let path = program_memory::text(path)?;
        Some((path, program_memory::texts(arguments)?, program_memory::texts(environment)?))
    };
    // The emulator reports to the program what it cannot read.
    let Some((path, given, environment)) = given() else { return };
    let Some(command) = command(&origin, &path, &given).filter(|_| origin.can_be_opened()) else {
        thread.ring.write(Kind::NotFollowed, &[path.as_bytes()]);
        return;
    };
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    // SAFETY: both lists end with a null, and live until the call returns, if it does.
    unsafe {
        execve(c"/proc/self/exe".as_ptr(), pointers(&command).as_ptr(), pointers(&environment).as_ptr())
    };
}

/// Returns the command line by which the emulator executes a program with this plugin; `None` if it cannot: the file is
/// neither a 64-bit program for this processor nor a script for such a program.
pub fn command(origin: &Origin, path: &CStr, arguments: &[CString]) -> Option<Vec<CString>> {
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
        let Origin { plugin, rings, follow, count } = origin;
        let [follow, count] = [*follow, *count].map(u8::from);
        let plugin = format!("{plugin},plugin={plugin},rings={rings},follow={follow},count={count}");
        let name = arguments.first().cloned().unwrap_or_else(|| path.clone());
        let leading = ["qemu-x86_64", "-cpu", "max", "-plugin", &plugin, "-0"];
        let leading = leading.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>().ok()?;
        return Some(leading.into_iter().chain([name, path]).chain(arguments.into_iter().skip(1)).collect());
    }
    None
}

/// Returns the path of a file from the root and without links, as the system names the file where it is mapped: the
/// recording is looked at in other folders. Both texts end with a zero.
pub(super) fn whole_path(path: &[u8]) -> Vec<u8> {
    let named = path.strip_suffix(b"\0").unwrap_or(path);
    fs::canonicalize(OsStr::from_bytes(named))
        .map_or_else(|_| path.to_vec(), |whole| [whole.as_os_str().as_bytes(), b"\0"].concat())
}
