//! Compiles the event tables, `events/*.tsv`, to static Rust.
//!
//! A family's table has a row for each event, followed by a row with a leading tab for each of its unit masks. The
//! columns are name, code and marks. `text.tsv` has the descriptions for all families; its rows are a name and a
//! sentence.
//!
//! | mark | |
//! |---|---|
//! | `default` | chosen if a request names no unit mask of the group |
//! | `exclusive` | cannot be combined with others of the group |
//! | `group=N` | belongs to group N instead of 0; a request chooses from each group |
//! | `omit` | a request may choose nothing from the group |
//! | `from=X`, `till=X` | the first and the last revision that has it |
//! | `pfm3`, `pfm4` | only this libpfm has it |
//! | `ibs-fetch`, `ibs-op` | libpfm3's event that stands for the IBS unit |

mod emit;
mod row;
mod table;
mod text;

use std::{env, fs, path::Path, process::ExitCode};

/// The families, by the name of their file. The static table has the same name in capitals.
const FAMILIES: [&str; 13] = [
    "k7", "k8", "fam10h", "fam11h", "fam12h", "fam14h", "fam15h", "fam16h", "zen1", "zen2", "zen3", "zen4",
    "zen5",
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=events");
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let words = read("text")?;
    let text = text::Descriptions::parse(&words).map_err(|error| format!("events/text.tsv:{error}"))?;
    let mut rust = emit::RustSource::default();
    for family in FAMILIES {
        let place = |error| format!("events/{family}.tsv:{error}");
        let events = table::parse(&read(family)?).map_err(place)?;
        rust.table(&family.to_uppercase(), &events, &text).map_err(place)?;
    }
    let out = env::var("OUT_DIR").map_err(|error| format!("OUT_DIR: {error}"))?;
    let out = Path::new(&out).join("tables.rs");
    fs::write(&out, rust.finish()).map_err(|error| format!("{}: {error}", out.display()))
}

fn read(name: &str) -> Result<String, String> {
    let path = Path::new("events").join(name).with_extension("tsv");
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}
