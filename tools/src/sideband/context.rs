//! Images by process: what perf's records do to the code under a trace.
//!
//! The scheduler switches processes in kernel code, and records say so a little before or behind the place in the trace.
//! So a switch takes effect only at an event in the kernel, on the way into it or out of it, where the processes' own code
//! does not matter.

use super::{Event as RecordEvent, Record, Session, Show, Stream};
use pugmark_decoder_core::event::{Event, EventKind};
use pugmark_decoder_core::image::{AddressSpace, Section};
use std::collections::HashMap;
use std::io::{self, Write};
use std::{fs, mem};

/// The images of all processes, and the records that change them.
#[derive(Debug)]
pub struct Context {
    session: Session,
    show: Show,
    /// Switches are lines.
    show_switches: bool,
    images: Images,
}

#[derive(Debug)]
struct Images {
    /// All there were; a process that executes another program has a new one.
    all: Vec<Image>,
    by_pid: HashMap<u32, usize>,
    /// The image of the traced code, if a record said so.
    current: Option<usize>,
    /// A switch that waits for its place.
    prepared: Option<usize>,
    /// The current image is not what the decoder has.
    changed: bool,
    /// The current image is another than before.
    switched: bool,
    kernel_start: u64,
    files: HashMap<String, Option<&'static [u8]>>,
}

#[derive(Clone, Debug)]
struct Image {
    name: String,
    sections: Vec<Section<'static>>,
}

impl Context {
    /// The context before any record.
    pub fn new(streams: Vec<Stream>, show: Show, show_switches: bool) -> Self {
        let primary = streams.iter().find(|stream| stream.primary).or(streams.first());
        let images = Images {
            all: Vec::new(),
            by_pid: HashMap::new(),
            current: None,
            prepared: None,
            changed: false,
            switched: false,
            kernel_start: primary.map_or(u64::MAX, |stream| stream.config().kernel_start),
            files: HashMap::new(),
        };
        Self { session: Session::new(streams), show, show_switches, images }
    }

    /// Shows and applies the records that are due at `event`; returns the sections to go on with where they changed.
    ///
    /// # Errors
    /// Those of `out`. Errors in the records are lines.
    pub fn event(
        &mut self,
        event: &Event,
        out: &mut dyn Write,
    ) -> io::Result<Option<&'static [Section<'static>]>> {
        let Self { session, show, images, .. } = self;
        let mut apply = |record: &RecordEvent<'_>, stream: &Stream| images.apply(record, stream);
        session.show_and_apply(event.when.time, show, "warning", out, &mut apply)?;
        if self.images.prepared.is_some() && self.images.is_in_kernel(event) {
            self.images.switch_to_prepared();
        }
        let Some(image) = self.images.current.and_then(|current| self.images.all.get(current)) else {
            return Ok(None);
        };
        if mem::take(&mut self.images.switched) && self.show_switches {
            writeln!(out, "[context: {}]", image.name)?;
        }
        // The decoder borrows it for the rest of the run, as nothing tells how long it is needed.
        let changed = mem::take(&mut self.images.changed);
        Ok(changed.then(|| &*image.sections.clone().leak()))
    }
}

/// What is wrong where a record lacks what its effect needs.
const BAD_CONFIGURATION: &str = "bad configuration";

impl Images {
    fn apply(&mut self, event: &RecordEvent<'_>, stream: &Stream) -> Result<(), &'static str> {
        match &event.record {
            Record::Mmap { pid, addr, len, pgoff, filename, .. } if !event.kernel => {
                self.map(*pid, *addr, *len, *pgoff, filename, stream)
            }
            Record::Fork(fork) => {
                if fork.pid != fork.ppid {
                    let parent = self.image_of(fork.ppid);
                    let sections = self.all[parent].sections.clone();
                    self.replace(fork.pid, sections);
                }
                Ok(())
            }
            Record::Comm { pid, exec: true, .. } => {
                let image = self.replace(*pid, Vec::new());
                if stream.primary {
                    self.prepared = Some(image);
                }
                Ok(())
            }
            Record::ItraceStart { pid, .. } if stream.primary => {
                self.prepared = Some(self.image_of(*pid));
                self.switch_to_prepared();
                Ok(())
            }
            Record::Switch { out: false } if stream.primary => {
                let (pid, _) = event.sample.tid.ok_or(BAD_CONFIGURATION)?;
                self.prepared = Some(self.image_of(pid));
                Ok(())
            }
            Record::SwitchCpuWide { out: true, pid, .. } if stream.primary => {
                self.prepared = Some(self.image_of(*pid));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn map(
        &mut self,
        pid: u32,
        addr: u64,
        len: u64,
        pgoff: u64,
        name: &str,
        stream: &Stream,
    ) -> Result<(), &'static str> {
        let path = match name {
            "[vdso]" => stream.config().vdso.clone().ok_or(BAD_CONFIGURATION)?,
            // What no file holds cannot be mapped; there is a warning for that.
            _ if super::record::is_no_file(name) => return Ok(()),
            _ => format!("{}{name}", stream.config().sysroot),
        };
        let bytes = self.file(&path).ok_or("bad file")?;
        let from = usize::try_from(pgoff).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)).min(bytes.len());
        let image = self.image_of(pid);
        let section = Section { base: addr, bytes: &bytes[from..to], space: AddressSpace::Any };
        self.all[image].sections.push(section);
        self.changed |= self.current == Some(image);
        Ok(())
    }

    fn file(&mut self, path: &str) -> Option<&'static [u8]> {
        if let Some(known) = self.files.get(path) {
            return *known;
        }
        let bytes = fs::read(path).ok().map(|bytes| &*bytes.leak());
        self.files.insert(path.into(), bytes);
        bytes
    }

    /// The image of a process, an empty one if it is new.
    fn image_of(&mut self, pid: u32) -> usize {
        match self.by_pid.get(&pid) {
            Some(&image) => image,
            None => self.replace(pid, Vec::new()),
        }
    }

    fn replace(&mut self, pid: u32, sections: Vec<Section<'static>>) -> usize {
        let image = self.all.len();
        self.all.push(Image { name: format!("pid-{pid:x}"), sections });
        self.by_pid.insert(pid, image);
        image
    }

    fn switch_to_prepared(&mut self) {
        let prepared = self.prepared.take();
        if self.current != prepared {
            (self.current, self.changed, self.switched) = (prepared, true, true);
        }
    }

    /// Whether the event may be in the kernel, or lead into it or out of it.
    fn is_in_kernel(&self, event: &Event) -> bool {
        let kernel = |ip: u64| ip >= self.kernel_start;
        match (event.kind, event.ip) {
            (EventKind::Enabled { .. } | EventKind::Disabled, _) => {
                !event.status || event.ip.is_none_or(kernel)
            }
            (EventKind::Paging(_) | EventKind::AsyncPaging(_), _) => true,
            (EventKind::Vmcs(_) | EventKind::AsyncVmcs(_), _) => true,
            (EventKind::AsyncDisabled { at: from } | EventKind::AsyncBranch { from }, to) => {
                // Without an address it led to the other side.
                kernel(from) || to.is_none_or(kernel)
            }
            (_, Some(ip)) => kernel(ip),
            (_, None) => !event.status,
        }
    }
}
