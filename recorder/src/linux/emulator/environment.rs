//! The environment of the emulator, in which one variable is not the program's.
//!
//! glib's slice allocator is not safe where a process forks: a lock of it that another thread of the emulator holds is
//! held for ever in the new process. The variable lets glib use the C library's allocator, which is.
//!
//! Source: glib 2.74, `gslice.c` (2.76 has no such allocator); QEMU, `util/envlist.c` and `linux-user/main.c`.

use std::{
    ffi::{CStr, CString, c_int, c_ulong, c_void},
    fs, ptr,
};

const NAME: &str = "G_SLICE";
const OWN: &str = "G_SLICE=always-malloc";
/// The option that takes a variable away from the program.
pub(super) const OPTION: &CStr = c"-U";

unsafe extern "C" {
    fn prctl(option: c_int, ...) -> c_int;
    fn sbrk(more: isize) -> *mut c_void;
}

/// Returns the options and the environment by which the emulator gives the program this environment.
///
/// Of variables with one name glib takes the first. An emulator that `reverses` passes the variables on in reverse, and
/// of those with one name only the last; others in order, and only the first: there the program's has to do for glib.
pub(super) fn of_emulator(program: &[CString], reverses: bool) -> Option<(Vec<CString>, Vec<CString>)> {
    let own = CString::new(OWN).ok()?;
    let is_slice = |variable: &&CString| {
        variable.to_bytes().strip_prefix(NAME.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    };
    let has_slice = program.iter().any(|variable| is_slice(&variable));
    // This takes away one whose name begins so: the last one, or the first one.
    let options = vec![OPTION.to_owned(), CString::new(NAME).ok()?];
    let reversed = program.iter().rev().cloned();
    let in_order = program.iter().cloned();
    Some(match (reverses, has_slice) {
        (true, true) => (vec![], [own].into_iter().chain(reversed).collect()),
        (true, false) => (options, reversed.chain([own]).collect()),
        (false, true) => (vec![], in_order.collect()),
        (false, false) => (options, [own].into_iter().chain(in_order).collect()),
    })
}

/// Returns where the environment begins and ends without the variable.
fn without_own(environment: &[u8], [begin, end]: [u64; 2]) -> Option<[u64; 2]> {
    let length = OWN.len() as u64 + 1;
    let is_own = |variable: &[u8]| variable.strip_suffix(b"\0") == Some(OWN.as_bytes());
    let mut variables = environment.split_inclusive(|byte| *byte == 0);
    if variables.next().is_some_and(is_own) {
        Some([begin + length, end])
    } else {
        variables.next_back().filter(|last| is_own(last)).map(|_| [begin, end - length])
    }
}

/// The places of a process's memory, as the system notes them. Source: Linux, `struct prctl_mm_map`.
#[repr(C)]
struct Places {
    code: [u64; 2],
    data: [u64; 2],
    brk: [u64; 2],
    stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
    auxiliary: *const u64,
    auxiliary_size: u32,
    program: c_int,
}

impl Places {
    fn of_process() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The third field follows the name, which is in parentheses. proc(5) counts from 1.
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        let pair = |number: usize| Some([field(number)?, field(number + 1)?]);
        // SAFETY: moves nothing.
        let brk = unsafe { sbrk(0) } as u64;
        Some(Self {
            code: pair(26)?,
            data: pair(45)?,
            brk: [field(47)?, brk],
            stack: field(28)?,
            arguments: pair(48)?,
            environment: pair(50)?,
            auxiliary: ptr::null(),
            auxiliary_size: 0,
            program: -1,
        })
    }
}

/// Hides the variable from those who read the environment of this process in `/proc`, as far as the system can.
pub(super) fn hide_own() -> Option<()> {
    const PR_SET_MM: c_int = 35;
    const PR_SET_MM_MAP: c_ulong = 14;
    let mut places = Places::of_process()?;
    places.environment = without_own(&fs::read("/proc/self/environ").ok()?, places.environment)?;
    // SAFETY: the system reads the places, and only notes them.
    unsafe { prctl(PR_SET_MM, PR_SET_MM_MAP, &raw const places, size_of::<Places>(), 0 as c_ulong) };
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<CString> {
        texts.iter().map(|text| CString::new(*text).unwrap()).collect()
    }

    #[test]
    fn glib_finds_the_variable_first_and_the_program_has_its_own() {
        for (reverses, program, options, emulator) in [
            (true, &[][..], &["-U", NAME][..], &[OWN][..]),
            (true, &["G_SLICE_X=1", "A=2"], &["-U", NAME], &["A=2", "G_SLICE_X=1", OWN]),
            (true, &["A=1", "G_SLICE=a,b", "B=2"], &[], &[OWN, "B=2", "G_SLICE=a,b", "A=1"]),
            (true, &[OWN], &[], &[OWN, OWN]),
            (false, &["G_SLICE_X=1", "A=2"], &["-U", NAME], &[OWN, "G_SLICE_X=1", "A=2"]),
            (false, &["A=1", "G_SLICE=a,b", "B=2"], &[], &["A=1", "G_SLICE=a,b", "B=2"]),
        ] {
            let found = of_emulator(&texts(program), reverses).unwrap();
            assert_eq!(found, (texts(options), texts(emulator)), "{program:?}");
        }
    }

    #[test]
    fn the_environment_in_proc_ends_before_the_variable_or_begins_after_it() {
        let length = OWN.len() as u64 + 1;
        for (environment, without) in [
            (format!("{OWN}\0A=1\0G_SLICE=all\0"), Some([100 + length, 200])),
            (format!("A=1\0{OWN}\0"), Some([100, 200 - length])),
            (format!("{OWN}\0"), Some([100 + length, 200])),
            ("A=1\0".into(), None),
            (String::new(), None),
        ] {
            assert_eq!(without_own(environment.as_bytes(), [100, 200]), without, "{environment:?}");
        }
    }
}
