//! Reads a family's table of events.

use crate::row::{Row, rows};

/// An event, or one of its unit masks.
pub(crate) struct NamedCode {
    /// Its line in the file.
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) code: u16,
    pub(crate) marks: Marks,
}

pub(crate) struct EventRow {
    pub(crate) entry: NamedCode,
    pub(crate) masks: Vec<NamedCode>,
}

/// The marks in the third column.
pub(crate) struct Marks {
    /// Names of constants of `crate::table::Flags`.
    pub(crate) flags: Vec<&'static str>,
    pub(crate) group: u8,
    /// The first and the last revision that has it.
    pub(crate) revisions: (Option<char>, Option<char>),
}

/// The marks that are flags, and their names in Rust.
const FLAGS: [(&str, &str); 7] = [
    ("default", "DEFAULT"),
    ("exclusive", "EXCLUSIVE"),
    ("omit", "OMITTED"),
    ("pfm3", "PFM3_ONLY"),
    ("pfm4", "PFM4_ONLY"),
    ("ibs-fetch", "IBS_FETCH"),
    ("ibs-op", "IBS_OP"),
];

/// Reads a table. An error begins with its line.
pub(crate) fn parse(file: &str) -> Result<Vec<EventRow>, String> {
    let mut events: Vec<EventRow> = Vec::new();
    for row in rows(file) {
        let line = row.line;
        let entry = entry(&row).map_err(|error| format!("{line}: {error}"))?;
        if !row.inner {
            events.push(EventRow { entry, masks: Vec::new() });
        } else if let Some(event) = events.last_mut() {
            event.masks.push(entry);
        } else {
            return Err(format!("{line}: a unit mask before the first event"));
        }
    }
    Ok(events)
}

fn entry(row: &Row<'_>) -> Result<NamedCode, String> {
    let (name, code, marks) = match row.columns[..] {
        [name, code] => (name, code, ""),
        [name, code, marks] => (name, code, marks),
        _ => return Err(format!("{} columns instead of name, code, marks", row.columns.len())),
    };
    let most = if row.inner { 0xff } else { 0xfff };
    let digits = code.strip_prefix("0x").ok_or_else(|| format!("{code:?} is no hexadecimal code"))?;
    let code = u16::from_str_radix(digits, 16).map_err(|error| format!("{code:?}: {error}"))?;
    if code > most {
        return Err(format!("{code:#x} is above {most:#x}"));
    }
    Ok(NamedCode { line: row.line, name: name.to_owned(), code, marks: parse_marks(marks)? })
}

fn parse_marks(column: &str) -> Result<Marks, String> {
    let mut marks = Marks { flags: Vec::new(), group: 0, revisions: (None, None) };
    for mark in column.split(',').filter(|mark| !mark.is_empty()) {
        let unknown = || format!("unknown mark {mark:?}");
        match mark.split_once('=') {
            Some(("group", number)) => marks.group = number.parse().map_err(|_| unknown())?,
            Some(("from", letter)) => marks.revisions.0 = Some(letter.parse().map_err(|_| unknown())?),
            Some(("till", letter)) => marks.revisions.1 = Some(letter.parse().map_err(|_| unknown())?),
            _ => {
                let flag = FLAGS.iter().find(|(name, _)| *name == mark).ok_or_else(unknown)?;
                marks.flags.push(flag.1);
            }
        }
    }
    Ok(marks)
}
