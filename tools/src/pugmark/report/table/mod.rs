//! The rows of a report, as text, as JSON and as comma-separated values.

use super::naming::{FUNCTION, KEYS};
use crate::digits::Digits;
use crate::pugmark::visitors::Unit;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// The counts of a row. Branches count both taken and not taken. A call leads to the beginning of a function, by a call
/// instruction or by a jump of another function. Counts that were not requested are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) instructions: u64,
    pub(super) branches: u64,
    pub(super) calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instructions_with_children: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time_with_children: Option<u64>,
}

/// A row of the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) counts: Counts,
    pub(super) percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) percent_with_children: Option<f64>,
    #[serde(flatten)]
    pub(super) names: BTreeMap<&'static str, String>,
    /// The function of a source line, if no other column names the function.
    #[serde(rename = "function", skip_serializing_if = "Option::is_none")]
    pub(super) function_of_line: Option<String>,
}

/// All rows.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct FunctionReport {
    pub(super) instructions: u64,
    pub(super) branches: u64,
    /// The instructions of the selected object file and function; `None` if all are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) selected_instructions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time: Option<u64>,
    /// The unit of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time_unit: Option<&'static str>,
    pub(super) errors: usize,
    pub(super) rows: Vec<Row>,
    /// The columns, which are known even without rows.
    #[serde(skip)]
    pub(super) columns: ReportColumns,
}

/// The requested columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReportColumns {
    pub(super) children: bool,
    pub(super) time: Option<Unit>,
    /// The columns with names.
    pub(super) names: Vec<&'static str>,
    pub(super) functions_of_lines: bool,
}

/// A column of numbers.
struct NumberColumn {
    name: &'static str,
    heading: String,
    width: usize,
    value: fn(&Row) -> CellValue,
}

enum CellValue {
    Percent(f64),
    Count(u64),
}

impl ReportColumns {
    fn numbers(&self) -> Vec<NumberColumn> {
        use CellValue::{Count, Percent};
        const CHILDREN: &str = "with children";
        let column =
            |name, heading: &str, width, value| NumberColumn { name, heading: heading.into(), width, value };
        let mut columns = vec![column("percent", "percent", 7, |row| Percent(row.percent))];
        if self.children {
            columns.push(column("percent_with_children", CHILDREN, 13, |row| {
                Percent(row.percent_with_children.unwrap_or_default())
            }));
        }
        columns.push(column("instructions", "instructions", 14, |row| Count(row.counts.instructions)));
        if self.children {
            columns.push(column("instructions_with_children", CHILDREN, 14, |row| {
                Count(row.counts.instructions_with_children.unwrap_or_default())
            }));
        }
        columns.push(column("branches", "branches", 12, |row| Count(row.counts.branches)));
        columns.push(column("calls", "calls", 10, |row| Count(row.counts.calls)));
        if let Some(unit) = self.time {
            let heading = format!("time ({})", unit.name());
            columns.push(column("time", &heading, 14, |row| Count(row.counts.time.unwrap_or_default())));
            if self.children {
                columns.push(column("time_with_children", CHILDREN, 14, |row| {
                    Count(row.counts.time_with_children.unwrap_or_default())
                }));
            }
        }
        columns
    }
}

impl Row {
    /// Returns the names of the row.
    fn names(&self) -> impl Iterator<Item = &str> {
        let names = KEYS.iter().filter_map(|(_, column)| self.names.get(column));
        names.chain(&self.function_of_line).map(String::as_str)
    }
}

impl FunctionReport {
    pub(super) fn text(&self, digits: Digits, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.columns.numbers();
        let heading = |column: &NumberColumn| format!("{:>1$}", column.heading, digits.width(column.width));
        let headings: Vec<String> = columns.iter().map(heading).collect();
        writeln!(out, "{}", headings.join("  "))?;
        for row in &self.rows {
            let number = |column: &NumberColumn| match (column.value)(row) {
                CellValue::Percent(percent) => format!("{percent:>0$.2}", digits.width(column.width)),
                CellValue::Count(count) => format!("{:>1$}", digits.of(count), digits.width(column.width)),
            };
            let numbers: Vec<String> = columns.iter().map(number).collect();
            write!(out, "{}", numbers.join("  "))?;
            for name in row.names() {
                write!(out, "  {name}")?;
            }
            writeln!(out)?;
        }
        let Self { instructions, branches, errors, .. } = self;
        if let Some(selected) = self.selected_instructions {
            let percent = super::percent_of(selected, *instructions);
            writeln!(out, "selected: {} instructions ({percent:.2} %)", digits.of(selected))?;
        }
        let [instructions, branches] = [*instructions, *branches].map(|count| digits.of(count));
        write!(out, "in all: {instructions} instructions, {branches} branches, {errors} errors")?;
        if let (Some(time), Some(unit)) = (self.time, self.time_unit) {
            write!(out, ", {} {unit}", digits.of(time))?;
        }
        writeln!(out)
    }

    pub(super) fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.columns.numbers();
        let beside = self.columns.functions_of_lines.then_some(FUNCTION);
        let names = self.columns.names.iter().copied().chain(beside);
        let names: Vec<&str> = columns.iter().map(|column| column.name).chain(names).collect();
        writeln!(out, "{}", names.join(","))?;
        for row in &self.rows {
            let numbers = columns.iter().map(|column| match (column.value)(row) {
                CellValue::Percent(percent) => format!("{percent:.4}"),
                CellValue::Count(count) => count.to_string(),
            });
            let names = row.names().map(|name| format!("\"{}\"", name.replace('"', "\"\"")));
            writeln!(out, "{}", numbers.chain(names).collect::<Vec<_>>().join(","))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
