//! The sample at a record's end.

use super::Config;

/// What `perf_event_attr.sample_type` put behind a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// `PERF_SAMPLE_TID`: process and thread.
    pub tid: Option<(u32, u32)>,
    /// `PERF_SAMPLE_TIME`, in perf's clock.
    pub time: Option<u64>,
    /// `PERF_SAMPLE_ID`.
    pub id: Option<u64>,
    /// `PERF_SAMPLE_STREAM_ID`.
    pub stream_id: Option<u64>,
    /// `PERF_SAMPLE_CPU`.
    pub cpu: Option<u32>,
    /// `PERF_SAMPLE_IDENTIFIER`.
    pub identifier: Option<u64>,
}

const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const STREAM_ID: u64 = 1 << 9;
const IDENTIFIER: u64 = 1 << 16;

impl Sample {
    /// Splits the sample from what a record has behind its header; `None` where it is too short.
    pub fn split<'a>(body: &'a [u8], config: &Config) -> Option<(&'a [u8], Self)> {
        let sample_type = sample_type(body, config);
        let has = |bit| sample_type & bit != 0;
        let size = 8 * (sample_type & (TID | TIME | ID | CPU | STREAM_ID | IDENTIFIER)).count_ones() as usize;
        let (body, sample) = body.split_at(body.len().checked_sub(size)?);
        let mut words = sample.chunks_exact(8).map(word);
        let mut next = |bit| has(bit).then(|| words.next()).flatten();
        // The upper half of the CPU's word is reserved.
        let half = |word: u64| word as u32;
        let sample = Self {
            tid: next(TID).map(|tid| (half(tid), half(tid >> 32))),
            time: next(TIME),
            id: next(ID),
            stream_id: next(STREAM_ID),
            cpu: next(CPU).map(half),
            identifier: next(IDENTIFIER),
        };
        Some((body, sample))
    }
}

/// With sample types by identifier the record's last word is the identifier.
fn sample_type(body: &[u8], config: &Config) -> u64 {
    let identifier = body.last_chunk().map(|word| u64::from_le_bytes(*word));
    let by_identifier = config.sample_configs.iter().find(|(id, _)| Some(*id) == identifier);
    by_identifier.map_or(config.sample_type, |(_, sample_type)| *sample_type)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_what_the_sample_type_says() {
        let body: Vec<u8> = (1..=6_u64).flat_map(|word| (word | word << 36).to_le_bytes()).collect();
        let split = |sample_type| {
            Sample::split(&body, &Config { sample_type, ..Config::default() })
                .map(|(rest, sample)| (rest.len(), sample))
        };
        let word = |word: u64| word | word << 36;
        assert_eq!(split(0), Some((48, Sample::default())));
        let all = Sample {
            tid: Some((1, 16)),
            time: Some(word(2)),
            id: Some(word(3)),
            stream_id: Some(word(4)),
            cpu: Some(5),
            identifier: Some(word(6)),
        };
        assert_eq!(split(0x102c6), Some((0, all)));
        assert_eq!(split(0x4), Some((40, Sample { time: Some(word(6)), ..Sample::default() })));
        let short = Config { sample_type: 0x102c6, ..Config::default() };
        assert_eq!(Sample::split(&body[8..], &short), None);
    }

    #[test]
    fn the_identifier_chooses_the_sample_type() {
        let body: Vec<u8> = [7, 9_u64].iter().flat_map(|word| word.to_le_bytes()).collect();
        let config = Config { sample_configs: vec![(8, 0), (9, TIME | IDENTIFIER)], ..Config::default() };
        let sample = Sample { time: Some(7), identifier: Some(9), ..Sample::default() };
        assert_eq!(Sample::split(&body, &config), Some((&[][..], sample)));
    }
}
