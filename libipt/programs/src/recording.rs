//! Finds the files of the recording that `--image` names.

use crate::{args::UsageError, text};
use pugmark_decoder_core::config::Clocks;
use pugmark_recorder::files::{IMAGE, TRACE};
use pugmark_tools::description::Description;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A recording as `--image` names it: by its `image.json` or by its folder.
#[derive(Clone, Debug)]
pub struct RecordingFiles {
    /// Its image.
    pub image: PathBuf,
    /// Its description, if it has one.
    pub description: Option<Description>,
}

impl RecordingFiles {
    /// Finds the recording's image and reads its description.
    ///
    /// # Errors
    /// [`UsageError::Image`] if there is no such file, or the description cannot be read.
    pub fn load(argument: &str) -> Result<Self, UsageError> {
        let path = Path::new(argument);
        let image = if path.is_dir() { path.join(IMAGE) } else { path.to_path_buf() };
        let failed = |file: &Path, error: &io::Error| UsageError::Image {
            file: file.display().to_string(),
            error: text::of_system(error),
        };
        fs::metadata(&image).map_err(|error| failed(&image, &error))?;
        let description = Description::beside(&image).map_err(|error| failed(&error.file, &error.error))?;
        Ok(Self { image, description })
    }

    /// Returns the path of the trace beside the image, if there is one.
    #[must_use]
    pub fn trace(&self) -> Option<String> {
        let trace = self.image.with_file_name(TRACE);
        trace.exists().then(|| trace.to_string_lossy().into_owned())
    }
}

/// Returns `given` with each clock that is zero taken from `others`.
#[must_use]
pub fn clocks_or(given: Clocks, others: Clocks) -> Clocks {
    Clocks {
        mtc_freq: if given.mtc_freq != 0 { given.mtc_freq } else { others.mtc_freq },
        nom_freq: if given.nom_freq != 0 { given.nom_freq } else { others.nom_freq },
        cpuid_15h_eax: if given.cpuid_15h_eax != 0 { given.cpuid_15h_eax } else { others.cpuid_15h_eax },
        cpuid_15h_ebx: if given.cpuid_15h_ebx != 0 { given.cpuid_15h_ebx } else { others.cpuid_15h_ebx },
        ..given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_goes_before_what_is_described() {
        let of = |mtc_freq, nom_freq, cpuid_15h_eax, cpuid_15h_ebx| Clocks {
            mtc_freq,
            nom_freq,
            cpuid_15h_eax,
            cpuid_15h_ebx,
            ..Clocks::default()
        };
        assert_eq!(clocks_or(of(0, 0, 0, 0), of(1, 2, 3, 4)), of(1, 2, 3, 4));
        assert_eq!(clocks_or(of(5, 6, 7, 8), of(1, 2, 3, 4)), of(5, 6, 7, 8));
    }
}
