//! Both libraries, loaded side by side.

pub(crate) use crate::binding::{Config, Handle, Item, Library, NewerLibrary, Packet, PtEvent};
pub(crate) use crate::release::Version;
use crate::release::{V2_0_5, V2_1_2};
use std::{path::PathBuf, sync::OnceLock};

/// Returns the file of the library that cargo builds for this test.
pub(crate) fn our_file() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libipt.so")
}

/// The releases with which ours is compared, if they are installed, and ours.
struct Loaded {
    v2_0_5: Option<Library>,
    v2_1_2: Option<(Library, NewerLibrary)>,
    ours: Library,
    ours_newer: NewerLibrary,
}

/// Loads all libraries. Ours comes last: the loader would take it for the others, which have the same soname.
fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| {
        // The functions are used until the program ends, so the libraries are never unloaded.
        let keep = |library| -> &'static libloading::Library { Box::leak(Box::new(library)) };
        let v2_0_5 = V2_0_5.open().and_then(|library| Library::of(keep(library)));
        let v2_1_2 = V2_1_2
            .open()
            .map(keep)
            .and_then(|library| Some((Library::of(library)?, NewerLibrary::of(library)?)));
        // SAFETY: the library has no constructors and no destructors.
        let ours = keep(unsafe { libloading::Library::new(our_file()) }.unwrap());
        Loaded {
            v2_0_5,
            v2_1_2,
            ours: Library::of(ours).unwrap(),
            ours_newer: NewerLibrary::of(ours).unwrap(),
        }
    })
}

/// Returns 2.0.5, whose answers ours gives, and ours; prints a line and returns `None` if that release is not there.
pub(crate) fn both() -> Option<[&'static Library; 2]> {
    let Loaded { v2_0_5, ours, .. } = loaded();
    let Some(theirs) = v2_0_5 else {
        println!("{}", V2_0_5.skipped());
        return None;
    };
    assert_ne!(theirs.pt_errstr as usize, ours.pt_errstr as usize);
    Some([theirs, ours])
}

/// Returns 2.1.2 and ours; prints a line and returns `None` if that release is not there.
pub(crate) fn both_newer() -> Option<[&'static NewerLibrary; 2]> {
    let Loaded { v2_1_2, ours_newer, .. } = loaded();
    let Some((_, theirs)) = v2_1_2 else {
        println!("{}", V2_1_2.skipped());
        return None;
    };
    assert_ne!(theirs.pt_evt_next as usize, ours_newer.pt_evt_next as usize);
    Some([theirs, ours_newer])
}

/// Returns 2.1.2 and ours, with the functions that 2.0.5 has, too.
pub(crate) fn both_with_2_1_2() -> Option<[&'static Library; 2]> {
    let Loaded { v2_1_2, ours, .. } = loaded();
    let Some((theirs, _)) = v2_1_2 else {
        println!("{}", V2_1_2.skipped());
        return None;
    };
    Some([theirs, ours])
}
