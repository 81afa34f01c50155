//! Recordings of a program that was built again since, and of two builds.

use super::{PUGMARK, Recorded};
use serde_json::Value;
use std::{collections::BTreeSet, fs};

/// `work` has a line with tabs.
const PROGRAM: &str = "
__attribute__((noipa)) int helper(int x) { return x * 3 + 1; }
__attribute__((noipa)) int work(int n) {
\tint sum = 0;
\tfor (int i = 0; i < n; i++)
\t\tsum\t+= helper(i);
\treturn sum;
}
int main(void) { return work(N) == 7; }
";

fn recorded() -> Recorded {
    Recorded::new(PROGRAM, &["-O0", "-no-pie", "-DN=5"], &[])
}

/// Returns the object files of `report`, or of `stat` and the like.
fn objects(json: &str) -> BTreeSet<String> {
    let report: Value = serde_json::from_str(json).unwrap();
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| row["object"].as_str().unwrap().to_owned()).collect()
}

impl Recorded {
    fn rebuild(&self, options: &[&str]) {
        self.run("cc", &[&["-o", "program", "program.c"], options].concat());
    }

    /// Returns what a command prints, and what it says on standard error.
    fn told(&self, arguments: &[&str]) -> (String, String) {
        let output = self.output(env!("CARGO_BIN_EXE_pugmark"), arguments).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    }
}

#[test]
fn object_files_have_the_paths_that_were_mapped_also_after_a_rebuild() {
    let recorded = recorded();
    let engines: &[&str] =
        if pugmark_recorder::emulator_is_installed() { &["stepping", "emulator"] } else { &["stepping"] };
    for engine in engines {
        recorded.rebuild(&["-g", "-O0", "-no-pie", "-DN=5"]);
        recorded.pugmark(&["record", "--engine", engine, "-o", engine, "--", "./program"]);
        let report = ["report", "--json", "--by", "object", engine];
        let before = objects(&recorded.pugmark(&report));
        let image: Value =
            serde_json::from_slice(&fs::read(recorded.0.file(engine).join("image.json")).unwrap()).unwrap();
        let mapped = image["mapped"].as_array().unwrap().iter();
        let mapped: BTreeSet<_> = mapped.map(|part| part["file"].as_str().unwrap().to_owned()).collect();
        assert!(before.len() == 3 && before.is_subset(&mapped), "{before:?} {mapped:?}");
        if *engine == "emulator" {
            recorded.pugmark(&["stat", "--json", "--by", "object", "-o", "stat", "--", "./program"]);
            assert_eq!(before, objects(&fs::read_to_string(recorded.0.file("stat")).unwrap()));
        }
        recorded.rebuild(&["-O2", "-no-pie", "-DN=70"]);
        assert_eq!(objects(&recorded.told(&report).0), before, "{engine}");
        let (flame, _) = recorded.told(&["flamegraph", "-f", "folded", engine]);
        assert!(flame.contains("__libc_start_main"), "{flame}");
    }
}

#[test]
fn a_program_that_has_changed_is_told_once_and_a_copy_gives_the_names() {
    let recorded = recorded();
    fs::copy(recorded.0.file("program"), recorded.0.file("copy")).unwrap();
    let path = fs::canonicalize(recorded.0.file("program")).unwrap();
    let commands: [&[&str]; 8] = [
        &["report", "rec"],
        &["report", "--children", "--between", "0,", "rec"],
        &["annotate", "--source", "work", "rec"],
        &["script", "--function", "work", "rec"],
        &["diff", "rec", "rec"],
        &["calls", "--of", "work", "rec"],
        &["flamegraph", "-f", "folded", "rec"],
        &["coverage", "-f", "edges", "rec"],
    ];
    let expected = commands.map(|command| recorded.pugmark(command));
    for command in commands {
        assert_eq!(recorded.told(command).1, "", "{command:?}");
    }
    for why in ["it has changed", "it is gone"] {
        match why {
            "it is gone" => fs::remove_file(&path).unwrap(),
            _ => recorded.rebuild(&["-O2", "-no-pie", "-DN=70"]),
        }
        let warning = format!(
            "pugmark: warning: {} is not the file that was recorded ({why}): its functions have no names; --symbols \
             FILE names them from a copy\n",
            path.display()
        );
        for (command, expected) in commands.iter().zip(&expected) {
            let (text, told) = recorded.told(command);
            assert_eq!(told.matches("is not the file").count(), 1, "{command:?}: {told}");
            assert!(told.contains(&warning) && !text.contains("  work\n"), "{command:?}: {told}{text}");
            let (text, told) = recorded.told(&[command, &["--symbols", "copy"][..]].concat());
            assert_eq!((told.as_str(), &text), ("", expected), "{command:?}");
        }
    }
    let (text, told) = recorded.told(&["report", "--symbols", env!("CARGO_BIN_EXE_pugmark"), "rec"]);
    assert!(
        !text.is_empty() && told.contains(": no page of its code is in the code that was traced"),
        "{told}"
    );
    recorded.pugmark(&["decode", "rec"]);
}

#[test]
fn two_builds_have_one_row_for_each_function() {
    let recorded = recorded();
    for (folder, count) in [("old", "-DN=5"), ("new", "-DN=70")] {
        fs::create_dir(recorded.0.file(folder)).unwrap();
        let program = format!("{folder}/w");
        recorded.run("cc", &["-O0", "-no-pie", count, "-o", &program, "program.c"]);
        recorded.pugmark(&["record", "--engine", "stepping", "-o", &format!("{folder}.rec"), "--", &program]);
    }
    let (text, told) = recorded.told(&["diff", "--json", "old.rec", "new.rec"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    let rows = found["functions"].as_array().unwrap();
    let work: Vec<_> = rows.iter().filter(|row| row["function"] == "work").collect();
    let [work] = &work[..] else { panic!("{rows:?} {told}") };
    assert!(work["object"].as_str().unwrap().ends_with("/new/w"), "{work}");
    let counts = [0, 1].map(|run| work["instructions"][run].as_u64().unwrap());
    assert!(counts[0] > 0 && counts[0] < counts[1], "{work}");
    // Of a program and its stripped copy the rows that differ are at the same addresses.
    recorded.run("strip", &["-o", "old/w2", "old/w"]);
    recorded.run("mv", &["old/w2", "old/w"]);
    recorded.pugmark(&["record", "--engine", "stepping", "-o", "stripped.rec", "--", "old/w"]);
    let (text, _) = recorded.told(&["diff", "stripped.rec", "new.rec"]);
    assert!(!text.contains("[unknown]"), "{text}");
    fs::create_dir(recorded.0.file("copy")).unwrap();
    recorded.run("cp", &["new/w", "copy/w"]);
    recorded.run("strip", &["copy/w"]);
    recorded.pugmark(&["record", "--engine", "stepping", "-o", "copy.rec", "--", "copy/w"]);
    let (text, _) = recorded.told(&["diff", "--object", "w", "new.rec", "copy.rec"]);
    assert!(text.contains(", the same") && text.contains("; 0 functions more differ"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn a_line_of_source_has_spaces_for_tabs() {
    let text = recorded().pugmark(&["annotate", "--source", "work", "rec"]);
    assert!(text.lines().any(|line| line.ends_with("  6                  sum     += helper(i);")), "{text}");
}

#[test]
fn the_emulator_of_a_machine_is_no_file_that_was_recorded() {
    let recorded = Recorded::new("int main(void) { return 0; }", &["-O1"], &[]);
    let edit = |file: &str, key: &str, value: Value| {
        let path = recorded.0.file(file);
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        *json.pointer_mut(key).unwrap() = value;
        fs::write(path, json.to_string()).unwrap();
    };
    edit("rec/image.json", "/mapped", serde_json::json!([]));
    for (exe, is_told) in [("qemu-system-x86_64", false), ("/gone/program", true)] {
        edit("rec/recording.json", "/parts/0/exe", exe.into());
        let output = recorded.output(PUGMARK, &["report", "rec"]).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.contains("is not the file that was recorded"), is_told, "{exe}: {said}");
    }
}
