//! The folder of a recording: a trace shows what a program did with its secrets, so nobody else may read it, and
//! nothing is written through a link that somebody has put there.

use super::RecordError;
use crate::files::{self, CODE, IMAGE, INDEX, TASK, TRACE, TRUTH};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The files of a part.
const OF_PART: [&str; 4] = [TRACE, CODE, IMAGE, TRUTH];
/// The end of the name of the recording that was in the same place before.
const OLD: &str = "old";
/// The end of the name of a file that will take the place of another one.
const NEW: &str = "new";

fn named(path: &Path) -> impl Fn(io::Error) -> RecordError {
    move |error| RecordError::File { path: path.into(), error }
}

/// The position of a part in its recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartNumber {
    /// The task's number, from 1.
    pub(super) task: u32,
    /// The part's number among those of its task, from 1.
    pub(super) number: usize,
}

impl PartNumber {
    fn directory(self, out: &Path) -> PathBuf {
        let task = if self.task == 1 { out.into() } else { out.join(format!("{TASK}{}", self.task)) };
        if self.number == 1 { task } else { task.join(self.number.to_string()) }
    }

    /// Makes the part's folder, and that of its task. Returns its path.
    pub(super) fn make(self, out: &Path) -> Result<PathBuf, RecordError> {
        for number in [1, self.number] {
            make_folder(&Self { number, ..self }.directory(out))?;
        }
        Ok(self.directory(out))
    }
}

/// Makes the folder of a recording. A recording that is there gets the name with `.old`, and takes the place of the one
/// of that name.
pub(super) fn prepare(out: &Path) -> Result<(), RecordError> {
    if is_folder(out) && OF_PART.iter().chain([&INDEX]).any(|name| out.join(name).symlink_metadata().is_ok())
    {
        let busy = |text: &str| RecordError::File { path: out.into(), error: io::Error::other(text) };
        let name = out.file_name().ok_or_else(|| busy("it has a recording: give another folder"))?;
        let mut name = name.to_owned();
        name.push(format!(".{OLD}"));
        let old = out.with_file_name(name);
        if is_folder(&old) {
            remove_recording(&old);
            let left = "it is no longer only a recording, and would be replaced by the one that is here now";
            fs::remove_dir(&old)
                .map_err(|_| RecordError::File { path: old.clone(), error: io::Error::other(left) })?;
        }
        fs::rename(out, &old).map_err(named(&old))?;
    }
    if let Some(parent) = out.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(named(parent))?;
    }
    make_folder(out)
}

/// Returns true if there is a folder, and not a link to one.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn make_folder(path: &Path) -> Result<(), RecordError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_folder(path) => Ok(()),
        made => made.map_err(named(path)),
    }
}

/// Makes a file that nobody else may read. A file, link or FIFO of that name is removed.
pub(super) fn make_file(path: &Path) -> Result<File, RecordError> {
    let make = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let made = make().or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => fs::remove_file(path).and_then(|()| make()),
        _ => Err(error),
    });
    made.map_err(named(path))
}

/// Writes a file, which takes the place of the one of that name only when it is whole.
pub(super) fn write(
    dir: &Path,
    name: &str,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), RecordError> {
    let (path, new) = (dir.join(name), dir.join(name).with_extension(NEW));
    let mut out = BufWriter::new(make_file(&new)?);
    let written = fill(&mut out).and_then(|()| out.flush()).and_then(|()| fs::rename(&new, &path));
    written.inspect_err(|_| drop(fs::remove_file(&new))).map_err(named(&path))
}

/// Returns true if a file of that name lists functions of a process.
fn is_list(name: &str) -> bool {
    let pid = |before, after| name.strip_prefix(before)?.strip_suffix(after)?.parse::<i32>().ok();
    pid("perf-", ".map").is_some_and(|pid| name == files::perf_map(pid))
        || pid("jit-", ".dump").is_some_and(|pid| name == files::jitdump(pid))
}

/// Removes a recording from a folder; other files stay.
fn remove_recording(out: &Path) {
    let _ = fs::remove_file(out.join(INDEX));
    // A task without parts leaves a gap in the numbers, so look at the names that exist.
    let names = fs::read_dir(out).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.file_name());
    let names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
    for name in names.iter().filter(|name| is_list(name)) {
        let _ = fs::remove_file(out.join(name));
    }
    let others = names.iter().filter_map(|name| name.strip_prefix(TASK)?.parse().ok());
    for task in others.chain([1]) {
        let place = |number| PartNumber { task, number }.directory(out);
        if !is_folder(&place(1)) {
            continue;
        }
        let is_part = |dir: &PathBuf| is_folder(dir) && dir.join(TRACE).symlink_metadata().is_ok();
        let parts: Vec<_> = (1..).map(place).take_while(is_part).collect();
        // A file that cannot be removed stays.
        for dir in parts.iter().rev() {
            for name in OF_PART {
                let _ = fs::remove_file(dir.join(name));
                let _ = fs::remove_file(dir.join(name).with_extension(NEW));
            }
            if dir != out {
                let _ = fs::remove_dir(dir);
            }
        }
    }
    let _ = fs::remove_file(out.join(INDEX).with_extension(NEW));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pugmark-folder-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn record(out: &Path, recorded: &[&str]) {
        for dir in recorded {
            fs::create_dir_all(out.join(dir)).unwrap();
            for name in OF_PART {
                fs::write(out.join(dir).join(name), "").unwrap();
            }
        }
        fs::write(out.join(INDEX), "").unwrap();
    }

    #[test]
    fn only_a_recording_is_removed_and_all_of_it() {
        let place = Place::new("remove");
        let out = &place.0;
        record(out, &["", "2", "3", "task-2", "task-4", "task-4/2"]);
        // Files that do not belong to it: one in a part, one under the number of a part that does not exist, and
        // others.
        let others = [
            "notes",
            "task-4/notes",
            "5/trace.pt",
            "task-x/trace.pt",
            "2x/trace.pt",
            "perf-x.map",
            "jit-07.dump",
        ];
        let lists = ["perf-12.map", "jit-7.dump"];
        lists.iter().for_each(|name| fs::write(out.join(name), "").unwrap());
        for name in others {
            fs::create_dir_all(out.join(name).parent().unwrap()).unwrap();
            fs::write(out.join(name), "").unwrap();
        }
        // Nor a folder that a link leads to.
        record(&out.join("elsewhere"), &["", "2"]);
        symlink(out.join("elsewhere"), out.join("task-7")).unwrap();
        remove_recording(out);
        let left = |name: &str| out.join(name).exists();
        assert_eq!(others.map(left), [true; 7]);
        assert_eq!(lists.map(left), [false; 2]);
        assert_eq!(["2", "3", "task-2", "task-4/2", INDEX].map(left), [false; 5]);
        for name in OF_PART {
            assert!(!out.join(name).exists() && !out.join("task-4").join(name).exists(), "{name}");
            assert!(out.join("elsewhere").join(name).exists() && out.join("elsewhere/2").join(name).exists());
        }
    }

    #[test]
    fn the_recording_before_is_kept_once() {
        let place = Place::new("old");
        let out = place.0.join("a.b");
        let old = place.0.join("a.b.old");
        prepare(&out).unwrap();
        assert!(!old.exists());
        // A folder without a recording stays where it is.
        fs::write(out.join("notes"), "first").unwrap();
        prepare(&out).unwrap();
        assert!(!old.exists());
        record(&out, &["", "task-2"]);
        prepare(&out).unwrap();
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(old.join("notes")).unwrap(), "first");
        // Notes are not removed for a recording.
        record(&out, &[""]);
        let error = prepare(&out).unwrap_err();
        assert!(error.to_string().contains("a.b.old cannot be written"), "{error}");
        assert!(out.join(INDEX).exists());
        fs::remove_file(old.join("notes")).unwrap();
        record(&old, &["", "2"]);
        prepare(&out).unwrap();
        assert!(old.join(TRACE).exists() && !old.join("2").exists());
    }

    #[test]
    fn nobody_else_may_read_it_and_nothing_is_written_through_a_link() {
        let place = Place::new("links");
        let (out, secret) = (place.0.join("out"), place.0.join("secret"));
        prepare(&out).unwrap();
        fs::write(&secret, "mine").unwrap();
        symlink(&secret, out.join(CODE)).unwrap();
        symlink(&secret, out.join(IMAGE)).unwrap();
        drop(make_file(&out.join(CODE)).unwrap());
        write(&out, IMAGE, |file| file.write_all(b"{}")).unwrap();
        assert_eq!(fs::read_to_string(&secret).unwrap(), "mine");
        let part = PartNumber { task: 3, number: 2 }.make(&out).unwrap();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode();
        for (path, expected) in [
            (&out, 0o040_700),
            (&out.join("task-3"), 0o040_700),
            (&part, 0o040_700),
            (&out.join(CODE), 0o100_600),
            (&out.join(IMAGE), 0o100_600),
        ] {
            assert_eq!(mode(path), expected, "{}", path.display());
        }
        // A folder that is a link is not ours.
        symlink(place.0.join("out"), place.0.join("link")).unwrap();
        symlink(place.0.join("out"), out.join("task-4")).unwrap();
        assert!(prepare(&place.0.join("link")).is_err());
        assert!(PartNumber { task: 4, number: 1 }.make(&out).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_written_whole_leaves_the_one_before() {
        let place = Place::new("whole");
        write(&place.0, TRUTH, |file| file.write_all(b"first")).unwrap();
        let full = |_: &mut dyn Write| Err(io::ErrorKind::StorageFull.into());
        assert!(write(&place.0, TRUTH, full).is_err());
        assert_eq!(fs::read_to_string(place.0.join(TRUTH)).unwrap(), "first");
        assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1);
    }

    #[test]
    fn the_first_task_and_the_first_part_have_no_directory_of_their_own() {
        for (task, number, dir) in [
            (1, 1, "out"),
            (1, 2, "out/2"),
            (2, 1, "out/task-2"),
            (2, 2, "out/task-2/2"),
            (3, 10, "out/task-3/10"),
        ] {
            assert_eq!(PartNumber { task, number }.directory(Path::new("out")), Path::new(dir));
        }
    }
}
