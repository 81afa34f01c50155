//! Rewrites a file so that it contains all its mutants.
//!
//! A place becomes `(match at(7) { 0 => { the original } 1 => { a mutant } _ => { another } })`. The original may
//! contain further places, but a mutant does not, so the text grows with the number of mutants and not with the number
//! of their combinations.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;

use super::sites::{Site, SiteForm};

/// The function that returns the chosen mutant.
const AT: &str = "::pugmark_mutant_choice::at";

/// A file with all its mutants.
pub(super) struct Rewritten {
    pub(super) text: String,
    /// Each place in the new text: its number in the file, and its range in bytes.
    pub(super) places: Vec<(usize, Range<usize>)>,
    /// Each mutant in the new text: the place's number in the file, the mutant's number in the place, and its range in
    /// bytes.
    pub(super) mutants: Vec<(usize, usize, Range<usize>)>,
}

/// Rewrites a file. The places are those of [`super::sites::find`]; the first has the number `first`. The mutants in
/// `dropped` (place in the file, mutant) are left out.
pub(super) fn rewrite(
    text: &str,
    sites: &[Site],
    first: usize,
    dropped: &BTreeSet<(usize, usize)>,
) -> Rewritten {
    let rewritten =
        Rewritten { text: String::with_capacity(3 * text.len()), places: vec![], mutants: vec![] };
    let mut writer = InstrumentedText { source: text, sites, first, dropped, next: 0, rewritten };
    writer.copy(0, text.len());
    writer.rewritten
}

struct InstrumentedText<'a> {
    source: &'a str,
    sites: &'a [Site],
    first: usize,
    dropped: &'a BTreeSet<(usize, usize)>,
    /// The next place to be written.
    next: usize,
    rewritten: Rewritten,
}

impl InstrumentedText<'_> {
    /// Copies these bytes, including the places in them.
    fn copy(&mut self, mut from: usize, to: usize) {
        while let Some(site) = self.sites.get(self.next) {
            if site.range.start >= to {
                break;
            }
            let index = self.next;
            self.next += 1;
            self.rewritten.text.push_str(&self.source[from..site.range.start]);
            self.site(index, site);
            from = site.range.end;
        }
        self.rewritten.text.push_str(&self.source[from..to]);
    }

    fn site(&mut self, index: usize, site: &Site) {
        let kept: Vec<_> =
            (0..site.mutants.len()).filter(|mutant| !self.dropped.contains(&(index, *mutant))).collect();
        let Some((last, others)) = kept.split_last() else {
            self.copy(site.range.start, site.range.end);
            return;
        };
        let (start, place) = (self.rewritten.text.len(), self.first + index);
        if site.form == SiteForm::Arm {
            self.put(format_args!(" if {AT}({place}) == 0"));
            let range = start..self.rewritten.text.len();
            self.rewritten.mutants.push((index, *last, range.clone()));
            self.rewritten.places.push((index, range));
            return;
        }
        let (open, close) = if site.form == SiteForm::Expression { ("(", ")") } else { (" ", " ") };
        self.put(format_args!("{open}match {AT}({place}) {{ 0 => {{"));
        self.copy(site.range.start, site.range.end);
        self.put(format_args!("}}"));
        for mutant in others {
            self.mutant(index, *mutant, &(mutant + 1).to_string(), &site.mutants[*mutant].code);
        }
        self.mutant(index, *last, "_", &site.mutants[*last].code);
        self.put(format_args!(" }}{close}"));
        self.rewritten.places.push((index, start..self.rewritten.text.len()));
    }

    fn mutant(&mut self, index: usize, mutant: usize, pattern: &str, code: &str) {
        self.put(format_args!(" "));
        let start = self.rewritten.text.len();
        self.put(format_args!("{pattern} => {{{code}}}"));
        self.rewritten.mutants.push((index, mutant, start..self.rewritten.text.len()));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string never fails.
        let _ = self.rewritten.text.write_fmt(text);
    }
}
