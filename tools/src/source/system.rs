//! Changes of the system while traces were taken.

use std::path::Path;
use std::sync::Arc;

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SystemTask {
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
}

/// Something that the system did, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemRecord {
    /// When, in the clock of the source; 0 for what was so before the source began.
    pub time: u64,
    /// The processor that did it, if that is known.
    pub cpu: Option<u32>,
    /// The change.
    pub change: SystemChange,
}

/// A change of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemChange {
    /// A process has mapped memory.
    Map(Mapping),
    /// A thread has a new name.
    Name {
        /// The thread.
        task: SystemTask,
        /// The name.
        name: Arc<str>,
        /// The process executes another program from here on, and none of its mappings is left.
        exec: bool,
    },
    /// A thread begins.
    Fork {
        /// The thread.
        task: SystemTask,
        /// The process that began it: its own, or the parent of a new one.
        parent: i32,
        /// A new process has the mappings of its parent.
        has_mappings: bool,
    },
    /// The processor switches from one thread to another.
    Switch {
        /// The thread that has run, if that is known.
        from: Option<SystemTask>,
        /// The thread that runs, if that is known. A process of -1 stands for that of the thread.
        to: Option<SystemTask>,
    },
    /// The kernel's code changes.
    Poke(TextPoke),
    /// Some of a trace was lost.
    TraceLost,
    /// Records were lost.
    RecordsLost(u64),
}

/// A change of the kernel's code, in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPoke {
    /// The address.
    pub address: u64,
    /// The bytes that were there; empty if no code was.
    pub old: Arc<[u8]>,
    /// The bytes that are there now; empty if none are.
    pub new: Arc<[u8]>,
}

/// Memory that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The process; -1 stands for the kernel.
    pub process: i32,
    /// The first address.
    pub address: u64,
    /// Size in bytes.
    pub len: u64,
    /// Where the mapping begins in the file.
    pub offset: u64,
    /// The file, or the system's name for what is none.
    pub path: Arc<Path>,
    /// True if it can be executed.
    pub executable: bool,
}
