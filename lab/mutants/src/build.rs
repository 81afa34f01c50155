//! Builds the tests with all mutants in them, without those that do not compile.

use anyhow::{Context, Result, bail, ensure};
use pugmark_builds::cargo::{self, FOR_TESTS};
use pugmark_builds::test_binaries::{TestBinary, binary};
use pugmark_builds::workspace_copy::WorkspaceCopy;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::packages::MutatedPackages;
use super::rewrite::{Rewritten, rewrite};
use super::sites::Site;

/// The source of the crate that tells instrumented code the chosen mutant.
pub(super) const SUPPORT: &str = include_str!("support.rs");
/// The folder of that crate in the copy.
const FOLDER: &str = "mutants-support";
/// A script that is called instead of the compiler for the workspace's crates. Only the support crate uses unstable
/// features. Lints are off, because nobody reads them here.
const WRAPPER: &str = "#!/bin/sh
case \" $* \" in *' --crate-name pugmark_mutant_choice '*) export RUSTC_BOOTSTRAP=1 ;; esac
exec \"$@\" --cap-lints allow
";
/// The maximum number of rounds: if the tests do not build then, leaving out more mutants does not help.
const ROUNDS: usize = 40;

/// A file of the crate, with the places that can be changed.
pub(crate) struct SourceFile {
    /// Relative to the workspace's root.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) sites: Vec<Site>,
    /// The number of its first place.
    pub(crate) first: usize,
}

/// Mutants that do not compile: the number of the place in the whole crate, and of the mutant in the place.
pub(crate) type UncompilableMutants = BTreeSet<(usize, usize)>;

/// Builds the tests, round by round, until all remaining mutants compile. Returns the binaries and the mutants that
/// were left out.
pub(crate) fn build(
    folder: &Path,
    subject: &MutatedPackages,
    sources: &[SourceFile],
) -> Result<(Vec<TestBinary>, UncompilableMutants)> {
    let known = RememberedUncompilable::new(folder, subject, sources);
    let mut dropped = known.read();
    let wrapper = folder.join("rustc.sh");
    std::fs::create_dir_all(folder)?;
    if std::fs::read_to_string(&wrapper).unwrap_or_default() != WRAPPER {
        std::fs::write(&wrapper, WRAPPER)?;
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))?;
    }
    for round in 1..=ROUNDS {
        let rewritten: Vec<_> = sources.iter().map(|source| source.rewritten(&dropped)).collect();
        let copy = WorkspaceCopy::with_texts(&folder.join("copy"), &texts(subject, sources, &rewritten)?)?;
        let output = cargo(&copy, subject, &wrapper)?;
        let lines: Vec<_> = output.lines().collect();
        let errors: Vec<_> = lines.iter().filter_map(|line| error(line)).collect();
        if errors.is_empty() {
            let finished = lines.iter().any(|line| line.contains(r#""build-finished","success":true"#));
            ensure!(finished, "the tests do not build, and cargo names no error");
            known.write(&dropped)?;
            let binaries = lines.iter().filter_map(|line| binary(line, copy.tree()));
            return Ok((binaries.filter(|binary| subject.uses_tests_of(&binary.name)).collect(), dropped));
        }
        let before = dropped.len();
        for error in &errors {
            dropped.extend(mutants_to_blame(error, sources, &rewritten));
        }
        println!("round {round}: {} errors, {} mutants left out", errors.len(), dropped.len() - before);
        if dropped.len() == before {
            bail!("the tests do not build, whatever is left out: {}", errors[0].rendered);
        }
    }
    bail!("the tests do not build after {ROUNDS} rounds")
}

/// The mutants that an earlier build of the same source left out, to save the rounds.
struct RememberedUncompilable {
    file: PathBuf,
    /// A hash of the source and its mutants.
    hash: u64,
}

impl RememberedUncompilable {
    fn new(folder: &Path, subject: &MutatedPackages, sources: &[SourceFile]) -> Self {
        let mut hasher = DefaultHasher::new();
        for source in sources {
            (&source.path, &source.text).hash(&mut hasher);
            let codes = source.sites.iter().flat_map(|site| &site.mutants);
            codes.for_each(|change| change.code.hash(&mut hasher));
        }
        Self { file: folder.join(format!("{}.dropped", subject.name)), hash: hasher.finish() }
    }

    fn read(&self) -> UncompilableMutants {
        let text = std::fs::read(&self.file).unwrap_or_default();
        // If the file is missing or invalid, the rounds are done again.
        let (hash, dropped) = serde_json::from_slice(&text).unwrap_or((0, UncompilableMutants::new()));
        if hash == self.hash { dropped } else { UncompilableMutants::new() }
    }

    fn write(&self, dropped: &UncompilableMutants) -> Result<()> {
        Ok(std::fs::write(&self.file, serde_json::to_vec(&(self.hash, dropped))?)?)
    }
}

impl SourceFile {
    fn rewritten(&self, dropped: &UncompilableMutants) -> Rewritten {
        let here = dropped
            .range((self.first, 0)..(self.first + self.sites.len(), 0))
            .map(|(place, mutant)| (place - self.first, *mutant));
        rewrite(&self.text, &self.sites, self.first, &here.collect())
    }
}

/// Returns the files that are changed or added in the copy.
fn texts(
    subject: &MutatedPackages,
    sources: &[SourceFile],
    rewritten: &[Rewritten],
) -> Result<BTreeMap<PathBuf, String>> {
    let mut texts: BTreeMap<_, _> = sources
        .iter()
        .zip(rewritten)
        .map(|(source, rewritten)| (source.path.clone(), rewritten.text.clone()))
        .collect();
    for manifest in &subject.manifests {
        let text = std::fs::read_to_string(pugmark_harness::images::workspace().join(manifest))?;
        let (before, after) = text.split_once("[dependencies]\n").with_context(|| {
            let manifest = manifest.display();
            format!("{manifest} has no line `[dependencies]`, to which the support crate is added")
        })?;
        let up = "../".repeat(manifest.components().count() - 1);
        let line = format!("pugmark-mutant-choice = {{ path = \"{up}{FOLDER}\" }}\n");
        texts.insert(manifest.clone(), format!("{before}[dependencies]\n{line}{after}"));
    }
    let places = sources.iter().map(|source| source.sites.len()).sum::<usize>();
    let support = Path::new(FOLDER);
    texts.insert(
        support.join("Cargo.toml"),
        "[package]\nname = \"pugmark-mutant-choice\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n"
            .into(),
    );
    texts.insert(support.join("lib.rs"), format!("{SUPPORT}\nconst PLACES: usize = {places};\n"));
    Ok(texts)
}

/// Runs cargo, and returns its messages, one per line.
fn cargo(copy: &WorkspaceCopy, subject: &MutatedPackages, wrapper: &Path) -> Result<String> {
    // Offline, cargo downloads no library that no build has needed before.
    cargo::cargo(&["fetch", "--locked"], &[])?;
    let mut command = copy.command();
    // Not `--locked`, because the support crate is new.
    command.args(["test", "--no-run", "--offline", "--message-format=json", "--lib"]);
    command.args(FOR_TESTS);
    command.args(subject.tested.iter().flat_map(|package| ["-p", package]));
    command.args(subject.tests.iter().flat_map(|test| ["--test", test]));
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper).stdin(Stdio::null()).stdout(Stdio::piped());
    let output = command.spawn().context("cannot start cargo")?.wait_with_output()?;
    Ok(String::from_utf8(output.stdout)?)
}

#[derive(Deserialize)]
struct CompilerMessage {
    message: Diagnostic,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    spans: Vec<Span>,
    #[serde(default)]
    children: Vec<Diagnostic>,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Span {
    file_name: PathBuf,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
    expansion: Option<Box<Expansion>>,
}

#[derive(Deserialize)]
struct Expansion {
    span: Span,
}

/// A compiler error and its places; the primary place is first.
struct CompileError {
    places: Vec<(PathBuf, Range<usize>)>,
    rendered: String,
}

/// Parses the error in one of cargo's lines, if it is one.
fn error(line: &str) -> Option<CompileError> {
    let CompilerMessage { message } = serde_json::from_str(line).ok()?;
    if !message.level.starts_with("error") || message.spans.is_empty() {
        return None;
    }
    let mut places = vec![];
    let mut spans: Vec<_> = message.spans.iter().collect();
    spans.sort_by_key(|span| !span.is_primary);
    spans.extend(message.children.iter().flat_map(|child| &child.spans));
    for mut span in spans {
        loop {
            places.push((span.file_name.clone(), span.byte_start..span.byte_end));
            let Some(expansion) = &span.expansion else { break };
            span = &expansion.span;
        }
    }
    Some(CompileError { places, rendered: message.rendered.unwrap_or_default() })
}

fn contains_range(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Returns the mutants that are blamed for one of cargo's lines, if it is an error.
#[cfg(test)]
pub(super) fn mutants_to_blame_for(
    line: &str,
    sources: &[SourceFile],
    rewritten: &[Rewritten],
) -> Vec<(usize, usize)> {
    error(line).map(|error| mutants_to_blame(&error, sources, rewritten)).unwrap_or_default()
}

/// Returns the mutants that are blamed for an error: the one that contains it; otherwise those of the place that
/// contains it, or of the places in it; otherwise those of the function.
fn mutants_to_blame(
    error: &CompileError,
    sources: &[SourceFile],
    rewritten: &[Rewritten],
) -> Vec<(usize, usize)> {
    let places = || {
        error.places.iter().filter_map(|(path, span)| {
            let index = sources.iter().position(|source| source.path == *path)?;
            Some((&sources[index], &rewritten[index], span))
        })
    };
    for (source, rewritten, span) in places() {
        let mutant = rewritten.mutants.iter().find(|(_, _, range)| contains_range(range, span));
        if let Some((site, mutant, _)) = mutant {
            return vec![(source.first + site, *mutant)];
        }
    }
    for (source, rewritten, span) in places() {
        let around = rewritten.places.iter().filter(|(_, range)| contains_range(range, span));
        let inside = rewritten.places.iter().filter(|(_, range)| contains_range(span, range));
        let innermost = around.min_by_key(|(_, range)| range.len()).into_iter();
        let sites: Vec<_> = innermost.map(|(site, _)| *site).collect();
        let sites = if sites.is_empty() { inside.map(|(site, _)| *site).collect() } else { sites };
        let mutants = all_of(source, rewritten, &sites);
        if !mutants.is_empty() {
            return mutants;
        }
    }
    for (source, rewritten, span) in places() {
        let before = rewritten.places.iter().filter(|(_, range)| range.start <= span.start);
        let Some((nearest, _)) = before.max_by_key(|(_, range)| range.start) else { continue };
        let function = &source.sites[*nearest].function;
        let sites: Vec<_> =
            (0..source.sites.len()).filter(|site| source.sites[*site].function == *function).collect();
        return all_of(source, rewritten, &sites);
    }
    vec![]
}

/// Returns the mutants of these places that are in the text.
fn all_of(source: &SourceFile, rewritten: &Rewritten, sites: &[usize]) -> Vec<(usize, usize)> {
    let mutants = rewritten.mutants.iter().filter(|(site, _, _)| sites.contains(site));
    mutants.map(|(site, mutant, _)| (source.first + site, *mutant)).collect()
}
