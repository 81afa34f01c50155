//! Progress of long work, for whoever watches.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

/// Work that is shorter shows nothing.
const PATIENCE: Duration = Duration::from_millis(700);

/// A bar on standard error, if that is a terminal and the work takes long.
#[derive(Debug)]
pub struct Progress {
    watched: bool,
    what: &'static str,
    size: Option<u64>,
    begin: Instant,
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
        Self { watched: false, what: "", size: None, begin: Instant::now(), bar: None }
    }

    /// Work begins, on so many bytes if that is known.
    pub fn begin(&mut self, what: &'static str, size: Option<u64>) {
        self.end();
        (self.what, self.size, self.begin) = (what, size, Instant::now());
    }

    /// Work has come so far, in bytes. To be called some hundred times a second at most.
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

    /// Work is done.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str, size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => {
            (ProgressBar::new(size), "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
        }
        None => (ProgressBar::new_spinner(), "{msg} {spinner} {bytes} {bytes_per_sec}"),
    };
    // The template is one of the two above.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(what)
}
