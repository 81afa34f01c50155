//! Traces of real processors, stored outside the repository.

use pugmark_decoder_core::errata::{Cpu, Errata};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A trace and libipt 2.3's result for it.
pub(crate) struct Recorded {
    pub(crate) cpu: Cpu,
    pub(crate) trace: &'static str,
    /// The folder of its image.json.
    folder: &'static str,
    pub(crate) instructions: u64,
    pub(crate) hash: u64,
    /// The number of errors that decoding reports: some traces lack code, and some are truncated at the end.
    pub(crate) errors: usize,
}

pub(crate) const TRACES: [Recorded; 5] = [
    Recorded {
        cpu: Cpu::intel(6, 79, 1),
        trace: "intelpt-trace/3842849.trace",
        folder: "intelpt-trace",
        instructions: 21,
        hash: 0xc641_aab2_52db_d17c,
        errors: 0,
    },
    Recorded {
        cpu: Cpu::intel(6, 79, 1),
        trace: "intelpt-trace-multi-file/multi-file.trace",
        folder: "intelpt-trace-multi-file",
        instructions: 45,
        hash: 0xddb6_bb34_daaa_b2ab,
        errors: 1,
    },
    Recorded {
        cpu: Cpu::intel(6, 85, 4),
        trace: "intelpt-multi-core-trace/cores/45.intelpt_trace",
        folder: "intelpt-multi-core-trace",
        instructions: 61825,
        hash: 0x2da4_7641_1a36_46e6,
        errors: 1,
    },
    Recorded {
        cpu: Cpu::intel(6, 85, 4),
        trace: "intelpt-multi-core-trace/cores/51.intelpt_trace",
        folder: "intelpt-multi-core-trace",
        instructions: 19521,
        hash: 0xa1fc_7f8c_a749_977f,
        errors: 3,
    },
    Recorded {
        cpu: Cpu::intel(6, 85, 4),
        trace: "dynamorio/pt.bin",
        folder: "dynamorio",
        instructions: 8,
        hash: 0x3470_39f8_2b91_1e59,
        errors: 0,
    },
];

/// Returns the folder of the traces.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/real")
}

impl Recorded {
    /// Returns the trace's bytes.
    pub(crate) fn bytes(&self, folder: &Path) -> Vec<u8> {
        fs::read(folder.join(self.trace)).unwrap()
    }

    pub(crate) fn errata(&self) -> Errata {
        Errata::of(self.cpu).unwrap()
    }

    /// Returns the code that `image.json` names: its addresses and bytes.
    pub(crate) fn code(&self, folder: &Path) -> Vec<(u64, Vec<u8>)> {
        let folder = folder.join(self.folder);
        let image: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(folder.join("image.json")).unwrap()).unwrap();
        let number = |section: &serde_json::Value, field: &str| section[field].as_u64().unwrap();
        let read = |section: &serde_json::Value| {
            let file = fs::read(folder.join(section["file"].as_str().unwrap())).unwrap();
            let offset = number(section, "offset") as usize;
            let bytes = &file[offset..offset + number(section, "len") as usize];
            (number(section, "vaddr"), bytes.to_vec())
        };
        image["sections"].as_array().unwrap().iter().map(read).collect()
    }
}
