//! Copies of what the program's runtimes have listed of their code, perf maps and jitdumps: the program's own can be
//! gone when the recording is looked at, or be another process's.
//!
//! Source: Linux, `tools/perf/Documentation/jit-interface.txt` and `jitdump-specification.txt`.

use super::{Part, RecordError, RecordOptions, folder};
use crate::files;
use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Copies the lists of the processes of these parts into the recording's folder, which began at `begun`.
pub(super) fn copy(options: &RecordOptions, begun: SystemTime, parts: &[Part]) -> Result<(), RecordError> {
    let maps = parts.iter().map(|part| Path::new("/tmp").join(files::perf_map(part.thread.pid)));
    let lists: BTreeSet<PathBuf> = maps.chain(parts.iter().flat_map(|part| part.dumps.clone())).collect();
    // A process that was attached to can have listed its code before.
    let since = if options.pid.is_some() { SystemTime::UNIX_EPOCH } else { begun };
    for list in lists {
        let (Some(mut from), Some(name)) = (open(&list, since), list.file_name()) else { continue };
        let path = options.out.join(name);
        let mut copy = folder::make_file(&path)?;
        io::copy(&mut from, &mut copy).map_err(|error| RecordError::File { path, error })?;
    }
    Ok(())
}

/// Opens a list that this user has written since the recording began, and no link to one.
fn open(path: &Path, since: SystemTime) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    // SAFETY: takes nothing and returns a number.
    let is_own = found.uid() == unsafe { libc::geteuid() };
    (found.is_file() && is_own && found.modified().ok()? >= since).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink, time::Duration};

    #[test]
    fn only_a_file_that_was_written_since_the_begin_is_a_list() {
        let folder = std::env::temp_dir().join(format!("pugmark-runtime-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [file, link] = ["perf-1.map", "link"].map(|name| folder.join(name));
        fs::write(&file, "1000 10 made\n").unwrap();
        symlink(&file, &link).unwrap();
        let now = SystemTime::now();
        let [before, after] = [now - Duration::from_secs(100), now + Duration::from_secs(100)];
        let found = [(&file, before), (&file, after), (&link, before), (&folder, before)]
            .map(|(path, since)| open(path, since).is_some());
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [true, false, false, false]);
    }
}
