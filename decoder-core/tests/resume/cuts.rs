//! The places where a trace is cut.

/// The places where a trace is cut.
#[derive(Clone, Debug)]
pub(crate) enum Cuts {
    /// Cuts at these offsets, in order.
    At(Vec<usize>),
    /// Slices of this many bytes.
    Each(usize),
}

impl Cuts {
    /// Passes on the slices of `trace`, all in one buffer, which is overwritten after each slice.
    pub(crate) fn slices(&self, trace: &[u8], mut take: impl FnMut(&[u8])) {
        let ends: Vec<usize> = match self {
            Self::At(cuts) => cuts.iter().copied().chain([trace.len()]).collect(),
            Self::Each(size) => (1..)
                .map(|count| count * size)
                .take_while(|end| *end < trace.len())
                .chain([trace.len()])
                .collect(),
        };
        let mut buffer = vec![0; trace.len()];
        let mut start = 0;
        for end in ends {
            let slice = &mut buffer[..end - start];
            slice.copy_from_slice(&trace[start..end]);
            take(slice);
            slice.fill(0xa5);
            start = end;
        }
    }
}
