//! The crates that are published: each is a package that builds from its contents, with dependencies that a registry
//! has, and its programs work.

#[path = "../src/package/cargo_home.rs"]
mod cargo_home;

use cargo_home::fresh_cargo_home;
use pugmark_recorder::emulator_is_installed;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The crates, and the folder of each.
const PUBLISHED: [(&str, &str); 10] = [
    ("pugmark-decoder-core", "decoder-core"),
    ("pugmark-ipt", "libipt/engine"),
    ("pugmark-ipt-programs", "libipt/programs"),
    ("pugmark-kernel", "kernel"),
    ("pugmark-launch", "lab/launch"),
    ("pugmark-model", "lab/model"),
    ("pugmark-pfm", "pfm"),
    ("pugmark-recorder", "recorder"),
    ("pugmark-tools", "tools"),
    ("pugmark-truth", "lab/truth"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().into()
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Packages the crates as `cargo publish --dry-run` does, without querying a registry: dependencies among them come
/// from a registry that cargo makes for this. Each is built where it was unpacked.
#[test]
fn programs_that_are_built_from_the_published_packages_record_and_decode() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("published");
    let packages = PUBLISHED.iter().flat_map(|(name, _)| ["-p", name]);
    let home = fresh_cargo_home(&target).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(root())
        .env("CARGO_HOME", home)
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .arg("package")
        .args(packages);
    cargo.args(["--locked", "--offline", "--allow-dirty", "--target-dir"]).arg(&target);
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (name, folder) in PUBLISHED {
        let package = target.join("package").join(format!("{name}-{}", env!("CARGO_PKG_VERSION")));
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"] {
            let packed =
                fs::read(package.join(file)).unwrap_or_else(|error| panic!("{name}: {file}: {error}"));
            // The licences are links in the tree, and files in the package.
            assert_eq!(packed, fs::read(root().join(folder).join(file)).unwrap(), "{name}: {file}");
        }
    }
    // libpfm's licence must accompany its tables.
    let tables = target.join(format!("package/pugmark-pfm-{}/events", env!("CARGO_PKG_VERSION")));
    assert!(tables.join("NOTICE.md").is_file());

    if !emulator_is_installed() {
        println!("skipped: no QEMU user-mode emulator that takes plugins is installed");
        return;
    }
    let recording = target.join("recording");
    let _ = fs::remove_dir_all(&recording);
    let pugmark = || Command::new(target.join("debug/pugmark"));
    // The emulator needs the plugin, which is a part of the package's sources.
    text(
        pugmark()
            .args(["record", "--engine", "emulator", "-o"])
            .arg(&recording)
            .args(["--", "true"])
            .output()
            .unwrap(),
    );
    let decoded = text(pugmark().args(["decode", "--check"]).arg(&recording).output().unwrap());
    assert!(decoded.contains("check         equal to "), "{decoded}");
    let page = recording.with_extension("html");
    text(pugmark().args(["timeline", "-o"]).arg(&page).arg(&recording).output().unwrap());
    assert!(fs::read_to_string(page).unwrap().starts_with("<!"));
}

/// Checks that exactly the crates of the list are published.
#[test]
fn only_these_crates_are_published_and_each_says_what_it_is() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"]);
    let metadata: serde_json::Value = serde_json::from_str(&text(cargo.output().unwrap())).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let published: BTreeMap<&str, &serde_json::Value> = packages
        .iter()
        .filter(|package| package["publish"].is_null())
        .map(|package| (package["name"].as_str().unwrap(), package))
        .collect();
    assert!(published.keys().copied().eq(PUBLISHED.map(|(name, _)| name)), "{:?}", published.keys());
    for (name, package) in published {
        // Fields that the registry requires or shows; it takes up to five of each.
        for (field, most) in [("keywords", 5), ("categories", 5)] {
            let count = package[field].as_array().unwrap().len();
            assert!((1..=most).contains(&count), "{name}: {count} {field}");
        }
        for field in ["description", "license", "readme", "rust_version"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
    }
}
