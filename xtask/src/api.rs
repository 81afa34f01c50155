//! `cargo xtask api`: the lists of the libraries' public items, one item a line. They are in the tree, so that a change
//! of the public API is visible in a diff.
//!
//! rustdoc of a nightly toolchain describes a library in JSON, from which the crate public-api makes the list. The
//! lists leave out items added by derives and blanket implementations. They equal those of `cargo public-api -sss`.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use pugmark_harness::images::{target_folder, workspace};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The libraries whose public items are listed: their packages, which are also the names of the libraries, and their
/// folders.
const LIBRARIES: [(&str, &str); 3] =
    [("pugmark-kernel", "kernel"), ("pugmark-pfm", "pfm"), ("pugmark-decoder-core", "decoder-core")];

/// The format of rustdoc's JSON that the crate public-api reads. The nightly toolchains since 2025-11-22 write it.
const FORMAT: u64 = 57;

#[derive(Args)]
pub(crate) struct ApiOptions {
    /// Write the lists, instead of checking them
    #[arg(long)]
    write: bool,
}

/// Checks all lists, or writes them.
pub(crate) fn api(options: &ApiOptions) -> Result<()> {
    let begin = Instant::now();
    let mut wrong = String::new();
    for library in LIBRARIES {
        let made = match made(library)? {
            Made::List(list) => list,
            Made::No(reason) => bail!(reason),
        };
        if options.write {
            std::fs::write(file(library), made)?;
        } else {
            wrong += &difference(library, &made)?;
        }
    }
    println!("{} lists, in {:.1} s", LIBRARIES.len(), begin.elapsed().as_secs_f64());
    ensure!(wrong.is_empty(), "{wrong}`cargo xtask api --write` rewrites the lists");
    Ok(())
}

/// A list that was made, or the tool that the machine lacks.
enum Made {
    List(String),
    No(String),
}

/// Returns the file with a library's list.
fn file((_, folder): (&str, &str)) -> PathBuf {
    workspace().join(folder).join("public-api.txt")
}

/// Makes the list of a library.
fn made((package, _): (&str, &str)) -> Result<Made> {
    let installed = crate::oldest_toolchain::installed();
    let Some(toolchain) = crate::nightly::nightlies(&installed).next() else {
        return Ok(Made::No(
            "the lists of public items need a nightly toolchain: `rustup toolchain install nightly`".into(),
        ));
    };
    let folder = target_folder().join("api");
    let output = Command::new("rustup")
        .args(["run", toolchain, "cargo", "rustdoc", "--quiet", "--locked", "--lib", "--package", package])
        .arg("--target-dir")
        .arg(&folder)
        .args(["--", "-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"])
        .current_dir(workspace())
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTDOCFLAGS")
        .stdin(Stdio::null())
        .output()
        .context("cannot start rustup")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{toolchain} does not document {package}:\n{errors}");
    let json = folder.join("doc").join(package.replace('-', "_")).with_extension("json");
    let format = format_of(&std::fs::read_to_string(&json)?)?;
    if format != FORMAT {
        return Ok(Made::No(format!(
            "the lists of public items need JSON of format {FORMAT}: rustdoc of {toolchain} writes {format}"
        )));
    }
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(Made::List(api.to_string()))
}

fn format_of(json: &str) -> Result<u64> {
    let json: serde_json::Value = serde_json::from_str(json)?;
    json["format_version"].as_u64().context("rustdoc's JSON does not say its format")
}

/// Returns the difference between the list in the tree and this one; empty if there is none.
fn difference(library: (&str, &str), made: &str) -> Result<String> {
    let file = file(library);
    let listed = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let lines = changed_lines(&listed, made);
    Ok(match lines.is_empty() {
        true => lines,
        false => format!("{}/public-api.txt is not true any more:\n{lines}", library.1),
    })
}

/// Returns the lines that only one of the lists has: those of the old list after `-`, those of the new one after `+`.
/// The order of the lines is irrelevant, but a line may occur more than once.
fn changed_lines(old: &str, new: &str) -> String {
    let only = |these: &str, those: &str, sign| {
        let mut others: Vec<&str> = those.lines().collect();
        let mut only = String::new();
        for line in these.lines() {
            match others.iter().position(|other| *other == line) {
                Some(n) => drop(others.remove(n)),
                None => only += &format!("{sign}{line}\n"),
            }
        }
        only
    };
    only(old, new, '-') + &only(new, old, '+')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_public_items_are_true() {
        let mut wrong = String::new();
        for library in LIBRARIES {
            match made(library).unwrap() {
                Made::List(list) => wrong += &difference(library, &list).unwrap(),
                Made::No(reason) => return eprintln!("skipped: {reason}"),
            }
        }
        assert!(wrong.is_empty(), "{wrong}`cargo xtask api --write` rewrites the lists");
    }

    #[test]
    fn a_difference_names_what_is_gone_and_what_is_new() {
        let old = "pub fn a()\npub fn same()\npub fn twice()\npub fn twice()\n";
        let new = "pub fn same()\npub fn twice()\npub fn b()\n";
        assert_eq!(changed_lines(old, new), "-pub fn a()\n-pub fn twice()\n+pub fn b()\n");
        assert_eq!(changed_lines(old, old), "");
    }

    #[test]
    fn the_format_of_the_json_is_read() {
        assert_eq!(format_of(r#"{"format_version":57,"root":0}"#).unwrap(), 57);
        assert!(format_of("{}").is_err());
    }
}
