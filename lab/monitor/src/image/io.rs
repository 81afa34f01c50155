//! The intercepted ports: the debug exit, the marker of trace sessions, the monitor's own channel, the firmware's
//! configuration device, the first serial port, and PCI configuration if the guest's processor has its own northbridge.

use core::ops::RangeInclusive;

use pugmark_monitor::fw_cfg;
use pugmark_monitor::guest::{Instruction, StringPort};
use pugmark_monitor::permission_map::{PORT_MAP_BYTES, intercept_ports};
use x86_64::instructions::port::Port;
use x86_64::structures::port::{PortRead, PortWrite};

use crate::image::channel::{self, CHANNEL_PORT, COM1, report};
use crate::image::configuration::{FIRST_PORT, LAST_PORT};
use crate::image::exit::{DEBUG_EXIT_PORT, exit};
use crate::image::interrupts;
use crate::image::vcpu::Vcpu;

/// Port to which a guest writes the number of the trace session that begins; 0 ends the session.
const MARKER_PORT: u16 = 0xe700;
/// VMware's interface, through which QEMU reports the machine's RAM size. The guest's machine lacks it.
const VMWARE_PORT: u16 = 0x5658;

/// Ports at which a guest finds no device: a read returns ones, and a write only affects the monitor.
const OWN_PORTS: [RangeInclusive<u16>; 4] = [
    DEBUG_EXIT_PORT..=DEBUG_EXIT_PORT + 3,
    MARKER_PORT..=MARKER_PORT + 3,
    CHANNEL_PORT..=CHANNEL_PORT,
    VMWARE_PORT..=VMWARE_PORT + 3,
];

/// Details of an intercepted access: IN, string, size bits 6:4, port 31:16.
const IN: u64 = 1 << 0;
const STRING: u64 = 1 << 2;

/// Intercepts the ports; those of the guest's northbridge and of the firmware's device only if they exist.
pub(crate) fn intercept(map: &mut [u8; PORT_MAP_BYTES], has_northbridge: bool, has_fw_cfg: bool) {
    let some = |there: bool, ports| there.then_some(ports);
    let more = [
        some(has_northbridge, FIRST_PORT..=LAST_PORT),
        some(has_fw_cfg, fw_cfg::PORTS),
        // To mark the ends of the guest's lines.
        some(channel::is_there(), COM1..=COM1),
    ];
    for ports in OWN_PORTS.into_iter().chain(more.into_iter().flatten()) {
        intercept_ports(map, *ports.start(), ports.end() - ports.start() + 1);
    }
}

/// Returns whether the guest finds no device at `port`.
fn is_own(port: u16) -> bool {
    OWN_PORTS.iter().any(|ports| ports.contains(&port))
}

impl Vcpu {
    /// Executes an access to an intercepted port.
    pub(crate) fn port(&mut self, info: u64, instruction: &Instruction) {
        let port = (info >> 16) as u16;
        let bytes = (info >> 4 & 7) as u32;
        if info & STRING != 0 {
            return self.string_port(port, bytes, instruction);
        }
        let mask = u32::MAX >> (32 - 8 * bytes);
        if info & IN != 0 {
            let value = self.read_port(port, bytes);
            let kept = if bytes == 4 { 0 } else { self.cpu.gpr[0] & !u64::from(mask) };
            self.cpu.gpr[0] = kept | u64::from(value & mask);
            return self.finish(instruction, 0);
        }
        let begun = self.write_port(port, bytes, self.cpu.gpr[0] as u32 & mask);
        self.finish(instruction, 0);
        self.session = begun.unwrap_or(self.session);
    }

    /// Executes one iteration of INS or OUTS.
    fn string_port(&mut self, port: u16, bytes: u32, instruction: &Instruction) {
        self.vmsave();
        let next = match StringPort::next(&self.cpu, &mut self.memory, instruction, bytes as usize) {
            Ok(Some(next)) => next,
            Ok(None) => return self.finish(instruction, 0),
            Err(error) => return self.deliver_error(error),
        };
        let (mut input, mut begun) = (0, None);
        match next.output {
            Some(value) => begun = self.write_port(port, bytes, value),
            None => input = self.read_port(port, bytes),
        }
        match next.end(&mut self.cpu, &mut self.memory, input) {
            Ok(true) => {
                self.repeating_rip = None;
                self.finish(instruction, 0);
            }
            Ok(false) => {
                self.repeating_rip = Some(instruction.rip());
                self.cpu.shadow = None;
                self.deliver_single_step_if(self.cpu.owns_single_step());
            }
            Err(error) => self.deliver_error(error),
        }
        self.session = begun.unwrap_or(self.session);
    }

    fn read_port(&self, port: u16, bytes: u32) -> u32 {
        if (FIRST_PORT..=LAST_PORT).contains(&port) {
            return self.read_configuration(port, bytes);
        }
        if fw_cfg::PORTS.contains(&port) {
            return self.read_fw_cfg(port, bytes);
        }
        // An access that crosses the boundary of a device is split.
        let ports = || (0..bytes as u16).map(|index| port.wrapping_add(index));
        if ports().any(is_own) {
            let byte = |port| if is_own(port) { 0xff } else { read_below(port, 1) };
            return ports().rev().fold(0, |value, port| value << 8 | byte(port));
        }
        read_below(port, bytes)
    }

    /// Writes to a port. Returns the trace session that begins after the instruction.
    fn write_port(&mut self, port: u16, bytes: u32, value: u32) -> Option<u16> {
        match port {
            DEBUG_EXIT_PORT => self.end_machine(value),
            MARKER_PORT => return Some(self.announce_session(value as u16)),
            FIRST_PORT..=LAST_PORT => self.write_configuration(port, bytes, value),
            _ if fw_cfg::PORTS.contains(&port) => self.write_fw_cfg(port, bytes, value),
            _ => {
                if port == COM1 && value as u8 == b'\n' {
                    channel::end_guest_line();
                }
                let ports = (0..bytes as u16).map(|index| port.wrapping_add(index));
                if !ports.clone().any(is_own) {
                    write_below(port, bytes, value);
                } else {
                    for (port, byte) in ports.zip(value.to_le_bytes()).filter(|(port, _)| !is_own(*port)) {
                        write_below(port, 1, byte.into());
                    }
                }
            }
        }
        None
    }

    /// Prepares for the session that the marker announces, and returns it. Neither marker instruction belongs to the
    /// session itself.
    fn announce_session(&mut self, session: u16) -> u16 {
        self.report_session_violations();
        if session == 0 {
            self.session = 0;
        }
        session
    }

    /// Ends the machine at the guest's request. Before that, each processor reports its violations that are still
    /// unreported, and the log is closed.
    fn end_machine(&mut self, value: u32) -> ! {
        if !self.peers.end_others() {
            self.end_this_processor();
        }
        self.report_session_violations();
        self.report_steps();
        if let Some(truth) = &self.truth {
            truth.close(value);
        }
        exit(value)
    }

    /// Ends this processor because another processor ends the machine.
    pub(crate) fn end_this_processor(&mut self) -> ! {
        self.report_session_violations();
        self.report_steps();
        self.peers.record_end();
        loop {
            interrupts::wait_for_nmi();
        }
    }

    /// Prints the average number of instructions per entry into the stepped guest, because entries dominate the cost of
    /// stepping.
    fn report_steps(&self) {
        let Self { stepped, stepping_entries, .. } = *self;
        let Some(tenths) = (stepped * 10).checked_div(stepping_entries) else { return };
        report!(
            "processor {}: {stepped} instructions stepped in {stepping_entries} entries, {}.{} each",
            self.peers.index(),
            tenths / 10,
            tenths % 10
        );
    }
}

/// Executes the guest's IN of `bytes` bytes at a device of the machine below.
pub(crate) fn read_below(port: u16, bytes: u32) -> u32 {
    fn read<T: PortRead>(port: u16) -> T {
        // SAFETY: the guest's own access to a device that belongs to the guest. The monitor has nothing there that
        // reading changes.
        unsafe { Port::new(port).read() }
    }
    match bytes {
        1 => read::<u8>(port).into(),
        2 => read::<u16>(port).into(),
        _ => read(port),
    }
}

/// Executes the guest's OUT of `bytes` bytes at a device of the machine below.
pub(crate) fn write_below(port: u16, bytes: u32, value: u32) {
    fn write<T: PortWrite>(port: u16, value: T) {
        // SAFETY: the guest's own access to a device that belongs to the guest.
        unsafe { Port::new(port).write(value) }
    }
    match bytes {
        1 => write(port, value as u8),
        2 => write(port, value as u16),
        _ => write(port, value),
    }
}
