//! The shared libraries that a program of the host needs.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the libraries of a program, including its loader, by the paths under which the loader opens them. A
/// statically linked program and a text have none.
///
/// # Errors
/// If one of them does not exist.
pub(crate) fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).with_context(|| format!("libraries of {}", program.display()))
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
    fn finds_those_of_this_test() {
        let found = libraries(&std::env::current_exe().unwrap()).unwrap();
        assert!(found.iter().any(|path| path.to_string_lossy().contains("libc.so")), "{found:?}");
    }
}
