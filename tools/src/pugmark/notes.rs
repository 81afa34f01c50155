//! Notes that all traces of a command share.

use super::code_names::{ChangedFile, is_most};
use crate::output::tell;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    rc::Rc,
};

/// Notes on the traces of a command, of which each warning is given once.
#[derive(Clone, Debug, Default)]
pub(super) struct CommandNotes(Rc<RefCell<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    /// The files of `--symbols`; true if a trace has the code of the file.
    symbols: BTreeMap<PathBuf, bool>,
    /// The files of which a warning has said that they are not what was recorded.
    told: BTreeSet<PathBuf>,
    /// True if times were shown of a trace that has only those of TSC packets.
    shows_coarse_times: bool,
}

impl CommandNotes {
    /// Returns the files of `--symbols` whose code no trace has.
    pub(super) fn unfit(&self) -> Vec<PathBuf> {
        let notes = self.0.borrow();
        notes.symbols.iter().filter(|(_, fits)| !**fits).map(|(file, _)| file.clone()).collect()
    }

    pub(super) fn symbols(&self, file: &Path, fits: bool) {
        *self.0.borrow_mut().symbols.entry(file.into()).or_default() |= fits;
    }

    /// Warns that a file is not what was recorded.
    pub(super) fn changed(&self, file: &Path, ChangedFile { same, pages, .. }: &ChangedFile) {
        if !self.0.borrow_mut().told.insert(file.into()) {
            return;
        }
        let why = if file.exists() { "it has changed" } else { "it is gone" };
        let names = match is_most(*same, *pages) {
            true => "some names may be wrong; --symbols FILE takes them from a copy",
            false => "its functions have no names; --symbols FILE names them from a copy",
        };
        tell(format_args!(
            "pugmark: warning: {} is not the file that was recorded ({why}): {names}",
            file.display()
        ));
    }

    /// Warns that the times that are shown are those of TSC packets.
    pub(super) fn coarse_times(&self) {
        if !std::mem::replace(&mut self.0.borrow_mut().shows_coarse_times, true) {
            tell(format_args!(
                "pugmark: warning: the only times of the trace are in TSC packets: between them each byte is taken to \
                 have been as long; `pugmark record --time` writes more of them"
            ));
        }
    }
}
