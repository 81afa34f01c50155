use super::*;
use pugmark_tools::sideband::StreamConfig;
use std::path::PathBuf;

/// A folder for one test, with the files that the records name.
struct ImagesFolder(PathBuf);

impl ImagesFolder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pugmark-images-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("code"), [0x90; 16]).unwrap();
        for (name, class, machine) in [("x64", 2, 62), ("x32", 1, 62), ("ia32", 1, 3)] {
            let mut header = [0; 64];
            header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
            header[18] = machine;
            fs::write(folder.join(name), header).unwrap();
        }
        Self(folder)
    }

    /// Returns a configuration in which names of files are relative to the folder.
    fn config(&self) -> StreamConfig {
        let path = |name: &str| self.0.join(name).to_str().unwrap().to_string();
        StreamConfig {
            sysroot: format!("{}/", self.0.display()),
            vdso: [(Abi::X64, path("code")), (Abi::Ia32, path("none"))].into(),
            ..StreamConfig::default()
        }
    }
}

impl Drop for ImagesFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn record(kind: u64, misc: u64, body: &[u8]) -> Vec<u8> {
    let header = kind | misc << 32 | (8 + body.len() as u64) << 48;
    [&header.to_le_bytes(), body].concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pair(low: u64, high: u64) -> u64 {
    low | high << 32
}

fn mmap(pid: u64, addr: u64, pgoff: u64, name: &str) -> Vec<u8> {
    let mut body = words(&[pair(pid, pid), addr, 0x1000, pgoff]);
    body.extend(name.as_bytes());
    body.resize((body.len() + 8) & !7, 0);
    record(1, 2, &body)
}

fn fork(pid: u64, ppid: u64, tid: u64) -> Vec<u8> {
    record(7, 0, &words(&[pair(pid, ppid), pair(tid, ppid), 0]))
}

fn exec(pid: u64) -> Vec<u8> {
    record(3, 0x2000, &words(&[pair(pid, pid), u64::from_le_bytes(*b"sh\0\0\0\0\0\0")]))
}

/// An image's name, and the base and size of each of its sections.
type Shown = (String, Vec<(u64, usize)>);

/// Returns the effects of one stream's records, and the images.
fn planned(records: &[Vec<u8>], primary: bool, config: StreamConfig) -> (Vec<Effect>, Vec<Shown>) {
    let mut cache = SectionCache::default();
    let streams = [Stream::new("s".into(), records.concat(), primary, config)];
    let images = ProcessImages::new(ImagePlan::new(&streams, &[], &mut cache), &cache);
    let of = |context: usize| {
        let image = images.image(context, usize::MAX);
        let sections = image.sections().iter().map(|section| (section.base, section.bytes.len())).collect();
        (images.name(context), sections)
    };
    (images.effects.clone(), (0..images.contexts.len()).map(of).collect())
}

#[test]
fn mappings_make_images_or_say_why_not() {
    let folder = ImagesFolder::new("map");
    let records = [
        mmap(1, 0x1000, 0, "code"),
        mmap(1, 0x5000, 12, "code"),
        mmap(1, 0x1000, 16, "code"),
        mmap(1, 0x1000, 0, "none"),
        mmap(1, 0x1000, 0, "[vdso]"),
        mmap(2, 0x1000, 0, "x64"),
        mmap(2, 0x2000, 0, "[vdso]"),
        mmap(3, 0x1000, 0, "ia32"),
        mmap(3, 0x2000, 0, "[vdso]"),
        mmap(4, 0x1000, 0, "x32"),
        mmap(4, 0x2000, 0, "[vdso]"),
        mmap(4, 0, 0, "[heap]"),
        mmap(4, 0, 0, "//anon"),
        mmap(4, 0, 0, "code (deleted)"),
        // In kernel mode.
        record(1, 1, &mmap(5, 0x1000, 0, "none")[8..]),
    ];
    let grow = |context, parts| Effect::Grow { context, parts };
    let lost = Effect::Warn(Warning::Section);
    let (effects, images) = planned(&records, true, folder.config());
    assert_eq!(
        effects,
        [
            grow(0, 1),
            grow(0, 2),
            Effect::Fail(RecordProblem::Offset),
            Effect::Fail(RecordProblem::File),
            Effect::Fail(RecordProblem::Configuration),
            grow(1, 1),
            grow(1, 2),
            grow(2, 1),
            Effect::Fail(RecordProblem::File),
            grow(3, 1),
            Effect::Fail(RecordProblem::Configuration),
            lost,
            lost,
            lost,
            Effect::None,
        ]
    );
    let of = |pid: &str, sections: &[(u64, usize)]| (format!("pid-{pid}"), sections.to_vec());
    assert_eq!(
        images,
        [
            of("1", &[(0x1000, 16), (0x5000, 4)]),
            of("2", &[(0x1000, 64), (0x2000, 16)]),
            of("3", &[(0x1000, 64)]),
            of("4", &[(0x1000, 64)]),
        ]
    );
}

/// A hostile recording can name any path.
#[cfg(unix)]
#[test]
fn only_regular_files_are_opened_for_a_record() {
    let folder = ImagesFolder::new("irregular");
    let pipe = std::ffi::CString::new(folder.0.join("pipe").to_str().unwrap()).unwrap();
    // SAFETY: the name is a C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    std::os::unix::fs::symlink("/dev/zero", folder.0.join("endless")).unwrap();
    fs::create_dir(folder.0.join("folder")).unwrap();
    let records = ["pipe", "endless", "folder"].map(|name| mmap(1, 0x1000, 0, name));
    let (effects, images) = planned(&records, true, folder.config());
    assert_eq!(effects[..2], [Effect::Fail(RecordProblem::Offset), Effect::Fail(RecordProblem::Offset)]);
    assert!(images[0].1.iter().all(|(_, len)| *len == 0), "{images:?}");
}

#[test]
fn processes_begin_with_their_parents_image_and_programs_with_none() {
    let folder = ImagesFolder::new("fork");
    let records = [
        mmap(1, 0x1000, 0, "code"),
        fork(2, 1, 2),
        mmap(1, 0x2000, 0, "code"),
        exec(1),
        mmap(1, 0x3000, 0, "code"),
        // Another thread of the process, and a fork that is impossible.
        fork(1, 1, 9),
        fork(3, 1, 9),
        fork(0x1f, 0x1e, 0x1f),
    ];
    let (effects, images) = planned(&records, true, folder.config());
    assert_eq!(effects[3], Effect::Switch(2));
    assert_eq!(effects[6], Effect::Fail(RecordProblem::Internal));
    let of = |pid: &str, sections: &[(u64, usize)]| (format!("pid-{pid}"), sections.to_vec());
    assert_eq!(
        images,
        [
            of("1", &[(0x1000, 16), (0x2000, 16)]),
            of("2", &[(0x1000, 16)]),
            of("1", &[(0x3000, 16)]),
            of("1f", &[]),
        ]
    );
}

#[test]
fn switches_count_only_on_the_traced_processor() {
    let (start, wide) = (words(&[pair(7, 7)]), words(&[pair(8, 8)]));
    let records = [
        record(12, 0, &start),
        record(14, 0, &[]),
        record(14, 0x2000, &[]),
        record(15, 0x2000, &wide),
        record(15, 0, &wide),
        record(11, 0, &words(&[0, 0, 1])),
        record(2, 0, &words(&[0, 0])),
    ];
    let lost = Effect::Warn(Warning::Records);
    let (effects, _) = planned(&records, true, StreamConfig::default());
    let expected = [
        Effect::Start(0),
        Effect::Fail(RecordProblem::Configuration),
        Effect::None,
        Effect::Switch(1),
        Effect::None,
        Effect::Warn(Warning::Trace),
        lost,
    ];
    assert_eq!(effects, expected);
    let (effects, images) = planned(&records, false, StreamConfig::default());
    assert_eq!((&effects[..6], effects[6]), (&[Effect::None; 6][..], lost));
    assert_eq!(images, []);
    // A sample that names the process switched to.
    let records = [record(14, 0, &start), record(15, 0, &[wide, start].concat())];
    let config = StreamConfig { sample_type: 2, ..StreamConfig::default() };
    assert_eq!(planned(&records, true, config).0, [Effect::Switch(0), Effect::Switch(0)]);
}

#[test]
fn forks_cannot_ask_for_more_than_there_is_place_for() {
    let folder = ImagesFolder::new("bound");
    let mappings = 4000;
    let mut records: Vec<_> = (0..mappings).map(|page| mmap(1, page << 12, 0, "code")).collect();
    records.extend((2..1500).map(|pid| fork(pid, 1, pid)));
    let (effects, images) = planned(&records, true, folder.config());
    let refused = effects.iter().filter(|effect| **effect == Effect::Fail(RecordProblem::Memory)).count();
    let parts: usize = images.iter().map(|(_, sections)| sections.len()).sum();
    // The number of images of 4000 parts that fit, including that of the first process.
    let fit = MOST_PARTS / 4000;
    assert_eq!((parts, refused), (4000 * fit, 1499 - fit));
}
