//! Tests with object files.

use super::*;
use crate::pugmark::object_file::{GLOBAL, GLOBAL_DATA, LOCAL, LOCAL_LABEL, ObjectFile, WEAK};

/// A folder that is removed when the value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-symbols-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str, file: &ObjectFile<'_>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, file.bytes()).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn of_several_names_the_best_is_taken_and_a_function_ends_where_the_next_begins() {
    let symbols = [
        ("a_long_local_name", 0x1000, 0x10, LOCAL, 1),
        ("seen", 0x1000, 0x10, GLOBAL, 1),
        ("a_long_weak_name", 0x1010, 0x10, WEAK, 1),
        ("strong", 0x1010, 0x10, GLOBAL, 1),
        ("__inner_name", 0x1020, 0x10, GLOBAL, 1),
        ("name", 0x1020, 0x10, GLOBAL, 1),
        ("ab", 0x1030, 4, GLOBAL, 1),
        ("abc", 0x1030, 8, GLOBAL, 1),
        ("assembler", 0x1040, 0, GLOBAL, 1),
        ("big", 0x1050, 0x100, GLOBAL, 1),
        ("within", 0x1060, 8, LOCAL, 1),
        ("_ZN4core3fmt5write17h0123456789abcdefE", 0x1070, 8, GLOBAL, 1),
        ("data", 0x1080, 8, GLOBAL_DATA, 1),
        ("elsewhere", 0x1090, 8, GLOBAL, 0),
        ("", 0x10a0, 8, GLOBAL, 1),
        ("label", 0x10b0, 0, LOCAL_LABEL, 1),
        ("last", 0x10f0, 0, GLOBAL, 1),
    ];
    let file = ObjectFile { pieces: &[(0x1000, 0x1000, &[0x90; 0x100])], symbols: &symbols }.bytes();
    let file = object::File::parse(&*file).unwrap();
    let found = functions::parts_of(&[&file]).into_iter().map(|part| {
        let FunctionPart { addresses, begin, name } = part;
        (addresses.start, name, addresses.end, addresses.start - begin)
    });
    let expected = [
        (0x1000, "seen", 0x1010, 0),
        (0x1010, "strong", 0x1020, 0),
        (0x1020, "name", 0x1030, 0),
        (0x1030, "abc", 0x1038, 0),
        (0x1040, "assembler", 0x1050, 0),
        (0x1050, "big", 0x1060, 0),
        (0x1060, "within", 0x1068, 0),
        (0x1068, "big", 0x1070, 0x18),
        (0x1070, "core::fmt::write", 0x1078, 0),
        (0x1078, "big", 0x10b0, 0x28),
        (0x10b0, "label", 0x10f0, 0),
        (0x10f0, "last", 0x1100, 0),
        (0x1100, "big", 0x1150, 0xb0),
    ];
    let expected = expected.map(|(from, name, end, before)| (from, name.to_owned(), end, before));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    // Those of a section do not reach out of it.
    let inner = functions(&file, &(0x1030..0x1058));
    let ends: Vec<_> = inner.into_iter().map(|(from, (_, end))| (from, end)).collect();
    assert_eq!(ends, [(0x1030, 0x1038), (0x1040, 0x1050), (0x1050, 0x1058)]);
}

#[test]
fn a_mapping_names_the_functions_of_the_segment_that_it_begins_in() {
    let scratch = Scratch::new("mapping");
    // The first segment begins in the middle of a page, the second on a page.
    let symbols = [("first", 0x5240, 0x10, GLOBAL, 1), ("second", 0x8010, 0x10, GLOBAL, 2)];
    let pieces: &[(u64, u64, &[u8])] = &[(0x1234, 0x5234, &[0x90; 0x100]), (0x3000, 0x8000, &[0x90; 0x100])];
    let path = scratch.file("file", &ObjectFile { pieces, symbols: &symbols });
    let name = path.display().to_string();
    for (offset, found) in [
        (0x1000, Some(("first", 0x240))),
        (0x3000, Some(("second", 0x10))),
        (0, None),
        (0x2000, None),
        (0x4000, None),
    ] {
        let mut symbols = TracedSymbols::default();
        let added = symbols.add_mapping(&path, offset, 0x70_0000..0x70_1000, None);
        assert_eq!(added.is_some(), found.is_some(), "{offset:x}");
        if let Some((function, at)) = found {
            assert_eq!(symbols.place(0x70_0000 + at), function, "{offset:x}");
            assert_eq!(symbols.place(0x70_0000 + at + 1), format!("{function}+0x1"));
        }
        let objects = [0x6f_ffff, 0x70_0000, 0x70_0fff, 0x70_1000].map(|ip| symbols.find(ip).object);
        assert_eq!(objects, [None, Some(&*name), Some(&*name), None], "{offset:x}");
    }
    // In a root of its own, the file has its name there.
    let mut symbols = TracedSymbols::default();
    symbols.add_mapping(&path, 0x1000, 0x70_0000..0x70_1000, Some(&scratch.0));
    assert_eq!(symbols.find(0x70_0000).object, Some("/file"));
    // The code that the kernel gives each program is no file of that root.
    let path = scratch.file("[vdso]", &ObjectFile { pieces, symbols: &[] });
    symbols.add_mapping(&path, 0x1000, 0x70_0000..0x70_1000, Some(&scratch.0));
    assert_eq!(symbols.find(0x70_0000).object, Some("[vdso]"));
}

#[test]
fn a_file_is_where_the_bytes_of_its_pages_are() {
    let scratch = Scratch::new("bytes");
    let code: Vec<u8> = (0..0x1800_u32).map(|n| (n / 7 % 251) as u8).collect();
    let pieces: &[(u64, u64, &[u8])] = &[(0x1000, 0x1000, &code)];
    let path = scratch.file("file", &ObjectFile { pieces, symbols: &[("only", 0x1100, 0x20, GLOBAL, 1)] });
    // What was traced begins in front of a page and goes on after the file's last one.
    let traced = |begin: u64, bytes: &[u8]| {
        let mut all = TracedCode::default();
        all.add(
            begin,
            [&vec![0xcc; (0x1000 - begin % 0x1000) as usize % 0x1000], bytes, &[0xdd; 0x900]].concat(),
        );
        all
    };
    for (begin, bytes, moved) in [
        (0x7000, &code[..], 0x6000),
        (0x6ff0, &code, 0x6000),
        (0x6123, &code, 0x6000),
        // Only the last page, which is not whole.
        (0x6ff0, &code[0x1000..], 0x5000),
    ] {
        let mut symbols = TracedSymbols::default();
        let needed = symbols.add_by_bytes(&path, &traced(begin, bytes)).unwrap();
        assert_eq!(symbols.place(0x1100 + moved), "only", "{begin:x}");
        assert_eq!(symbols.find(0x1100 + moved).object, Some(&*path.display().to_string()));
        assert_eq!(symbols.find(0x1000 + moved + 0x1800).object, None);
        assert_eq!(needed, Vec::<PathBuf>::new());
    }
    let other = traced(0x7000, &[0x90; 0x2000]);
    let error = TracedSymbols::default().add_by_bytes(&path, &other).unwrap_err();
    assert_eq!(error.to_string(), "no page of its code is in the code that was traced");
}

#[test]
fn a_program_needs_the_libraries_that_binutils_names() {
    // This program itself.
    let path = std::env::current_exe().unwrap();
    let Ok(output) = std::process::Command::new("readelf").args(["-W", "-d"]).arg(&path).output() else {
        println!("skipped: readelf is not installed");
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let named =
        |line: &str| Some(line.split_once("(NEEDED)")?.1.split_once('[')?.1.trim_end_matches(']').to_owned());
    let mut expected: Vec<String> = text.lines().filter_map(named).collect();
    expected.sort();
    assert!(expected.iter().any(|name| name == "libc.so.6"), "{text}");

    let bytes = fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let code = file.segments().find(
        |segment| matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.0 & PF_X.0 != 0),
    );
    let code = code.unwrap();
    let mut traced = TracedCode::default();
    traced.add(code.address(), code.data().unwrap().to_vec());
    let needed = TracedSymbols::default().add_by_bytes(&path, &traced).unwrap();
    let names: Vec<&str> = needed.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, expected);
}
