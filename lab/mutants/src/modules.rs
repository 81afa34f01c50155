//! Finds the files of a crate, without those that are built only for tests.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use syn::Item;

use super::sites::is_left_out;

/// Files that a build script also compiles alone, where the support crate is missing.
const COMPILED_ALONE: [&str; 1] = ["recorder/src/linux/emulator/plugin.rs"];

/// Returns the crate's root and the files of its modules, with their text. Paths are relative to the workspace's root.
pub(super) fn files(workspace: &Path, root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut files = vec![];
    let folder = root.parent().with_context(|| format!("{} is in no folder", root.display()))?;
    add(workspace, root, folder, &mut files)?;
    Ok(files)
}

/// Adds a file and those of its modules, which are in `folder`.
fn add(workspace: &Path, file: &Path, folder: &Path, files: &mut Vec<(PathBuf, String)>) -> Result<()> {
    if COMPILED_ALONE.iter().any(|alone| file == Path::new(alone)) {
        return Ok(());
    }
    let text = std::fs::read_to_string(workspace.join(file))
        .with_context(|| format!("cannot read {}", file.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("{} does not parse", file.display()))?;
    if is_left_out(&parsed.attrs) {
        return Ok(());
    }
    files.push((file.to_path_buf(), text));
    modules(workspace, &parsed.items, folder, files)
}

fn modules(
    workspace: &Path,
    items: &[Item],
    folder: &Path,
    files: &mut Vec<(PathBuf, String)>,
) -> Result<()> {
    for item in items {
        let Item::Mod(module) = item else { continue };
        if is_left_out(&module.attrs) {
            continue;
        }
        let inner = folder.join(module.ident.to_string());
        match &module.content {
            Some((_, items)) => modules(workspace, items, &inner, files)?,
            None => {
                let beside = inner.with_extension("rs");
                let file = if workspace.join(&beside).exists() { beside } else { inner.join("mod.rs") };
                add(workspace, &file, &inner, files)?;
            }
        }
    }
    Ok(())
}
