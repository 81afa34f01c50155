//! Gives the plugin to the emulator, in a form that the emulator takes.

use super::{
    EMULATOR,
    plugin::PROBED,
    probe::{self, FIRST, LAST},
    shared::{self, path},
};
use object::{Object, ObjectSection, ObjectSymbol};
use std::{
    ffi::{CStr, OsStr, c_int},
    fmt,
    fs::File,
    io::{self, Write},
    os::fd::AsRawFd,
    process::{Command, Stdio},
};

/// The name of the plugin's file where it is mapped.
pub(super) const NAME: &CStr = c"pugmark-plugin";

/// The plugin, which the build script makes.
static PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/plugin.so"));

/// The versions of the plugin interface to ask for, which the plugin all serves: QEMU 5 to 8 have 1, QEMU 9 to 11.0
/// take 2, QEMU 11.1 takes nothing below 7. Source: QEMU, `QEMU_PLUGIN_MIN_VERSION`.
const VERSIONS: [c_int; 3] = [1, 2, 7];

/// The plugin in a file that nobody can change, in the version that the emulator takes.
pub(super) struct LoadedPlugin {
    file: File,
    /// The emulator gives a program its environment in reverse.
    pub(super) reverses: bool,
}

/// Why there is no fast way to record a program.
#[derive(Debug)]
pub enum NoEmulator {
    /// It cannot be started.
    Missing(io::Error),
    /// It takes no plugin, or not this one.
    TakesNoPlugin {
        /// The last line that it said.
        said: String,
    },
}

impl LoadedPlugin {
    /// Finds out whether the emulator takes the plugin, by letting it load it.
    pub(super) fn find() -> Result<Self, NoEmulator> {
        let program = probe::program().map_err(NoEmulator::Missing)?;
        Self::find_for(EMULATOR.as_ref(), &[&path(&program)])
    }

    /// Finds out whether this emulator, with these arguments, takes the plugin.
    pub(super) fn find_for(emulator: &OsStr, arguments: &[&str]) -> Result<Self, NoEmulator> {
        let mut said = String::new();
        for version in VERSIONS {
            let mut plugin = Self::new(version).map_err(NoEmulator::Missing)?;
            let output = Command::new(emulator)
                .arg("-plugin")
                // The plugin ends a machine's emulator before that executes anything.
                .arg(format!("{},probe=1", plugin.path()))
                .args(arguments)
                .envs([FIRST, LAST].map(|name| (name, "")))
                .stdin(Stdio::null())
                .output()
                .map_err(NoEmulator::Missing)?;
            let status = output.status.code().unwrap_or_default();
            plugin.reverses = status == i32::from(LAST.as_bytes()[0]);
            if plugin.reverses || [i32::from(FIRST.as_bytes()[0]), PROBED].contains(&status) {
                return Ok(plugin);
            }
            let text = String::from_utf8_lossy(&output.stderr);
            said = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().into();
        }
        Err(NoEmulator::TakesNoPlugin { said })
    }

    pub(super) fn new(version: c_int) -> io::Result<Self> {
        let mut file = shared::file(NAME)?;
        file.write_all(&asking_for(PLUGIN, version)?)?;
        let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: takes numbers.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file, reverses: false })
    }

    /// Returns where a program finds it.
    pub(super) fn path(&self) -> String {
        path(&self.file)
    }
}

/// Returns the plugin with another version in its variable `qemu_plugin_version`.
fn asking_for(plugin: &[u8], version: c_int) -> io::Result<Vec<u8>> {
    let place = || {
        let file = object::File::parse(plugin).ok()?;
        let variable = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("qemu_plugin_version"))?;
        let section = file.section_by_index(variable.section_index()?).ok()?;
        let (begin, _) = section.file_range()?;
        usize::try_from(begin + variable.address().checked_sub(section.address())?).ok()
    };
    let mut plugin = plugin.to_vec();
    let place = place().and_then(|at| plugin.get_mut(at..at + size_of::<c_int>()));
    place.ok_or_else(|| io::Error::other("the plugin is damaged"))?.copy_from_slice(&version.to_le_bytes());
    Ok(plugin)
}

impl fmt::Display for NoEmulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(error) => {
                write!(f, "{EMULATOR} cannot be started: {error}; install qemu-user, with plugins")
            }
            Self::TakesNoPlugin { said } => write!(
                f,
                "{EMULATOR} takes no plugin: {said}; Debian 13's qemu-user is built without plugins: install Debian \
                 12's and its libcapstone4, or a QEMU that was configured with --enable-plugins"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_plugin_says_each_version_and_is_the_same_otherwise() {
        for version in VERSIONS {
            let plugin = asking_for(PLUGIN, version).unwrap();
            let places: Vec<_> = (0..plugin.len()).filter(|at| plugin[*at] != PLUGIN[*at]).collect();
            assert_eq!((plugin.len(), places.len()), (PLUGIN.len(), usize::from(version != 1)), "{version}");
            assert!(places.iter().all(|at| plugin[*at] == version as u8 && PLUGIN[*at] == 1), "{version}");
        }
        assert!(asking_for(&PLUGIN[..64], 2).is_err());
    }

    #[test]
    fn nobody_can_change_the_plugin_that_programs_load() {
        let plugin = LoadedPlugin::new(1).unwrap();
        assert_eq!(fs::read(plugin.path()).unwrap(), PLUGIN);
        assert!(fs::write(plugin.path(), b"other").is_err());
    }
}
