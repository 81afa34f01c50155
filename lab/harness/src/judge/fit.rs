//! The fit of observed numbers to expected ones.

use statrs::distribution::{ChiSquared, ContinuousCDF};
use std::fmt;
use std::iter::Sum;

/// Pearson's chi-square statistic: the distance of observed numbers from expected ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    /// Number of observed samples.
    pub samples: u64,
    /// The statistic.
    pub statistic: f64,
    /// Degrees of freedom.
    pub freedom: u32,
}

impl Fit {
    /// Compares observed numbers with expected shares, class by class. Classes in which fewer than 5 samples are
    /// expected are merged into one.
    #[must_use]
    pub fn of(classes: &[(u64, f64)]) -> Self {
        const LEAST: f64 = 5.0;
        let samples: u64 = classes.iter().map(|(observed, _)| observed).sum();
        let shares: f64 = classes.iter().map(|(_, share)| share).sum();
        let mut cells: Vec<(f64, f64)> = Vec::new();
        let mut rest = (0.0, 0.0);
        for &(observed, share) in classes {
            let (observed, expected) = (observed as f64, samples as f64 * share / shares);
            if expected < LEAST {
                rest = (rest.0 + observed, rest.1 + expected);
            } else {
                cells.push((observed, expected));
            }
        }
        match cells.last_mut() {
            Some(last) if rest.1 < LEAST => *last = (last.0 + rest.0, last.1 + rest.1),
            _ => cells.push(rest),
        }
        let statistic = cells.iter().filter(|(_, expected)| *expected > 0.0);
        let statistic = statistic.map(|(observed, expected)| (observed - expected).powi(2) / expected).sum();
        Self { samples, statistic, freedom: cells.len() as u32 - 1 }
    }

    /// Returns the probability of a statistic that is at least this large, if the shares are right.
    #[must_use]
    pub fn p_value(&self) -> f64 {
        ChiSquared::new(self.freedom.into()).map_or(1.0, |distribution| distribution.sf(self.statistic))
    }
}

impl Sum for Fit {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            samples: sum.samples + one.samples,
            statistic: sum.statistic + one.statistic,
            freedom: sum.freedom + one.freedom,
        })
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, statistic, freedom } = self;
        write!(f, "samples={samples} chi2={statistic:.1} df={freedom} p={:.4}", self.p_value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistic_is_pearsons() {
        // A die was thrown 60 times. In the table of the distribution the probability is 0.05 at 11.07, for 5 degrees
        // of freedom.
        let die = [5, 8, 9, 8, 10, 20].map(|observed| (observed, 1.0));
        let fit = Fit::of(&die);
        assert_eq!((fit.samples, fit.freedom), (60, 5));
        assert!((fit.statistic - 13.4).abs() < 1e-9, "{fit}");
        assert!((fit.p_value() - 0.01991).abs() < 1e-4, "{fit}");
        let critical = Fit { samples: 0, statistic: 11.0705, freedom: 5 };
        assert!((critical.p_value() - 0.05).abs() < 1e-5);
        assert!(Fit::of(&[(500, 1.0), (100, 1.0)]).p_value() < 1e-6);
    }

    #[test]
    fn rare_classes_are_one() {
        let classes = [(50, 50.0), (42, 42.0), (1, 3.0), (3, 3.0), (4, 2.0)];
        assert_eq!(Fit::of(&classes), Fit { samples: 100, statistic: 0.0, freedom: 2 });
        // A class in which exactly 5 samples are expected is not merged.
        assert_eq!(Fit::of(&[(90, 90.0), (5, 5.0), (5, 5.0)]).freedom, 2);
        // Even merged, the classes are still too rare: they are merged into another one.
        let few = Fit::of(&[(60, 60.0), (38, 38.0), (2, 2.0)]);
        assert_eq!(few, Fit { samples: 100, statistic: 0.0, freedom: 1 });
        assert_eq!((Fit::of(&[(3, 1.0)]).freedom, Fit::of(&[]).p_value()), (0, 1.0));
        let all: Fit = [Fit::of(&classes), Fit::of(&[(60, 1.0), (40, 1.0)])].into_iter().sum();
        assert_eq!(all, Fit { samples: 200, statistic: 4.0, freedom: 3 });
    }
}
