//! Tracks the state after each packet: last IP and time.

use super::options::{PtdumpOptions, TimeColumn};
use pugmark_decoder_core::errata::Errata;
use pugmark_decoder_core::last_ip::{LastIp, NoIp};
use pugmark_decoder_core::packet::{Cyc, Ip, Packet};
use pugmark_decoder_core::time::{Calibration, Estimate, TimeError};
use pugmark_ipt::Code;

/// A message, with the text of its error if there is one.
pub(super) type Diagnostic = (&'static str, Option<&'static str>);

/// A column's name and value.
pub(super) type Column = (&'static str, String);

/// The state after the packets so far.
#[derive(Debug, Default)]
pub(super) struct Tracking {
    last_ip: LastIp,
    estimate: Estimate,
    calibration: Calibration,
    printed_tsc: u64,
    printed_ratio: u64,
    in_psb: bool,
}

impl Tracking {
    /// Returns the estimated time, relative where no TSC is known.
    pub(super) fn time(&self) -> u64 {
        self.estimate.relative()
    }

    /// Applies an IP and returns the last IP's column.
    ///
    /// A PSB does not reset the last IP here: the last IP would become zero, and IPs after a PSB are complete anyway.
    pub(super) fn ip(&mut self, ip: Ip, diagnostics: &mut Vec<Diagnostic>) -> Column {
        self.last_ip.update(ip);
        let value = match self.last_ip.get() {
            Ok(ip) => format!("{ip:016x}"),
            Err(NoIp::Suppressed) => "<suppressed>".into(),
            Err(NoIp::Never) => {
                diagnostics.push(("error tracking last-ip", Some(Code::from(NoIp::Never).text())));
                "<unavailable>".into()
            }
        };
        ("ip", value)
    }

    /// Applies a timing packet and returns the time column if the packet has one.
    pub(super) fn packet(
        &mut self,
        packet: &Packet,
        options: &PtdumpOptions,
        errata: &Errata,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Option<Column> {
        let clocks = &options.clocks;
        let calibrate = !options.no_tcal;
        let mut check = |step, result: Result<(), TimeError>| {
            if let Err(error) = result {
                diagnostics.push((step, Some(Code::from(error).text())));
            }
        };
        const CALIBRATING: &str = "error calibrating time";
        const UPDATING: &str = "error updating time";
        let columns: &[TimeColumn] = match *packet {
            Packet::Psb => {
                self.in_psb = true;
                if calibrate && errata.skl168 {
                    self.calibration.psb_with_skl168();
                }
                &[]
            }
            Packet::PsbEnd => {
                self.in_psb = false;
                &[]
            }
            Packet::Ovf => {
                self.calibration.ovf(options.keep_tcal_on_ovf);
                &[]
            }
            Packet::Tsc(tsc) => {
                if calibrate {
                    self.calibration.tsc(tsc, self.in_psb);
                }
                self.estimate.tsc(tsc);
                &[TimeColumn::Tsc, TimeColumn::Ratio]
            }
            Packet::Cbr(cbr) => {
                if calibrate {
                    check(CALIBRATING, self.calibration.cbr(cbr.ratio, self.in_psb, clocks));
                }
                check(UPDATING, self.estimate.cbr(cbr.ratio));
                &[TimeColumn::Ratio]
            }
            Packet::Tma(tma) => {
                check(UPDATING, self.estimate.tma(tma, clocks));
                &[TimeColumn::Tsc]
            }
            Packet::Mtc(mtc) => {
                if calibrate {
                    check(CALIBRATING, self.calibration.mtc(mtc, clocks));
                }
                check(UPDATING, self.estimate.mtc(mtc, clocks));
                &[TimeColumn::Tsc, TimeColumn::Ratio]
            }
            Packet::Cyc(cyc) if !options.no_cyc => {
                self.cyc(cyc, options, diagnostics);
                &[TimeColumn::Tsc]
            }
            _ => &[],
        };
        let column = options.time.filter(|column| columns.contains(column))?;
        Some(self.column(column, options, diagnostics))
    }

    /// Applies a CYC, converting it to time by the ratio before it.
    fn cyc(&mut self, cyc: Cyc, options: &PtdumpOptions, diagnostics: &mut Vec<Diagnostic>) {
        let ratio = self.calibration.ratio().unwrap_or_else(|error| {
            if !options.no_tcal {
                diagnostics.push(("calibration error", Some(Code::from(error).text())));
            }
            0
        });
        if !options.no_tcal {
            self.calibration.cyc(cyc);
        }
        if let Err(error) = self.estimate.cyc(cyc, ratio, &options.clocks) {
            diagnostics.push(("error updating time", Some(Code::from(error).text())));
        }
        if ratio == 0 {
            diagnostics.push(("error updating time: no calibration", None));
        }
    }

    fn column(
        &mut self,
        column: TimeColumn,
        options: &PtdumpOptions,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Column {
        let value = match column {
            TimeColumn::Tsc => self.tsc(options),
            TimeColumn::Ratio => self.ratio(options),
        };
        let value = value.unwrap_or_else(|error| {
            diagnostics.push(("error printing time", Some(Code::from(error).text())));
            "<unavailable>".into()
        });
        match column {
            TimeColumn::Tsc => ("tsc", value),
            TimeColumn::Ratio => ("fcr", value),
        }
    }

    fn tsc(&mut self, options: &PtdumpOptions) -> Result<String, TimeError> {
        let tsc = match self.estimate.time() {
            Err(TimeError::NoTsc) if options.no_wall_clock => self.estimate.relative(),
            time => time?,
        };
        let before = std::mem::replace(&mut self.printed_tsc, tsc);
        Ok(match options.time_delta {
            false => format!("{tsc:016x}"),
            true if tsc >= before => format!("+{:x}", tsc - before),
            true => format!("-{:x}", before - tsc),
        })
    }

    fn ratio(&mut self, options: &PtdumpOptions) -> Result<String, TimeError> {
        let ratio = self.calibration.ratio()?;
        let before = std::mem::replace(&mut self.printed_ratio, ratio);
        let shown = |ratio: u64| ratio as f64 / 256.0;
        Ok(match options.time_delta {
            false => format!("{:.3}", shown(ratio)),
            true => format!("{:+.3}", shown(ratio) - shown(before)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::packet::Tsc;

    /// Only ratios of TSC to core cycles between TSCs in PSB+ are right: before another TSC, tracing may have been off.
    #[test]
    fn tscs_calibrate_only_within_psbs() {
        let tsc = |tsc| Packet::Tsc(Tsc { tsc });
        let inside = |time| vec![Packet::Psb, tsc(time), Packet::PsbEnd];
        let cycles = vec![Packet::Cyc(Cyc { cycles: 10 })];
        let ratio = |packets: &[Vec<Packet>]| {
            let options = PtdumpOptions { time: Some(TimeColumn::Ratio), ..PtdumpOptions::default() };
            let mut tracking = Tracking::default();
            let packets = packets.concat();
            let mut of = |packet| tracking.packet(packet, &options, &Errata::NONE, &mut vec![]);
            let shown = packets.iter().filter_map(&mut of);
            shown.last().map(|(name, value)| format!("{name} {value}"))
        };
        for (packets, expected) in [
            (vec![inside(100), cycles.clone(), inside(120)], "fcr 2.000"),
            (vec![inside(100), cycles.clone(), vec![tsc(120)]], "fcr <unavailable>"),
            (vec![vec![tsc(100)], cycles.clone(), inside(105)], "fcr 0.500"),
            (vec![inside(100), inside(120)], "fcr <unavailable>"),
        ] {
            assert_eq!(ratio(&packets).as_deref(), Some(expected), "{packets:?}");
        }
    }
}
