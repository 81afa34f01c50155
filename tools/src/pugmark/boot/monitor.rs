//! The place of the monitor's image.

use anyhow::{Result, bail};
use std::{
    env,
    path::{Path, PathBuf},
};

/// The image's name.
const NAME: &str = "pugmark-monitor";
/// The variable that names the image.
const VARIABLE: &str = "PUGMARK_MONITOR";

/// Returns the image's path: the variable's, or where packages and builds have it.
///
/// # Errors
/// If there is none.
pub(super) fn image() -> Result<PathBuf> {
    let program = env::current_exe().and_then(|program| program.canonicalize()).unwrap_or_default();
    found(env::var_os(VARIABLE).map(PathBuf::from), &program)
}

/// Returns the image that `named` names, else that of the program at `program`.
fn found(named: Option<PathBuf>, program: &Path) -> Result<PathBuf> {
    let places = named.map_or_else(|| places(program), |named| vec![named]);
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return Ok(place.clone());
    }
    let places: Vec<String> = places.iter().map(|place| format!("`{}`", place.display())).collect();
    bail!(
        "the monitor, which runs below the guest, is missing: no file {}. The Debian package of pugmark has it; in \
         Pugmark's source tree `cargo build --profile monitor -p pugmark-monitor` makes it; {VARIABLE} can name it",
        places.join(", ")
    )
}

/// Returns the places for a program: its own folder, that of the Debian package, and cargo's for the monitor's profile
/// beside that of the program's.
fn places(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else { return vec![] };
    let beside = folder.join(NAME);
    let above = folder.parent();
    let others = above.into_iter().flat_map(|above| [above.join("lib/pugmark"), above.join("monitor")]);
    [beside].into_iter().chain(others.map(|folder| folder.join(NAME))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_image_is_beside_the_program_or_in_the_packages_folder_or_in_cargos() {
        let root = env::temp_dir().join(format!("pugmark-monitor-{}", std::process::id()));
        let program = root.join("bin/pugmark");
        for folder in ["monitor", "lib/pugmark", "bin"] {
            let error = found(None, &root.join("other/pugmark")).unwrap_err().to_string();
            assert!(error.contains("other/pugmark-monitor`, `"), "{error}");
            fs::create_dir_all(root.join(folder)).unwrap();
            let image = root.join(folder).join(NAME);
            fs::write(&image, "").unwrap();
            assert_eq!(found(None, &program).unwrap(), image);
            assert_eq!(found(Some(image.clone()), Path::new("/")).unwrap(), image);
            let error = found(Some(root.join("no")), &program).unwrap_err().to_string();
            assert!(error.contains("/no`. ") && error.contains(VARIABLE), "{error}");
            if folder != "bin" {
                fs::remove_file(&image).unwrap();
            }
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
