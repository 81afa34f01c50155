//! The decoders of `lab/bench/peers`, which are built on demand and loaded into this process.

use super::load::Load;
use anyhow::{Context, Result};
use libloading::Library;
use pugmark_builds::cargo::cargo;
use pugmark_harness::{
    images::{target_folder, workspace},
    libipt_speed::TimedDecode,
};
use std::ffi::c_void;

/// The functions of `lab/bench/peers/src`.
pub(super) struct Peers {
    packets: unsafe extern "C" fn(*const u8, usize) -> Outcome,
    edges_new: unsafe extern "C" fn(u32, *const Section, usize) -> *mut c_void,
    edges_run: unsafe extern "C" fn(*mut c_void, *const u8, usize) -> bool,
    edges_free: unsafe extern "C" fn(*mut c_void),
}

#[repr(C)]
struct Section {
    base: u64,
    bytes: *const u8,
    len: usize,
}

#[repr(C)]
struct Outcome {
    count: u64,
    sum: u64,
    complete: bool,
}

/// A decoder that counts edges in a map.
#[derive(Clone, Copy)]
pub(super) enum EdgePeer {
    IptrEdgeAnalyzer = 0,
    Ptcov = 1,
}

impl Peers {
    /// Builds and loads the decoders.
    pub(super) fn build() -> Result<Self> {
        let manifest = workspace().join("lab/bench/peers/Cargo.toml");
        let folder = target_folder().join("bench/peers");
        let (manifest, target) = (manifest.display().to_string(), folder.display().to_string());
        let build = ["build", "--release", "--quiet", "--locked", "--manifest-path"];
        cargo(&[&build[..], &[&manifest, "--target-dir", &target]].concat(), &[])?;
        // SAFETY: Rust libraries have no constructors but those of std.
        let library = unsafe { Library::new(folder.join("release/libpugmark_peers.so")) }?;
        // The library's functions are used until the program ends, so it is never unloaded.
        let library: &'static Library = Box::leak(Box::new(library));
        /// The function of this name, with the type of the field to which it is assigned.
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: `lab/bench/peers` declares the function of this name with this type.
                *unsafe { library.get($name) }.context($name.escape_ascii().to_string())?
            };
        }
        Ok(Self {
            packets: function!(b"iptr_packets"),
            edges_new: function!(b"edges_new"),
            edges_run: function!(b"edges_run"),
            edges_free: function!(b"edges_free"),
        })
    }

    /// Runs iptr-decoder; returns the packets up to the end of the trace or an error, and the sum of their contents.
    pub(super) fn packets(&self, trace: &[u8]) -> TimedDecode {
        // SAFETY: the trace has this length.
        let Outcome { count, sum, .. } = unsafe { (self.packets)(trace.as_ptr(), trace.len()) };
        TimedDecode { count, sum }
    }

    /// Returns a decoder of edges, which keeps its cache from run to run.
    pub(super) fn edges<'a>(&'a self, which: EdgePeer, load: &'a Load) -> Edges<'a> {
        let section =
            |(base, bytes): &(u64, Vec<u8>)| Section { base: *base, bytes: bytes.as_ptr(), len: bytes.len() };
        let sections: Vec<_> = load.code.iter().map(section).collect();
        // SAFETY: the sections are read at once, and their bytes live as long as the decoder.
        let handle = unsafe { (self.edges_new)(which as u32, sections.as_ptr(), sections.len()) };
        Edges { peers: self, load, handle }
    }
}

/// A decoder of edges.
pub(super) struct Edges<'a> {
    peers: &'a Peers,
    load: &'a Load,
    handle: *mut c_void,
}

impl Edges<'_> {
    /// Decodes the trace; `None` if it was not decoded to the end.
    pub(super) fn run(&mut self) -> Option<()> {
        let trace = &self.load.trace;
        // SAFETY: the decoder was made by the same library, and the trace has this length.
        unsafe { (self.peers.edges_run)(self.handle, trace.as_ptr(), trace.len()) }.then_some(())
    }
}

impl Drop for Edges<'_> {
    fn drop(&mut self) {
        // SAFETY: the decoder was made by the same library and is not used afterwards.
        unsafe { (self.peers.edges_free)(self.handle) };
    }
}
