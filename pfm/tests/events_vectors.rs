//! Compares the tables with the event table among the shared test vectors.

use pugmark_pfm::{Event, Pmu, UnitMask};
use std::{fs, path::Path};

/// The revisions of a table, in the order of AMD's letters.
const REVISIONS: [(&str, &str, &[&str]); 2] = [
    (
        "amd64_k8",
        "BCDEFG",
        &[
            "amd64_k8_revb",
            "amd64_k8_revc",
            "amd64_k8_revd",
            "amd64_k8_reve",
            "amd64_k8_revf",
            "amd64_k8_revg",
        ],
    ),
    ("amd64_fam10h", "BCD", &["amd64_fam10h_barcelona", "amd64_fam10h_shanghai", "amd64_fam10h_istanbul"]),
];

#[test]
fn each_revision_has_the_events_and_unit_masks_of_the_vectors_in_their_order() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/libpfm/amd64_events.tsv");
    let file = fs::read_to_string(&path).unwrap();
    let rows: Vec<Vec<&str>> = file.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    for (table, letters, pmus) in REVISIONS {
        for (letter, name) in letters.chars().zip(pmus) {
            let pmu = Pmu::by_name(name).expect(name);
            let expected: Vec<String> = rows
                .iter()
                .filter(|row| row[0] == table && has(row[4], row[5], letter))
                .filter(|row| row[8] == "-" || has(row[11], row[12], letter))
                .map(|row| row_of_vectors(row))
                .collect();
            assert!(expected.len() > 80, "{name}");
            let modifiers: String = pmu.modifiers().iter().map(|modifier| modifier.letter()).collect();
            let mut found = Vec::new();
            for event in pmu.events() {
                found.push(row_of_event(event, &modifiers));
                found.extend(pmu.unit_masks(event).map(|mask| row_of_mask(event, mask)));
            }
            assert_eq!(found, expected, "{name}");
        }
    }
}

/// Returns true if the bounds, such as `K8_REV_D` or `-`, include a revision.
fn has(from: &str, till: &str, letter: char) -> bool {
    let bound = |bound: &str| bound.chars().next_back().filter(|_| bound != "-");
    bound(from).is_none_or(|from| letter >= from) && bound(till).is_none_or(|till| letter <= till)
}

fn row_of_vectors(row: &[&str]) -> String {
    if row[8] == "-" {
        return format!("{} {} {} {}", row[1], row[2], row[6], row[7]);
    }
    format!("{} {} {} {} {}", row[1], row[8], row[9], row[10], row[13])
}

fn row_of_event(event: &Event, modifiers: &str) -> String {
    format!("{} {:#x} {} {modifiers}", event.name(), event.code(), event.groups())
}

fn row_of_mask(event: &Event, mask: &UnitMask) -> String {
    let marks = [(mask.is_exclusive(), "NCOMBO"), (mask.is_default(), "DFL"), (mask.is_omittable(), "OMIT")];
    let marks: Vec<_> = marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, name)| name).collect();
    let marks = if marks.is_empty() { "-".to_owned() } else { marks.join(",") };
    format!("{} {} {:#x} {marks} {}", event.name(), mask.name(), mask.code(), mask.group())
}
