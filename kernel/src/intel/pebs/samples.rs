//! A sink that turns the bytes of a PEBS buffer into records.

use crate::drain::Sink;
use crate::loss::Gap;
use pugmark_decoder_core::Error;
use pugmark_decoder_core::pebs::{Format, PebsRecord};

/// A receiver of the bytes of a PEBS buffer that passes on their records, in the PMI handler or elsewhere.
///
/// ```
/// use pugmark_decoder_core::pebs::{Format, PebsRecord};
/// use pugmark_kernel::drain::Sink;
/// use pugmark_kernel::intel::pebs::{Item, Samples};
///
/// let mut buffer = [0; 400];
/// for n in 0..2 {
///     let record = PebsRecord { eventing_ip: Some(0x1000 + n), tsc: Some(n), ..PebsRecord::default() };
///     record.emit(Format::Time, &mut buffer[200 * n as usize..]).unwrap();
/// }
/// let mut seen = vec![];
/// let mut samples = Samples::new(Format::Time, |item: Item<'_>| {
///     seen.extend(match item {
///         Item::Record(record) => record.eventing_ip,
///         Item::Gap(_) | Item::Error(_) => None,
///     });
///     true
/// });
/// assert_eq!(samples.bytes(&buffer), 400);
/// assert_eq!(seen, [0x1000, 0x1001]);
/// ```
#[derive(Clone, Debug)]
pub struct Samples<F> {
    format: Format,
    each: F,
}

/// An element of a PEBS buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A sample.
    Record(&'a PebsRecord<'a>),
    /// Samples are missing here.
    Gap(Gap),
    /// The bytes are not a record where one should be; the bytes after them are skipped. The offset is counted from the
    /// first byte of the drained stretch.
    Error(Error),
}

impl<F: FnMut(Item<'_>) -> bool> Samples<F> {
    /// Creates a sink for records of this format: [`PebsCapabilities::format`](super::PebsCapabilities::format). `each`
    /// returns whether it took the item; an item that it does not take is offered again.
    pub const fn new(format: Format, each: F) -> Self {
        Self { format, each }
    }
}

impl<F: FnMut(Item<'_>) -> bool> Sink for Samples<F> {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match PebsRecord::parse(self.format, rest) {
                Ok((record, size)) => {
                    if !(self.each)(Item::Record(&record)) {
                        break;
                    }
                    done += size;
                }
                Err(kind) => {
                    if !(self.each)(Item::Error(Error { offset: done as u64, kind })) {
                        break;
                    }
                    return bytes.len();
                }
            }
        }
        done
    }

    fn gap(&mut self, gap: Gap) -> bool {
        (self.each)(Item::Gap(gap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::ErrorKind;

    /// Returns three adaptive records that have only the basic group.
    fn buffer() -> [u8; 96] {
        let mut buffer = [0; 96];
        for (n, bytes) in buffer.chunks_mut(32).enumerate() {
            let record = PebsRecord { eventing_ip: Some(n as u64), ..PebsRecord::default() };
            record.emit(Format::Adaptive, bytes).unwrap();
        }
        buffer
    }

    /// Returns the items that the sink receives if it takes `room` of them.
    fn drain(bytes: &[u8], mut room: usize) -> (usize, Vec<Result<u64, ErrorKind>>) {
        let mut seen = vec![];
        let mut samples = Samples::new(Format::Adaptive, |item: Item<'_>| {
            let Some(left) = room.checked_sub(1) else { return false };
            room = left;
            seen.push(match item {
                Item::Record(record) => Ok(record.eventing_ip.unwrap()),
                Item::Error(error) => Err(error.kind),
                Item::Gap(_) => unreachable!(),
            });
            true
        });
        (samples.bytes(bytes), seen)
    }

    #[test]
    fn records_that_are_not_taken_stay() {
        for room in 0..=4 {
            let taken = room.min(3);
            assert_eq!(drain(&buffer(), room), (32 * taken, (0..taken as u64).map(Ok).collect()));
        }
    }

    #[test]
    fn what_is_no_record_is_an_error_and_ends_the_bytes() {
        let mut bytes = buffer();
        bytes[32] = 0x80;
        let error = ErrorKind::UnknownGroups { format: 0x80 };
        assert_eq!(drain(&bytes, 9), (96, vec![Ok(0), Err(error)]));
        assert_eq!(drain(&bytes, 1), (32, vec![Ok(0)]));
        assert_eq!(drain(&bytes, 0), (0, vec![]));
    }
}
