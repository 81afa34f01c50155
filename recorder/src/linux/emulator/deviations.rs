//! The places where the emulator is no Linux, as far as a program's system calls show them.

#![allow(dead_code, reason = "the plugin finds them, the recorder reads them")]
#![allow(unreachable_pub, reason = "in the plugin's own crate it is not")]

/// A way in which the emulator differs from the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviationKind {
    /// A seccomp filter was asked for, and none is in force.
    NoFilter,
    /// The system call with this number does not exist: the program got ENOSYS.
    NoCall(u32),
    /// No process was started that shares memory without being a thread: the program got EINVAL.
    NoSharedMemory,
    /// Code is mapped from a file that the program can write to otherwise: where it does, the emulator may execute what
    /// was there before.
    StaleCode,
}

const MMAP: i64 = 9;
const CLONE: i64 = 56;
const PRCTL: i64 = 157;
/// Calls that C libraries make by themselves, and replace by others: set_robust_list, rseq, clone3, faccessat2,
/// fchmodat2 and mseal.
const REPLACED: [i64; 6] = [273, 334, 435, 439, 452, 462];

const PR_SET_SECCOMP: u64 = 22;
const PROT_EXEC: u64 = 4;
/// Of a mapping's flags: `MAP_SHARED`, which `MAP_SHARED_VALIDATE` has, too.
const MAP_SHARED: u64 = 1;
const MAP_ANONYMOUS: u64 = 0x20;

const EINVAL: i64 = 22;
const ENOSYS: i64 = 38;

impl DeviationKind {
    /// Returns the deviation that a system call shows. `is_writable` says if a descriptor is open for writing.
    pub fn of_call(
        number: i64,
        [a1, _, a3, a4, a5]: [u64; 5],
        result: i64,
        is_writable: impl Fn(u64) -> bool,
    ) -> Option<Self> {
        let is_shared = || a4 & MAP_SHARED != 0 && a4 & MAP_ANONYMOUS == 0;
        match (number, -result) {
            (PRCTL, 1..) if a1 == PR_SET_SECCOMP => Some(Self::NoFilter),
            (CLONE, EINVAL) => Some(Self::NoSharedMemory),
            (_, ENOSYS) if !REPLACED.contains(&number) => Some(Self::NoCall(u32::try_from(number).ok()?)),
            // An address, not an error.
            (MMAP, ..=0) if a3 & PROT_EXEC != 0 && is_shared() && is_writable(a5) => Some(Self::StaleCode),
            _ => None,
        }
    }

    /// Returns the words of a message that says so.
    pub const fn words(self) -> [u32; 2] {
        match self {
            Self::NoFilter => [0, 0],
            Self::NoCall(number) => [1, number],
            Self::NoSharedMemory => [2, 0],
            Self::StaleCode => [3, 0],
        }
    }

    /// Reads the words of a message.
    pub const fn read(words: &[u32]) -> Option<Self> {
        match *words {
            [0, 0] => Some(Self::NoFilter),
            [1, number] => Some(Self::NoCall(number)),
            [2, 0] => Some(Self::NoSharedMemory),
            [3, 0] => Some(Self::StaleCode),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_and_its_result_show_what_the_emulator_lacks() {
        use DeviationKind::{NoCall, NoFilter, NoSharedMemory, StaleCode};
        const IO_URING_SETUP: i64 = 425;
        let map = |protection, flags| [0, 4096, protection, flags, 3];
        for (number, arguments, result, expected) in [
            (PRCTL, [PR_SET_SECCOMP, 2, 0, 0, 0], -EINVAL, Some(NoFilter)),
            (PRCTL, [PR_SET_SECCOMP, 1, 0, 0, 0], 0, None),
            (PRCTL, [15, 0, 0, 0, 0], -14, None),
            (CLONE, [0x111, 0, 0, 0, 0], -EINVAL, Some(NoSharedMemory)),
            (CLONE, [0x111, 0, 0, 0, 0], 7, None),
            (IO_URING_SETUP, [0; 5], -ENOSYS, Some(NoCall(425))),
            (IO_URING_SETUP, [0; 5], 3, None),
            (REPLACED[1], [0; 5], -ENOSYS, None),
            (MMAP, map(5, 1), 0x7000_0000, Some(StaleCode)),
            (MMAP, map(5, 3), 0x7000_0000, Some(StaleCode)),
            (MMAP, map(5, 2), 0x7000_0000, None),
            (MMAP, map(1, 1), 0x7000_0000, None),
            (MMAP, map(5, 0x21), 0x7000_0000, None),
            (MMAP, map(5, 1), -13, None),
        ] {
            let found = DeviationKind::of_call(number, arguments, result, |file| file == 3);
            assert_eq!(found, expected, "{number} {arguments:?} {result}");
            assert!(found.is_none_or(|found| DeviationKind::read(&found.words()) == Some(found)));
        }
        assert_eq!(DeviationKind::of_call(MMAP, map(5, 1), 0x7000_0000, |_| false), None);
        assert_eq!(DeviationKind::read(&[4, 0]), None);
    }
}
