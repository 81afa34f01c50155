//! Recordings and files that are made to do harm: with names that a terminal, a browser or another program would obey,
//! and with files that have no end.
#![cfg(target_os = "linux")]

use super::{PUGMARK, object_file::*};
use serde_json::json;
use std::{
    ffi::CString,
    fs::{self, File},
    mem::MaybeUninit,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// 401000: call 401010; jmp rax. 401010: ret.
const CODE: [u8; 17] =
    [0xe8, 0x0b, 0, 0, 0, 0xff, 0xe0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3];
/// PSB, MODE.Exec (64 bit), PSBEND, TIP.PGE (401000), TNT (taken: the return), TIP.PGD.
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x02\x23\x71\0\x10\x40\0\0\0\x06\x01";
/// The name of the function that is called, of the program's file, and of the thread.
const NAME: &str = "f\x1b[2J\n</script>;\"<b>&'\r\u{202e}";
/// The memory that a command may take besides four times the size of what it reads, and the time.
const MOST_KIB: i64 = 256 << 10;
const DEADLINE: Duration = Duration::from_secs(60);

/// A recording of the code above.
struct Recording(PathBuf);

impl Recording {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-hostile-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut page = CODE.to_vec();
        page.resize(0x1000, 0xcc);
        let symbols = [("main", 0x40_1000, 16, GLOBAL, 1), (NAME, 0x40_1010, 1, GLOBAL, 1)];
        let program = ObjectFile { pieces: &[(0x1000, 0x40_1000, &page)], symbols: &symbols }.bytes();
        fs::write(folder.join(NAME.replace('/', ":")), program).unwrap();
        fs::write(folder.join("code.bin"), page).unwrap();
        fs::write(folder.join("trace.pt"), TRACE).unwrap();
        let recording = Self(folder);
        recording.describe("code.bin", &recording.program());
        recording
    }

    fn program(&self) -> PathBuf {
        self.0.join(NAME.replace('/', ":"))
    }

    /// Writes what the code's file and the program's file are.
    fn describe(&self, code: &str, program: &Path) {
        let section = json!({ "file": code, "offset": 0, "len": 0x1000, "vaddr": 0x40_1000 });
        let part = json!({ "dir": ".", "pid": 7, "tid": 7, "comm": NAME, "exe": program });
        let write =
            |name: &str, value: serde_json::Value| fs::write(self.0.join(name), value.to_string()).unwrap();
        write("image.json", json!({ "sections": [section] }));
        write("truth.json", json!({ "count": 3 }));
        write("recording.json", json!({ "parts": [part] }));
    }

    /// Makes a pipe that nobody writes to.
    fn pipe(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let text = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
        path
    }

    /// Runs a command of pugmark on the recording, within memory and time. Returns its status and all that it printed.
    #[expect(clippy::zombie_processes, reason = "wait4 waits for it, and says how much memory it took")]
    fn run(&self, arguments: &[&str]) -> (ExitStatus, String) {
        let out = self.0.join("out");
        let file = File::create(&out).unwrap();
        let child = Command::new(PUGMARK)
            .args(arguments)
            .current_dir(&self.0)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let (pid, begun) = (child.id().cast_signed(), Instant::now());
        let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
        // SAFETY: both are written to variables of their types.
        while unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) } == 0 {
            if begun.elapsed() > DEADLINE {
                // SAFETY: it is this process's child, which was not waited for.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: all zeros are a value of it.
        let usage = unsafe { usage.assume_init() };
        assert!(begun.elapsed() < DEADLINE, "{arguments:?} does not end");
        assert!(usage.ru_maxrss <= MOST_KIB, "{arguments:?}: {} KiB", usage.ru_maxrss);
        (ExitStatus::from_raw(status), String::from_utf8_lossy(&fs::read(out).unwrap()).into_owned())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn names_do_no_harm_in_any_output() {
    let recording = Recording::new("names");
    let program = recording.program();
    let of = program.to_str().unwrap();
    for arguments in [
        &["report", "--by", "thread,object,function", "."][..],
        &["report", "--csv", "--children", "."],
        &["report", "--json", "."],
        &["flamegraph", "-f", "folded", "."],
        &["flamegraph", "-f", "svg", "."],
        &["timeline", "-o", "page.html", "."],
        &["coverage", "."],
        &["coverage", "-f", "blocks", "."],
        &["coverage", "-f", "edges", "."],
        &["coverage", "--json", "."],
        &["calls", "--of", "main", "."],
        &["last", "."],
        &["script", "."],
        &["script", "--branches", "."],
        &["script", "--call-trace", "."],
        &["decode", "."],
        &["coverage", "--of", of, "-f", "drcov", "-o", "a.drcov", "."],
    ] {
        let (status, text) = recording.run(arguments);
        assert!(status.success(), "{arguments:?}: {text}");
        let lines: Vec<&str> = text.split('\n').collect();
        let is_bad = |letter: char| letter.is_control() || letter == '\u{202e}';
        assert!(!lines.iter().any(|line| line.contains(is_bad)), "{arguments:?}: {text:?}");
        // A line that a name has broken begins with what follows in it.
        assert!(!lines.iter().any(|line| line.starts_with("</script>")), "{arguments:?}: {text}");
        match arguments {
            ["report", "--json", ..] | ["coverage", "--json", ..] => {
                serde_json::from_str::<serde_json::Value>(&text).unwrap();
            }
            [_, "-f", "svg", ..] => drop(roxmltree::Document::parse(&text).unwrap()),
            [_, "-f", "folded", ..] => {
                assert_eq!(text.lines().filter(|line| line.split(';').count() > 2).count(), 0, "{text}");
            }
            _ => {}
        }
    }
    let page = fs::read_to_string(recording.0.join("page.html")).unwrap();
    assert_eq!(page.matches("</script>").count(), page.matches("<script").count());
    let file = fs::read(recording.0.join("a.drcov")).unwrap();
    let file = String::from_utf8_lossy(&file);
    assert_eq!(file.lines().nth(5), Some("BB Table: 3 bbs"), "{file}");
}

#[test]
fn files_without_an_end_are_refused_by_their_names() {
    let recording = Recording::new("endless");
    let (pipe, link, sparse) = (recording.pipe("pipe"), recording.0.join("link"), recording.0.join("sparse"));
    std::os::unix::fs::symlink(&link, &link).unwrap();
    File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    let (status, text) = recording.run(&["decode", "/dev/zero"]);
    assert_eq!((status.code(), text.contains("/dev/zero")), (Some(1), true), "{text}");
    for name in ["pipe", "link", "sparse", "/dev/zero", ".", "../none"] {
        recording.describe(name, &recording.program());
        let (status, text) = recording.run(&["report", "."]);
        assert_eq!((status.code(), text.contains(name)), (Some(1), true), "{name}: {text}");
    }
    // Files that only have names: the code is known without them.
    for program in [&pipe, &link, &sparse, Path::new("/dev/zero")] {
        recording.describe("code.bin", program);
        let (status, text) = recording.run(&["report", "--by", "function,line", "."]);
        assert!(status.success() && text.contains("0x401010"), "{}: {text}", program.display());
    }
    recording.pipe("perf-7.map");
    recording.pipe("jit-7.dump");
    assert!(recording.run(&["report", "."]).0.success());
}

#[test]
fn functions_that_a_runtime_has_compiled_have_names_from_beside_the_recording() {
    let recording = Recording::new("runtime");
    recording.describe("code.bin", Path::new("/none"));
    fs::write(recording.0.join("perf-7.map"), "401010 1 LazyCompile:~f\n").unwrap();
    let (status, text) = recording.run(&["report", "--by", "object,function", "."]);
    assert!(status.success() && text.contains("[JIT] tid 7  LazyCompile:~f"), "{text}");
    let (_, text) = recording.run(&["flamegraph", "-f", "folded", "."]);
    assert!(
        text.starts_with("pugmark: warning: /none is not the file that was recorded (it is gone)"),
        "{text}"
    );
    assert!(text.ends_with("\n0x401000 2\n0x401000;LazyCompile:~f 1\n"), "{text}");
}
