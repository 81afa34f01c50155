//! The contents of a guest.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

use super::{initramfs::Files, libraries::libraries, pages, program::program, ptwrite, session};

/// The guest's files, made from programs of the host.
#[derive(Clone, Debug)]
pub struct Guest {
    files: Files,
}

/// A file of the host, and its path in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file.
    pub file: PathBuf,
    /// Its path in the guest.
    pub path: String,
}

impl std::str::FromStr for Program {
    type Err = String;

    /// Parses `FILE` or `FILE:PATH`; without a path that of the file is used.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (file, path) = text.split_once(':').unwrap_or((text, ""));
        let file = std::path::absolute(file).map_err(|error| format!("{file:?}: {error}"))?;
        if !path.is_empty() && !path.starts_with('/') {
            return Err(format!("{path:?} does not begin with a slash"));
        }
        let path = match path {
            "" => file.to_str().ok_or("the file's name is no UTF-8")?.to_owned(),
            path => path.to_owned(),
        };
        Ok(Self { file, path })
    }
}

impl Guest {
    /// Returns a guest that has only this busybox, which must need no libraries.
    #[must_use]
    pub fn new(busybox: &Path) -> Self {
        let mut files = Files::default();
        for folder in ["/proc", "/sys", "/tmp", "/out", "/root"] {
            files.folder(folder);
        }
        files.device("/dev/console", 5, 1);
        files.host("/bin/busybox", busybox);
        files.script("/init", include_str!("init.sh"));
        files.script("/pugmark/pages", program(pages::CODE));
        files.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
        files.text("/etc/group", "root:x:0:\n");
        Self { files }
    }

    /// Adds a program, or another file, with the libraries that it needs.
    ///
    /// # Errors
    /// If it does not exist, or one of its libraries does not.
    pub fn add(&mut self, program: &Program) -> Result<()> {
        ensure!(program.file.is_file(), "there is no file {}", program.file.display());
        for library in libraries(&program.file)? {
            let path = library.to_str().context("a library's name is no UTF-8")?.to_owned();
            self.files.host(&path, &library);
        }
        self.files.host(&program.path, &program.file);
        Ok(())
    }

    /// Sets the command that the guest runs, word by word. Without one it runs a shell.
    pub fn command(&mut self, words: &[String]) {
        let quoted: Vec<_> = words.iter().map(|word| quote(word)).collect();
        self.files.text("/pugmark/command", format!("exec {}\n", quoted.join(" ")));
    }

    /// Sets a shell script that the guest runs. It may run `session N`: the log from there on, on this processor,
    /// belongs to the session N. It may also run `ptwrite`, which writes each number below 500 into a trace.
    pub fn script(&mut self, text: &str) {
        self.files.script("/bin/session", program(session::CODE));
        self.files.script("/bin/ptwrite", program(ptwrite::CODE));
        self.files.text("/pugmark/command", text);
    }

    /// Returns the guest's files.
    #[must_use]
    pub const fn files(&self) -> &Files {
        &self.files
    }
}

/// Quotes a word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_keeps_its_path_unless_another_is_given() {
        let program: Program = "/bin/true".parse().unwrap();
        assert_eq!((program.file.as_path(), &program.path[..]), (Path::new("/bin/true"), "/bin/true"));
        let program: Program = "x:/usr/bin/y".parse().unwrap();
        assert_eq!((program.file.is_absolute(), &program.path[..]), (true, "/usr/bin/y"));
        assert!("x:y".parse::<Program>().is_err());
    }

    #[test]
    fn a_shell_reads_each_word_as_it_was() {
        let word = "it's $HOME `x` \\ \"*\"";
        let command = format!("printf %s {}", quote(word));
        let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let mut guest = Guest::new(Path::new("/bin/true"));
        let error = guest.add(&"/no/such:/x".parse().unwrap()).unwrap_err().to_string();
        assert_eq!(error, "there is no file /no/such");
        guest.add(&"/bin/true".parse().unwrap()).unwrap();
        guest.command(&["echo".into(), "a b".into()]);
        let archive = String::from_utf8_lossy(&guest.files().archive().unwrap()).into_owned();
        assert!(archive.contains("exec 'echo' 'a b'\n") && archive.contains("libc.so"));
    }
}
