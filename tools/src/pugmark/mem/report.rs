//! The report: named rows, the largest count first, as text or as JSON.

use super::{
    access::Translation,
    names::MemoryNames,
    tables::{AccessCounts, Address, CacheLine, Latency, MemoryTables, Sharing, Who},
};
use serde::Serialize;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

/// The number of instructions named for each part of a line.
const INSTRUCTIONS: usize = 2;

/// The columns of all rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct RowCounts {
    count: u64,
    percent: f64,
    loads: u64,
    stores: u64,
    locked: u64,
    modified: u64,
    latency: Option<Latency>,
}

/// Accesses with a common name: a source of data, a function, or a source line.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct NamedRow {
    name: String,
    #[serde(flatten)]
    counts: RowCounts,
}

/// A page or a line of memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PlaceRow {
    address: String,
    process: Option<i32>,
    data: String,
    threads: usize,
    #[serde(flatten)]
    counts: RowCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_walks: Option<u64>,
}

/// A line that several threads access.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct SharedRow {
    #[serde(flatten)]
    place: PlaceRow,
    sharing: Sharing,
    parts: Vec<PartRow>,
}

/// The accesses of one thread at one offset of a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PartRow {
    offset: u64,
    bytes: Option<u32>,
    data: String,
    thread: Option<String>,
    cpus: BTreeSet<u32>,
    loads: u64,
    stores: u64,
    code: Vec<String>,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemoryReport {
    samples: u64,
    accesses: u64,
    #[serde(flatten)]
    all: RowCounts,
    sources: Vec<NamedRow>,
    translations: Vec<NamedRow>,
    shared: Vec<SharedRow>,
    lines: Vec<PlaceRow>,
    pages: Vec<PlaceRow>,
    functions: Vec<NamedRow>,
    source_lines: Vec<NamedRow>,
    /// The number of rows before the cut, for each table that was cut to the limit.
    rows: BTreeMap<&'static str, usize>,
}

/// Makes the report's rows from the tables.
pub(super) struct Reporter<'a> {
    pub(super) tables: &'a MemoryTables,
    pub(super) names: &'a MemoryNames<'a>,
    /// The maximum number of rows of each table.
    pub(super) limit: usize,
}

impl Reporter<'_> {
    pub(super) fn report(&self) -> MemoryReport {
        let tables = self.tables;
        let mut first = FirstRows { limit: self.limit, rows: BTreeMap::new() };
        let sources = tables.sources.iter().map(|((operation, source), counted)| {
            self.named(format!("{} {source}", operation.name()), counted)
        });
        let translations = tables.translations.iter().map(|(translation, counted)| {
            self.named(translation.map_or("unknown", Translation::name).into(), counted)
        });
        let shared = tables.lines.iter().filter_map(|(address, line)| self.shared(*address, line));
        let lines = tables.lines.iter().map(|(address, line)| self.line(*address, line));
        let pages = tables.pages.iter().map(|(address, page)| PlaceRow {
            page_walks: Some(page.walks),
            ..self.place(*address, &page.counted, page.users.len())
        });
        // The order of cost: lines that other caches had modified, then the most written ones.
        let by_cost = |row: &SharedRow| {
            let RowCounts { modified, stores, count, .. } = row.place.counts;
            (Reverse((modified, stores, count)), row.place.address.clone(), row.place.process)
        };
        let by_count = |row: &PlaceRow| (Reverse(row.counts.count), row.address.clone(), row.process);
        let by_name = |row: &NamedRow| (Reverse(row.counts.count), row.name.clone());
        MemoryReport {
            samples: tables.samples,
            accesses: tables.all.count,
            all: self.counts(&tables.all),
            sources: sorted(sources.collect(), by_name),
            translations: sorted(translations.collect(), by_name),
            shared: first.of("shared", sorted(shared.collect(), by_cost)),
            lines: first.of("lines", sorted(lines.collect(), by_count)),
            pages: first.of("pages", sorted(pages.collect(), by_count)),
            functions: first
                .of("functions", sorted(self.by_code(|address| Some(self.names.function(address))), by_name)),
            source_lines: first
                .of("source_lines", sorted(self.by_code(|address| self.names.line(address)), by_name)),
            rows: first.rows,
        }
    }

    fn counts(&self, counted: &AccessCounts) -> RowCounts {
        let AccessCounts { count, loads, stores, locked, modified, .. } = *counted;
        let percent = count as f64 * 100.0 / (self.tables.all.count as f64).max(1.0);
        RowCounts { count, percent, loads, stores, locked, modified, latency: counted.latency() }
    }

    fn named(&self, name: String, counted: &AccessCounts) -> NamedRow {
        NamedRow { name, counts: self.counts(counted) }
    }

    /// Returns the row of a line, with the name of the data most accessed in it.
    fn line(&self, (program, address): Address, line: &CacheLine) -> PlaceRow {
        let data = self.names.data((program, address + line.most()));
        PlaceRow { data, ..self.place((program, address), &line.counted, line.users().len()) }
    }

    fn place(&self, address: Address, counted: &AccessCounts, threads: usize) -> PlaceRow {
        PlaceRow {
            address: format!("{:#x}", address.1),
            process: self.names.process(address.0),
            data: self.names.data(address),
            threads,
            counts: self.counts(counted),
            page_walks: None,
        }
    }

    fn shared(&self, address: Address, line: &CacheLine) -> Option<SharedRow> {
        let sharing = line.sharing()?;
        let parts = line.parts.iter().map(|((offset, who), part)| {
            let mut code: Vec<_> = part.code.iter().collect();
            code.sort_by_key(|(at, count)| (Reverse(**count), **at));
            let place = |ip: u64, program| (address.0.map(|_| program).filter(|_| ip >> 63 == 0), ip);
            PartRow {
                offset: *offset,
                bytes: part.bytes,
                data: self.names.data((address.0, address.1 + offset)),
                thread: who.map(|who: Who| self.names.who(who)),
                cpus: part.cpus.clone(),
                loads: part.counted.loads,
                stores: part.counted.stores,
                code: code
                    .into_iter()
                    .take(INSTRUCTIONS)
                    .map(|((program, ip), _)| self.names.code(place(*ip, *program)))
                    .collect(),
            }
        });
        let place = self.line(address, line);
        Some(SharedRow { place, sharing, parts: parts.collect() })
    }

    /// Returns the sums of the accesses of instructions with the same name.
    fn by_code(&self, name: impl Fn(Address) -> Option<String>) -> Vec<NamedRow> {
        let mut sums: BTreeMap<String, AccessCounts> = BTreeMap::new();
        for (address, counted) in &self.tables.code {
            if let Some(name) = name(*address) {
                sums.entry(name).or_default().merge(counted);
            }
        }
        sums.into_iter().map(|(name, counted)| self.named(name, &counted)).collect()
    }
}

fn sorted<T, K: Ord>(mut rows: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    rows.sort_by_cached_key(key);
    rows
}

/// Cuts tables to the maximum number of rows.
struct FirstRows {
    limit: usize,
    /// The number of rows before the cut, for each table that was cut.
    rows: BTreeMap<&'static str, usize>,
}

impl FirstRows {
    fn of<T>(&mut self, table: &'static str, mut rows: Vec<T>) -> Vec<T> {
        if rows.len() > self.limit {
            self.rows.insert(table, rows.len());
            rows.truncate(self.limit);
        }
        rows
    }
}

/// The head of the columns of all tables.
const HEAD: &str = "  count  percent    loads   stores   latency: mean  median    most";

impl RowCounts {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { count, percent, loads, stores, latency, .. } = self;
        write!(out, "{count:>7}  {percent:>7.2}  {loads:>7}  {stores:>7}")?;
        match latency {
            Some(Latency { mean, median, most, .. }) => write!(out, "  {mean:>14.1}  {median:>6}  {most:>6}"),
            None => write!(out, "  {:>14}  {:>6}  {:>6}", "-", "-", "-"),
        }
    }
}

impl PlaceRow {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.counts.text(out)?;
        write!(out, "  {:>7}  {:>18}  {}", self.threads, self.address, self.data)?;
        match self.process {
            Some(process) => writeln!(out, ", process {process}"),
            None => writeln!(out),
        }
    }
}

impl PartRow {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { offset, bytes, data, thread, cpus, loads, stores, code } = self;
        let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
        let thread = thread.as_deref().unwrap_or("?");
        let bytes = bytes.map(|bytes| format!(" ({bytes} bytes)")).unwrap_or_default();
        write!(out, "      +{offset:#04x}{bytes}  {loads} loads, {stores} stores by {thread}")?;
        if !cpus.is_empty() {
            write!(out, " on CPU {}", cpus.join(", "))?;
        }
        writeln!(out, ": {data}; at {}", code.join(", "))
    }
}

impl MemoryReport {
    /// Returns true if there are no accesses.
    pub(super) fn is_empty(&self) -> bool {
        self.accesses == 0
    }

    pub(super) fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let RowCounts { loads, stores, locked, latency, .. } = &self.all;
        let Self { samples, accesses, .. } = self;
        writeln!(
            out,
            "{samples} samples, {accesses} of memory accesses: {loads} loads, {stores} stores, {locked} locked"
        )?;
        if let Some(Latency { count, sum, mean, median, most }) = latency {
            writeln!(out, "{count} took {sum} cycles: {mean:.1} each, {median} the median, {most} the most")?;
        }
        if self.is_empty() {
            return Ok(());
        }
        let named = |out: &mut dyn Write, rows: &[NamedRow], key: &'static str, title: &str| {
            self.head(out, title, key, "")?;
            rows.iter().try_for_each(|row| {
                row.counts.text(out)?;
                writeln!(out, "  {}", row.name)
            })
        };
        named(out, &self.sources, "sources", "where the data came from")?;
        named(out, &self.translations, "translations", "how addresses were translated")?;
        if !self.shared.is_empty() {
            self.head(
                out,
                "cache lines that several threads share, one of which writes",
                "shared",
                "  threads",
            )?;
        }
        for row in &self.shared {
            row.place.text(out)?;
            writeln!(
                out,
                "    {}",
                match row.sharing {
                    Sharing::False => "false sharing: no byte that one of them writes is accessed by another",
                    Sharing::True => "they access the same bytes",
                }
            )?;
            row.parts.iter().try_for_each(|part| part.text(out))?;
        }
        for (title, key, rows) in [("cache lines", "lines", &self.lines), ("pages", "pages", &self.pages)] {
            self.head(out, title, key, "  threads")?;
            rows.iter().try_for_each(|row| row.text(out))?;
        }
        named(out, &self.functions, "functions", "functions")?;
        if !self.source_lines.is_empty() {
            named(out, &self.source_lines, "source_lines", "lines of source")?;
        }
        Ok(())
    }

    /// Writes the title and the head of a table.
    fn head(&self, out: &mut dyn Write, title: &str, key: &'static str, more: &str) -> io::Result<()> {
        let of = self.rows.get(key).map(|rows| format!(", the first of {rows}")).unwrap_or_default();
        writeln!(out, "\n{title}{of}:\n{HEAD}{more}")
    }
}
