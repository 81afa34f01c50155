//! A kernel by its name on a command line.

use std::{convert::Infallible, path::PathBuf, str::FromStr};

use super::DebianKernel;

/// A kernel by its name on a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinuxVersion {
    /// The newest one that is installed, or else Debian's newest one for virtual machines.
    #[default]
    Newest,
    /// The version that `uname -r` prints: it is installed, or a package of the system's apt.
    Release(String),
    /// The newest one of a release of Debian.
    Debian(DebianKernel),
    /// A file: a bzImage, or the ELF file in it.
    File(PathBuf),
}

impl FromStr for LinuxVersion {
    type Err = Infallible;

    /// Reads a path, which has a slash, `bookworm-cloud` and its like, or a version.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.parse() {
            _ if text.is_empty() => Self::Newest,
            _ if text.contains('/') => Self::File(text.into()),
            Ok(kernel) => Self::Debian(kernel),
            Err(_) => Self::Release(text.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_slash_and_a_release_of_debian_its_name() {
        for (text, expected) in [
            ("", LinuxVersion::Newest),
            ("./vmlinuz", LinuxVersion::File("./vmlinuz".into())),
            ("trixie-cloud", LinuxVersion::Debian("trixie-cloud".parse().unwrap())),
            ("6.1.0-50-amd64", LinuxVersion::Release("6.1.0-50-amd64".into())),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
    }
}
