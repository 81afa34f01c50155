//! `pugmark man` and `pugmark completions`: the command line in the formats of man and of shells, from the same
//! descriptions as `--help`.

use super::cli::Cli;
use crate::output;
use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The options of `pugmark man`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Example:
  pugmark man ~/.local/share/man/man1             then: man pugmark-decode")]
pub struct ManOptions {
    /// The folder; it is created if it does not exist
    folder: PathBuf,
}

/// The options of `pugmark completions`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  pugmark completions bash > ~/.local/share/bash-completion/completions/pugmark
  pugmark completions fish > ~/.config/fish/completions/pugmark.fish
  pugmark completions zsh > ~/.zfunc/_pugmark     with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc")]
pub struct CompletionsOptions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes the manual pages: `pugmark.1` and one for each subcommand. Prints the files' names.
///
/// # Errors
/// If a file cannot be written, or standard output.
pub fn man(options: &ManOptions) -> Result<()> {
    let folder = &options.folder;
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut written = vec![];
    write_pages(&command, "pugmark", folder, &mut written)?;
    output::print(|out| written.iter().try_for_each(|file| writeln!(out, "{}", file.display())))
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: &Command, name: &str, folder: &Path, written: &mut Vec<PathBuf>) -> Result<()> {
    let file = folder.join(format!("{name}.1"));
    let mut page = vec![];
    let version = concat!("pugmark ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone().after_help(None))
        .title(name.to_uppercase())
        .source(version)
        .render(&mut page)?;
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    page.extend_from_slice(examples_section(&examples).as_bytes());
    fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    written.push(file);
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        write_pages(inner, &format!("{name}-{}", inner.get_name()), folder, written)?;
    }
    Ok(())
}

/// Returns the examples of a command's help as a section of its page, with the line breaks kept.
fn examples_section(help: &str) -> String {
    let lines = help.lines().filter(|line| !matches!(*line, "Example:" | "Examples:"));
    // The formatter takes a period at the beginning of a line for a request, and a backslash anywhere for an escape.
    let escaped = lines.map(|line| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-")));
    format!(".SH EXAMPLES\n.nf\n{}.fi\n", escaped.collect::<String>())
}

/// Prints the completions for a shell.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(options: &CompletionsOptions) -> Result<()> {
    let mut script = vec![];
    clap_complete::generate(options.shell, &mut Cli::command(), "pugmark", &mut script);
    output::print(|out| out.write_all(&script))
}
