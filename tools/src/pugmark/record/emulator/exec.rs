//! What the plugin does when the program executes another one.

use super::{MAIN_ONLY, PLUGIN, PluginThread, lock, program_memory, wire::Kind};
use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int},
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr,
    sync::atomic::Ordering::Relaxed,
};

unsafe extern "C" {
    fn execve(
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
    fn access(path: *const c_char, mode: c_int) -> c_int;
}

/// Executes another program under the emulator instead of beside it. If that is not possible, the emulator executes it
/// as it does without a plugin, or reports to the program what is wrong.
pub(super) fn follow_exec(thread: &mut PluginThread, path: u64, arguments: u64, environment: u64) {
    let Some(folder) = lock().as_ref().map(|process| process.folder.clone()) else { return };
    thread.ring.write(Kind::Exec, &[]);
    if MAIN_ONLY.load(Relaxed) {
        return;
    }
    let given = || {
        let path = program_memory::text(path)?;
        Some((path, program_memory::texts(arguments)?, program_memory::texts(environment)?))
    };
    // The emulator reports to the program what it cannot read.
    let Some((path, given, environment)) = given() else { return };
    let Some(command) = command(&folder, true, &path, &given) else {
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

/// The command line by which the emulator executes a program with this plugin; `None` if it cannot: the file is
/// neither a 64-bit program for this processor nor a script for such a program.
pub fn command(folder: &Path, follow: bool, path: &CStr, arguments: &[CString]) -> Option<Vec<CString>> {
    let (mut path, mut arguments) = (path.to_owned(), arguments.to_vec());
    // A script names the program that it is executed by, which may be a script again.
    for _ in 0..4 {
        const EXECUTE: c_int = 1;
        // SAFETY: takes a text and a number.
        if unsafe { access(path.as_ptr(), EXECUTE) } != 0 {
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
        let plugin = format!(
            "{},folder={},follow={}",
            folder.join(PLUGIN).display(),
            folder.display(),
            u8::from(follow)
        );
        let name = arguments.first().cloned().unwrap_or_else(|| path.clone());
        let leading = ["qemu-x86_64", "-cpu", "max", "-plugin", &plugin, "-0"];
        let leading = leading.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>().ok()?;
        return Some(leading.into_iter().chain([name, path]).chain(arguments.into_iter().skip(1)).collect());
    }
    None
}

/// The path of a file from the root and without links, as the system names the file where it is mapped: the recording
/// is looked at in other folders. Both texts end with a zero.
pub(super) fn whole_path(path: &[u8]) -> Vec<u8> {
    let named = path.strip_suffix(b"\0").unwrap_or(path);
    fs::canonicalize(OsStr::from_bytes(named))
        .map_or_else(|_| path.to_vec(), |whole| [whole.as_os_str().as_bytes(), b"\0"].concat())
}
