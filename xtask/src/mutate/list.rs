//! The list of mutations.

use anyhow::{Context, Result, bail};
use pugmark_qemu_tests::images::workspace;
use serde::Deserialize;
use std::path::PathBuf;

/// The file of the list, relative to the workspace's root.
pub(crate) const FILE: &str = "xtask/mutations.toml";

#[derive(Deserialize)]
struct MutationList {
    mutation: Vec<Mutation>,
}

/// One small change that some test must notice.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutation {
    /// Its name: the kind of rule, then the rule.
    pub(crate) name: String,
    /// The file, relative to the workspace's root.
    pub(crate) file: PathBuf,
    /// Text that occurs exactly once in the file.
    pub(crate) find: String,
    /// The text to put in its place.
    pub(crate) replace: String,
    /// Arguments of `cargo test`.
    pub(crate) test: String,
}

impl Mutation {
    /// Returns the file's text with the mutation applied.
    pub(crate) fn apply(&self, text: &str) -> Result<String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            count => bail!(
                "`find` must occur once in {}, and occurs {count} times: {:?}",
                self.file.display(),
                self.find
            ),
        }
    }
}

/// Reads the list of the working tree.
pub(crate) fn read() -> Result<Vec<Mutation>> {
    let file = workspace().join(FILE);
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    parse(&text).with_context(|| format!("in {}", file.display()))
}

/// Parses a list.
pub(crate) fn parse(text: &str) -> Result<Vec<Mutation>> {
    Ok(toml::from_str::<MutationList>(text)?.mutation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_mutation_applies_in_exactly_one_place_and_changes_something() {
        let (mut names, mut wrong) = (HashSet::new(), vec![]);
        for mutation in read().unwrap() {
            let text = std::fs::read_to_string(workspace().join(&mutation.file)).unwrap_or_default();
            match mutation.apply(&text) {
                Ok(mutated) if mutated == text => wrong.push(format!("{} changes nothing", mutation.name)),
                Ok(_) => {}
                Err(error) => wrong.push(format!("{}: {error}", mutation.name)),
            }
            if !names.insert(mutation.name.clone()) {
                wrong.push(format!("{} is there twice", mutation.name));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn refuses_a_mutation_that_is_ambiguous() {
        let mutation = Mutation {
            name: "x".into(),
            file: "f".into(),
            find: "a".into(),
            replace: "b".into(),
            test: String::new(),
        };
        assert_eq!(mutation.apply("-a-").unwrap(), "-b-");
        assert!(mutation.apply("-a-a-").is_err());
        assert!(mutation.apply("--").is_err());
    }
}
