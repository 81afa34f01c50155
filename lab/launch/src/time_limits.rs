//! Limits the time of a machine to as long as it makes progress.
//!
//! A busy host makes a machine slow, which is not the machine's fault. So the limit applies to the time without
//! progress, not to the total time. Progress is a line that the guest writes, or an instruction that the monitor logs.

use std::fmt;
use std::time::{Duration, Instant};

/// Limits of the time of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// The longest time without progress.
    pub no_progress: Duration,
    /// The longest time altogether, for a guest that writes lines or executes instructions forever.
    pub total: Duration,
}

impl Default for TimeLimits {
    /// Returns limits for an idle or a busy host: on an idle one the guest may decode a trace for a few seconds without
    /// writing a line; two minutes leave room for a busy one.
    fn default() -> Self {
        Self { no_progress: Duration::from_secs(120), total: Duration::from_secs(3600) }
    }
}

/// The reason why a machine is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOut {
    /// No progress within this time.
    NoProgress(Duration),
    /// No end within this time.
    NoEnd(Duration),
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProgress(time) => write!(f, "no line and no retired instruction for {time:?}"),
            Self::NoEnd(time) => write!(f, "no end within {time:?}"),
        }
    }
}

/// The last time at which a machine made progress.
#[derive(Clone, Copy, Debug)]
pub struct ProgressWatch {
    limits: TimeLimits,
    started: Instant,
    last_progress: Instant,
    retired: u64,
}

impl ProgressWatch {
    /// Interval of checks of the count of retired instructions while no lines come.
    const CHECK_EVERY: Duration = Duration::from_secs(2);

    /// Starts to watch a machine that starts `now`.
    #[must_use]
    pub const fn new(limits: TimeLimits, now: Instant) -> Self {
        Self { limits, started: now, last_progress: now, retired: 0 }
    }

    /// Notes that the guest has written a line.
    pub const fn note_line(&mut self, now: Instant) {
        self.last_progress = now;
    }

    /// Notes that `count` instructions have retired by now.
    pub const fn note_retired(&mut self, now: Instant, count: u64) {
        if count != self.retired {
            (self.retired, self.last_progress) = (count, now);
        }
    }

    /// Returns the time to wait for a line before the next check.
    ///
    /// # Errors
    /// Returns the reason to give the machine up.
    pub fn wait(&self, now: Instant) -> Result<Duration, TimedOut> {
        let TimeLimits { no_progress, total } = self.limits;
        let left = |since: Instant, limit: Duration| limit.saturating_sub(now.duration_since(since));
        let (to_no_progress, to_end) = (left(self.last_progress, no_progress), left(self.started, total));
        if to_end.is_zero() {
            Err(TimedOut::NoEnd(total))
        } else if to_no_progress.is_zero() {
            Err(TimedOut::NoProgress(no_progress))
        } else {
            Ok(to_no_progress.min(to_end).min(Self::CHECK_EVERY))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event in the machine at one second of its life.
    enum Sign {
        Nothing,
        Line,
        Retired(u64),
    }
    use Sign::{Line, Nothing, Retired};

    /// The second, the event, and the decision: seconds to wait, or the reason to give up.
    type Sight = (u64, Sign, Result<u64, TimedOut>);

    #[test]
    fn two_minutes_without_progress_are_too_long_and_so_is_an_hour() {
        let limits = TimeLimits::default();
        assert_eq!((limits.no_progress.as_secs(), limits.total.as_secs()), (120, 3600));
    }

    #[test]
    fn a_machine_that_gets_on_is_waited_for() {
        let limits = TimeLimits { no_progress: Duration::from_secs(10), total: Duration::from_secs(100) };
        let (no_progress, no_end) = (TimedOut::NoProgress(limits.no_progress), TimedOut::NoEnd(limits.total));
        let rows: [&[Sight]; 6] = [
            &[(0, Nothing, Ok(2)), (9, Nothing, Ok(1)), (10, Nothing, Err(no_progress))],
            &[(9, Line, Ok(2)), (18, Nothing, Ok(1)), (19, Nothing, Err(no_progress))],
            &[(9, Retired(5), Ok(2)), (18, Retired(6), Ok(2)), (27, Nothing, Ok(1))],
            &[(9, Retired(5), Ok(2)), (18, Retired(5), Ok(1)), (19, Retired(5), Err(no_progress))],
            &[
                (9, Retired(5), Ok(2)),
                (18, Line, Ok(2)),
                (27, Retired(5), Ok(1)),
                (28, Nothing, Err(no_progress)),
            ],
            &[(95, Line, Ok(2)), (99, Line, Ok(1)), (100, Line, Err(no_end))],
        ];
        for (row, signs) in rows.iter().enumerate() {
            let start = Instant::now();
            let mut watch = ProgressWatch::new(limits, start);
            for (second, sign, expected) in *signs {
                let now = start + Duration::from_secs(*second);
                match sign {
                    Nothing => {}
                    Line => watch.note_line(now),
                    Retired(count) => watch.note_retired(now, *count),
                }
                assert_eq!(watch.wait(now), expected.map(Duration::from_secs), "row {row} at {second} s");
            }
        }
    }
}
