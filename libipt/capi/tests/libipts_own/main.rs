//! libipt's own tests with our library: its tools pttc, ptdump and ptxed are built from its sources, and its script
//! runs them on each of its files.
//!
//! `cargo xtask test` gets the sources. A test that also fails with libipt's own library does not count.

#[allow(dead_code, unreachable_pub, reason = "a module of another crate, of which this needs one release")]
#[path = "../../../../lab/harness/src/libipt/release.rs"]
mod release;

use release::V2_0_5;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// The folders of the build, and of the sources in it.
const BUILD: &str = env!("CARGO_TARGET_TMPDIR");
const SOURCES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../libipt-sources");

/// The definitions that CMake would make. ptxed reads no ELF files here. With newer sources it has an option whose flag
/// 2.0.5's header lacks; the tests of that option also fail with libipt's own library.
const DEFINED: [&str; 7] = [
    "-D_POSIX_C_SOURCE=200809L",
    "-DPT_VERSION_MAJOR=2",
    "-DPT_VERSION_MINOR=0",
    "-DPT_VERSION_PATCH=5",
    "-DPT_VERSION_BUILD=0",
    "-DPT_VERSION_EXT=\"\"",
    "-Dkeep_tcal_on_ovf=enable_tick_events",
];

const COMMON: [&str; 2] = ["libipt/src/pt_cpu.c", "libipt/src/posix/pt_cpuid.c"];

/// The tools, with their additional files.
const TOOLS: [(&str, &[&str]); 3] = [
    ("ptdump", &["ptdump/src/ptdump.c", "libipt/src/pt_last_ip.c", "libipt/src/pt_time.c"]),
    (
        "pttc",
        &[
            "pttc/src/main.c",
            "pttc/src/pttc.c",
            "pttc/src/parse.c",
            "pttc/src/yasm.c",
            "pttc/src/file.c",
            "pttc/src/errcode.c",
            "pttc/src/util.c",
            "pttc/src/posix/util.c",
        ],
    ),
    ("ptxed", &["ptxed/src/ptxed.c", "libipt/src/pt_ild.c"]),
];

/// Both decoders of ptxed.
const DECODERS: [&str; 2] = ["--insn-decoder", "--block-decoder"];

/// The tools, and the folder of our library.
struct Suite {
    folder: PathBuf,
    sources: PathBuf,
    /// The folder of libipt's header.
    header: PathBuf,
    /// The folder of libipt's own library.
    theirs: PathBuf,
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

impl Suite {
    /// Builds the tools. If a requirement is missing, prints a line and returns `None`.
    fn new() -> Option<Self> {
        let Ok(sources) = Path::new(SOURCES).canonicalize() else {
            println!("skipped: the sources of libipt are not in target/libipt-sources");
            return None;
        };
        if let Some(missing) = ["cc", "bash", "yasm", "diff"].into_iter().find(|program| !is_there(program)) {
            println!("skipped: {missing} is not installed");
            return None;
        }
        let folder = Path::new(BUILD).join("libipts-own");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("lib")).unwrap();
        let library = folder.join("lib/libipt.so.2");
        fs::copy(env::current_exe().unwrap().with_file_name("libipt.so"), &library).unwrap();
        let (Some(header), Some(theirs)) = (V2_0_5.include(), V2_0_5.installed_in()) else {
            println!("{}", V2_0_5.skipped());
            return None;
        };
        let suite = Self { folder, sources, header, theirs };
        for (tool, files) in TOOLS {
            suite.compile(tool, files, &library);
        }
        Some(suite)
    }

    fn compile(&self, tool: &str, files: &[&str], library: &Path) {
        let include = |folder: &str| format!("-I{}", self.sources.join(folder).display());
        let own = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/tests/libipts_own");
        let output = Command::new("cc")
            .args(["-std=c99", "-O1", "-w", own, "-I"])
            .arg(&self.header)
            .args(DEFINED)
            .args(["include", "include/posix", "libipt/internal/include"].map(include))
            .args([include("libipt/internal/include/posix"), include(&format!("{tool}/include"))])
            .args(files.iter().chain(&COMMON).map(|file| self.sources.join(file)))
            .arg(library)
            .arg("-o")
            .arg(self.folder.join(tool))
            .output()
            .unwrap();
        assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the files with tests.
    fn files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.sources.join("test/src")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> =
            files.filter(|file| file.extension().is_some_and(|extension| extension == "ptt")).collect();
        files.sort();
        files
    }

    /// Runs the tests of a file with a decoder, with our library or libipt's own.
    fn run(&self, file: &Path, decoder: &str, ours: bool) -> Output {
        let tool = |name| self.folder.join(name);
        let folder = self.folder.join(if ours { "ours" } else { "theirs" }).join(decoder);
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("bash");
        command.arg(self.sources.join("script/test.bash")).arg("-f").arg("-g").arg(tool("pttc"));
        command.arg("-d").arg(tool("ptdump")).arg("-x").arg(tool("ptxed")).args(["-X", decoder]).arg(file);
        let library = if ours { self.folder.join("lib") } else { self.theirs.clone() };
        command.env("LD_LIBRARY_PATH", library);
        command.current_dir(folder).output().unwrap()
    }
}

#[test]
fn libipts_own_tests_pass_with_our_library() {
    let Some(suite) = Suite::new() else { return };
    let files = suite.files();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            for decoder in DECODERS {
                let ours = suite.run(file, decoder, true);
                if !ours.status.success() {
                    failed.lock().unwrap().push((file, decoder, ours));
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut failed = failed.into_inner().unwrap();
    let all = failed.len();
    failed.retain(|(file, decoder, _)| suite.run(file, decoder, false).status.success());
    println!("{} tests of libipt, {all} fail, {} of them only with ours", 2 * files.len(), failed.len());
    for (file, decoder, output) in &failed {
        println!("{decoder} {}:\n{}", file.display(), String::from_utf8_lossy(&output.stdout));
    }
    assert!(failed.is_empty() && 2 * (files.len() - 150) > all, "see above");
}
