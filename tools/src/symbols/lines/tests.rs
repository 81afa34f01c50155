//! Tests with what a compiler and the binutils make.

use super::*;
use crate::symbols::object::ObjectSymbols;
use std::fs;
use std::process::Command;

/// `twice` is put into `sum`.
const PROGRAM: &str = "\
static inline __attribute__((always_inline)) int twice(int x) {
    return x / 3 * 2;
}

__attribute__((noinline)) int sum(int n) {
    int all = 0;
    for (int i = 0; i < n; i++)
        all += twice(i);
    return all;
}

int main(int count, char **words) {
    (void)words;
    return sum(count);
}
";

/// A folder that is removed when the value is dropped.
struct Built(PathBuf);

impl Built {
    /// Returns the program, without a place that is chosen when it is loaded; `None` if a program is missing that makes
    /// it.
    fn new(name: &str, options: &[&str]) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("pugmark-lines-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("program.c"), PROGRAM).unwrap();
        let built = Self(folder);
        let rest = ["-no-pie", "-Wl,--build-id", "-o", "program", "program.c"];
        built.run("cc", &[options, &rest].concat()).then_some(built)
    }

    fn run(&self, program: &str, words: &[&str]) -> bool {
        match Command::new(program).args(words).current_dir(&self.0).output() {
            Ok(output) => {
                assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
                true
            }
            Err(_) => {
                println!("skipped: {program} is not installed");
                false
            }
        }
    }

    /// Packs the debug information by zstd. Returns false if the binutils cannot.
    fn pack(&self) -> bool {
        let mut objcopy = Command::new("objcopy");
        objcopy.args(["--compress-debug-sections=zstd", "program"]).current_dir(&self.0);
        let packed = objcopy.output().is_ok_and(|output| output.status.success());
        if !packed {
            println!("skipped: objcopy does not know zstd");
        }
        packed
    }

    fn program(&self) -> PathBuf {
        self.0.join("program")
    }

    /// Returns the addresses of a function of the program.
    fn function(&self, name: &str) -> std::ops::Range<u64> {
        use object::ObjectSymbol;
        let bytes = fs::read(self.program()).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let found = file.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();
        found.address()..found.address() + found.size()
    }

    /// Returns the lines of source at each address, with the functions, as binutils' addr2line prints them.
    fn addr2line(&self, addresses: std::ops::Range<u64>) -> Option<Vec<String>> {
        let addresses: Vec<_> = addresses.map(|address| format!("{address:x}")).collect();
        let output = Command::new("addr2line")
            .args(["-e", "program", "-i", "-f", "-a"])
            .args(addresses)
            .current_dir(&self.0)
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).unwrap();
        let text = text.lines().map(|line| line.split(" (discriminator").next().unwrap().to_owned());
        Some(text.collect())
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes the source of a file of a system below `root`.
fn lines_of(path: &Path, root: &Path) -> SourceLines {
    SourceLines::of(path, DebugFolders::with_cache(root, &root.join("cache")))
}

/// Prints all that is found at each address as addr2line does.
fn printed(lines: &SourceLines, addresses: std::ops::Range<u64>) -> Vec<String> {
    let mut printed = vec![];
    for address in addresses {
        printed.push(format!("{address:#018x}"));
        for place in &*lines.find(address) {
            printed.push(place.function.clone().unwrap_or("??".into()));
            printed.push(place.line.as_ref().map_or("??:0".into(), SourceLine::to_string));
        }
    }
    printed
}

#[test]
fn lines_and_inlined_functions_are_those_of_addr2line() {
    for options in [
        &["-g", "-O1"][..],
        &["-g", "-O2"],
        &["-g", "-O0"],
        &["-gdwarf-4", "-O2"],
        &["-g", "-O2", "-gz=zlib"],
        // Packed by another program below.
        &["-g", "-O2", "-DZSTD"],
    ] {
        let Some(built) = Built::new("addr2line", options) else { return };
        if options.contains(&"-DZSTD") && !built.pack() {
            continue;
        }
        let lines = lines_of(&built.program(), Path::new("/"));
        let sum = built.function("sum");
        let names = |address| -> Vec<_> {
            lines.find(address).iter().flat_map(|place| place.function.clone()).collect()
        };
        // gcc -O0 puts functions into others, too, if they must be.
        assert!(sum.clone().any(|address| names(address) == ["twice", "sum"]), "{options:?}");
        for function in [sum, built.function("main")] {
            let Some(expected) = built.addr2line(function.clone()) else {
                println!("skipped: addr2line is not installed");
                return;
            };
            assert_eq!(printed(&lines, function), expected, "{options:?}");
        }
    }
}

#[test]
fn debug_information_is_found_by_build_id_and_by_its_name() {
    let Some(built) = Built::new("separate", &["-g", "-O1"]) else { return };
    let expected = printed(&lines_of(&built.program(), Path::new("/")), built.function("sum"));
    assert!(expected.len() > 60, "{expected:?}");
    let sum = built.function("sum");
    let bytes = fs::read(built.program()).unwrap();
    let id = object::File::parse(&*bytes).unwrap().build_id().unwrap().unwrap().to_vec();
    if !built.run("objcopy", &["--only-keep-debug", "program", "only.debug"]) {
        return;
    }
    built.run("objcopy", &["--strip-debug", "--add-gnu-debuglink=only.debug", "program", "stripped"]);
    let path = built.0.join("stripped");
    let found = |root: &Path| printed(&lines_of(&path, root), sum.clone());
    // Beside it, and in a folder there.
    assert_eq!(found(Path::new("/")), expected);
    fs::create_dir(built.0.join(".debug")).unwrap();
    fs::rename(built.0.join("only.debug"), built.0.join(".debug/only.debug")).unwrap();
    assert_eq!(found(Path::new("/")), expected);
    // Below the root, by name and by build ID.
    let unknown: Vec<_> = sum.clone().map(|address| format!("{address:#018x}")).collect();
    let root = built.0.join("root");
    assert_eq!(found(&root), expected);
    let inner = built.0.strip_prefix("/").unwrap();
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let packages = root.join("usr/lib/debug");
    let mut from = built.0.join(".debug/only.debug");
    for to in [
        packages.join(inner).join("only.debug"),
        packages.join(".build-id").join(&hex[..2]).join(format!("{}.debug", &hex[2..])),
        root.join("cache").join(&hex).join("debuginfo"),
    ] {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(&from, &to).unwrap();
        assert_eq!(found(&root), expected, "{}", to.display());
        assert_eq!(found(&built.0), unknown);
        from = to;
    }
    // That of another build is not taken.
    let Some(other) = Built::new("separate-other", &["-g", "-O2"]) else { return };
    other.run("objcopy", &["--only-keep-debug", "program", "only.debug"]);
    fs::rename(other.0.join("only.debug"), &from).unwrap();
    assert_eq!(found(&root), unknown);
}

#[test]
fn functions_come_from_the_separate_file_or_the_packed_part_of_a_stripped_one() {
    let Some(built) = Built::new("functions", &["-g", "-O1"]) else { return };
    let (sum, root) = (built.function("sum"), built.0.join("root"));
    let name = |file: &str| {
        let symbols =
            ObjectSymbols::of(&built.0.join(file), DebugFolders::with_cache(&root, &root.join("cache")));
        symbols.function(sum.start + 1).map(|(name, offset)| (name.to_owned(), offset))
    };
    let expected = Some(("sum".to_owned(), 1));
    assert_eq!(name("program"), expected);
    if !built.run("objcopy", &["--only-keep-debug", "program", "only.debug"]) {
        return;
    }
    built.run("objcopy", &["--strip-all", "program", "bare"]);
    built.run("objcopy", &["--strip-all", "--add-gnu-debuglink=only.debug", "program", "linked"]);
    assert_eq!((name("bare"), name("linked")), (None, expected.clone()));
    // As Fedora makes it: symbols alone, packed by xz.
    built.run("objcopy", &["-S", "--remove-section", ".comment", "--keep-symbol=sum", "program", "mini"]);
    if !built.run("xz", &["-k", "mini"]) {
        return;
    }
    built.run("objcopy", &["--add-section", ".gnu_debugdata=mini.xz", "bare", "packed"]);
    assert_eq!(name("packed"), expected);
}

#[test]
fn what_unpacks_to_too_much_is_refused_with_its_place() {
    let Some(built) = Built::new("bomb", &["-g", "-O1", "-gz=zlib"]) else { return };
    let bytes = fs::read(built.program()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let section = file.section_by_name(".debug_info").unwrap();
    let (at, _) = section.file_range().unwrap();
    let sum = built.function("sum");
    assert!(UnpackLimit::of(0).unpack(&section).is_ok());
    // The size is after the kind of the compression.
    for (size, error) in [
        (1_u64 << 40, UnpackError::TooLarge),
        (u64::MAX, UnpackError::TooLarge),
        (4 << 20, UnpackError::Damaged),
    ] {
        let mut bomb = bytes.clone();
        bomb[at as usize + 8..][..8].copy_from_slice(&size.to_le_bytes());
        let file = object::File::parse(&*bomb).unwrap();
        let section = file.section_by_name(".debug_info").unwrap();
        assert_eq!(UnpackLimit::of(bomb.len()).unpack(&section), Err(error), "{size:#x}");
        fs::write(built.0.join("bad"), &bomb).unwrap();
        assert!(lines_of(&built.0.join("bad"), Path::new("/")).find(sum.start).is_empty());
    }
}

#[test]
fn nothing_is_known_of_files_without_debug_information() {
    let Some(built) = Built::new("none", &["-O1"]) else { return };
    let sum = built.function("sum");
    assert!(lines_of(&built.program(), Path::new("/")).find(sum.start).is_empty());
    assert!(lines_of(&built.0.join("none"), Path::new("/")).find(sum.start).is_empty());
    assert!(lines_of(&built.0.join("program.c"), Path::new("/")).find(sum.start).is_empty());
}

#[test]
fn damaged_debug_information_is_no_reason_to_stop() {
    for options in [&["-g", "-O1", "-gz=zlib"][..], &["-g", "-O1"]] {
        let Some(built) = Built::new("damaged", options) else { return };
        damage(&built);
    }
}

/// Reads the debug information with one byte changed, for many of its bytes.
fn damage(built: &Built) {
    use object::ObjectSection;
    let sum = built.function("sum");
    let bytes = fs::read(built.program()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    for name in [".debug_info", ".debug_line", ".debug_abbrev"] {
        let (from, size) = file.section_by_name(name).unwrap().file_range().unwrap();
        for at in (from..from + size).step_by(11) {
            let mut damaged = bytes.clone();
            damaged[at as usize] ^= 0x5a;
            let path = built.0.join("bad");
            fs::write(&path, damaged).unwrap();
            let lines = lines_of(&path, Path::new("/"));
            printed(&lines, sum.clone());
            let places = lines.profile_places();
            sum.clone().for_each(|ip| drop(places.find(ip)));
        }
    }
}

#[test]
fn places_for_compilers_are_lines_of_their_functions() {
    for options in [&["-g", "-O1"][..], &["-gdwarf-4", "-O1"]] {
        let Some(built) = Built::new("placed", options) else { return };
        let lines = lines_of(&built.program(), Path::new("/"));
        let places = lines.profile_places();
        let found: Vec<_> = built.function("sum").map(|ip| places.find(ip)).collect();
        let place = |place: &ProfilePlace| (place.function.to_string(), place.offset);
        let last: Vec<_> = found.last().unwrap().iter().map(place).collect();
        assert!(matches!(&last[..], [(name, 4 | 5)] if name == "sum"), "{options:?}: {last:?}");
        // `x / 3 * 2` is one line after the first one of `twice`, whose call is three lines after that of `sum`.
        let inlined = [("twice".to_owned(), 1), ("sum".to_owned(), 3)];
        assert!(found.iter().any(|places| places.iter().map(place).eq(inlined.clone())), "{found:?}");
        assert_eq!(places.find(0), []);
    }
}
