//! Shows the progress of long work at a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

/// The number of steps between two checks of the clock.
const STRIDE: u32 = 1 << 16;

/// The duration below which work shows no progress.
const PATIENCE: Duration = Duration::from_millis(700);

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// This number of bytes.
    Bytes(u64),
    /// An unknown number of bytes.
    Unknown,
    /// This duration.
    Time(Duration),
}

/// A progress bar on standard error, shown if that is a terminal and the work takes long.
#[derive(Debug)]
pub struct Progress {
    watched: bool,
    what: &'static str,
    size: Size,
    begin: Instant,
    /// Steps since the last check of the clock.
    steps: u32,
    /// The last position that [`reached`](Self::reached) passed to [`at`](Self::at).
    shown: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Shows progress if standard error is a terminal.
    #[must_use]
    pub fn stderr() -> Self {
        Self { watched: io::stderr().is_terminal(), ..Self::hidden() }
    }

    /// Returns a progress that is never shown.
    #[must_use]
    pub fn hidden() -> Self {
        Self {
            watched: false,
            what: "",
            size: Size::Unknown,
            begin: Instant::now(),
            steps: 0,
            shown: 0,
            bar: None,
        }
    }

    /// Begins a piece of work.
    pub fn begin(&mut self, what: &'static str, size: Size) {
        self.end();
        (self.what, self.size, self.begin) = (what, size, Instant::now());
        self.shown = 0;
    }

    /// Sets the position of the work, in bytes, or in milliseconds if its size is a duration. Call it at most some
    /// hundred times a second.
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

    /// Counts one of very many steps. `position` returns the position of the work in bytes; it is called rarely.
    #[inline]
    pub fn step(&mut self, position: impl FnOnce() -> u64) {
        self.steps += 1;
        if self.steps == STRIDE {
            self.steps = 0;
            self.at(position());
        }
    }

    /// Sets the position of the work, in bytes. It may be called often.
    #[inline]
    pub fn reached(&mut self, position: u64) {
        if position.wrapping_sub(self.shown) >= u64::from(STRIDE) {
            self.shown = position;
            self.at(position);
        }
    }

    /// Ends the work.
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
    // The templates above are constants, so they cannot be wrong.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(what)
}

#[cfg(test)]
impl Progress {
    /// Shows progress in this bar from the beginning.
    pub(super) fn in_bar(bar: &ProgressBar) -> Self {
        Self { watched: true, bar: Some(bar.clone()), ..Self::hidden() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_of_work_that_is_done_is_taken_away_also_when_other_work_begins() {
        type EndOfWork = fn(&mut Progress);
        for end in
            [(|progress| progress.end()) as EndOfWork, |progress| progress.begin("other", Size::Unknown)]
        {
            let shown = ProgressBar::hidden();
            let mut progress = Progress { bar: Some(shown.clone()), ..Progress::hidden() };
            end(&mut progress);
            assert!(progress.bar.is_none() && shown.is_finished());
        }
    }

    #[test]
    fn a_bar_is_shown_of_work_that_is_watched_and_takes_long() {
        for (watched, ago, shown) in [(true, 0, false), (true, 1, true), (false, 1, false)] {
            let mut progress = Progress { watched, ..Progress::hidden() };
            progress.begin("working", Size::Bytes(100));
            progress.begin -= Duration::from_secs(ago);
            progress.at(50);
            let found = progress.bar.as_ref().map(|bar| (bar.position(), bar.length(), bar.message()));
            assert_eq!(found, shown.then(|| (50, Some(100), "working".into())), "{watched} {ago}");
        }
        assert!(!Progress::hidden().watched);
    }

    #[test]
    fn the_bar_goes_on_only_now_and_then_and_anew_with_other_work() {
        let bar = ProgressBar::hidden();
        let mut progress = Progress::in_bar(&bar);
        let stride = u64::from(STRIDE);
        for (reached, position) in
            [(stride - 1, 0), (stride, stride), (2 * stride - 1, stride), (2 * stride, 2 * stride)]
        {
            progress.reached(reached);
            assert_eq!(bar.position(), position);
        }
        progress.begin("other", Size::Unknown);
        let bar = ProgressBar::hidden();
        progress.bar = Some(bar.clone());
        progress.reached(stride - 1);
        assert_eq!(bar.position(), 0);
        progress.reached(stride);
        assert_eq!(bar.position(), stride);
        // Steps are evenly spaced; the first one comes one step after the start.
        for (steps, position) in [(stride - 1, stride), (1, 7), (stride - 1, 7), (1, 8)] {
            (0..steps).for_each(|_| progress.step(|| if steps == 1 { position } else { 0 }));
            assert_eq!(bar.position(), position);
        }
    }
}
