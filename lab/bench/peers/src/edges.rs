//! iptr-edge-analyzer and ptcov: the edges between blocks of code, counted in a map.

use crate::{Section, bytes};
use iptr_decoder::{DecodeOptions, decode};
use iptr_edge_analyzer::{
    EdgeAnalyzer, ReadMemory, control_flow_handler::fuzz_bitmap::FuzzBitmapControlFlowHandler,
};
use ptcov::{PtCoverageDecoder, PtCoverageDecoderBuilder, PtImage};
use std::slice;

/// The size of the maps in bytes.
const MAP: usize = 1 << 16;

/// The code, by address; it must live as long as the decoder's maker promises.
#[derive(Clone)]
pub struct Code(Vec<(u64, &'static [u8])>);

/// No section has this address.
#[derive(Debug)]
pub struct NoCode;

impl std::fmt::Display for NoCode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("no code there")
    }
}

impl std::error::Error for NoCode {}

impl ReadMemory for Code {
    type Error = NoCode;

    fn at_decode_begin(&mut self) -> Result<(), NoCode> {
        Ok(())
    }

    fn read_memory<T>(
        &mut self,
        address: u64,
        size: usize,
        callback: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, NoCode> {
        let after = self.0.partition_point(|(base, _)| *base <= address);
        let (base, bytes) = after.checked_sub(1).and_then(|index| self.0.get(index)).ok_or(NoCode)?;
        let rest = usize::try_from(address - base).ok().and_then(|offset| bytes.get(offset..));
        let rest = rest.filter(|rest| !rest.is_empty()).ok_or(NoCode)?;
        Ok(callback(&rest[..size.min(rest.len())]))
    }
}

/// # Safety
/// The sections and their bytes are valid as long as the result is used.
unsafe fn code(sections: *const Section, count: usize) -> Code {
    // SAFETY: as the caller promises.
    let sections = unsafe { slice::from_raw_parts(sections, count) };
    let mut code: Vec<_> = sections
        .iter()
        // SAFETY: as the caller promises.
        .map(|section| (section.base, unsafe { bytes(section.bytes, section.len) }))
        .collect();
    code.sort_by_key(|(base, _)| *base);
    Code(code)
}

/// A decoder with its cache, which is kept from run to run.
pub enum Analyzer {
    Iptr(Box<EdgeAnalyzer<FuzzBitmapControlFlowHandler<Vec<u8>>, Code>>),
    Ptcov(Box<PtCoverageDecoder<'static>>, Vec<u8>),
}

/// Makes a decoder: 0 is iptr-edge-analyzer, 1 is ptcov.
///
/// # Safety
/// The sections are valid as long as the decoder is used, and so are their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edges_new(which: u32, sections: *const Section, count: usize) -> *mut Analyzer {
    // SAFETY: as the caller promises.
    let code = unsafe { code(sections, count) };
    let map = vec![0; MAP];
    let analyzer = if which == 0 {
        Analyzer::Iptr(Box::new(EdgeAnalyzer::new(FuzzBitmapControlFlowHandler::new(map, None), code)))
    } else {
        let images: Vec<_> = code.0.iter().map(|(base, bytes)| PtImage::new(bytes, *base)).collect();
        let builder = PtCoverageDecoderBuilder::new().images(images.leak());
        Analyzer::Ptcov(Box::new(builder.build()), map)
    };
    Box::into_raw(Box::new(analyzer))
}

/// Decodes a trace and adds to the decoder's map. Returns whether the trace was decoded to its end.
///
/// # Safety
/// [`edges_new`] has made the decoder, and `trace` is valid for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edges_run(analyzer: *mut Analyzer, trace: *const u8, len: usize) -> bool {
    // SAFETY: as the caller promises.
    let (analyzer, trace) = unsafe { (&mut *analyzer, bytes(trace, len)) };
    match analyzer {
        Analyzer::Iptr(analyzer) => decode(trace, DecodeOptions::default(), &mut **analyzer).is_ok(),
        Analyzer::Ptcov(decoder, map) => decoder.coverage(trace, map).is_ok(),
    }
}

/// Frees a decoder.
///
/// # Safety
/// [`edges_new`] has made the decoder, and it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn edges_free(analyzer: *mut Analyzer) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(analyzer) });
}
