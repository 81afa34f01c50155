//! Progress of long work, for whoever watches.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

/// How many steps lie between two looks at the clock.
const STRIDE: u32 = 1 << 16;

/// Work that is shorter shows nothing.
const PATIENCE: Duration = Duration::from_millis(700);

/// How much there is to do.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// Bytes, and no one knows how many.
    Unknown,
    /// It takes so long.
    Time(Duration),
}

/// A bar on standard error, if that is a terminal and the work takes long.
#[derive(Debug)]
pub struct Progress {
    watched: bool,
    what: &'static str,
    size: Size,
    begin: Instant,
    /// Steps since the clock was looked at.
    steps: u32,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// For whoever sits at the terminal; nobody may.
    #[must_use]
    pub fn stderr() -> Self {
        Self { watched: io::stderr().is_terminal(), ..Self::hidden() }
    }

    /// For nobody.
    #[must_use]
    pub fn hidden() -> Self {
        Self { watched: false, what: "", size: Size::Unknown, begin: Instant::now(), steps: 0, bar: None }
    }

    /// Work begins.
    pub fn begin(&mut self, what: &'static str, size: Size) {
        self.end();
        (self.what, self.size, self.begin) = (what, size, Instant::now());
    }

    /// Work has come so far, in bytes, or in milliseconds of its time. To be called some hundred times a second at most.
    pub fn at(&mut self, position: u64) {
        if !self.watched {
            return;
        }
        if self.bar.is_none() && self.begin.elapsed() > PATIENCE {
            self.bar = Some(bar(self.what, self.size));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// One of very many steps is made; after some of them it is asked how far, in bytes, work has come.
    #[inline]
    pub fn step(&mut self, position: impl FnOnce() -> u64) {
        self.steps += 1;
        if self.steps == STRIDE {
            self.steps = 0;
            self.at(position());
        }
    }

    /// Work is done.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str, size: Size) -> ProgressBar {
    let (bar, template) = match size {
        Size::Bytes(size) => {
            (ProgressBar::new(size), "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
        }
        Size::Unknown => (ProgressBar::new_spinner(), "{msg} {spinner} {bytes} {bytes_per_sec}"),
        Size::Time(time) => {
            (ProgressBar::new(time.as_millis() as u64), "{msg} {wide_bar} {elapsed}, {eta} left")
        }
    };
    // The template is one of those above.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(what)
}

#[cfg(test)]
impl Progress {
    /// Shows what is done in this bar, from the beginning.
    pub(super) fn in_bar(bar: &ProgressBar) -> Self {
        Self { watched: true, bar: Some(bar.clone()), ..Self::hidden() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_of_work_that_is_done_is_taken_away_also_when_other_work_begins() {
        type Way = fn(&mut Progress);
        for way in [(|progress| progress.end()) as Way, |progress| progress.begin("other", Size::Unknown)] {
            let shown = ProgressBar::hidden();
            let mut progress = Progress { bar: Some(shown.clone()), ..Progress::hidden() };
            way(&mut progress);
            assert!(progress.bar.is_none() && shown.is_finished());
        }
    }
}
