//! Runs the programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Ptdump,
    Ptxed,
}

impl Tool {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ptdump => "ptdump",
            Self::Ptxed => "ptxed",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Ptdump => env!("CARGO_BIN_EXE_ptdump"),
            Self::Ptxed => env!("CARGO_BIN_EXE_ptxed"),
        }
    }

    /// Makes the command that runs the program in a folder.
    fn command(self, folder: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(self.path());
        command.args(args).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs the program in a folder.
    pub(crate) fn run(self, folder: &Path, args: &[&str]) -> Ran {
        let output = self.command(folder, args).output().expect("the program runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(self.path(), "{prog}");
        Ran { out: text(&output.stdout), err: text(&output.stderr), status: output.status.code() }
    }
}

/// The result of a run. The program's name is replaced by `{prog}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) status: Option<i32>,
}

/// A folder that is removed when the value is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes a folder with these files.
    pub(crate) fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let folder = Self(folder);
        files.iter().for_each(|(name, bytes)| folder.add(name, bytes));
        folder
    }

    pub(crate) fn add(&self, name: &str, bytes: &[u8]) {
        let file = self.0.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }

    pub(crate) fn command(&self, tool: Tool, args: &[&str]) -> Command {
        tool.command(&self.0, args)
    }

    pub(crate) fn run(&self, tool: Tool, args: &[&str]) -> Ran {
        tool.run(&self.0, args)
    }

    /// Runs the program, which must succeed without errors, and returns its lines.
    pub(crate) fn lines(&self, tool: Tool, args: &[&str]) -> Vec<String> {
        let ran = self.run(tool, args);
        assert_eq!((ran.err.as_str(), ran.status), ("", Some(0)), "{args:?}");
        ran.out.lines().map(Into::into).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a PERF_RECORD with these words after its header.
pub(crate) fn record(kind: u64, misc: u64, words: &[u64]) -> Vec<u8> {
    let header = kind | misc << 32 | (8 + 8 * words.len() as u64) << 48;
    [header].iter().chain(words).flat_map(|word| word.to_le_bytes()).collect()
}
