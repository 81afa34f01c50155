//! Mutants that no test can notice, with the reasons.

use anyhow::{Context, Result};
use pugmark_harness::images::workspace;
use serde::Deserialize;
use std::path::PathBuf;

use super::mutant::Mutant;

/// The file of the list, relative to the workspace's root.
const FILE: &str = "lab/mutants/equivalent.toml";

#[derive(Default, Deserialize)]
struct EquivalentList {
    #[serde(default)]
    equivalent: Vec<Equivalent>,
}

/// A change that has no observable effect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Equivalent {
    /// The file, relative to the workspace's root.
    file: PathBuf,
    /// The function, in the form of reports.
    function: String,
    /// The old and the new code, in the form of reports.
    old: String,
    new: String,
    /// The whole line where the change begins, if the function has more than one such change.
    line: Option<String>,
    /// The reason why no test can notice the change.
    why: String,
}

impl Equivalent {
    pub(super) fn describes(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file
            && self.function == mutant.function
            && self.old == mutant.old
            && self.new == mutant.new
            && self.line.as_ref().is_none_or(|line| *line == mutant.line_text)
    }
}

/// Reads the list of the working tree.
pub(super) fn read() -> Result<Vec<Equivalent>> {
    let file = workspace().join(FILE);
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let list: EquivalentList = toml::from_str(&text).with_context(|| format!("in {}", file.display()))?;
    Ok(list.equivalent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{build::SourceFile, mutants_of, sites};

    #[test]
    fn each_line_of_the_list_is_a_mutant_that_there_is() {
        let mut wrong = vec![];
        for equivalent in read().unwrap() {
            let text = std::fs::read_to_string(workspace().join(&equivalent.file)).unwrap_or_default();
            let (sites, path) = (sites::find(&text).unwrap(), equivalent.file.clone());
            let mutants = mutants_of(&SourceFile { path, text, sites, first: 0 });
            let count = mutants.iter().filter(|mutant| equivalent.describes(mutant)).count();
            // The same change in several places of one line is one entry.
            if count == 0 || equivalent.why.is_empty() {
                wrong.push(format!("{count} mutants are {equivalent:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
