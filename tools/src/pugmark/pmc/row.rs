//! Reads a request of `pugmark pmc dispatch --batch`.

use super::{dispatch::split, number};
use anyhow::{Context, Result, anyhow, bail};
use pugmark_pfm::{
    Cpu, Levels,
    dispatch::{CounterFeatures, CounterFlags, Dispatch, DispatchError, Features, IbsFetch, IbsOp, Request},
};

/// The number of columns. Further columns are ignored, so that rows with an answer can be requests again.
const COLUMNS: usize = 10;
/// The model flag of the IBS fetch unit.
const USE_IBS_FETCH: u32 = 1;
/// The model flag of the IBS op unit.
const USE_IBS_OP: u32 = 2;

/// A request.
#[derive(Debug)]
pub(super) struct BatchRow<'a> {
    cpu: &'static Cpu,
    events: Vec<(&'a str, Levels)>,
    levels: Levels,
    unavailable: u64,
    features: Option<Features>,
}

impl<'a> BatchRow<'a> {
    /// Reads the columns: processor; events with optional `@levels`; levels; mask of unavailable registers; yes if the
    /// remaining columns apply; counter mask and flags of all counters; flags of IBS; period and option of fetch and
    /// op.
    pub(super) fn parse(line: &'a str) -> Result<Self> {
        let columns: Vec<&str> = line.split('\t').take(COLUMNS).collect();
        let [cpu, events, levels, unavailable, model, mask, flags, ibs, fetch, op] = columns[..] else {
            bail!("{} columns, but a request has {COLUMNS}", columns.len());
        };
        let features = match model {
            "yes" => Some(features(mask, flags, ibs, fetch, op)?),
            "no" => None,
            _ => bail!("column 5: {model:?} is neither yes nor no"),
        };
        let events = events.split(',').filter(|_| events != "-");
        Ok(Self {
            cpu: Cpu::by_name(cpu).ok_or_else(|| anyhow!("column 1: no processor is called {cpu:?}"))?,
            events: events.map(split).collect::<Result<_>>().context("column 2")?,
            levels: Levels::from_bits_retain(value(levels, 3)?),
            unavailable: crate::number::parse(unavailable)
                .ok_or_else(|| anyhow!("column 4: {unavailable:?} is not a mask"))?,
            features,
        })
    }

    /// Returns the name of the error, the control registers, the data registers, and the IBS base indices.
    pub(super) fn answer(&self) -> String {
        let selections =
            self.events.iter().map(|(event, levels)| Ok(self.cpu.select(event)?.with_levels(*levels)));
        let selections = match selections.collect::<Result<Vec<_>, pugmark_pfm::FindError<'_>>>() {
            Ok(selections) => selections,
            Err(error) => return format!("find:{}\t-\t-\t-", error.kind.name()),
        };
        let (levels, unavailable, features) = (self.levels, self.unavailable, self.features);
        let dispatched = self.cpu.dispatch(&Request { events: &selections, levels, unavailable, features });
        answer(dispatched)
    }
}

fn answer(dispatched: Result<Dispatch, DispatchError>) -> String {
    let dispatch = match dispatched {
        Ok(dispatch) => dispatch,
        Err(error) => return format!("{}\t-\t-\t-", error.name()),
    };
    let pmcs = dispatch.pmcs().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let pmds = dispatch.pmds().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    // As in libpfm3, the index of a unit that is off is also 0.
    let [fetch, op] = [dispatch.ibs_fetch(), dispatch.ibs_op()].map(|unit| unit.map_or(0, |unit| unit.base));
    format!("SUCCESS\t{pmcs}\t{pmds}\tfetch_base={fetch} op_base={op}")
}

fn features(mask: &str, flags: &str, ibs: &str, fetch: &str, op: &str) -> Result<Features> {
    let flags = CounterFlags::from_bits_retain(value(flags, 7)?);
    let counter = CounterFeatures { counter_mask: value(mask, 6)?, flags };
    let ibs = value(ibs, 8)?;
    let (max_count, random) = period(fetch, 9)?;
    let fetch = IbsFetch { max_count, random };
    let (max_count, ops) = period(op, 10)?;
    let op = IbsOp { max_count, ops };
    Ok(Features {
        counters: [counter; _],
        ibs_fetch: (ibs & USE_IBS_FETCH != 0).then_some(fetch),
        ibs_op: (ibs & USE_IBS_OP != 0).then_some(op),
    })
}

/// Reads `maxcnt/options`; the only option is bit 0.
fn period(text: &str, column: usize) -> Result<(u32, bool)> {
    let parts =
        text.split_once('/').ok_or_else(|| anyhow!("column {column}: {text:?} is not MAXCNT/OPTIONS"))?;
    Ok((value(parts.0, column)?, value(parts.1, column)? & 1 != 0))
}

fn value(text: &str, column: usize) -> Result<u32> {
    number(text).ok_or_else(|| anyhow!("column {column}: {text:?} is not a number of up to 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_column_that_is_wrong() {
        const RIGHT: [&str; COLUMNS] = ["k7", "-", "0", "0", "yes", "0", "0", "0", "0/0", "0/0"];
        assert!(BatchRow::parse(&RIGHT.join("\t")).is_ok());
        for (column, wrong, message) in [
            (1, "k0", "column 1: no processor is called \"k0\""),
            (3, "x", "column 3: \"x\" is not a number of up to 32 bits"),
            (4, "x", "column 4: \"x\" is not a mask"),
            (5, "x", "column 5: \"x\" is neither yes nor no"),
            (6, "x", "column 6: \"x\" is not a number of up to 32 bits"),
            (7, "x", "column 7: \"x\" is not a number of up to 32 bits"),
            (8, "x", "column 8: \"x\" is not a number of up to 32 bits"),
            (9, "0", "column 9: \"0\" is not MAXCNT/OPTIONS"),
            (9, "x/0", "column 9: \"x\" is not a number of up to 32 bits"),
            (9, "0/x", "column 9: \"x\" is not a number of up to 32 bits"),
            (10, "0", "column 10: \"0\" is not MAXCNT/OPTIONS"),
            (10, "x/0", "column 10: \"x\" is not a number of up to 32 bits"),
        ] {
            let mut row = RIGHT;
            row[column - 1] = wrong;
            assert_eq!(BatchRow::parse(&row.join("\t")).unwrap_err().to_string(), message);
        }
    }
}
