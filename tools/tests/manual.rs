//! Manual pages, completions and the pager.

#[cfg(target_os = "linux")]
mod terminal;

use std::{
    fs,
    process::{Command, Output, Stdio},
};

fn pugmark(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pugmark")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Returns the commands that a help text lists, without `help`.
fn commands(before: &[&str]) -> Vec<String> {
    let output = pugmark(&[before, &["--help"]].concat());
    let help = String::from_utf8(output.stdout).unwrap();
    let listed =
        help.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next().map(String::from));
    names.filter(|name| name != "help").collect()
}

#[test]
fn each_command_has_a_manual_page_with_its_options_and_its_examples() {
    let folder = std::env::temp_dir().join(format!("pugmark-test-man-{}", std::process::id()));
    let output = pugmark(&["man", folder.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let mut names = vec![vec![]];
    for command in commands(&[]) {
        names.extend(commands(&[&command]).into_iter().map(|inner| vec![command.clone(), inner]));
        names.push(vec![command]);
    }
    assert!(names.len() > 10, "{names:?}");
    for words in names {
        let file = folder.join(format!("{}.1", [vec!["pugmark".into()], words.clone()].concat().join("-")));
        let page = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let page = page.replace("\\-", "-");
        assert!(!page.contains("pugmark-help") && !page.contains(".SH EXTRA"), "{page}");
        let arguments: Vec<_> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let help = String::from_utf8(pugmark(&arguments).stdout).unwrap();
        let options = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 4);
        for option in options.filter(|option| option.chars().all(|c| c == '-' || c.is_ascii_lowercase())) {
            assert!(page.contains(option), "{} has no {option}", file.display());
        }
        if let Some((_, examples)) = help.split_once("Example") {
            for example in examples.lines().skip(1) {
                assert!(page.contains(&format!("\\&{example}\n")), "{example:?}: {page}");
            }
        }
    }
    if Command::new("groff").arg("--version").output().is_err() {
        println!("skipped: groff is not installed");
    } else {
        for page in fs::read_dir(&folder).unwrap() {
            let mut groff = Command::new("groff");
            let output =
                groff.args(["-man", "-Kutf8", "-Tutf8", "-ww"]).arg(page.unwrap().path()).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn completions_are_scripts_that_name_each_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = pugmark(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        for command in commands(&[]) {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
    // bash completes the name of a command.
    let script = "eval \"$($0 completions bash)\"; COMP_WORDS=(pugmark de); COMP_CWORD=1; \
        _pugmark pugmark de pugmark; echo ${COMPREPLY[@]}";
    match Command::new("bash").args(["-c", script, env!("CARGO_BIN_EXE_pugmark")]).output() {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "decode\n", "{output:?}"),
        Err(_) => println!("skipped: bash is not installed"),
    }
}

/// Returns the output of `pugmark` on a terminal with these environment variables.
#[cfg(target_os = "linux")]
fn shown(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    use std::io::Read;
    let (mut screen, second) = terminal::terminal();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pugmark"));
    command.args(arguments).env_remove("PAGER").env_remove("PUGMARK_PAGER").env_remove("LESS");
    command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(second);
    let mut child = command.spawn().unwrap();
    // The command holds the only other descriptor of the terminal.
    drop(command);
    let mut seen = vec![];
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = screen.read(&mut bytes) {
        seen.extend(&bytes[..count]);
    }
    assert!(child.wait().unwrap().success(), "{variables:?}");
    String::from_utf8_lossy(&seen).replace("\r\n", "\n")
}

#[cfg(target_os = "linux")]
#[test]
fn long_text_goes_through_the_pager_only_on_a_terminal() {
    let shown = |variables: &[(&str, &str)]| shown(&["pmc", "list"], variables);
    let plain = String::from_utf8(pugmark(&["pmc", "list"]).stdout).unwrap();
    assert!(plain.lines().count() > 20);
    let paged: String = plain.lines().map(|line| format!("paged: {line}\n")).collect();
    let pager = "sed 's/^/paged: /'";
    for (variables, expected) in [
        (&[("PAGER", pager)][..], &paged),
        (&[("PUGMARK_PAGER", pager), ("PAGER", "false")], &paged),
        (&[("PUGMARK_PAGER", ""), ("PAGER", pager)], &plain),
        (&[("PAGER", "cat")], &plain),
    ] {
        assert_eq!(shown(variables), **expected, "{variables:?}");
    }
    // The pager gets options, unless the user has set some.
    let options = "cat > /dev/null; echo \"$LESS\"";
    for (less, expected) in [(None, "FRX\n"), (Some("-i"), "-i\n"), (Some(""), "\n")] {
        let variables = [("PAGER", options)].into_iter().chain(less.map(|less| ("LESS", less)));
        assert_eq!(shown(&variables.collect::<Vec<_>>()), expected, "{less:?}");
    }
    // Leaving the pager early is no failure.
    assert_eq!(shown(&[("PAGER", "head -n 1")]).lines().count(), 1);
    let output =
        Command::new(env!("CARGO_BIN_EXE_pugmark")).args(["pmc", "list"]).env("PAGER", pager).output();
    assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), plain);
}

#[cfg(target_os = "linux")]
#[test]
fn numbers_are_in_groups_of_three_digits_on_a_terminal_alone() {
    let folder = std::env::temp_dir().join(format!("pugmark-test-digits-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let [trace, code] = ["trace", "code"].map(|name| folder.join(name));
    // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, and a thousand times six branches that are taken.
    let begin = [&[0x02, 0x82].repeat(8)[..], b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23"].concat();
    fs::write(&trace, [begin, vec![0xfe; 1000]].concat()).unwrap();
    // 1000: xor eax, eax; jz 1005; hlt; 1005: nop; jmp 1000.
    fs::write(&code, [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8]).unwrap();
    let raw = format!("{}:0x1000", code.display());
    let arguments = ["report", "--by", "object", "--raw", &raw, trace.to_str().unwrap()];
    let plain = String::from_utf8(pugmark(&arguments).stdout).unwrap();
    let read = shown(&arguments, &[("PUGMARK_PAGER", "")]);
    assert!(plain.ends_with("in all: 23998 instructions, 11998 branches, 0 errors\n"), "{plain}");
    assert!(read.ends_with("in all: 23,998 instructions, 11,998 branches, 0 errors\n"), "{read}");
    assert!(read.contains("  23,998  ") && plain.contains("  23998  "), "{plain}{read}");
    assert_eq!(
        read.lines().next().map(str::split_whitespace).unwrap().collect::<Vec<_>>(),
        plain.lines().next().map(str::split_whitespace).unwrap().collect::<Vec<_>>()
    );
    fs::remove_dir_all(folder).unwrap();
}
