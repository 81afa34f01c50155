//! The crates that other kernels depend on can be published: each is a package that builds from what is in it, with
//! dependencies that a registry has.

use std::path::Path;
use std::process::Command;

/// Packages them as `cargo publish --dry-run` does, without asking a registry: what depends on the other takes it from
/// a registry of its own that cargo makes for this.
#[test]
fn kernel_and_decoder_can_be_published() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("published");
    let output = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["package", "--locked", "--offline", "--allow-dirty", "--target-dir"])
        .arg(&target)
        .args(["-p", "pugmark-decoder-core", "-p", "pugmark-kernel"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (package, files) in [
        ("pugmark-decoder-core-0.1.0", &["README.md", "src/lib.rs"][..]),
        ("pugmark-kernel-0.1.0", &["README.md", "src/lib.rs", "doc/guide.md"]),
    ] {
        for file in files {
            let file = target.join("package").join(package).join(file);
            assert!(file.is_file(), "{} is not in its package", file.display());
        }
    }
}
