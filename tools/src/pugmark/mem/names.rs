//! The names of what accesses memory, and of what is accessed.

use super::tables::{Address, Who};
use crate::pugmark::{
    code_names::{NameSources, names_of, place_of},
    recording::{PerfTrace, Traced},
};
use crate::source::perf_data::samples::{PerfSamples, Program};
use crate::symbols::{DataSymbols, SymbolFiles, TracedSymbols};
use crate::text::printable;
use crate::{code::image::ImageSection, output::tell};
use anyhow::Result;
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    rc::Rc,
};

/// The name shown for code without a symbol.
pub(super) const UNKNOWN: &str = "[unknown]";

/// The names of a program.
struct ProgramNames {
    code: TracedSymbols,
    data: DataSymbols,
}

/// The names of all programs, and of the kernel.
pub(super) struct MemoryNames<'a> {
    file: PathBuf,
    samples: &'a PerfSamples,
    symfs: Option<&'a Path>,
    files: RefCell<SymbolFiles>,
    kernel: TracedSymbols,
    /// Those that were asked for.
    known: RefCell<HashMap<usize, Rc<ProgramNames>>>,
    /// Files that are not there.
    missing: RefCell<BTreeSet<PathBuf>>,
}

/// Symbols of this code.
fn symbols(
    trace: &Path,
    perf: PerfTrace,
    sources: NameSources<'_>,
    files: &mut SymbolFiles,
) -> Result<TracedSymbols> {
    let traced = Traced { trace: trace.into(), perf: Some(perf), ..Traced::default() };
    names_of(&traced, &[], sources, files)
}

impl<'a> MemoryNames<'a> {
    /// Returns the names for the samples of a file.
    ///
    /// # Errors
    /// If perf's copy of the kernel's symbols cannot be read.
    pub(super) fn of(file: &Path, samples: &'a PerfSamples, symfs: Option<&'a Path>) -> Result<Self> {
        let mut files = SymbolFiles::default();
        let kernel = symbols(file, PerfTrace::kernel_beside(file)?, NameSources::default(), &mut files)?;
        let (known, missing) = (RefCell::default(), RefCell::default());
        Ok(Self { file: file.into(), samples, symfs, kernel, files: files.into(), known, missing })
    }

    fn program(&self, number: usize) -> Rc<ProgramNames> {
        let mut known = self.known.borrow_mut();
        let names = known.entry(number).or_insert_with(|| {
            Rc::new(
                self.samples
                    .programs
                    .get(number)
                    .map_or_else(ProgramNames::none, |program| self.load(program)),
            )
        });
        names.clone()
    }

    fn load(&self, program: &Program) -> ProgramNames {
        let mut names = ProgramNames::none();
        let mut code = vec![];
        for mapping in &program.mappings {
            let path = &mapping.path;
            let file = place_of(path, self.symfs);
            let place = mapping.address..mapping.address.saturating_add(mapping.len);
            let name = match path.to_string_lossy() {
                // perf's name for memory that is no file's.
                name if name.starts_with("//anon") => "[anonymous]".to_owned(),
                name => name.into_owned(),
            };
            names.data.add(&file, &name, mapping.offset, place);
            if !file.is_file() {
                if path.is_absolute() && !path.starts_with("//anon") && !name.starts_with("[anon") {
                    self.missing.borrow_mut().insert(file);
                }
                continue;
            }
            code.push(ImageSection {
                file,
                offset: mapping.offset,
                len: mapping.len,
                vaddr: mapping.address,
            });
        }
        let perf = PerfTrace { code, ..PerfTrace::default() };
        // Without the kernel and further files nothing in it can fail.
        let processes = &[program.process];
        let sources = NameSources { symfs: self.symfs, processes, ..NameSources::default() };
        names.code = symbols(&self.file, perf, sources, &mut self.files.borrow_mut()).unwrap_or_default();
        names
    }

    /// Reports the files that were asked for and are not there.
    pub(super) fn tell_missing(&self) {
        let missing = self.missing.borrow();
        if let Some(first) = missing.first() {
            let more = match missing.len() - 1 {
                0 => String::new(),
                more => format!(", nor {more} others"),
            };
            let first = first.display();
            tell(format_args!(
                "pugmark: warning: there is no file {first}{more}; --symfs says where to look"
            ));
        }
    }

    /// Returns the function that an instruction is in, with its object file.
    pub(super) fn function(&self, (program, ip): Address) -> String {
        let known = program.map(|program| self.program(program));
        let place = known.as_ref().map_or(&self.kernel, |known| &known.code).find(ip);
        let object = place.object.unwrap_or(if program.is_none() { "[kernel]" } else { UNKNOWN });
        format!("{} ({object})", place.function.map_or(UNKNOWN, |(name, _)| name))
    }

    /// Returns the line of source of an instruction.
    pub(super) fn line(&self, (program, ip): Address) -> Option<String> {
        self.program(program?).code.line(ip).map(|line| line.to_string())
    }

    /// Returns where an instruction is: its function and how far, and its line.
    pub(super) fn code(&self, (program, ip): Address) -> String {
        let known = program.map(|program| self.program(program));
        let symbols = known.as_ref().map_or(&self.kernel, |known| &known.code);
        let line = symbols.line(ip).map(|line| format!(" ({})", line.short()));
        symbols.place(ip) + &line.unwrap_or_default()
    }

    /// Returns the data at an address.
    pub(super) fn data(&self, (program, address): Address) -> String {
        let name = match program {
            Some(program) => self.program(program).data.find(address),
            None => Some("[kernel]".into()),
        };
        name.unwrap_or_else(|| UNKNOWN.into())
    }

    /// Returns the process of a program.
    pub(super) fn process(&self, program: Option<usize>) -> Option<i32> {
        self.samples.programs.get(program?).map(|program| program.process)
    }

    /// Returns a thread with its name, or a processor that runs none.
    pub(super) fn who(&self, who: Who) -> String {
        match who {
            Who::Thread(tid) => match self.samples.threads.get(&tid) {
                Some(name) => format!("{} {tid}", printable(name)),
                None => tid.to_string(),
            },
            Who::Idle(Some(cpu)) => format!("idle CPU {cpu}"),
            Who::Idle(None) => "idle".into(),
        }
    }
}

impl ProgramNames {
    fn none() -> Self {
        Self { code: TracedSymbols::default(), data: DataSymbols::default() }
    }
}
