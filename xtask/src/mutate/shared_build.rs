//! Tries many mutations with one build.
//!
//! Most of the time that a mutation takes goes into its build. A mutation within the body of a function needs no build
//! of its own: the body becomes a choice between the original and its mutated copies, made at run time by the support
//! crate of `cargo xtask mutants`. What does not compile in this form, lies outside of such a body, or survives is
//! tried again, one at a time: only "a test failed" is taken from here.

use anyhow::{Context, Result};
use pugmark_qemu_tests::images::workspace;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::changed::folder_of;
use super::list::Mutation;
use crate::mutants::bodies::bodies;
use crate::mutants::build::{SourceFile, build};
use crate::mutants::packages::{LIBRARY_ONLY, MutatedPackages, WITHOUT_TESTS};
use crate::mutants::process::{TestEnd, run};
use crate::mutants::run::{REAL_TIME_FACTOR, SLOWDOWN_ALLOWED, first_red};
use crate::mutants::sites::{Change, Site};
use crate::parallel::run_with_workers;
use crate::test::binaries::TestBinary;
use crate::workspace_copy;

/// How long tests may take without a mutation, in seconds.
const LONGEST: u64 = 600;
/// The least processor time that tests may take with a mutation, in seconds.
const LEAST: u64 = 20;
/// How many mutations are tried at a time.
const WORKERS: usize = 2;

/// The number of a body, and of the mutated copy in it.
type BodyChoice = (usize, usize);

/// The tests of a mutation, as a binary's arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MutationTests {
    package: String,
    /// The integration test; `None` for the library's own tests.
    test: Option<String>,
    arguments: Vec<String>,
}

impl MutationTests {
    /// Reads the arguments of `cargo test`; `None` if they ask for tests that are not built here.
    fn parse(arguments: &str) -> Option<Self> {
        let mut words = arguments.split_whitespace();
        let package = words.next().filter(|word| *word == "-p").and_then(|_| words.next())?;
        let test = match words.next()? {
            "--lib" => None,
            "--test" => Some(words.next()?.to_owned()),
            _ => return None,
        };
        let left_out =
            WITHOUT_TESTS.contains(&package) || (test.is_some() && LIBRARY_ONLY.contains(&package));
        let rest: Vec<&str> = words.collect();
        let options = rest.iter().take_while(|word| **word != "--").any(|word| word.starts_with('-'));
        (!left_out && !options).then(|| Self {
            package: package.into(),
            test,
            arguments: rest.into_iter().filter(|word| *word != "--").map(str::to_owned).collect(),
        })
    }

    /// The binary that has them.
    fn binary<'a>(&self, binaries: &'a [TestBinary]) -> Option<&'a TestBinary> {
        let folder = folder_of(&self.package)?;
        binaries.iter().find(|binary| {
            let Some((of, target)) = binary.name.split_once(' ') else { return false };
            Path::new(of) == folder
                && match &self.test {
                    Some(test) => target.strip_prefix("tests/") == Some(test),
                    None => !target.starts_with("tests/"),
                }
        })
    }
}

/// A mutation that is a choice of a body.
struct Switched<'a> {
    mutation: &'a Mutation,
    tests: MutationTests,
    choice: BodyChoice,
}

/// Tries all mutations that can be tried so, and returns the test that noticed each, by the mutation's name. `hear`
/// gets each as it is noticed.
pub(super) fn noticed_together(
    folder: &Path,
    chosen: &[&Mutation],
    end: Option<Instant>,
    mut hear: impl FnMut(&Mutation, &str),
) -> Result<HashMap<String, String>> {
    let (sources, mut switched) = switches(chosen)?;
    if switched.is_empty() {
        return Ok(HashMap::new());
    }
    let begin = Instant::now();
    let (binaries, dropped) = build(folder, &packages(&sources, &switched), &sources)?;
    switched.retain(|one| !dropped.contains(&one.choice));
    println!(
        "{} of {} mutations are tried with one build, which took {:.0} s",
        switched.len(),
        chosen.len(),
        begin.elapsed().as_secs_f64()
    );
    let scratch = folder.join("scratch");
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch)?;
    }
    let runs = TestRuns {
        binaries,
        scratch,
        baselines: switched.iter().map(|one| (&one.tests, OnceLock::new())).collect(),
        next: AtomicUsize::new(0),
    };
    let work = |one: &Switched<'_>| {
        if end.is_some_and(|end| end < Instant::now()) { Ok(None) } else { runs.noticed_by(one) }
    };
    let noticed = run_with_workers(&switched, WORKERS, work, |one, test| {
        if let Ok(Some(test)) = test {
            hear(one.mutation, test);
        }
    });
    let mut tests = HashMap::new();
    for (one, test) in switched.iter().zip(noticed) {
        if let Some(test) = test.with_context(|| one.mutation.name.clone())? {
            tests.insert(one.mutation.name.clone(), test);
        }
    }
    Ok(tests)
}

/// The files with their bodies, and the mutations that are in one.
fn switches<'a>(chosen: &[&'a Mutation]) -> Result<(Vec<SourceFile>, Vec<Switched<'a>>)> {
    let mut by_file = BTreeMap::<&Path, Vec<(&Mutation, MutationTests)>>::new();
    for mutation in chosen {
        if let Some(tests) = MutationTests::parse(&mutation.test).filter(|_| can_ask(&mutation.file)) {
            by_file.entry(&mutation.file).or_default().push((mutation, tests));
        }
    }
    let (mut sources, mut switched, mut first) = (vec![], vec![], 0);
    for (path, mutations) in by_file {
        let text = std::fs::read_to_string(workspace().join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let (sites, choices) = choices(&text, mutations.iter().map(|(mutation, _)| *mutation))
            .with_context(|| format!("in {}", path.display()))?;
        for ((mutation, tests), choice) in mutations.into_iter().zip(choices) {
            if let Some((body, number)) = choice {
                switched.push(Switched { mutation, tests, choice: (first + body, number) });
            }
        }
        let bodies = sites.len();
        sources.push(SourceFile { path: path.into(), text, sites, first });
        first += bodies;
    }
    Ok((sources, switched))
}

/// The bodies of a file that are mutated, and for each mutation its body and its number in the body, if it is in one.
fn choices<'a>(
    text: &str,
    mutations: impl Iterator<Item = &'a Mutation>,
) -> Result<(Vec<Site>, Vec<Option<BodyChoice>>)> {
    let bodies = bodies(text)?;
    let mut found = vec![];
    let mut mutated: Vec<Site> = vec![];
    for mutation in mutations {
        let mutant = mutation.apply(text)?;
        let begin = text.find(&mutation.find).context("it was applied there")?;
        let end = begin + mutation.find.len();
        let around = bodies.iter().filter(|site| site.range.start <= begin && end <= site.range.end);
        let Some(body) = around.min_by_key(|site| site.range.len()) else {
            found.push(None);
            continue;
        };
        let site = match mutated.iter_mut().find(|site| site.range == body.range) {
            Some(site) => site,
            None => {
                mutated.push(body.clone());
                let last = mutated.len() - 1;
                &mut mutated[last]
            }
        };
        let grown = body.range.start..body.range.end + mutant.len() - text.len();
        found.push(Some((body.range.clone(), site.mutants.len())));
        site.mutants.push(Change {
            offset: begin,
            code: mutant[grown].into(),
            old: mutation.find.clone(),
            new: mutation.replace.clone(),
        });
    }
    mutated.sort_by_key(|site| (site.range.start, std::cmp::Reverse(site.range.end)));
    let number = |range| mutated.iter().position(|site| site.range == range);
    let found =
        found.into_iter().map(|one| one.and_then(|(range, number_in)| Some((number(range)?, number_in))));
    let found = found.collect();
    Ok((mutated, found))
}

/// Whether a file is Rust's code that can ask the support crate which mutation is chosen.
fn can_ask(file: &Path) -> bool {
    let Some(folder) = package_folder(file) else { return false };
    // Without tests that are built here, a crate may not be built with the support crate at all. What the build script
    // compiles by itself knows no other crate.
    let is_built_here = !WITHOUT_TESTS.iter().any(|name| folder_of(name) == Some(folder));
    let script = std::fs::read_to_string(workspace().join(folder).join("build.rs")).unwrap_or_default();
    let of_the_script = file.file_name().is_some_and(|name| script.contains(&*name.to_string_lossy()));
    file.extension().is_some_and(|extension| extension == "rs") && is_built_here && !of_the_script
}

/// The folder of the package to which a source file belongs.
fn package_folder(file: &Path) -> Option<&Path> {
    file.ancestors().find(|folder| folder.ends_with("src"))?.parent()
}

fn packages(sources: &[SourceFile], switched: &[Switched<'_>]) -> MutatedPackages {
    let folders = sources.iter().filter(|source| !source.sites.is_empty());
    let manifests: BTreeSet<PathBuf> = folders
        .filter_map(|source| package_folder(&source.path))
        .map(|folder| folder.join("Cargo.toml"))
        .collect();
    let tested: BTreeSet<_> = switched.iter().map(|one| one.tests.package.clone()).collect();
    MutatedPackages {
        name: "together".into(),
        manifests: manifests.into_iter().collect(),
        roots: vec![],
        tested: tested.into_iter().collect(),
        tests: switched.iter().filter_map(|one| one.tests.test.clone()).collect(),
        only_library: LIBRARY_ONLY
            .iter()
            .filter_map(|name| Some(folder_of(name)?.display().to_string()))
            .collect(),
    }
}

/// Runs the tests.
struct TestRuns<'a> {
    binaries: Vec<TestBinary>,
    /// A folder for the files of the processes.
    scratch: PathBuf,
    /// How long each mutation's tests take without one; `None` if they do not pass, or if there are none.
    baselines: BTreeMap<&'a MutationTests, OnceLock<Option<Duration>>>,
    next: AtomicUsize,
}

impl TestRuns<'_> {
    /// Returns the test that notices a mutation, if one does.
    fn noticed_by(&self, one: &Switched<'_>) -> Result<Option<String>> {
        let Some(binary) = one.tests.binary(&self.binaries) else { return Ok(None) };
        let baseline = match self.baselines[&one.tests].get() {
            Some(baseline) => *baseline,
            None => {
                let baseline = self.baseline(binary, &one.tests)?;
                *self.baselines[&one.tests].get_or_init(|| baseline)
            }
        };
        let Some(took) = baseline else { return Ok(None) };
        let seconds = LEAST.max((took * SLOWDOWN_ALLOWED).as_secs() + 1);
        let (end, _, log) = self.run(binary, &one.tests, Some(one.choice), seconds)?;
        Ok((end == TestEnd::Red).then(|| first_red(&log).unwrap_or("no test's name").to_owned()))
    }

    fn baseline(&self, binary: &TestBinary, tests: &MutationTests) -> Result<Option<Duration>> {
        let (end, took, log) = self.run(binary, tests, None, LONGEST)?;
        Ok((end == TestEnd::Green && workspace_copy::tests(&log) > 0).then_some(took))
    }

    /// Runs a binary, with a mutation or without one. Returns how it ended, the processor time it took, and its
    /// output.
    fn run(
        &self,
        binary: &TestBinary,
        tests: &MutationTests,
        choice: Option<BodyChoice>,
        seconds: u64,
    ) -> Result<(TestEnd, Duration, String)> {
        let scratch = self.scratch.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir_all(&scratch)?;
        let log = File::create(scratch.join("log"))?;
        let mut command = Command::new(&binary.file);
        command.arg("--test-threads=1").args(&tests.arguments);
        command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder).env("TMPDIR", &scratch);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some((body, number)) = choice {
            command.env("PUGMARK_MUTANT", format!("{body}:{}", number + 1));
        }
        let (end, took) = run(&mut command, seconds, Duration::from_secs(seconds) * REAL_TIME_FACTOR)?;
        let log = String::from_utf8_lossy(&std::fs::read(scratch.join("log"))?).into_owned();
        std::fs::remove_dir_all(&scratch)
            .with_context(|| format!("cannot remove {}, which a test left", scratch.display()))?;
        Ok((end, took, log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_those_that_cargo_would_run() {
        let tests = |package: &str, test: Option<&str>, arguments: &[&str]| {
            let arguments = arguments.iter().map(ToString::to_string).collect();
            Some(MutationTests { package: package.into(), test: test.map(Into::into), arguments })
        };
        for (text, expected) in [
            ("-p pugmark-kernel --lib pt::drain", tests("pugmark-kernel", None, &["pt::drain"])),
            ("-p pugmark-kernel --test pmi", tests("pugmark-kernel", Some("pmi"), &[])),
            ("-p pugmark-model --test walk -- a b", tests("pugmark-model", Some("walk"), &["a", "b"])),
            (
                "-p pugmark-model --test walk -- a --exact",
                tests("pugmark-model", Some("walk"), &["a", "--exact"]),
            ),
            ("-p pugmark-model walk", None),
            ("-p pugmark-model --doc", None),
            ("-p pugmark-model --lib --release", None),
            ("-p pugmark-boot --lib", None),
            ("-p pugmark-qemu-tests --test witness", None),
            ("--lib", None),
        ] {
            assert_eq!(MutationTests::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn a_binary_is_found_by_folder_and_target() {
        let binary = |name: &str| TestBinary { name: name.into(), file: "f".into(), folder: "d".into() };
        let binaries = ["capi cdylib", "kernel lib", "kernel tests/pmi", "virt/model tests/pmi"].map(binary);
        for (tests, name) in [
            ("-p pugmark-capi --lib", Some("capi cdylib")),
            ("-p pugmark-kernel --lib", Some("kernel lib")),
            ("-p pugmark-kernel --test pmi", Some("kernel tests/pmi")),
            ("-p pugmark-model --test pmi", Some("virt/model tests/pmi")),
            ("-p pugmark-model --lib", None),
            ("-p pugmark-kernel --test pm", None),
        ] {
            let found = MutationTests::parse(tests).unwrap();
            assert_eq!(found.binary(&binaries).map(|binary| binary.name.as_str()), name, "{tests}");
        }
    }

    #[test]
    fn a_mutation_is_a_copy_of_the_innermost_body_around_it() {
        let text =
            "const A: u8 = 1;\nfn f() -> u8 {\n    fn g() -> u8 { A + 2 }\n    g() * 3\n}\nfn h() {}\n";
        let mutation = |find: &str, replace: &str| Mutation {
            name: find.into(),
            file: "f".into(),
            find: find.into(),
            replace: replace.into(),
            test: String::new(),
        };
        let mutations = [
            mutation("A: u8 = 1", "A: u8 = 2"),
            mutation("A + 2", "A - 22"),
            mutation("g() * 3", "g()"),
            mutation(" + 2", ""),
            mutation("3\n}\nfn h", "4\n}\nfn h"),
        ];
        let (sites, choices) = choices(text, mutations.iter()).unwrap();
        assert_eq!(choices, [None, Some((1, 0)), Some((0, 0)), Some((1, 1)), None]);
        let code = |site: usize| sites[site].mutants.iter().map(|one| one.code.as_str()).collect::<Vec<_>>();
        assert_eq!(code(0), ["\n    fn g() -> u8 { A + 2 }\n    g()\n"]);
        assert_eq!(code(1), [" A - 22 ", " A "]);
    }

    #[test]
    fn code_that_is_built_for_hosts_can_ask() {
        for (file, can) in [
            ("kernel/src/intel/pt/session.rs", true),
            ("tools/src/pugmark/record/emulator/thread.rs", true),
            ("tools/src/pugmark/record/emulator/plugin.rs", false),
            ("tools/src/pugmark/timeline/page.html", false),
            ("boot/src/main.rs", false),
            ("decoder-core/tests/flow/scenarios.rs", false),
        ] {
            assert_eq!(can_ask(Path::new(file)), can, "{file}");
        }
    }

    #[test]
    fn a_mutation_that_does_not_apply_is_an_error() {
        let mutation = Mutation {
            name: "a".into(),
            file: "f".into(),
            find: "x".into(),
            replace: "y".into(),
            test: String::new(),
        };
        assert!(choices("fn f() {}", [&mutation].into_iter()).is_err());
    }
}
