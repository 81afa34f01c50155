//! `cargo xtask capi`: installs our libipt.so.2 beside the system's, and removes it again.
//!
//! The library is in its own folder, so it replaces no file of another package, and only programs that look into this
//! folder use it.

use anyhow::{Context, Result, ensure};
use clap::Args;
use pugmark_builds::cargo::cargo;
use pugmark_harness::images::{target_folder, workspace};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf, absolute};
use std::process::Command;

/// The folder of our libraries in a prefix.
const FOLDER: &str = "lib/pugmark";
/// The soname, which is the name that the linker looks for.
const SONAME: &str = "libipt.so.2";
const LINK: &str = "libipt.so";
const STATIC: &str = "libipt.a";
const PKG_CONFIG: &str = "pkgconfig/libipt.pc";
/// The version of libipt's interface.
const INTERFACE: &str = "2.0.5";
/// The name of the Debian package.
const PACKAGE: &str = "pugmark-libipt";

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct CapiOptions {
    /// Install the libraries into PREFIX/lib/pugmark, where they replace nothing
    #[arg(long, value_name = "PREFIX")]
    install: Option<PathBuf>,
    /// Remove what --install wrote
    #[arg(long, value_name = "PREFIX")]
    uninstall: Option<PathBuf>,
    /// Make a Debian package that has them in /usr/lib/pugmark
    #[arg(long)]
    deb: bool,
}

pub(crate) fn capi(options: &CapiOptions) -> Result<()> {
    if let Some(prefix) = &options.uninstall {
        return uninstall(&absolute(prefix)?);
    }
    cargo(&["build", "--locked", "--release", "--package", "pugmark-capi"], &[])?;
    let built = target_folder().join("release");
    if let Some(prefix) = &options.install {
        let prefix = absolute(prefix)?;
        install(&built, &prefix, &prefix)?;
        let folder = prefix.join(FOLDER);
        let folder = folder.display();
        println!("{folder}: {SONAME}, {LINK}, {STATIC}, {PKG_CONFIG}");
        println!("a program uses it with   LD_LIBRARY_PATH={folder} PROGRAM");
        println!("a build uses it with     PKG_CONFIG_PATH={folder}/pkgconfig pkg-config --libs libipt");
        println!("the header is libipt's: on Debian, package libipt-dev");
        println!("to remove it             cargo xtask capi --uninstall {}", prefix.display());
    }
    if options.deb {
        println!("{}", debian_package(&built, &target_folder())?.display());
    }
    Ok(())
}

/// Copies the libraries of the folder `built` to `root`, with a pkg-config file that names `prefix`.
fn install(built: &Path, root: &Path, prefix: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    let pkg_config = folder.join(PKG_CONFIG);
    fs::create_dir_all(pkg_config.parent().unwrap_or(&folder))
        .with_context(|| format!("cannot make {}", folder.display()))?;
    for (from, to) in [("libipt.so", SONAME), ("libipt.a", STATIC)] {
        // A program may use the existing library: its file is unlinked, not overwritten.
        let (from, to) = (built.join(from), folder.join(to));
        remove(&to)?;
        fs::copy(&from, &to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o644))?;
    }
    let link = folder.join(LINK);
    remove(&link)?;
    symlink(SONAME, &link).with_context(|| format!("cannot make {}", link.display()))?;
    let text = format!(
        "prefix={}\nlibdir=${{prefix}}/{FOLDER}\n\nName: libipt\nDescription: libipt with Pugmark's decoder\n\
         Version: {INTERFACE}\nLibs: -L${{libdir}} -Wl,-rpath,${{libdir}} -lipt\n\
         Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl\n",
        prefix.display()
    );
    fs::write(&pkg_config, text).with_context(|| format!("cannot write {}", pkg_config.display()))
}

/// Removes a file. Returns whether it existed.
fn remove(file: &Path) -> Result<bool> {
    match fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", file.display())),
    }
}

/// Removes the files that [`install`] wrote, and the folders that are then empty.
fn uninstall(prefix: &Path) -> Result<()> {
    let folder = prefix.join(FOLDER);
    let mut any = false;
    for file in [SONAME, LINK, STATIC, PKG_CONFIG] {
        any |= remove(&folder.join(file))?;
    }
    ensure!(any, "nothing is installed in {}", folder.display());
    for folder in [&folder.join("pkgconfig"), &folder] {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => {
                return Err(error).with_context(|| format!("cannot remove {}", folder.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes the Debian package in a folder. The package has no file of another one and can be installed beside libipt2.
fn debian_package(built: &Path, folder: &Path) -> Result<PathBuf> {
    let root = folder.join(PACKAGE);
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    install(built, &root.join("usr"), Path::new("/usr"))?;
    let documents = root.join("usr/share/doc").join(PACKAGE);
    fs::create_dir_all(&documents)?;
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| fs::read_to_string(workspace().join(name)));
    let [mit, apache] = licences;
    fs::write(documents.join("copyright"), format!("MIT OR Apache-2.0\n\n{}\n{}", mit?, apache?))?;
    fs::copy(workspace().join("libipt/capi/README.md"), documents.join("README.md"))?;
    fs::create_dir_all(root.join("DEBIAN"))?;
    let version = env!("CARGO_PKG_VERSION");
    let control = format!(
        "Package: {PACKAGE}\nVersion: {version}\nArchitecture: amd64\nMaintainer: The Pugmark developers\n\
         Depends: libc6, libgcc-s1\nSection: libs\nPriority: optional\n\
         Description: libipt.so.2 with Pugmark's decoder of Intel Processor Trace\n \
         For programs that are linked with libipt. It lies in /usr/{FOLDER}, where only\n \
         programs with LD_LIBRARY_PATH=/usr/{FOLDER} find it, so libipt2 stays in use.\n"
    );
    fs::write(root.join("DEBIAN/control"), control)?;
    let package = folder.join(format!("{PACKAGE}_{version}_amd64.deb"));
    let output = Command::new("dpkg-deb")
        .args(["--root-owner-group", "--build"])
        .args([&root, &package])
        .output()
        .context("cannot start dpkg-deb, which makes Debian packages (package dpkg)")?;
    ensure!(output.status.success(), "dpkg-deb failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(package)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_builds::cargo::FOR_TESTS;
    use std::process::Output;

    /// A program that prints the library's version, and its extension, which names the implementation.
    const PROGRAM: &str = r#"
#include <intel-pt.h>
#include <stdio.h>
int main(void) {
    struct pt_version version = pt_library_version();
    printf("%d %s\n", version.major, version.ext);
    return 0;
}
"#;

    /// A folder that is removed when the value is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("pugmark-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Builds our libraries as for tests (already done if all tests were built), and returns their folder.
    fn built() -> PathBuf {
        let arguments: Vec<&str> =
            ["build", "--locked", "--package", "pugmark-capi"].into_iter().chain(FOR_TESTS).collect();
        cargo(&arguments, &[]).unwrap();
        target_folder().join("debug")
    }

    /// Returns true if these programs are installed; otherwise prints a line that names the missing one.
    fn are_there(programs: &[&str]) -> bool {
        let missing = programs.iter().find(|name| Command::new(name).arg("--version").output().is_err());
        missing.inspect(|name| println!("skipped: {name} is not installed")).is_none()
    }

    fn text(output: &Output) -> String {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns all files and links in a folder.
    fn files(folder: &Path) -> Vec<String> {
        let output =
            Command::new("find").current_dir(folder).args([".", "!", "-type", "d"]).output().unwrap();
        let mut files: Vec<_> = text(&output).lines().map(str::to_owned).collect();
        files.sort();
        files
    }

    #[test]
    fn a_program_that_pkg_config_links_uses_what_was_installed_until_it_is_removed() {
        if !are_there(&["pkg-config", "cc"]) {
            return;
        }
        let scratch = Scratch::new("capi-install");
        let prefix = scratch.0.join("prefix");
        let built = built();
        // The second time it replaces the first.
        install(&built, &prefix, &prefix).unwrap();
        install(&built, &prefix, &prefix).unwrap();
        let installed = ["libipt.a", "libipt.so", "libipt.so.2", "pkgconfig/libipt.pc"];
        assert_eq!(files(&prefix), installed.map(|name| format!("./lib/pugmark/{name}")));
        let pkg_config = |arguments: &[&str]| {
            let mut command = Command::new("pkg-config");
            command
                .env("PKG_CONFIG_PATH", prefix.join("lib/pugmark/pkgconfig"))
                .args(arguments)
                .arg("libipt");
            text(&command.output().unwrap()).trim().to_owned()
        };
        assert_eq!(pkg_config(&["--modversion"]), "2.0.5");
        let source = scratch.0.join("program.c");
        fs::write(&source, PROGRAM).unwrap();
        let run = |libraries: &str| {
            let program = scratch.0.join("program");
            let mut command = Command::new("cc");
            command.arg(&source).arg("-o").arg(&program).args(libraries.split_whitespace());
            let output = command.output().unwrap();
            if String::from_utf8_lossy(&output.stderr).contains("intel-pt.h") {
                println!("skipped: intel-pt.h is not installed");
                return None;
            }
            text(&output);
            Some(text(&Command::new(&program).output().unwrap()))
        };
        let Some(shared) = run(&pkg_config(&["--libs"])) else { return };
        assert_eq!(shared, "2 pugmark\n");
        let whole = format!("{}/libipt.a {}", prefix.join(FOLDER).display(), "-lgcc_s -lpthread -lm -ldl");
        assert_eq!(run(&whole).as_deref(), Some("2 pugmark\n"));
        uninstall(&prefix).unwrap();
        assert_eq!(files(&prefix), Vec::<String>::new());
        assert!(!prefix.join(FOLDER).exists());
        let error = uninstall(&prefix).unwrap_err().to_string();
        assert!(error.starts_with("nothing is installed in "), "{error}");
    }

    #[test]
    fn files_of_others_stay_when_it_is_removed() {
        let scratch = Scratch::new("capi-uninstall");
        let built = scratch.0.join("built");
        fs::create_dir_all(&built).unwrap();
        fs::write(built.join("libipt.so"), "so").unwrap();
        fs::write(built.join("libipt.a"), "a").unwrap();
        let prefix = scratch.0.join("prefix");
        install(&built, &prefix, &prefix).unwrap();
        fs::write(prefix.join("lib/pugmark/other"), "").unwrap();
        uninstall(&prefix).unwrap();
        assert_eq!(files(&prefix), ["./lib/pugmark/other"]);
        let error = format!("{:#}", install(Path::new("/nowhere"), &prefix, &prefix).unwrap_err());
        assert!(error.contains("/nowhere/libipt.so"), "{error}");
    }

    #[test]
    fn the_debian_package_has_no_file_of_libipts_package() {
        if !are_there(&["dpkg-deb"]) {
            return;
        }
        let scratch = Scratch::new("capi-deb");
        // The static library of the tests' build has debug information: packing it takes a minute.
        let ours = scratch.0.join("built");
        fs::create_dir_all(&ours).unwrap();
        fs::copy(built().join(LINK), ours.join(LINK)).unwrap();
        fs::write(ours.join(STATIC), "").unwrap();
        let package = debian_package(&ours, &scratch.0).unwrap();
        let dpkg = |arguments: &[&str]| {
            text(&Command::new("dpkg-deb").args(arguments).arg(&package).output().unwrap())
        };
        assert_eq!(dpkg(&["--show"]), format!("pugmark-libipt\t{}\n", env!("CARGO_PKG_VERSION")));
        let listed = dpkg(&["--contents"]);
        let names = listed.lines().filter_map(|line| line.split_whitespace().nth(5));
        let mut files: Vec<_> = names.filter(|name| !name.ends_with('/')).collect();
        files.sort_unstable();
        let own = ["lib/pugmark/", "share/doc/pugmark-libipt/"].map(|folder| format!("./usr/{folder}"));
        assert!(files.len() == 6, "{files:?}");
        assert!(files.iter().all(|file| own.iter().any(|folder| file.starts_with(folder))), "{files:?}");
        assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");
        // Unpacked, the library can be loaded.
        let root = scratch.0.join("root");
        text(&Command::new("dpkg-deb").arg("--extract").args([&package, &root]).output().unwrap());
        // SAFETY: the library has no other initialisers than any C library.
        let library = unsafe { libloading::Library::new(root.join("usr/lib/pugmark/libipt.so.2")) }.unwrap();
        // SAFETY: only the address is taken.
        assert!(unsafe { library.get::<*const ()>(b"pt_library_version") }.is_ok());
        let text = fs::read_to_string(root.join("usr/lib/pugmark/pkgconfig/libipt.pc")).unwrap();
        assert!(text.starts_with("prefix=/usr\n"), "{text}");
    }
}
