//! A profile for compilers: how often each line of each function was executed, as text that clang's
//! `-fprofile-sample-use` and rustc's `-Zprofile-sample-use` read.
//!
//! Source: LLVM, ProfileData/SampleProfReader.h, "Text format"; Clang Compiler User's Manual, "Sample Profile Text
//! Format".

use super::{blocks::FileBlocks, executed::Executed};
use crate::symbols::ProfilePlace;
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    io::{self, Write},
    rc::Rc,
};

/// A line of a function, counted from its first one, and the part of the line.
type Line = (u16, u32);

/// The counts of a line.
#[derive(Debug, Default, PartialEq, Eq)]
struct SampledLine {
    count: u64,
    /// The functions that it has called, or jumped to as its last act.
    targets: BTreeMap<Rc<str>, u64>,
}

/// The counts of a function, or of an instance of it that was inlined.
#[derive(Debug, Default, PartialEq, Eq)]
struct FunctionCounts {
    lines: BTreeMap<Line, SampledLine>,
    inlined: BTreeMap<(Line, Rc<str>), Self>,
}

/// The counts of a file's functions, each with how often it was entered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CompilerProfile {
    functions: BTreeMap<Rc<str>, (u64, FunctionCounts)>,
    /// The number of executed instructions that have no line of source.
    pub(super) left_out: u64,
}

impl CompilerProfile {
    /// Counts the lines of a file, whose code is at these places. Lines that were not executed count as such in the
    /// functions that were; of the others there is nothing, as if the file did not have them.
    pub(super) fn of(
        executed: &Executed,
        blocks: &FileBlocks,
        places: impl Fn(u64) -> Vec<ProfilePlace>,
    ) -> Self {
        let mut profile = Self { left_out: executed.insns.values().sum(), ..Self::default() };
        for piece in &blocks.pieces {
            let own = executed.insns.range(piece.addresses.clone());
            let mut insns: BTreeMap<u64, u64> = own.map(|(ip, count)| (*ip, *count)).collect();
            if insns.is_empty() {
                continue;
            }
            blocks.insns(&piece.addresses).for_each(|ip| _ = insns.entry(ip).or_default());
            for (ip, count) in insns {
                let places = places(ip);
                let Some(line) = profile.line(&places) else { continue };
                // The copies that the compiler has made of a line, such as by unrolling, share its executions.
                line.count = line.count.max(count.saturating_mul(copies(places[0].discriminator)));
                profile.left_out = profile.left_out.saturating_sub(count);
            }
        }
        profile.add_calls(executed, blocks, places);
        profile
    }

    /// Counts the entries of each function, and the functions that each line has called.
    fn add_calls(
        &mut self,
        executed: &Executed,
        blocks: &FileBlocks,
        places: impl Fn(u64) -> Vec<ProfilePlace>,
    ) {
        let mut begins = BTreeMap::new();
        for begin in blocks.pieces.iter().map(|piece| piece.addresses.start) {
            let executed = executed.insns.get(&begin).copied();
            let function = executed.and_then(|_| Some(places(begin).pop()?.function));
            if let (Some(count), Some(function)) = (executed, function) {
                self.functions.entry(function.clone()).or_default().0 += count;
                begins.insert(begin, function);
            }
        }
        for ((from, to), count) in &executed.edges {
            let Some(called) = begins.get(to) else { continue };
            let from_places = places(*from);
            let is_own = from_places.last().is_some_and(|place| place.function == *called);
            if is_own && !executed.calls.contains(from) {
                // A loop to the function's first instruction, or a jump to a part that was moved elsewhere.
                let entered = &mut self.functions.entry(called.clone()).or_default().0;
                *entered = entered.saturating_sub(*count);
            } else if let Some(line) = self.line(&from_places) {
                *line.targets.entry(called.clone()).or_default() += count;
            }
        }
    }

    /// Returns the counts of a line; `None` if the code has no line.
    fn line(&mut self, places: &[ProfilePlace]) -> Option<&mut SampledLine> {
        let mut counts = &mut self.functions.entry(places.last()?.function.clone()).or_default().1;
        for pair in places.windows(2).rev() {
            let [inner, outer] = pair else { continue };
            counts = counts.inlined.entry((line_of(outer), inner.function.clone())).or_default();
        }
        Some(counts.lines.entry(line_of(places.first()?)).or_default())
    }

    /// Writes the profile, the functions with the largest counts first. Returns the number of functions.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<usize> {
        let mut rows: Vec<_> = self.functions.iter().map(|(name, row)| (row.1.total(), name, row)).collect();
        rows.sort_by_key(|(total, name, _)| (Reverse(*total), *name));
        for (total, name, (entered, counts)) in &rows {
            writeln!(out, "{name}:{total}:{entered}")?;
            counts.write(1, out)?;
        }
        Ok(rows.len())
    }
}

impl FunctionCounts {
    /// Returns the counts of all lines together, as LLVM adds them up.
    fn total(&self) -> u64 {
        let lines = self.lines.values().map(|line| line.count);
        lines.chain(self.inlined.values().map(Self::total)).fold(0, u64::saturating_add)
    }

    fn write(&self, depth: usize, out: &mut dyn Write) -> io::Result<()> {
        for (line, SampledLine { count, targets }) in &self.lines {
            write!(out, "{:depth$}{}: {count}", "", shown(*line))?;
            let mut targets: Vec<_> = targets.iter().collect();
            targets.sort_by_key(|(_, count)| Reverse(**count));
            targets.iter().try_for_each(|(name, count)| write!(out, " {name}:{count}"))?;
            writeln!(out)?;
        }
        for ((line, name), counts) in &self.inlined {
            writeln!(out, "{:depth$}{}: {name}:{}", "", shown(*line), counts.total())?;
            counts.write(depth + 1, out)?;
        }
        Ok(())
    }
}

/// Returns the line of a place, and the part of the line without what tells copies of it apart.
fn line_of(place: &ProfilePlace) -> Line {
    (place.offset, component(place.discriminator))
}

fn shown((offset, part): Line) -> String {
    if part == 0 { offset.to_string() } else { format!("{offset}.{part}") }
}

/// Returns the first number of a discriminator. LLVM packs several into one: a bit that is set is a zero; otherwise
/// five bits follow, and after a sixth one that is set seven more.
///
/// Source: LLVM, IR/DebugInfoMetadata.h, `DILocation::getUnsignedFromPrefixEncoding`.
const fn component(packed: u32) -> u32 {
    let bits = packed >> 1;
    match packed & 0x41 {
        0 => bits & 0x1f,
        0x40 => (bits >> 1) & 0xfe0 | bits & 0x1f,
        _ => 0,
    }
}

/// Returns the number of copies of a line that an instruction stands for: the second number of its discriminator.
const fn copies(packed: u32) -> u64 {
    let rest = match packed {
        _ if packed & 1 == 1 => packed >> 1,
        _ if packed & 0x40 == 0 => packed >> 7,
        _ => packed >> 14,
    };
    match component(rest) {
        0 => 1,
        copies => copies as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_file::{GLOBAL, ObjectFile};

    /// 1000 `first`: call 1008; jz 1000; call rax; nop. 1008 `second`: nop; nop; ret. 1010 `third`: ret.
    const CODE: &[u8] =
        &[0xe8, 3, 0, 0, 0, 0x74, 0xf9, 0x90, 0x90, 0x90, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3];

    fn blocks() -> FileBlocks {
        let symbols = [
            ("first", 0x1000, 8, GLOBAL, 1),
            ("second", 0x1008, 3, GLOBAL, 1),
            ("third", 0x1010, 1, GLOBAL, 1),
        ];
        let file = ObjectFile { pieces: &[(0x1000, 0x1000, CODE)], symbols: &symbols }.bytes();
        FileBlocks::of(&object::File::parse(&*file).unwrap(), 0).unwrap()
    }

    fn place(function: &str, offset: u16, discriminator: u32) -> ProfilePlace {
        ProfilePlace { function: function.into(), offset, discriminator }
    }

    /// The JZ and the NOP of `first` are an instance of `inner`, whose call has a discriminator; the NOP has no line.
    fn places(ip: u64) -> Vec<ProfilePlace> {
        match ip {
            0x1000 => vec![place("first", 1, 0)],
            0x1005 => vec![place("inner", 65535, 0), place("first", 2, 2 << 1)],
            0x1008 => vec![place("second", 0, 0)],
            // Two copies of the part 3 of a line.
            0x1009 => vec![place("second", 4, 3 << 1 | 2 << 8)],
            0x100a => vec![place("second", 4, 0)],
            _ => vec![],
        }
    }

    fn text(profile: &CompilerProfile) -> String {
        let mut text = vec![];
        profile.write(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_have_the_counts_of_their_instructions_and_functions_those_of_their_lines() {
        let insns = [(0x1000, 5), (0x1005, 5), (0x1007, 1), (0x1008, 6), (0x1009, 6), (0x100a, 6)];
        // `second` is called five times, and jumped to once from elsewhere.
        let edges =
            [((0x1000, 0x1008), 5), ((0x1005, 0x1000), 4), ((0x1005, 0x1007), 1), ((0x100a, 0x1005), 5)];
        let executed = Executed {
            insns: insns.into(),
            edges: edges.into(),
            calls: [0x1000].into(),
            ..Executed::default()
        };
        let profile = CompilerProfile::of(&executed, &blocks(), places);
        assert_eq!(profile.left_out, 1);
        let expected = "\
            second:24:6\n 0: 6\n 4: 6\n 4.3: 12\n\
            first:10:1\n 1: 5 second:5\n 2.2: inner:5\n  65535: 5\n";
        assert_eq!(text(&profile), expected);
    }

    #[test]
    fn a_line_that_was_not_executed_is_known_as_such_if_its_function_was() {
        let executed = Executed { insns: [(0x1000, 1)].into(), ..Executed::default() };
        let profile = CompilerProfile::of(&executed, &blocks(), places);
        assert_eq!(text(&profile), "first:1:1\n 1: 1\n 2.2: inner:0\n  65535: 0\n");
        // Without lines, nothing is known of what was executed.
        let profile = CompilerProfile::of(&executed, &blocks(), |_| vec![]);
        assert_eq!((profile.left_out, &*text(&profile)), (1, ""));
    }

    #[test]
    fn discriminators_are_unpacked_as_llvm_packs_them() {
        // Packed by `DILocation::encodeDiscriminator`: base, copies.
        for (packed, base, copies_of_line) in [
            (0, 0, 1),
            (2, 1, 1),
            (0x3e, 31, 1),
            // Twelve bits.
            (32 << 2 | 0x40, 32, 1),
            (0xfff, 0, 1),
            (1 | 4 << 2, 0, 4),
            (3 << 1 | 8 << 8, 3, 8),
        ] {
            assert_eq!((component(packed), copies(packed)), (base, copies_of_line), "{packed:#x}");
        }
    }
}
