//! Debian's kernels of the supported releases, independent of the host's release.

use anyhow::{Result, bail};
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// A kernel that Debian ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebianKernel {
    /// The release's name.
    release: &'static str,
    /// The flavour: the target of the build.
    flavour: &'static str,
}

impl DebianKernel {
    /// The kernels that are booted on every profile: those of Debian 12 (Linux 6.1) and Debian 13 (Linux 6.12), for
    /// virtual machines and with PREEMPT_RT.
    pub const ALL: [Self; 4] = [
        Self { release: "bookworm", flavour: "cloud" },
        Self { release: "bookworm", flavour: "rt" },
        Self { release: "trixie", flavour: "cloud" },
        Self { release: "trixie", flavour: "rt" },
    ];

    /// Returns the package that depends on the release's newest kernel of this flavour.
    pub(super) fn package(self) -> String {
        format!("linux-image-{}-amd64", self.flavour)
    }

    /// Makes apt's folders in `folder`, and returns options that limit apt to this release. They are without quotes:
    /// apt runs in `folder`.
    ///
    /// # Errors
    /// If the folders cannot be made.
    pub(super) fn apt_options(self, folder: &Path) -> Result<String> {
        for name in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let source = format!("deb [signed-by={keys}] http://deb.debian.org/debian {} main\n", self.release);
        fs::write(folder.join("sources.list"), source)?;
        let own = "-o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=-";
        Ok(format!("{own} -o Dir::State::lists=$PWD/lists -o Dir::Cache=$PWD/cache"))
    }
}

impl fmt::Display for DebianKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.release, self.flavour)
    }
}

impl FromStr for DebianKernel {
    type Err = anyhow::Error;

    /// Parses a release and a flavour with a hyphen between them, such as `trixie-cloud`.
    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|kernel| kernel.to_string() == text) {
            Some(kernel) => Ok(kernel),
            None => {
                bail!("no kernel {text:?}: the kernels are {}", Self::ALL.map(|it| it.to_string()).join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_named_by_release_and_flavour() {
        for kernel in DebianKernel::ALL {
            assert_eq!(kernel.to_string().parse::<DebianKernel>().unwrap(), kernel);
        }
        let kernel: DebianKernel = "trixie-rt".parse().unwrap();
        assert_eq!(kernel.package(), "linux-image-rt-amd64");
        let error = "sid-cloud".parse::<DebianKernel>().unwrap_err().to_string();
        assert!(error.contains("bookworm-cloud") && error.contains("sid-cloud"), "{error}");
    }
}
