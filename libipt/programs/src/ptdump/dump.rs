//! Decodes a trace and writes its lines.

use super::columns;
use super::line::Line;
use super::options::PtdumpOptions;
use super::tracking::{Diagnostic, Tracking};
use crate::sideband::MergedStreams;
use pugmark_decoder_core::config::Config;
use pugmark_decoder_core::errata::Errata;
use pugmark_decoder_core::packet::Packet;
use pugmark_ipt::{Code, packets::LibiptPackets};
use std::io::{self, Write};

/// The maximum number of bytes shown of a packet.
const RAW: usize = 16;

/// Returns the errata of the processor. An unknown processor is reported as a line of `out` and treated as one without
/// errata.
///
/// # Errors
/// Those of `out`.
pub fn errata(options: &PtdumpOptions, out: &mut dyn Write) -> io::Result<Errata> {
    match options.cpu.map(Errata::of) {
        None => Ok(Errata::NONE),
        Some(Ok(errata)) => Ok(errata),
        Some(Err(_)) => {
            diagnose(out, 0, ("failed to determine errata", Some("unknown cpu")))?;
            Ok(Errata::NONE)
        }
    }
}

/// Writes a line for each packet of `trace` to `out`.
///
/// # Errors
/// Those of `out`. Errors in the trace are written as lines.
pub fn dump(trace: &[u8], options: PtdumpOptions, errata: Errata, out: &mut dyn Write) -> io::Result<()> {
    let config = Config { errata, ..Config::new() };
    let sideband = match options.streams.as_slice() {
        [] => None,
        streams => Some(MergedStreams::new(streams, out)?),
    };
    let tracks_time = options.time.is_some() || sideband.is_some();
    let tracking = Tracking::default();
    let mut dump = Dump { options: &options, errata, tracks_time, tracking, sideband, out };
    dump.packets(trace, LibiptPackets::new(trace, config))?;
    dump.sideband_until(u64::MAX)
}

/// Writes `[OFFSET: TEXT: ERROR]`.
fn diagnose(out: &mut dyn Write, offset: u64, (text, error): Diagnostic) -> io::Result<()> {
    match error {
        Some(error) => writeln!(out, "[{offset:x}: {text}: {error}]"),
        None => writeln!(out, "[{offset:x}: {text}]"),
    }
}

struct Dump<'a> {
    options: &'a PtdumpOptions,
    errata: Errata,
    tracks_time: bool,
    tracking: Tracking,
    sideband: Option<MergedStreams<'a>>,
    out: &'a mut dyn Write,
}

impl Dump<'_> {
    fn packets(&mut self, trace: &[u8], mut packets: LibiptPackets<'_>) -> io::Result<()> {
        if !self.options.no_sync && packets.sync_forward().is_none() {
            return Ok(());
        }
        loop {
            match packets.next() {
                Some(Ok((offset, packet))) => {
                    let bytes = &trace[offset as usize..packets.offset() as usize];
                    self.packet(offset, &packet, bytes)?;
                }
                Some(Err(error)) => {
                    let diagnostic = ("error decoding packet", Some(Code::from(error.kind).text()));
                    diagnose(self.out, error.offset, diagnostic)?;
                    if packets.sync_forward().is_none() {
                        return Ok(());
                    }
                    self.tracking = Tracking::default();
                }
                None => return Ok(()),
            }
        }
    }

    fn packet(&mut self, offset: u64, packet: &Packet, bytes: &[u8]) -> io::Result<()> {
        let mut line = Line::default();
        let hidden = self.hides(packet);
        if !hidden {
            columns::describe(packet, self.options.exec_mode, &mut line);
        }
        let mut diagnostics = Vec::new();
        match *packet {
            Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip)
                if self.options.last_ip =>
            {
                line.tracking = Some(self.tracking.ip(ip, &mut diagnostics));
            }
            _ if self.tracks_time => {
                let column = self.tracking.packet(packet, self.options, &self.errata, &mut diagnostics);
                line.tracking = column.or(line.tracking);
            }
            _ => {}
        }
        for diagnostic in diagnostics {
            diagnose(self.out, offset, diagnostic)?;
        }
        if is_timing(packet) && !(self.options.no_cyc && matches!(packet, Packet::Cyc(_))) {
            self.sideband_until(self.tracking.time())?;
        }
        if hidden {
            return Ok(());
        }
        line.offset = (!self.options.no_offset).then_some(offset);
        line.raw = self.options.raw.then(|| bytes[..raw_len(packet, bytes.len())].to_vec());
        writeln!(self.out, "{line}")
    }

    fn hides(&self, packet: &Packet) -> bool {
        let options = self.options;
        options.quiet
            || match packet {
                Packet::Pad => options.no_pad,
                Packet::Cyc(_) => options.no_cyc || options.no_timing,
                packet => is_timing(packet) && options.no_timing,
            }
    }

    /// Shows the sideband records that are due at `time`.
    fn sideband_until(&mut self, time: u64) -> io::Result<()> {
        match &mut self.sideband {
            Some(sideband) => sideband.show(time, &self.options.sideband, self.out),
            None => Ok(()),
        }
    }
}

fn is_timing(packet: &Packet) -> bool {
    matches!(packet, Packet::Tsc(_) | Packet::Cbr(_) | Packet::Tma(_) | Packet::Mtc(_) | Packet::Cyc(_))
}

/// Returns the number of a packet's bytes to show. An OVF damaged by erratum SKD007 takes three bytes, of which only
/// the OVF's two are shown.
fn raw_len(packet: &Packet, taken: usize) -> usize {
    match packet {
        Packet::Ovf => packet.len(),
        _ => taken.min(RAW),
    }
}
