//! Lets decoders take turns and measures each.

use super::clock::thread_time;
use pugmark_harness::libipt_speed::TimedDecode;
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// The minimum duration of a turn: reading the clock more often would distort the measurement.
const TURN_TIME: Duration = Duration::from_millis(5);

/// The minimum number of turns of each decoder.
const LEAST_TURNS: usize = 5;

/// The name of a decoder, and a run; `None` if it cannot decode this trace.
pub(super) struct Contender<'a> {
    pub(super) name: &'static str,
    pub(super) run: Box<dyn FnMut() -> Option<TimedDecode> + 'a>,
}

/// The speed of a decoder.
#[derive(Clone, Debug)]
pub(super) struct Speed {
    pub(super) name: &'static str,
    pub(super) decoded: TimedDecode,
    /// The time of one run in the fastest turn.
    pub(super) seconds_min: f64,
    pub(super) seconds_median: f64,
    /// The quartiles of its time relative to the first decoder's in the same round.
    pub(super) ratios: [f64; 3],
}

impl Speed {
    /// Returns its time relative to that of `first`, both in their fastest turns.
    pub(super) fn ratio(&self, first: &Self) -> f64 {
        self.seconds_min / first.seconds_min
    }
}

/// Measures all decoders in turn, for about `least` each. Those that cannot decode this trace are left out.
pub(super) fn race(mut contenders: Vec<Contender<'_>>, least: Duration) -> Vec<Speed> {
    contenders.retain_mut(|contender| (contender.run)().is_some());
    let mut turns: Vec<Vec<f64>> = contenders.iter().map(|_| vec![]).collect();
    let mut decoded: Vec<TimedDecode> = contenders.iter().map(|_| TimedDecode::default()).collect();
    let begin = Instant::now();
    while turns.first().is_some_and(|turns| turns.len() < LEAST_TURNS)
        || begin.elapsed() < least * contenders.len() as u32
    {
        for ((contender, turns), decoded) in contenders.iter_mut().zip(&mut turns).zip(&mut decoded) {
            let (start, mut runs, mut took) = (thread_time(), 0, Duration::ZERO);
            while took < TURN_TIME {
                *decoded = black_box((contender.run)()).unwrap_or_default();
                (runs, took) = (runs + 1, thread_time() - start);
            }
            turns.push(took.as_secs_f64() / f64::from(runs));
        }
        if contenders.is_empty() {
            break;
        }
    }
    let ratios = |own: &[f64]| quartiles(own.iter().zip(&turns[0]).map(|(own, first)| own / first).collect());
    let speed = |((contender, own), decoded): ((&Contender<'_>, &Vec<f64>), &TimedDecode)| Speed {
        name: contender.name,
        decoded: *decoded,
        seconds_min: own.iter().copied().fold(f64::MAX, f64::min),
        seconds_median: quartiles(own.clone())[1],
        ratios: ratios(own),
    };
    contenders.iter().zip(&turns).zip(&decoded).map(speed).collect()
}

fn quartiles(mut numbers: Vec<f64>) -> [f64; 3] {
    numbers.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| numbers.get(numbers.len() * quarter / 4).copied().unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoder_that_works_twice_as_long_has_about_the_ratio_two_and_one_that_declines_is_left_out() {
        let work = |name, rounds: u64| Contender {
            name,
            run: Box::new(move || {
                let mut decoded = TimedDecode::default();
                (0..rounds).for_each(|number| decoded.add(black_box(number)));
                Some(decoded)
            }),
        };
        let declines = Contender { name: "declines", run: Box::new(|| None) };
        let contenders = vec![work("one", 200_000), declines, work("two", 400_000)];
        let speeds = race(contenders, Duration::ZERO);
        assert!(speeds.iter().map(|speed| speed.name).eq(["one", "two"]), "{speeds:?}");
        assert_eq!(speeds[1].decoded.count, 400_000);
        assert_eq!((speeds[0].ratios, speeds[0].ratio(&speeds[0])), ([1.0; 3], 1.0));
        let ratio = speeds[1].ratio(&speeds[0]);
        assert!((1.2..4.0).contains(&ratio), "{speeds:?}");
        assert!(speeds.iter().all(|speed| speed.seconds_min <= speed.seconds_median), "{speeds:?}");
    }

    #[test]
    fn quartiles_are_those_of_the_sorted_numbers() {
        assert_eq!(quartiles(vec![5.0, 1.0, 4.0, 2.0, 3.0]), [2.0, 3.0, 4.0]);
    }
}
