//! Stores the places that each test reaches, for further runs with the same binaries.

use anyhow::Result;
use pugmark_builds::test_binaries::TestBinary;
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use super::run::Test;

#[derive(Serialize, Deserialize)]
struct RecordedTests {
    /// The key of the binaries and the limit of time.
    key: u64,
    tests: Vec<RecordedTest>,
}

#[derive(Serialize, Deserialize)]
struct RecordedTest {
    binary: usize,
    name: String,
    took: Duration,
    /// The places that the test reaches.
    reached: Vec<usize>,
}

/// Returns a number that changes with the binaries and with `longest`.
pub(super) fn key(binaries: &[TestBinary], longest: Duration) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    longest.hash(&mut hasher);
    for binary in binaries {
        let metadata = binary.file.metadata()?;
        (&binary.file, metadata.len(), metadata.modified()?).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Reads the tests from a file if it has this key.
pub(super) fn read(file: &Path, key: u64, places: usize) -> Option<Vec<Test>> {
    let recorded: RecordedTests = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let test = |RecordedTest { binary, name, took, reached }: RecordedTest| {
        let mut by_place = vec![0; places];
        for place in reached {
            *by_place.get_mut(place)? = 1;
        }
        Some(Test { binary, name, took, reached: by_place })
    };
    (recorded.key == key).then(|| recorded.tests.into_iter().map(test).collect())?
}

/// Writes the tests with their key.
pub(super) fn write(file: &Path, key: u64, tests: &[Test]) -> Result<()> {
    let row = |test: &Test| {
        let reached = (0..test.reached.len()).filter(|place| test.reached[*place] != 0).collect();
        RecordedTest { binary: test.binary, name: test.name.clone(), took: test.took, reached }
    };
    let recorded = RecordedTests { key, tests: tests.iter().map(row).collect() };
    Ok(std::fs::write(file, serde_json::to_vec(&recorded)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_while_the_binaries_are_the_same() {
        let file = std::env::temp_dir().join(format!("pugmark-recorded-{}", std::process::id()));
        let test =
            Test { binary: 2, name: "a::b".into(), took: Duration::from_millis(3), reached: vec![0, 1, 1] };
        write(&file, 7, &[test]).unwrap();
        assert!(read(&file, 8, 3).is_none());
        let read = read(&file, 7, 3).unwrap();
        let [test] = &*read else { panic!("{} tests", read.len()) };
        assert_eq!((test.binary, test.name.as_str(), test.took.as_millis()), (2, "a::b", 3));
        assert_eq!(test.reached, [0, 1, 1]);
        std::fs::remove_file(file).unwrap();
    }
}
