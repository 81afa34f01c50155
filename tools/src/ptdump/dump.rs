//! From a trace to lines.

use super::columns;
use super::line::Line;
use super::options::Options;
use super::tracking::{Diagnostic, Tracking};
use crate::sideband::Session;
use crate::text;
use pugmark_decoder_core::config::{Config, Dialect};
use pugmark_decoder_core::errata::Errata;
use pugmark_decoder_core::packet::{Packet, Packets};
use std::io::{self, Write};

/// How many of a packet's bytes are shown.
const RAW: usize = 16;

/// Writes a line for each packet of `trace` to `out`.
///
/// # Errors
/// Those of `out`. Errors in the trace are lines.
pub fn dump(trace: &[u8], mut options: Options, out: &mut dyn Write) -> io::Result<()> {
    let errata = match options.cpu.map(Errata::of) {
        None => Errata::NONE,
        Some(Ok(errata)) => errata,
        Some(Err(_)) => {
            diagnose(out, 0, ("failed to determine errata", Some("unknown cpu")))?;
            Errata::NONE
        }
    };
    let mut packets =
        Packets::with_config(trace, Config { errata, dialect: Dialect::Libipt, ..Config::new() });
    if !options.no_sync && packets.sync_forward().is_none() {
        return Ok(());
    }
    let streams = std::mem::take(&mut options.streams);
    let sideband = (!streams.is_empty()).then(|| Session::new(streams));
    let tracks_time = options.time.is_some() || sideband.is_some();
    let mut dump = Dump { options, errata, tracks_time, tracking: Tracking::default(), sideband, out };
    loop {
        match packets.next() {
            Some(Ok((offset, packet))) => {
                let bytes = &trace[offset as usize..packets.offset() as usize];
                dump.packet(offset, &packet, bytes)?;
            }
            Some(Err(error)) => {
                let diagnostic = ("error decoding packet", Some(text::of_packet(error.kind)));
                diagnose(dump.out, error.offset, diagnostic)?;
                if packets.sync_forward().is_none() {
                    break;
                }
                dump.tracking = Tracking::default();
            }
            None => break,
        }
    }
    dump.sideband_until(u64::MAX)
}

/// `[OFFSET: TEXT: ERROR]`.
fn diagnose(out: &mut dyn Write, offset: u64, (text, error): Diagnostic) -> io::Result<()> {
    match error {
        Some(error) => writeln!(out, "[{offset:x}: {text}: {error}]"),
        None => writeln!(out, "[{offset:x}: {text}]"),
    }
}

struct Dump<'a> {
    options: Options,
    errata: Errata,
    tracks_time: bool,
    tracking: Tracking,
    sideband: Option<Session>,
    out: &'a mut dyn Write,
}

impl Dump<'_> {
    fn packet(&mut self, offset: u64, packet: &Packet, bytes: &[u8]) -> io::Result<()> {
        let mut line = Line::default();
        columns::describe(packet, self.options.exec_mode, &mut line);
        let mut diagnostics = Vec::new();
        match *packet {
            Packet::Tip(ip) | Packet::TipPge(ip) | Packet::TipPgd(ip) | Packet::Fup(ip)
                if self.options.last_ip =>
            {
                line.tracking = Some(self.tracking.ip(ip, &mut diagnostics));
            }
            _ if self.tracks_time => {
                let column = self.tracking.packet(packet, &self.options, &self.errata, &mut diagnostics);
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
        if self.hides(packet) {
            return Ok(());
        }
        line.offset = (!self.options.no_offset).then_some(offset);
        line.raw = self.options.raw.then(|| bytes[..raw_len(packet, bytes.len())].to_vec());
        writeln!(self.out, "{line}")
    }

    fn hides(&self, packet: &Packet) -> bool {
        let options = &self.options;
        options.quiet
            || match packet {
                Packet::Pad => options.no_pad,
                Packet::Cyc(_) => options.no_cyc || options.no_timing,
                packet => is_timing(packet) && options.no_timing,
            }
    }

    /// Side-band records whose time has come.
    fn sideband_until(&mut self, time: u64) -> io::Result<()> {
        match &mut self.sideband {
            Some(sideband) if !self.options.quiet => sideband.show(time, &self.options.sideband, self.out),
            _ => Ok(()),
        }
    }
}

fn is_timing(packet: &Packet) -> bool {
    matches!(packet, Packet::Tsc(_) | Packet::Cbr(_) | Packet::Tma(_) | Packet::Mtc(_) | Packet::Cyc(_))
}

/// An OVF by erratum SKD007 takes three bytes, of which an OVF's two are shown.
fn raw_len(packet: &Packet, taken: usize) -> usize {
    match packet {
        Packet::Ovf => packet.len(),
        _ => taken.min(RAW),
    }
}
