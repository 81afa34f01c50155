//! The kernel's command line: words, separated by spaces.

/// The requests of the command line. Unknown words, such as the image's name, are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandLine<'a> {
    only: Option<&'a str>,
    /// `source=NAME`: the hardware that traces, counts or samples.
    source: Option<&'a str>,
    /// `dump`: send the trace bytes to the debug console, and report which code was traced.
    pub dump: bool,
    /// `no-decode`: trace, but do not decode.
    pub no_decode: bool,
    /// `expect-ovf`: the machine is set up to overflow, so a trace without an OVF is a failure.
    pub expect_overflow: bool,
    /// `overflow=boot`, `overflow=nmi`, `overflow=further`: overflow the stack of the first processor, of NMIs, or of
    /// another processor, which must end in a page fault.
    pub overflow: Option<&'a str>,
    /// `x2apic`: use the local APIC in x2APIC mode.
    pub x2apic: bool,
    /// `processors=N`: the number of processors to use; anything that is not a number counts as 1.
    pub processors: usize,
    /// `rounds=N`: the number of rounds in which IBS samples each workload; anything that is not a number counts as 1.
    pub rounds: u32,
    /// `pmis=N`: the number of PMIs for which the workload `dense` waits on each processor; anything that is not a
    /// number counts as 100.
    pub pmis: u64,
}

/// The default number of PMIs for which `dense` waits.
const PMIS: u64 = 100;

impl<'a> CommandLine<'a> {
    /// Parses the words of `text`.
    #[must_use]
    pub fn parse(text: &'a str) -> Self {
        let mut line = Self {
            only: None,
            source: None,
            dump: false,
            no_decode: false,
            expect_overflow: false,
            overflow: None,
            x2apic: false,
            processors: 1,
            rounds: 1,
            pmis: PMIS,
        };
        for word in text.split_ascii_whitespace() {
            match word.split_once('=') {
                None if word == "dump" => line.dump = true,
                None if word == "no-decode" => line.no_decode = true,
                None if word == "x2apic" => line.x2apic = true,
                None if word == "expect-ovf" => line.expect_overflow = true,
                Some(("only", names)) => line.only = Some(names),
                Some(("processors", number)) => line.processors = number.parse().unwrap_or(1),
                Some(("rounds", number)) => line.rounds = number.parse().unwrap_or(1),
                Some(("pmis", number)) => line.pmis = number.parse().unwrap_or(PMIS),
                Some(("overflow", stack)) => line.overflow = Some(stack),
                Some(("source", name)) => line.source = Some(name),
                _ => {}
            }
        }
        line
    }

    /// Chooses from `all`, pairs of name and source, the one that `source=` names; the first one if `source=` is
    /// absent.
    ///
    /// # Errors
    /// If there is no source of this name, which is returned.
    pub fn choose_source<S: Copy>(&self, all: &[(&'a str, S)]) -> Result<S, &'a str> {
        let named = self.source.or(all.first().map(|(name, _)| *name)).unwrap_or_default();
        let source = all.iter().find(|(name, _)| *name == named);
        source.map(|(_, source)| *source).ok_or(named)
    }

    /// Returns true if the workload `name` runs: `only=` names it or is absent.
    #[must_use]
    pub fn selects(&self, name: &str) -> bool {
        self.only.is_none_or(|names| names.split(',').any(|only| only == name))
    }

    /// Iterates over the names in `only=`, to find unknown ones.
    pub fn only(&self) -> impl Iterator<Item = &'a str> {
        self.only.into_iter().flat_map(|names| names.split(','))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_knows() {
        for (text, dump, no_decode, expect_overflow, sort) in [
            ("", false, false, false, true),
            ("dump", true, false, false, true),
            ("no-decode", false, true, false, true),
            ("pugmark-boot  only=sort", false, false, false, true),
            ("only=recursion,sort dump", true, false, false, true),
            ("only=recursion expect-ovf", false, false, true, false),
            ("only=sorting", false, false, false, false),
            ("only=", false, false, false, false),
            ("dump=no only", false, false, false, true),
        ] {
            let line = CommandLine::parse(text);
            assert_eq!(
                (line.dump, line.no_decode, line.expect_overflow, line.selects("sort")),
                (dump, no_decode, expect_overflow, sort),
                "{text}"
            );
        }
    }

    #[test]
    fn x2apic_mode_is_used_where_it_is_named() {
        for (text, x2apic) in [("", false), ("only=sort x2apic", true), ("x2apic=no", false)] {
            assert_eq!(CommandLine::parse(text).x2apic, x2apic, "{text}");
        }
    }

    #[test]
    fn names_what_was_asked_for() {
        assert!(CommandLine::parse("only=a,b").only().eq(["a", "b"]));
        assert_eq!(CommandLine::parse("dump").only().count(), 0);
    }

    #[test]
    fn one_round_and_one_processor_unless_more_are_asked_for() {
        for (text, processors) in [("", 1), ("processors=4 only=sort", 4), ("processors=x", 1)] {
            assert_eq!(CommandLine::parse(text).processors, processors, "{text}");
        }
        for (text, rounds) in [("", 1), ("rounds=3 only=sort", 3), ("rounds=x", 1), ("rounds", 1)] {
            assert_eq!(CommandLine::parse(text).rounds, rounds, "{text}");
        }
        for (text, pmis) in [("", 100), ("only=dense pmis=10000", 10_000), ("pmis=x", 100)] {
            assert_eq!(CommandLine::parse(text).pmis, pmis, "{text}");
        }
    }

    #[test]
    fn the_source_is_the_first_unless_another_one_is_named_and_one_that_does_not_exist_is_refused() {
        let all = [("pt", 1), ("bts", 2), ("lbr", 3)];
        for (text, source) in [
            ("", Ok(1)),
            ("source", Ok(1)),
            ("source=pt", Ok(1)),
            ("only=sort source=bts", Ok(2)),
            ("source=pt source=lbr", Ok(3)),
            ("source=ptt", Err("ptt")),
            ("source=", Err("")),
        ] {
            assert_eq!(CommandLine::parse(text).choose_source(&all), source, "{text}");
        }
        assert_eq!(CommandLine::parse("").choose_source::<u8>(&[]), Err(""));
    }
}
