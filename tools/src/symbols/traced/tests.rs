//! Tests with object files.

use super::*;
use crate::object_file::{GLOBAL, GLOBAL_DATA, LOCAL, LOCAL_LABEL, ObjectFile, WEAK};
use crate::pugmark::code::TracedCode;
use crate::symbols::{elf_functions, functions, jitdump::made};
use pugmark_decoder_core::image::AddressSpace;

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

/// Maps a page of a file, and returns its symbols.
fn mapped(path: &Path, offset: u64, address: u64) -> TracedSymbols {
    let mut symbols = TracedSymbols::default();
    let part = MappedPart { file: path, offset, place: address..address + 0x1000 };
    symbols.add_mapping(&part, None, &mut SymbolFiles::default());
    symbols
}

fn symbols() -> TracedSymbols {
    let functions = [("a", 0x1000, 0x1010), ("b", 0x1020, 0x1030)];
    TracedSymbols::known(&functions, &[("/x", 0x1000, 0x2000), ("/y", 0x3000, 0x4000)])
}

#[test]
fn an_address_is_in_the_function_before_it_up_to_its_end() {
    for (ip, function, object) in [
        (0xfff, None, None),
        (0x1000, Some(("a", 0)), Some("/x")),
        (0x100f, Some(("a", 15)), Some("/x")),
        (0x1010, None, Some("/x")),
        (0x1021, Some(("b", 1)), Some("/x")),
        (0x1fff, None, Some("/x")),
        (0x2000, None, None),
        (0x3000, None, Some("/y")),
        (0x4000, None, None),
    ] {
        assert_eq!(symbols().find(ip), NamedPlace { function, object }, "{ip:x}");
    }
    for (ip, name, place) in
        [(0x1000, "a", "a"), (0x100f, "a", "a+0xf"), (0x1010, "0x1010", "0x1010"), (0x1021, "b", "b+0x1")]
    {
        assert_eq!((&*symbols().name(ip), &*symbols().place(ip)), (name, place));
    }
    let ends = [0xfff, 0x1010, 0x101f, 0x1030, 0x9000].map(|ip| symbols().end_before(ip));
    assert_eq!(ends, [0, 0x1010, 0x1010, 0x1030, 0x1030]);
}

#[test]
fn a_later_mapping_takes_the_place_of_the_part_that_it_covers() {
    let mut symbols = symbols();
    symbols.put(0x1800..0x3800, "/z", None);
    symbols.put(0x2000..0x2000, "/empty", None);
    let objects = [0x17ff, 0x1800, 0x37ff, 0x3800, 0x4000].map(|ip| symbols.find(ip).object);
    assert_eq!(objects, [Some("/x"), Some("/z"), Some("/z"), Some("/y"), None]);
    symbols.put(0x1100..0x1200, "/\x1b[2J", None);
    let objects = [0x10ff, 0x1100, 0x1200].map(|ip| symbols.find(ip).object);
    assert_eq!(objects, [Some("/x"), Some("/\\u{1b}[2J"), Some("/x")]);
}

#[test]
fn functions_of_runtimes_have_the_names_of_their_maps_and_dumps() {
    let scratch = Scratch::new("runtimes");
    fs::write(scratch.0.join("perf-7.map"), "1000 10 listed\n").unwrap();
    let lines = made::lines(0x2000, &[(0x2000, 3, "a.js")]);
    fs::write(scratch.0.join("jit-7.dump"), made::dump(&[lines, made::load(0x2000, &[0x90; 16], "dumped")]))
        .unwrap();
    let mut symbols = TracedSymbols::known(&[], &[("/x", 0x5000, 0x6000)]);
    let folders = [scratch.0.clone()];
    symbols.add_runtime(7, &folders, &scratch.0, &mut SymbolFiles::default());
    symbols.add_runtime(8, &folders, &scratch.0, &mut SymbolFiles::default());
    assert_eq!([0x1004, 0x2004, 0x5000].map(|ip| symbols.place(ip)), ["listed+0x4", "dumped+0x4", "0x5000"]);
    let objects = [0x1004, 0x2004, 0x5000, 0x3000].map(|ip| symbols.find(ip).object);
    assert_eq!(objects, [Some("[JIT] tid 7"), Some("[JIT] tid 7"), Some("/x"), None]);
    assert_eq!(symbols.line(0x2004).map(|line| line.to_string()).as_deref(), Some("a.js:3"));
    // A runtime maps its dump so that perf's file names it.
    let dump = scratch.0.join("jit-7.dump");
    assert_eq!(mapped(&dump, 0, 0x9000).place(0x2004), "dumped+0x4");
}

#[test]
fn the_kernels_functions_have_their_modules() {
    let text = "ffffffff81000000 T start\nffffffffc0000000 t first\t[module]\n";
    let mut symbols = TracedSymbols::default();
    let section = |vaddr| ImageSection { file: "x".into(), offset: 0, len: 0x2000, vaddr };
    // Code that was made later is where a symbol of the list seems to reach to.
    let made = [(0xffff_ffff_c000_0020, 0x20, "older"), (0xffff_ffff_c000_0020, 0x10, "bpf_prog_1_f")];
    let made = Rc::new(JitSymbols::of_kernel(made.into_iter()));
    let kernel = Rc::new(KernelSymbols::parse(text.into()));
    symbols.add_kernel(kernel, made, &[section(0xffff_ffff_8100_0000)]);
    let places = [
        (0xffff_ffff_8100_0004, "start+0x4", KERNEL),
        (0xffff_ffff_8100_0fff, "start+0xfff", KERNEL),
        (0xffff_ffff_c000_0001, "first+0x1", "[module]"),
        (0xffff_ffff_c000_0020, "bpf_prog_1_f", "bpf_prog_1_f"),
        (0xffff_ffff_c000_0031, "older+0x11", "older"),
        (0xffff_ffff_c000_0041, "first+0x41", "[module]"),
    ];
    for (ip, place, object) in places {
        assert_eq!((&*symbols.place(ip), symbols.find(ip).object), (place, Some(object)));
    }
}

#[test]
fn the_code_that_the_kernel_gives_every_program_has_names() {
    let bytes = match own_vdso() {
        Some(bytes) => bytes,
        None if cfg!(target_arch = "x86_64") => panic!("Linux gives every program such code"),
        // QEMU's user-mode emulator of another processor has none.
        None => return println!("skipped: no vDSO"),
    };
    let mut code = TracedCode::default();
    code.add(0x7000_0000, bytes);
    let mut symbols = TracedSymbols::default();
    symbols.add_vdso(&code.sections());
    let named: BTreeSet<&str> =
        (0x7000_0000..0x7000_2000).filter_map(|ip| Some(symbols.function(ip)?.0)).collect();
    assert!(named.iter().any(|name| name.contains("clock_gettime")), "{named:?}");
    assert_eq!(symbols.find(0x7000_0800).object, Some(VDSO));
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
    let found = elf_functions(&file).unwrap();
    let expected = [
        (0x1000, 0x1010, "seen"),
        (0x1010, 0x1020, "strong"),
        (0x1020, 0x1030, "name"),
        (0x1030, 0x1038, "abc"),
        (0x1040, 0x1050, "assembler"),
        (0x1050, 0x1060, "big"),
        (0x1060, 0x1068, "within"),
        (0x1068, 0x1070, "big"),
        (0x1070, 0x1078, "core::fmt::write"),
        (0x1078, 0x10b0, "big"),
        (0x10b0, 0x10f0, "label"),
        (0x10f0, 0x1100, "last"),
        (0x1100, 0x1150, "big"),
    ];
    assert_eq!(found, expected.map(|(from, end, name)| (from, end, name.to_owned())));
    // Each part of a function knows where that begins.
    let scratch = Scratch::new("parts");
    let path = scratch.0.join("file");
    fs::write(&path, &file).unwrap();
    let names = mapped(&path, 0x1000, 0x1000);
    assert_eq!([0x1068, 0x1100].map(|ip| names.place(ip)), ["big+0x18", "big+0xb0"]);
    let file = object::File::parse(&*file).unwrap();
    let ends: Vec<_> = functions(&file).range(0x1030..0x1058).map(|(from, (_, end))| (*from, *end)).collect();
    assert_eq!(ends, [(0x1030, 0x1038), (0x1040, 0x1050), (0x1050, 0x1060)]);
}

#[test]
fn a_mapping_names_the_functions_of_the_segment_that_it_begins_in() {
    let scratch = Scratch::new("mapping");
    // The first segment begins in the middle of a page, the second on a page.
    let symbols = [("first", 0x5240, 0x10, GLOBAL, 1), ("second", 0x8010, 0x10, GLOBAL, 2)];
    let pieces: &[(u64, u64, &[u8])] = &[(0x1234, 0x5234, &[0x90; 0x100]), (0x3000, 0x8000, &[0x90; 0x100])];
    let path = scratch.file("file", &ObjectFile { pieces, symbols: &symbols });
    let file_name = path.display().to_string();
    for (offset, found) in [
        (0x1000, Some(("first", 0x240))),
        (0x3000, Some(("second", 0x10))),
        (0, None),
        (0x2000, None),
        (0x4000, None),
    ] {
        let symbols = mapped(&path, offset, 0x70_0000);
        let at = found.map_or(0, |(_, at)| at);
        let name = found.map_or_else(|| "0x700000".into(), |(function, _)| function.to_owned());
        assert_eq!(symbols.place(0x70_0000 + at), name, "{offset:x}");
        if found.is_some() {
            assert_eq!(symbols.place(0x70_0000 + at + 1), format!("{name}+0x1"));
        }
        let objects = [0x6f_ffff, 0x70_0000, 0x70_0fff, 0x70_1000].map(|ip| symbols.find(ip).object);
        assert_eq!(objects, [None, Some(&*file_name), Some(&*file_name), None], "{offset:x}");
    }
    // In a root of its own, the file has its name there.
    let below = |file: &Path| {
        let mut symbols = TracedSymbols::default();
        let part = MappedPart { file, offset: 0x1000, place: 0x70_0000..0x70_1000 };
        symbols.add_mapping(&part, Some(&scratch.0), &mut SymbolFiles::default());
        symbols.find(0x70_0000).object.map(str::to_owned)
    };
    assert_eq!(below(&path).as_deref(), Some("/file"));
    // The code that the kernel gives each program is no file of that root.
    let path = scratch.file("[vdso]", &ObjectFile { pieces, symbols: &[] });
    assert_eq!(below(&path).as_deref(), Some("[vdso]"));
}

#[test]
fn a_file_is_where_the_bytes_of_its_pages_are() {
    let scratch = Scratch::new("bytes");
    let code: Vec<u8> = (0..0x1800_u32).map(|n| (n / 7 % 251) as u8).collect();
    let pieces: &[(u64, u64, &[u8])] = &[(0x1000, 0x1000, &code)];
    let path = scratch.file("file", &ObjectFile { pieces, symbols: &[("only", 0x1100, 0x20, GLOBAL, 1)] });
    // The traced code begins in front of a page and goes on after the file's last one.
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
        let needed = symbols
            .add_by_bytes(&path, &traced(begin, bytes).sections(), &mut SymbolFiles::default())
            .unwrap()
            .unwrap();
        assert_eq!(symbols.place(0x1100 + moved), "only", "{begin:x}");
        assert_eq!(symbols.find(0x1100 + moved).object, Some(&*path.display().to_string()));
        assert_eq!(symbols.find(0x1000 + moved + 0x1800).object, None);
        assert_eq!(needed, Vec::<PathBuf>::new());
    }
    let other = traced(0x7000, &[0x90; 0x2000]);
    let needed =
        TracedSymbols::default().add_by_bytes(&path, &other.sections(), &mut SymbolFiles::default()).unwrap();
    assert_eq!(needed, None);
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
    let needed = TracedSymbols::default()
        .add_by_bytes(&path, &traced.sections(), &mut SymbolFiles::default())
        .unwrap()
        .unwrap();
    let names: Vec<&str> = needed.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_kernel_that_has_patched_each_of_its_pages_is_where_its_file_says() {
    let scratch = Scratch::new("patched");
    let own: Vec<u8> = (0..0x3000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let mut code = own.clone();
    code.iter_mut().step_by(16).for_each(|byte| *byte ^= 1);
    let object =
        ObjectFile { pieces: &[(0x1000, 0x1000, &own)], symbols: &[("patched", 0x1000, 0x3000, GLOBAL, 1)] };
    let path = scratch.file("vmlinux", &object);
    // An executable, which is not moved.
    let mut bytes = object.bytes();
    bytes[16] = 2;
    fs::write(&path, bytes).unwrap();
    // One of its pages is somewhere else, too, as it was.
    let section = |base, bytes| Section { base, bytes, space: AddressSpace::Any };
    let sections = [section(0x1000, &code[..]), section(0x9000, &own[0x1000..0x2000])];
    let mut symbols = TracedSymbols::default();
    symbols.add_by_bytes(&path, &sections, &mut SymbolFiles::default()).unwrap();
    assert_eq!(symbols.find(0x1234).function, Some(("patched", 0x234)));
}
