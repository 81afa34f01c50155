//! The shared libraries that a program of the host needs.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the libraries of a program, including its loader, by the paths under which the loader opens them. A
/// statically linked program and a text have none.
///
/// # Errors
/// If the file cannot be read, or one of the libraries does not exist.
pub(crate) fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    if !beginning(program)?.starts_with(b"\x7fELF") {
        return Ok(vec![]);
    }
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).with_context(|| format!("libraries of {}", program.display()))
}

/// Returns the program that executes a script: the first word after `#!`; of `env` the program that it looks for.
pub(super) fn interpreter(script: &Path) -> Result<Option<String>> {
    let bytes = beginning(script)?;
    let line = bytes.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    let Some(line) = line.map(String::from_utf8_lossy) else { return Ok(None) };
    let mut words = line.split_ascii_whitespace();
    let program = words.next();
    let is_env = program.is_some_and(|program| program.ends_with("/env"));
    let sought = words.find(|word| !word.starts_with('-') && !word.contains('='));
    Ok(sought.filter(|_| is_env).or(program).map(Into::into))
}

/// Returns the first bytes of a file.
fn beginning(file: &Path) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    let read = File::open(file).and_then(|opened| opened.take(256).read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read {}", file.display()))?;
    Ok(bytes)
}

/// Returns the paths in the output of `ldd`.
fn parse(text: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in text.lines() {
        ensure!(!line.contains("not found"), "{}", line.trim());
        let path = line.split_whitespace().find(|word| word.starts_with('/') && !word.ends_with(':'));
        paths.extend(path.map(PathBuf::from));
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_is_one_of_the_libraries_and_the_vdso_is_none() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd7b5f2000)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0c6c000000)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f0c6c2d5000)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(parse(text).unwrap(), expected.map(PathBuf::from));
        assert_eq!(parse("\tnot a dynamic executable\n").unwrap(), Vec::<PathBuf>::new());
        assert_eq!(parse("\tstatically linked\n").unwrap(), Vec::<PathBuf>::new());
        let error = parse("\tlibfoo.so.1 => not found\n").unwrap_err().to_string();
        assert_eq!(error, "libfoo.so.1 => not found");
    }

    #[test]
    fn a_script_names_its_interpreter() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let file = scratch.file("script");
        for (text, expected) in [
            ("#!/bin/sh\necho", Some("/bin/sh")),
            ("#! /usr/bin/python3 -u\n", Some("/usr/bin/python3")),
            ("#!/usr/bin/env -S A=1 perl -w\n", Some("perl")),
            ("#!/usr/bin/env\n", Some("/usr/bin/env")),
            ("echo", None),
            ("#!", None),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(interpreter(&file).unwrap().as_deref(), expected, "{text}");
            assert_eq!(libraries(&file).unwrap(), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn finds_those_of_this_test() {
        let found = libraries(&std::env::current_exe().unwrap()).unwrap();
        assert!(found.iter().any(|path| path.to_string_lossy().contains("libc.so")), "{found:?}");
    }
}
