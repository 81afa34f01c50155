//! Splits a file into rows of tab-separated columns. A row with a leading tab belongs to the last row without one.

/// A row.
pub(crate) struct Row<'a> {
    /// The number of its line, from 1.
    pub(crate) line: usize,
    /// True if it begins with a tab.
    pub(crate) inner: bool,
    pub(crate) columns: Vec<&'a str>,
}

/// Returns the rows of a file, without empty lines and comments.
pub(crate) fn rows(file: &str) -> impl Iterator<Item = Row<'_>> {
    let lines = file.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(line, text)| {
        let inner = text.strip_prefix('\t');
        Row { line, inner: inner.is_some(), columns: inner.unwrap_or(text).split('\t').collect() }
    })
}
