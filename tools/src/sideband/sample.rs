//! Reads the sample at a record's end.

use super::{RecordProblem, StreamConfig};

/// The values that `perf_event_attr.sample_type` adds at the end of a record.
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
    /// Reads the sample after a record's fields. Also returns the TSC of the record's time, 0 if it has no time.
    ///
    /// # Errors
    /// [`RecordProblem::Size`] if the sample is not the configured one; [`RecordProblem::Configuration`] if a sample
    /// type lacks the identifier that selects it, or if the record's time cannot be converted.
    pub fn parse(bytes: &[u8], config: &StreamConfig) -> Result<(Self, u64), RecordProblem> {
        let sample_type = sample_type(bytes, config)?;
        let mut rest = bytes;
        let mut next = |bit| match sample_type & bit {
            0 => Ok(None),
            _ => {
                let (word, after) = rest.split_first_chunk().ok_or(RecordProblem::Size)?;
                rest = after;
                Ok(Some(u64::from_le_bytes(*word)))
            }
        };
        // The upper half of the CPU's word is reserved.
        let half = |word: u64| word as u32;
        let tid = next(TID)?.map(|tid| (half(tid), half(tid >> 32)));
        let time = next(TIME)?;
        let tsc = time.map_or(Some(0), |time| config.tsc_of(time)).ok_or(RecordProblem::Configuration)?;
        let sample = Self {
            tid,
            time,
            id: next(ID)?,
            stream_id: next(STREAM_ID)?,
            cpu: next(CPU)?.map(half),
            identifier: next(IDENTIFIER)?,
        };
        if rest.is_empty() { Ok((sample, tsc)) } else { Err(RecordProblem::Size) }
    }
}

/// Returns the sample type. If identifiers select sample types, the record's last word is the identifier.
fn sample_type(bytes: &[u8], config: &StreamConfig) -> Result<u64, RecordProblem> {
    let identifier = bytes.last_chunk().map(|word| u64::from_le_bytes(*word));
    match config.sample_configs.iter().find(|(id, _)| Some(*id) == identifier) {
        None => Ok(config.sample_type),
        Some((_, sample_type)) if sample_type & IDENTIFIER != 0 => Ok(*sample_type),
        Some(_) => Err(RecordProblem::Configuration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_sample_type_says() {
        let bytes: Vec<u8> = (1..=6_u64).flat_map(|word| (word | word << 36).to_le_bytes()).collect();
        let parse = |bytes, sample_type| {
            Sample::parse(bytes, &StreamConfig { sample_type, ..StreamConfig::default() })
        };
        let word = |word: u64| word | word << 36;
        assert_eq!(parse(&[], 0), Ok((Sample::default(), 0)));
        let all = Sample {
            tid: Some((1, 16)),
            time: Some(word(2)),
            id: Some(word(3)),
            stream_id: Some(word(4)),
            cpu: Some(5),
            identifier: Some(word(6)),
        };
        assert_eq!(parse(&bytes, 0x102c6), Ok((all, word(2))));
        assert_eq!(
            parse(&bytes[40..], 4),
            Ok((Sample { time: Some(word(6)), ..Sample::default() }, word(6)))
        );
        for len in 0..48 {
            assert_eq!(parse(&bytes[..len], 0x102c6), Err(RecordProblem::Size), "{len}");
        }
        assert_eq!(parse(&bytes, 0x2c6), Err(RecordProblem::Size));
        let no_time = StreamConfig { sample_type: TIME, time_mult: 0, ..StreamConfig::default() };
        assert_eq!(Sample::parse(&bytes[..8], &no_time), Err(RecordProblem::Configuration));
    }

    #[test]
    fn the_identifier_chooses_the_sample_type() {
        let bytes: Vec<u8> = [7, 9_u64].iter().flat_map(|word| word.to_le_bytes()).collect();
        let with = |id, sample_type| StreamConfig {
            sample_type: TIME | ID,
            sample_configs: vec![(8, 0), (id, sample_type), (id, 0)],
            ..StreamConfig::default()
        };
        let sample = Sample { time: Some(7), identifier: Some(9), ..Sample::default() };
        assert_eq!(Sample::parse(&bytes, &with(9, TIME | IDENTIFIER)), Ok((sample, 7)));
        assert_eq!(Sample::parse(&bytes, &with(9, TIME)), Err(RecordProblem::Configuration));
        let sample = Sample { time: Some(7), id: Some(9), ..Sample::default() };
        assert_eq!(Sample::parse(&bytes, &with(10, TIME | IDENTIFIER)), Ok((sample, 7)));
    }
}
