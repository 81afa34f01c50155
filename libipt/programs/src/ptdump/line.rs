//! A line of output.

use std::fmt;

/// A packet's line. `Display` writes it without the line's end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The packet's offset, if it is to be shown.
    pub(super) offset: Option<u64>,
    /// The packet's bytes, if they are to be shown.
    pub(super) raw: Option<Vec<u8>>,
    /// The packet's name.
    pub(super) opcode: &'static str,
    /// The packet's contents; may be empty.
    pub(super) payload: String,
    /// The name and value of the state after the packet, for example its last IP.
    pub(super) tracking: Option<(&'static str, String)>,
}

/// The maximum number of characters shown of the state's value.
const TRACKING: usize = 16;

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(offset) = self.offset {
            write!(f, "{offset:016x}  ")?;
        }
        if let Some(raw) = &self.raw {
            let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
            write!(f, "{hex:<33} ")?;
        }
        let (opcode, payload) = (self.opcode, &self.payload);
        match (&self.tracking, payload.as_str()) {
            (None, "") => f.write_str(opcode),
            (None, payload) => write!(f, "{opcode:<10} {payload}"),
            (Some((id, value)), "") => write!(f, "{opcode} {payload:<25} {id:<5}{value:.TRACKING$}"),
            (Some((id, value)), payload) => {
                write!(f, "{opcode:<10} {payload:<25} {id:<5}{value:.TRACKING$}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_where_libipt_has_them() {
        let plain = Line { opcode: "mode.exec", ..Line::default() };
        let value = || Some(("em", "64-bit".to_string()));
        for (line, text) in [
            (plain.clone(), "mode.exec"),
            (Line { offset: Some(0x1b), ..plain.clone() }, "000000000000001b  mode.exec"),
            (
                Line { raw: Some(vec![0x99, 0x01]), ..plain.clone() },
                "9901                              mode.exec",
            ),
            (Line { payload: "cs.l".into(), ..plain.clone() }, "mode.exec  cs.l"),
            (Line { tracking: value(), ..plain.clone() }, "mode.exec                           em   64-bit"),
            (
                Line { payload: "cs.l".into(), tracking: value(), ..plain.clone() },
                "mode.exec  cs.l                      em   64-bit",
            ),
            (
                Line { tracking: Some(("tsc", "+0123456789abcdef0".into())), ..plain },
                "mode.exec                           tsc  +0123456789abcde",
            ),
        ] {
            assert_eq!(line.to_string(), text);
        }
    }
}
