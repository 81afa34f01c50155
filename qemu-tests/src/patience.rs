//! Decides how long a machine may take: as long as it makes progress.
//!
//! A busy host makes a machine slow, and that is not the machine's fault. So the limit is not how long a machine has
//! run but how long it has shown no progress. Progress is a line that the guest writes, or an instruction that the
//! monitor logs.

use std::fmt;
use std::time::{Duration, Instant};

/// How long to wait for a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The longest time without progress.
    pub quiet: Duration,
    /// The longest time altogether, for a guest that writes lines or executes instructions forever.
    pub whole: Duration,
}

impl Default for Patience {
    /// On an idle host the guest may decode a trace for a few seconds without writing a line; two minutes leave room
    /// for a busy host.
    fn default() -> Self {
        Self { quiet: Duration::from_secs(120), whole: Duration::from_secs(3600) }
    }
}

/// Why a machine is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// No progress within this time.
    Quiet(Duration),
    /// No end within this time.
    Endless(Duration),
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quiet(time) => write!(f, "no line and no retired instruction for {time:?}"),
            Self::Endless(time) => write!(f, "no end within {time:?}"),
        }
    }
}

/// When a machine was last seen to make progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    patience: Patience,
    started: Instant,
    progressed: Instant,
    retired: u64,
}

impl Watch {
    /// How often to check the count of retired instructions while no lines come.
    const LOOK: Duration = Duration::from_secs(2);

    /// Begins to watch a machine that starts `now`.
    pub(crate) const fn new(patience: Patience, now: Instant) -> Self {
        Self { patience, started: now, progressed: now, retired: 0 }
    }

    /// Notes that the guest has written a line.
    pub(crate) const fn line(&mut self, now: Instant) {
        self.progressed = now;
    }

    /// Notes that `count` instructions have retired by now.
    pub(crate) const fn retired(&mut self, now: Instant, count: u64) {
        if count != self.retired {
            (self.retired, self.progressed) = (count, now);
        }
    }

    /// Returns how long to wait for a line before the next check.
    ///
    /// # Errors
    /// The reason to give the machine up.
    pub(crate) fn wait(&self, now: Instant) -> Result<Duration, GivenUp> {
        let Patience { quiet, whole } = self.patience;
        let left = |since: Instant, limit: Duration| limit.saturating_sub(now.duration_since(since));
        let (to_quiet, to_end) = (left(self.progressed, quiet), left(self.started, whole));
        if to_end.is_zero() {
            Err(GivenUp::Endless(whole))
        } else if to_quiet.is_zero() {
            Err(GivenUp::Quiet(quiet))
        } else {
            Ok(to_quiet.min(to_end).min(Self::LOOK))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to the machine at one second of its life.
    enum Sign {
        Nothing,
        Line,
        Retired(u64),
    }
    use Sign::{Line, Nothing, Retired};

    /// The second, what is seen then, and what is decided: seconds to wait, or why to give up.
    type Sight = (u64, Sign, Result<u64, GivenUp>);

    #[test]
    fn two_minutes_without_progress_are_too_long_and_so_is_an_hour() {
        let patience = Patience::default();
        assert_eq!((patience.quiet.as_secs(), patience.whole.as_secs()), (120, 3600));
    }

    #[test]
    fn a_machine_that_gets_on_is_waited_for() {
        let patience = Patience { quiet: Duration::from_secs(10), whole: Duration::from_secs(100) };
        let (quiet, endless) = (GivenUp::Quiet(patience.quiet), GivenUp::Endless(patience.whole));
        let rows: [&[Sight]; 6] = [
            &[(0, Nothing, Ok(2)), (9, Nothing, Ok(1)), (10, Nothing, Err(quiet))],
            &[(9, Line, Ok(2)), (18, Nothing, Ok(1)), (19, Nothing, Err(quiet))],
            &[(9, Retired(5), Ok(2)), (18, Retired(6), Ok(2)), (27, Nothing, Ok(1))],
            &[(9, Retired(5), Ok(2)), (18, Retired(5), Ok(1)), (19, Retired(5), Err(quiet))],
            &[(9, Retired(5), Ok(2)), (18, Line, Ok(2)), (27, Retired(5), Ok(1)), (28, Nothing, Err(quiet))],
            &[(95, Line, Ok(2)), (99, Line, Ok(1)), (100, Line, Err(endless))],
        ];
        for (row, signs) in rows.iter().enumerate() {
            let start = Instant::now();
            let mut watch = Watch::new(patience, start);
            for (second, sign, expected) in *signs {
                let now = start + Duration::from_secs(*second);
                match sign {
                    Nothing => {}
                    Line => watch.line(now),
                    Retired(count) => watch.retired(now, *count),
                }
                assert_eq!(watch.wait(now), expected.map(Duration::from_secs), "row {row} at {second} s");
            }
        }
    }
}
