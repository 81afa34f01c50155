//! `pugmark coverage`.

use pugmark_decoder_core::hash::AddressHash;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken).
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x0e";
/// 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000.
const CODE: [u8; 8] = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];

/// `leaf` runs in two of three rounds; `never` does not run.
const PROGRAM: &str = r"
#include <stdlib.h>
__attribute__((noinline)) int leaf(int x) { return x * 3 + 1; }
__attribute__((noinline)) int never(int x) { return x / 7; }
__attribute__((noinline)) int work(int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += i % 3 ? leaf(i) : -1;
    return sum;
}
int main(int count, char **words) {
    if (count < 2) return 3;
    if (count > 3) return never(count);
    return work(atoi(words[1])) == 0;
}";

/// A folder that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-coverage-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("code"), CODE).unwrap();
        fs::write(folder.join("trace"), TRACE).unwrap();
        Self(folder)
    }

    fn pugmark(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_pugmark")).args(arguments).current_dir(&self.0).output().unwrap()
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.pugmark(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[arguments, &["--json"]].concat())).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

#[test]
fn an_edge_is_a_branch_and_where_it_went() {
    let folder = Scratch::new("edges");
    let raw = ["coverage", "-f", "edges", "--raw", "code:0x1000"];
    assert_eq!(folder.text(&[&raw[..], &["trace"]].concat()), "0x1002 0x1005 1\n0x1006 0x1000 1\n");
    // FUP (1005), TIP (1000): an interrupt whose handler is the same code. The way into the handler is no edge, but the
    // branch back to the interrupted code is one.
    fs::write(folder.0.join("interrupt"), [TRACE, b"\x3d\x05\x10\x2d\0\x10\x06", &[0; 8]].concat()).unwrap();
    assert_eq!(folder.text(&[&raw[..], &["interrupt"]].concat()), "0x1002 0x1005 2\n0x1006 0x1000 1\n");
    // Not taken, taken.
    let not_taken = [&TRACE[..27], &[0x0a]].concat();
    fs::write(folder.0.join("other"), not_taken).unwrap();
    let differs = folder.text(&[&raw[..], &["--diff", "other", "trace"]].concat());
    assert_eq!(differs, "+ 0x1002 0x1004 1\n- 0x1002 0x1005 1\n");
    let json = folder.json(&[&raw[..], &["--diff", "other", "trace"]].concat());
    assert_eq!(json["edges"], serde_json::json!([[0x1002, 0x1005, 1], [0x1006, 0x1000, 1]]));
    assert_eq!((&json["instructions"], &json["addresses"]), (&6.into(), &4.into()));
    assert_eq!(json["other"]["edges"][0], serde_json::json!([0x1002, 0x1004, 1]));
}

#[test]
fn the_fuzzers_map_is_that_of_the_benchmark() {
    let folder = Scratch::new("map");
    let raw = ["--raw", "code:0x1000", "trace"];
    let counts = folder.pugmark(&[&["coverage", "-f", "afl"], &raw[..]].concat()).stdout;
    let bench = folder.json(&[&["bench", "--seconds", "0", "--layer", "edges"], &raw[..]].concat());
    assert_eq!((counts.len(), counts.iter().map(|count| u64::from(*count)).sum()), (1 << 16, 2));
    assert_eq!(bench["count"], 2);
    let mut hash = AddressHash::new();
    counts.chunks(8).for_each(|counts| hash.add(u64::from_le_bytes(counts.try_into().unwrap())));
    assert_eq!(bench["hash"], format!("{:#018x}", hash.value()));
}

#[test]
fn refusals_say_what_to_do() {
    let folder = Scratch::new("refusals");
    for (arguments, text) in [
        (&["trace"][..], "name its file with --object, or use --format edges"),
        (&["-f", "afl", "--diff", "trace", "trace"], "--diff compares functions, blocks, lines and edges"),
        (&["-f", "drcov", "--of", "code", "--json", "trace"], "leave out --json"),
        (&["-f", "lcov", "trace"], "name its file with --object"),
        (&["-f", "lcov", "--of", "code", "--diff", "trace", "trace"], "make a file for each trace"),
        (&["-f", "autofdo", "--of", "code", "--json", "trace"], "leave out --json"),
        (&["-f", "bolt", "--of", "code", "--diff", "trace", "trace"], "make a file for each trace"),
        (&["-f", "lines", "--json", "--of", "code", "trace"], "leave out --json"),
        (&["--of", "code", "--raw", "code:0x1000", "trace"], "--object code"),
        (&["--of", "/proc/self/exe", "--raw", "code:0x1000", "trace"], "--object /proc/self/exe:0x400000"),
        (&["-f", "edges", "missing"], "cannot read the trace missing"),
    ] {
        let output = folder.pugmark(&[&["coverage"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && stderr.contains(text), "{arguments:?}: {stderr}");
    }
    // No code was executed.
    let output = folder.pugmark(&["coverage", "-f", "edges", "--raw", "code:0x2000", "trace"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`pugmark decode` says wh"));
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn the_blocks_of_a_program_are_hit_as_often_as_it_says() {
    let folder = Scratch::new("program");
    fs::write(folder.0.join("program.c"), PROGRAM).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-pie", "-fPIE", "-o", "program", "program.c"]).current_dir(&folder.0);
    match cc.output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => return println!("skipped: a compiler is not installed"),
    }
    for (recording, words) in [("ten", &["10"][..]), ("none", &[])] {
        let record = ["record", "-o", recording, "--", "./program"];
        folder.pugmark(&[&record[..], words].concat());
    }
    let of = ["coverage", "--object", "program"];
    let ten = folder.json(&[&of[..], &["ten"]].concat());
    let truth: Value = serde_json::from_slice(&fs::read(folder.0.join("ten/truth.json")).unwrap()).unwrap();
    assert_eq!(ten["instructions"], truth["count"]);
    let counts = |json: &Value, function: &str| -> Vec<u64> {
        let blocks = json["blocks"].as_array().unwrap().iter();
        let name = |block: &&Value| block["name"].as_str().unwrap().split('+').next() == Some(function);
        blocks.filter(name).map(|block| block["count"].as_u64().unwrap()).collect()
    };
    assert_eq!(counts(&ten, "leaf")[0], 6);
    assert_eq!(counts(&ten, "work")[0], 1);
    assert!(counts(&ten, "work").contains(&10) && counts(&ten, "work").contains(&6), "{ten}");
    assert!(!counts(&ten, "never").is_empty() && counts(&ten, "never").iter().all(|count| *count == 0));

    let functions = folder.text(&[&of[..], &["ten"]].concat());
    let row = |text: &str, name: &str| -> Option<Vec<String>> {
        let row = text.lines().find(|line| line.split_whitespace().last() == Some(name))?;
        Some(row.split_whitespace().map(String::from).collect())
    };
    assert_eq!(row(&functions, "leaf").unwrap(), ["1", "1", "100.0", "leaf"], "{functions}");
    assert_eq!(row(&functions, "never"), None, "{functions}");
    let differs = folder.text(&[&of[..], &["--diff", "ten", "none"]].concat());
    assert_eq!(row(&differs, "leaf").unwrap(), ["0", "1", "1", "leaf"], "{differs}");
    assert_eq!(row(&differs, "_start"), None, "{differs}");
    let new = folder.text(&[&of[..], &["-f", "blocks", "--diff", "ten", "none"]].concat());
    let signs: BTreeSet<&str> =
        new.lines().filter(|line| line.contains(" main")).map(|line| &line[..2]).collect();
    // `return 3` is executed only without an argument.
    assert_eq!(signs, BTreeSet::from(["+ ", "- "]), "{new}");
    assert!(new.contains("+ hit ") && new.contains(" 6 leaf\n"), "{new}");

    // Another program reads the blocks that were hit.
    folder.text(&[&of[..], &["-f", "drcov", "-o", "ten.drcov", "ten"]].concat());
    let drcov = drcov::from_file(folder.0.join("ten.drcov")).unwrap();
    let module = &drcov.modules[0];
    assert_eq!(Path::new(&module.path), fs::canonicalize(folder.0.join("program")).unwrap());
    let read: BTreeSet<_> = drcov
        .basic_blocks
        .iter()
        .map(|block| (module.base + u64::from(block.start), block.size.into()))
        .collect();
    let number = |block: &Value, name: &str| block[name].as_u64().unwrap();
    let hit = ten["blocks"].as_array().unwrap().iter().filter(|block| number(block, "count") > 0);
    let hit: BTreeSet<_> =
        hit.map(|block| (number(block, "from"), number(block, "to") - number(block, "from"))).collect();
    assert_eq!((read, drcov.basic_blocks.len() as u64), (hit, number(&ten, "blocks_hit")));
}

/// Inputs together have the lines that lcov finds in any of them, and each edge as often as all of them.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn inputs_together_have_the_lines_of_lcov_and_each_says_what_it_adds() {
    let folder = Scratch::new("union");
    fs::write(folder.0.join("program.c"), PROGRAM).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-g", "-O1", "-no-pie", "-o", "program", "program.c"]).current_dir(&folder.0);
    if cc.output().is_err() {
        return println!("skipped: a compiler is not installed");
    }
    let inputs = [("none", &[][..]), ("ten", &["10"]), ("twenty", &["20"]), ("three", &["1", "2", "3"])];
    for (name, words) in inputs {
        let output = folder.pugmark(&[&["record", "-o", name, "--", "./program"], words].concat());
        assert!(folder.0.join(name).is_dir(), "{}", String::from_utf8_lossy(&output.stderr));
        folder.text(&["coverage", "-f", "lcov", "-o", &format!("{name}.info"), name]);
    }
    let edges = |arguments: &[&str]| -> BTreeMap<(String, String), u64> {
        let text = folder.text(&[&["coverage", "-f", "edges"], arguments].concat());
        let row = |line: &str| -> Option<((String, String), u64)> {
            let mut words = line.split_whitespace();
            Some(((words.next()?.into(), words.next()?.into()), words.next()?.parse().ok()?))
        };
        text.lines().filter_map(row).collect()
    };
    let mut sum = BTreeMap::new();
    let mut added = vec![];
    for (name, _) in inputs {
        let own = edges(&[name]);
        let before = sum.len();
        for (edge, count) in &own {
            *sum.entry(edge.clone()).or_default() += count;
        }
        added.push([own.len(), sum.len() - before]);
    }
    let union = ["--union", "ten", "--union", "twenty", "--union", "three", "none"];
    assert_eq!(edges(&union), sum);
    let report = folder.json(&[&["coverage", "-f", "edges", "--added"][..], &union].concat());
    let rows = report["traces"].as_array().unwrap();
    let counts = rows.iter().map(|row| ["edges", "added"].map(|name| row[name].as_u64().unwrap() as usize));
    assert_eq!(counts.collect::<Vec<_>>(), added);
    assert_eq!(
        rows.iter().map(|row| row["trace"].as_str().unwrap()).collect::<Vec<_>>(),
        inputs.map(|(name, _)| name)
    );
    // The third executes more often what the second has executed. All of the first one's are new.
    assert!(
        added[0][0] == added[0][1] && added[1][1] > 0 && added[2][1] == 0 && added[3][1] > 0,
        "{added:?}"
    );
    // Further arguments are of the union, too.
    assert_eq!(edges(&["none", "ten", "twenty", "three"]), sum);
    assert_eq!(edges(&["--union", "none", "ten", "twenty", "three"]), sum);
    let listed = ["coverage", "-f", "edges", "--added", "none", "ten", "twenty", "three"];
    assert_eq!(folder.json(&listed)["traces"].as_array(), Some(rows));
    let of_program = folder.text(&[&["coverage", "--added"][..], &union].concat());
    assert!(of_program.lines().nth(3).is_some_and(|line| line.ends_with(" 0  twenty")), "{of_program}");
    let refused = folder.pugmark(&["coverage", "--added", "-f", "afl", "ten"]);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    folder.text(&[&["coverage", "-f", "lcov", "-o", "union.info"][..], &union].concat());
    let mut lcov = Command::new("lcov");
    lcov.args(inputs.iter().flat_map(|(name, _)| ["-a".into(), format!("{name}.info")]));
    lcov.args(["-o", "sum.info"]).current_dir(&folder.0);
    if lcov.output().is_err() {
        return println!("skipped: lcov is not installed");
    }
    // lcov adds up the counts of lines, and a line has the count of its most frequent block: of all runs together.
    let lines = |name: &str| -> BTreeMap<u64, bool> {
        let text = fs::read_to_string(folder.0.join(name)).unwrap();
        let line = |line: &str| {
            let (number, count) = line.strip_prefix("DA:")?.split_once(',')?;
            Some((number.parse().ok()?, count != "0"))
        };
        text.lines().filter_map(line).collect()
    };
    assert_eq!(lines("union.info"), lines("sum.info"));
    assert!(lines("sum.info").values().any(|hit| *hit));
}

/// Few inputs have the edges of all: of two that have the same ones only the shorter one is needed.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn few_recordings_are_chosen_that_have_the_edges_of_all() {
    let folder = Scratch::new("minimise");
    fs::write(folder.0.join("program.c"), PROGRAM).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-no-pie", "-o", "program", "program.c"]).current_dir(&folder.0);
    if cc.output().is_err() {
        return println!("skipped: a compiler is not installed");
    }
    let inputs = [
        ("twenty", &["20"][..]),
        ("none", &[]),
        ("ten", &["10"]),
        ("one", &["1"]),
        ("three", &["1", "2", "3"]),
    ];
    for (name, words) in inputs {
        folder.pugmark(&[&["record", "-o", name, "--", "./program"], words].concat());
    }
    let names = inputs.map(|(name, _)| name);
    let minimise = [&["coverage", "--minimise", "small"][..], &names].concat();
    let output = folder.pugmark(&minimise);
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.starts_with("3 of 5 recordings have all "), "{said}");
    let rows: BTreeSet<&str> = text.lines().skip(1).filter_map(|row| row.split_whitespace().nth(2)).collect();
    assert_eq!(rows, BTreeSet::from(["none", "ten", "three"]), "{text}");
    // The chosen ones are recordings like the others, and the others add nothing to them.
    assert_eq!(folder.text(&["coverage", "small/ten"]), folder.text(&["coverage", "ten"]));
    let chosen = ["--union", "small/none", "--union", "small/three"];
    let others = names.iter().flat_map(|name| ["--union", name]);
    let all: Vec<&str> =
        ["coverage", "--added"].into_iter().chain(chosen).chain(others).chain(["small/ten"]).collect();
    let rows = folder.json(&all);
    let added = rows["traces"].as_array().unwrap().iter().map(|row| row["added"].as_u64().unwrap());
    let added: Vec<u64> = added.collect();
    assert!(added.len() == 8 && added[..3].iter().all(|added| *added > 0), "{rows}");
    assert!(added[3..].iter().all(|added| *added == 0), "{rows}");
    for (words, text) in [
        (&minimise[..], "--minimise small: it must be a new folder or an empty one"),
        (&["coverage", "--minimise", "other", "-f", "afl", "ten"], "leave out -f"),
        (&["coverage", "--minimise", "other", "ten", "small/ten"], "ten and small/ten would have one name"),
        (&["coverage", "--minimise", "other", "ten", "missing"], "cannot read missing"),
    ] {
        let output = folder.pugmark(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(text), "{words:?}: {said}");
    }
    assert!(!folder.0.join("other").exists());
    // A recording with an error counts, and the exit status says that something is missing.
    fs::OpenOptions::new()
        .append(true)
        .open(folder.0.join("one/trace.pt"))
        .unwrap()
        .write_all(&[0xff; 64])
        .unwrap();
    let output = folder.pugmark(&["coverage", "--minimise", "damaged", "ten", "one"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("errors and losses in the traces"),
        "{output:?}"
    );
}

/// The difference between traces of different builds, or at different addresses, is refused: an address has two
/// meanings.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn traces_of_different_code_are_not_compared() {
    let folder = Scratch::new("builds");
    let source = folder.0.join("program.c");
    let build = |text: &str| -> bool {
        fs::write(&source, text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-pie", "-fPIE", "-o", "program", "program.c"]).current_dir(&folder.0);
        cc.output().is_ok_and(|output| output.status.success())
    };
    let record = |recording: &str, options: &[&str]| {
        folder.pugmark(&[&["record", "-o", recording], options, &["--", "./program", "10"]].concat());
    };
    let refusal = |options: &[&str]| -> String {
        let output = folder.pugmark(&[&["coverage"], options].concat());
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    if !build(PROGRAM) {
        return println!("skipped: a compiler is not installed");
    }
    record("old", &[]);
    record("elsewhere", &["--engine", "stepping", "--aslr"]);
    folder.text(&["coverage", "--diff", "old", "old"]);
    let said = refusal(&["--diff", "elsewhere", "old"]);
    assert!(said.contains("in old and at 0x") && said.contains("without --aslr"), "{said}");
    // Another constant in one function; all other code is at the same place.
    assert!(build(&PROGRAM.replace("x / 7", "x / 9")));
    record("new", &[]);
    let said = refusal(&["--diff", "old", "new"]);
    assert!(said.contains("program has changed since old was recorded, and not since new was"), "{said}");
    let said = refusal(&["old"]);
    assert!(said.contains("either the file has changed since it was recorded"), "{said}");
    // With equal pages, functions are compared.
    let large = |number: u32| {
        // Four pages of instructions, all different.
        let filler = ".set i, 0\\n.rept 3000\\naddl $i, %%eax\\n.set i, i + 1\\n.endr";
        let filler = format!(
            "__attribute__((constructor)) void filler(void) {{ __asm__(\"{filler}\" ::: \"eax\"); }}"
        );
        format!("{filler}\n{}", PROGRAM.replace("x / 7", &format!("x / {number}")))
    };
    assert!(build(&large(7)));
    record("first", &[]);
    assert!(build(&large(9)));
    record("second", &[]);
    let said = refusal(&["--diff", "first", "second"]);
    assert!(said.contains(" is not the same code in both traces: compare traces of one build"), "{said}");
}

/// One statement a line. `hit` runs seven times, `never` does not.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const LINES: &str = "int hit(int x) {
    int sum = x;
    if (x > 4)
        sum += 2;
    else
        sum -= 1;
    return sum;
}
int never(int x) {
    return x / 7;
}
int main(int count, char **words) {
    int sum = 0;
    (void)words;
    for (int i = 0;
         i < 7;
         i++)
        sum += hit(i);
    if (count > 5)
        sum = never(sum);
    return sum == 100;
}
";

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn lines_of_source_are_hit_as_often_as_gcov_says_and_genhtml_reads_them() {
    let folder = Scratch::new("lines");
    fs::write(folder.0.join("lines.c"), LINES).unwrap();
    let run = |program: &str, arguments: &[&str]| -> Option<String> {
        let output = Command::new(program).args(arguments).current_dir(&folder.0).output().ok()?;
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8(output.stdout).unwrap())
    };
    if run("cc", &["-g", "-O0", "-o", "lines", "lines.c"]).is_none() {
        return println!("skipped: a compiler is not installed");
    }
    folder.text(&["record", "-o", "rec", "--", "./lines"]);
    folder.text(&["coverage", "--of", "lines", "-f", "lcov", "-o", "lines.info", "rec"]);
    let text = fs::read_to_string(folder.0.join("lines.info")).unwrap();
    let source = format!("SF:{}\n", fs::canonicalize(&folder.0).unwrap().join("lines.c").display());
    assert!(
        text.starts_with(&format!("TN:\n{source}FN:1,hit\n")) && text.ends_with("end_of_record\n"),
        "{text}"
    );
    for line in ["FN:9,never", "FN:12,main", "FNDA:7,hit", "FNDA:0,never", "FNDA:1,main", "FNF:3", "FNH:2"] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    let count = |line: &str| -> Option<(u32, u64)> {
        let (line, count) = line.strip_prefix("DA:")?.split_once(',')?;
        Some((line.parse().ok()?, count.parse().ok()?))
    };
    let counts: BTreeMap<u32, u64> = text.lines().filter_map(count).collect();
    assert!(text.contains(&format!("LF:{}\n", counts.len())), "{text}");
    assert!(
        text.contains(&format!("LH:{}\n", counts.values().filter(|count| **count > 0).count())),
        "{text}"
    );
    // The lines of the recorded program; a run does not differ from itself.
    let listed = folder.text(&["coverage", "-f", "lines", "rec"]);
    let row = |line: &str| -> Option<(u32, u64)> {
        let (count, place) = line.trim().split_once("  ")?;
        Some((place.rsplit_once(':')?.1.parse().ok()?, count.parse().ok()?))
    };
    assert_eq!(listed.lines().filter_map(row).collect::<BTreeMap<_, _>>(), counts, "{listed}");
    assert_eq!(folder.text(&["coverage", "-f", "lines", "--diff", "rec", "rec"]), "");
    // Each block has the line that addr2line gives to its first address, if the file has one.
    let blocks = folder.text(&["coverage", "-f", "blocks", "rec"]);
    let rows: Vec<Vec<&str>> = blocks.lines().map(|line| line.split_whitespace().collect()).collect();
    let start = |row: &[&str]| u64::from_str_radix(&row[1].split_once('-').unwrap().0[2..], 16).unwrap();
    if let Some(symbols) = run("nm", &["lines"]) {
        let main = symbols.lines().find(|line| line.ends_with(" main")).expect("a function");
        let main = u64::from_str_radix(main.split(' ').next().unwrap(), 16).unwrap();
        let moved = start(rows.iter().find(|row| row[3] == "main").expect("a block")) - main;
        let addresses: Vec<String> = rows.iter().map(|row| format!("{:#x}", start(row) - moved)).collect();
        let arguments = ["-e", "lines"].into_iter().chain(addresses.iter().map(|address| &**address));
        let places = run("addr2line", &arguments.collect::<Vec<_>>()).unwrap();
        assert_eq!(places.lines().count(), rows.len());
        for (row, place) in rows.iter().zip(places.lines()) {
            let place = place.split(' ').next().filter(|place| !place.contains('?'));
            assert_eq!(row.get(4).copied(), place, "{row:?}");
        }
        assert!(rows.iter().filter(|row| row.len() == 5).count() > 8, "{blocks}");
    }
    // The lines that only the run with more arguments has executed, from either side.
    folder.pugmark(&["record", "-o", "more.rec", "--", "./lines", "1", "2", "3", "4", "5"]);
    for (sign, runs) in [("+ ", ["more.rec", "rec"]), ("- ", ["rec", "more.rec"])] {
        let differ = folder.text(&[&["coverage", "-f", "lines", "--diff"], &runs[..]].concat());
        let lines: Vec<u32> = differ
            .lines()
            .map(|line| line.strip_prefix(sign).and_then(row).unwrap_or_else(|| panic!("{differ}")).0)
            .collect();
        let only_more: Vec<u32> =
            [9, 10, 11, 20].into_iter().filter(|line| counts.contains_key(line)).collect();
        assert_eq!(lines, only_more, "{differ}");
    }
    // The same program, with gcov's counters compiled in.
    run("cc", &["--coverage", "-O0", "-o", "counted", "lines.c"]).unwrap();
    run("./counted", &[]).unwrap();
    match run("gcov", &["-t", "counted-lines.gcda"]) {
        None => println!("skipped: gcov is not installed"),
        Some(text) => {
            // `        7:    2:    int sum = x;`, `    #####:   10:    return x / 7;`, `        -:    5:    else`
            let row = |line: &str| -> Option<(u32, u64)> {
                let mut words = line.split(':').map(str::trim);
                let (count, line) = (words.next()?, words.next()?.parse().ok()?);
                let count = if count == "#####" { 0 } else { count.trim_end_matches('*').parse().ok()? };
                (line > 0).then_some((line, count))
            };
            let truth: BTreeMap<u32, u64> = text.lines().filter_map(row).collect();
            assert!(truth.len() > 12, "{text}");
            // gcov has no line for code of a function's last line if only the function's end is on it.
            let ours: BTreeMap<u32, u64> = counts
                .iter()
                .filter(|(line, _)| truth.contains_key(line))
                .map(|(line, count)| (*line, *count))
                .collect();
            assert_eq!(ours, truth);
        }
    }
    // `branch  0 taken 3 (fallthrough)`, after the line that it is of.
    if let Some(gcov) = run("gcov", &["-b", "-c", "-t", "counted-lines.gcda"]) {
        let (mut truth, mut line) = (BTreeMap::<u32, Vec<u64>>::new(), 0);
        for text in gcov.lines() {
            if let Some(number) = text.split(':').nth(1).and_then(|number| number.trim().parse().ok()) {
                line = number;
            } else if text.starts_with("branch ") {
                let count = text.split_whitespace().skip_while(|word| *word != "taken").nth(1);
                truth.entry(line).or_default().push(count.map_or(0, |count| count.parse().unwrap()));
            }
        }
        let mut ours = BTreeMap::<u32, Vec<u64>>::new();
        for words in text.lines().filter_map(|line| line.strip_prefix("BRDA:")) {
            let words: Vec<&str> = words.split(',').collect();
            ours.entry(words[0].parse().unwrap()).or_default().push(words[3].parse().unwrap());
        }
        for counts in ours.values_mut().chain(truth.values_mut()) {
            counts.sort_unstable();
        }
        assert_eq!(ours, truth, "{gcov}");
        assert!(text.contains("BRF:6\nBRH:5\n"), "{text}");
    }
    match run("genhtml", &["--output-directory", "html", "lines.info"]) {
        None => println!("skipped: genhtml is not installed"),
        Some(text) => {
            let lines = format!(
                "({} of {} lines)",
                counts.values().filter(|count| **count > 0).count(),
                counts.len()
            );
            assert!(text.contains(&lines) && text.contains("(2 of 3 functions)"), "{text}");
        }
    }
    // Without debug information, no lines are known.
    run("cc", &["-O0", "-o", "bare", "lines.c"]).unwrap();
    folder.text(&["record", "-o", "bare.rec", "--", "./bare"]);
    let output = folder.pugmark(&["coverage", "--of", "bare", "-f", "lcov", "bare.rec"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("compile it with -g"));
}
