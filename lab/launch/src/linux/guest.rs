//! The contents of a guest.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use super::libraries::{interpreter, libraries};
use super::{initramfs::Files, pages, program::program, ptwrite, session};

/// Folders of which the guest has its own.
const OF_THE_GUEST: [&str; 3] = ["/proc", "/sys", "/out"];

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
        for folder in ["/proc", "/sys", "/tmp", "/out", "/root", "/dev/shm"] {
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

    /// Adds a program, or another file, with the libraries that it needs and the program that executes it, if it is a
    /// script; or a folder with all that is in it.
    ///
    /// # Errors
    /// If it does not exist, or one of its libraries does not.
    pub fn add(&mut self, program: &Program) -> Result<()> {
        let Program { file, path } = program;
        if file.is_dir() {
            return self.add_folder(file, path);
        }
        ensure!(file.is_file(), "there is no file {}", file.display());
        for library in libraries(file)? {
            self.files.host(text(&library)?, &library);
        }
        self.files.host(path, file);
        match interpreter(file)?.and_then(|name| find_program(&name, Path::new("/"))) {
            Some(found) if !self.files.has(text(&found)?) => {
                self.add(&Program { path: text(&found)?.to_owned(), file: found })
            }
            _ => Ok(()),
        }
    }

    fn add_folder(&mut self, folder: &Path, path: &str) -> Result<()> {
        self.files.folder(path);
        let cannot_read = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(folder).with_context(cannot_read)? {
            let entry = entry.with_context(cannot_read)?;
            let (file, kind) = (entry.path(), entry.file_type().with_context(cannot_read)?);
            let path = format!("{}/{}", path.trim_end_matches('/'), text(Path::new(&entry.file_name()))?);
            if kind.is_symlink() {
                self.files.link(&path, text(&fs::read_link(&file).with_context(cannot_read)?)?);
            } else if kind.is_dir() || kind.is_file() {
                self.add(&Program { file, path })?;
            }
        }
        Ok(())
    }

    /// Sets the command that the guest runs in `folder`, word by word, and adds each program and file of the host that
    /// it names, at its place on the host.
    ///
    /// # Errors
    /// Those of [`Self::add`].
    pub fn command_of_host(&mut self, words: &[String], folder: &Path) -> Result<()> {
        for word in words {
            if let Some(file) = find_program(word, folder) {
                let path = text(&file)?.to_owned();
                if !OF_THE_GUEST.iter().any(|of_guest| file.starts_with(of_guest)) && !self.files.has(&path) {
                    self.add(&Program { file, path })?;
                }
            }
        }
        let folder = text(folder)?;
        self.files.folder(folder);
        self.files.text("/pugmark/command", format!("cd {}\n{}", quote(folder), exec(words)));
        Ok(())
    }

    /// Sets the command that the guest runs, word by word. Without one it runs a shell.
    pub fn command(&mut self, words: &[String]) {
        self.files.text("/pugmark/command", exec(words));
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

/// Returns the file of the host that a word names, as an absolute path: with a slash one from `folder` on, without one
/// that is there or a program that a shell would find.
fn find_program(word: &str, folder: &Path) -> Option<PathBuf> {
    let there = Some(normal(&folder.join(word))).filter(|_| !word.is_empty() && !word.starts_with('-'));
    let searched = std::env::var_os("PATH").filter(|_| !word.contains('/')).unwrap_or_default();
    let programs = std::env::split_paths(&searched).map(|folder| folder.join(word)).collect::<Vec<_>>();
    let is_program = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    there.filter(|file| file.is_file()).or_else(|| programs.into_iter().find(is_program))
}

/// Returns an absolute path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("the name {} is no UTF-8", path.display()))
}

/// Returns the line of a shell that becomes a command.
fn exec(words: &[String]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| quote(word)).collect();
    format!("exec {}\n", quoted.join(" "))
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
    fn a_command_takes_the_files_along_that_it_names() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let folder = scratch.file("it's here");
        fs::create_dir_all(folder.join("inner")).unwrap();
        for (name, content) in
            [("data", "of data"), ("run", "#!/bin/sh\n"), ("inner/deep", "of deep"), ("-n", "")]
        {
            fs::write(folder.join(name), content).unwrap();
        }
        let words =
            ["./run", "inner/../data", "/proc/cpuinfo", "-n", "no/such", "true", "data"].map(String::from);
        let mut guest = Guest::new(Path::new("/bin/true"));
        guest.command_of_host(&words, &folder).unwrap();
        let has = |path: &Path| guest.files().has(path.to_str().unwrap());
        assert!(["run", "data"].iter().all(|name| has(&folder.join(name))));
        assert!(has(&find_program("true", &folder).unwrap()) && has(Path::new("/bin/sh")));
        assert!(["inner/deep", "-n", "inner"].iter().all(|name| !has(&folder.join(name))));
        assert!(!has(Path::new("/proc/cpuinfo")));
        let archive = String::from_utf8_lossy(&guest.files().archive().unwrap()).into_owned();
        let cd = format!("cd {}\nexec './run' 'inner/../data' ", quote(folder.to_str().unwrap()));
        assert!(archive.contains(&cd), "{cd}");
        guest.add(&Program { file: folder.clone(), path: "/with".into() }).unwrap();
        assert!(["/with/inner/deep", "/with/-n"].iter().all(|path| guest.files().has(path)));
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
