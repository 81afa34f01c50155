//! Builds the test binaries with cargo and finds them.

use anyhow::{Context, Result, ensure};
use pugmark_harness::images::{target_folder, workspace};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::cargo::{FOR_TESTS, command};

/// A test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestBinary {
    /// The package's folder and the target, such as `kernel lib` and `kernel tests/pmi`.
    pub name: String,
    /// The program.
    pub file: PathBuf,
    /// The package's folder, in which cargo runs its tests.
    pub folder: PathBuf,
}

/// The profiles besides `dev` in which code takes a different amount of stack, and the test that measures it.
const PROFILES: [&str; 2] = ["unoptimised", "release"];
const STACK_TEST: [&str; 4] = ["-p", "pugmark-kernel", "--test", "handler_stack"];

/// Returns the arguments that choose the observer for LibAFL, whose 200 crates are a workspace of their own.
#[must_use]
pub fn libafl() -> [String; 4] {
    let target = target_folder().join("libafl").display().to_string();
    ["--manifest-path".into(), "fuzz/libafl/Cargo.toml".into(), "--target-dir".into(), target]
}

/// Builds all tests and the programs that they start, and one test in all profiles.
///
/// # Errors
/// If cargo cannot be started, or a build fails.
pub fn build() -> Result<Vec<TestBinary>> {
    let mut binaries = build_with(&["--workspace"])?;
    for profile in PROFILES {
        let arguments: Vec<_> = STACK_TEST.into_iter().chain(["--profile", profile]).collect();
        let built = build_with(&arguments)?.into_iter();
        binaries
            .extend(built.map(|binary| TestBinary { name: format!("{} {profile}", binary.name), ..binary }));
    }
    binaries.extend(build_with(&libafl().each_ref().map(String::as_str))?);
    Ok(binaries)
}

fn build_with(which: &[&str]) -> Result<Vec<TestBinary>> {
    let arguments = ["test", "--no-run", "--locked", "--message-format=json-render-diagnostics"];
    let arguments: Vec<&str> = arguments.into_iter().chain(FOR_TESTS).chain(which.iter().copied()).collect();
    let child = command(&arguments).stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "the tests do not build");
    let binaries: Vec<_> =
        String::from_utf8(output.stdout)?.lines().filter_map(|line| binary(line, &workspace())).collect();
    ensure!(!binaries.is_empty(), "`cargo test --no-run` named no test binary");
    Ok(binaries)
}

/// The relevant fields of cargo's messages.
#[derive(Deserialize)]
struct CargoMessage {
    manifest_path: PathBuf,
    target: BinaryTarget,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct BinaryTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Reads a line of cargo's messages: returns the test binary that it names, if it names one.
#[must_use]
pub fn binary(line: &str, root: &Path) -> Option<TestBinary> {
    // Messages of other kinds have other fields.
    let message: CargoMessage = serde_json::from_str(line).ok()?;
    let file = message.executable.filter(|_| message.profile.test)?;
    let folder = message.manifest_path.parent()?.to_path_buf();
    let package = folder.strip_prefix(root).unwrap_or(&folder).display();
    let name = match message.target.kind.first()?.as_str() {
        "test" => format!("{package} tests/{}", message.target.name),
        kind => format!("{package} {kind}"),
    };
    Some(TestBinary { name, file, folder })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_told_from_what_else_is_built() {
        let line = |kind: &str, test: bool, executable: &str| {
            let target = format!(r#""target":{{"kind":["{kind}"],"name":"psb"}}"#);
            let artifact = r#""reason":"compiler-artifact","manifest_path":"/w/lab/model/Cargo.toml""#;
            format!(r#"{{{artifact},{target},"profile":{{"test":{test}}},"executable":{executable}}}"#)
        };
        let name = |line: &str| binary(line, Path::new("/w")).map(|binary| binary.name);
        assert_eq!(name(&line("test", true, r#""/t/psb-1""#)).as_deref(), Some("lab/model tests/psb"));
        assert_eq!(name(&line("lib", true, r#""/t/psb-2""#)).as_deref(), Some("lab/model lib"));
        assert_eq!(name(&line("bin", false, r#""/t/psb""#)), None);
        assert_eq!(name(&line("lib", true, "null")), None);
        assert_eq!(name(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
