//! Checks each input of the corpus, cut at every length, and with each bit of its first bytes changed.

use std::{fs, path::Path};

fn all(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let input = fs::read(&file).unwrap();
        println!("{}", file.display());
        for cut in 0..=input.len() {
            check(&input[..cut]);
        }
        for bit in 0..8 * input.len().min(16) {
            let mut changed = input.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            check(&changed);
        }
    }
}

macro_rules! targets {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            all(stringify!($target), pugmark_fuzz::$target::check);
        })*
    };
}

targets!(packets encoder events query insns blocks slices sideband elf symbols kallsyms perf_map jitdump perf_data);
