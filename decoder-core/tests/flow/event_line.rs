//! Events as ptxed prints them, which is how scenarios and vectors have them.

use pugmark_decoder_core::{
    event::{Event, EventKind},
    mode::ExecMode,
    packet::PtwPayload,
};

/// The text between the brackets; with the addresses if asked for.
pub(crate) fn event_line(event: &Event, with_ip: bool) -> String {
    let optional = |name: &str, value: Option<u64>| {
        value.map_or(String::new(), |value| format!(", {name}: {value:016x}"))
    };
    let ip = if with_ip { optional("ip", event.ip) } else { String::new() };
    let c_state = |state: u8| (state + 1) & 15;
    match event.kind {
        EventKind::Enabled { resumed } => format!("{}{ip}", if resumed { "resumed" } else { "enabled" }),
        EventKind::Disabled => format!("disabled{ip}"),
        EventKind::AsyncDisabled { at } if with_ip => format!("disabled, at: {at:016x}{ip}"),
        EventKind::AsyncDisabled { .. } => "disabled".into(),
        EventKind::AsyncBranch { from } if with_ip => {
            format!("interrupt, from: {from:016x}{}", optional("to", event.ip))
        }
        EventKind::AsyncBranch { .. } => "interrupt".into(),
        EventKind::Paging(pip) | EventKind::AsyncPaging(pip) => {
            format!("paging, cr3: {:016x}{}", pip.cr3, if pip.non_root { ", nr" } else { "" })
        }
        EventKind::Vmcs(vmcs) | EventKind::AsyncVmcs(vmcs) => format!("vmcs, base: {:016x}", vmcs.base),
        EventKind::Overflow => format!("overflow{ip}"),
        EventKind::ExecMode(mode) => {
            let mode = match mode {
                Some(ExecMode::Bits16) => "16-bit",
                Some(ExecMode::Bits32) => "32-bit",
                Some(ExecMode::Bits64) => "64-bit",
                None => "<unknown>",
            };
            format!("exec mode: {mode}{ip}")
        }
        EventKind::Tsx { aborted: true, .. } => format!("aborted{ip}"),
        EventKind::Tsx { speculative: true, .. } => format!("begin transaction{ip}"),
        EventKind::Tsx { .. } => format!("committed{ip}"),
        EventKind::Stop => "stopped".into(),
        EventKind::Exstop => format!("exstop{ip}"),
        EventKind::Mwait(mwait) => format!("mwait {:x} {:x}{ip}", mwait.hints, mwait.ext),
        EventKind::Pwre(pwre) => {
            let hw = if pwre.hw { " hw" } else { "" };
            format!("pwre c{}.{}{hw}", c_state(pwre.state), c_state(pwre.sub_state))
        }
        EventKind::Pwrx(pwrx) => {
            let why = [(pwrx.interrupt, "int: "), (pwrx.store, "st: "), (pwrx.autonomous, "hw: ")];
            let why: String = why.iter().filter(|(set, _)| *set).map(|(_, why)| *why).collect();
            format!("pwrx {why}c{} (c{})", c_state(pwrx.last), c_state(pwrx.deepest))
        }
        EventKind::Ptwrite(PtwPayload::Four(value)) => format!("ptwrite: {value:x}{ip}"),
        EventKind::Ptwrite(PtwPayload::Eight(value)) => format!("ptwrite: {value:x}{ip}"),
        EventKind::Tick => format!("tick{ip}"),
        EventKind::Cbr { ratio } => format!("cbr: {ratio:x}"),
        EventKind::Mnt { payload } => format!("mnt: {payload:x}"),
        EventKind::Iflags { enabled } => {
            format!("interrupts {}{ip}", if enabled { "enabled" } else { "disabled" })
        }
        EventKind::Interrupt { vector, cr2 } => format!("interrupt {vector}{}{ip}", optional("cr2", cr2)),
        EventKind::Iret => format!("iret{ip}"),
        EventKind::Smi => format!("smi{ip}"),
        EventKind::Rsm => format!("rsm{ip}"),
        EventKind::Sipi { vector } => format!("sipi: {vector:x}"),
        EventKind::Init => format!("init{ip}"),
        EventKind::Vmentry => format!("vmentry{ip}"),
        EventKind::Vmexit { vector, reason, qualification } => {
            let vector = vector.map_or(String::new(), |vector| format!(", intr: {vector}"));
            format!("vmexit{vector}{}{}{ip}", optional("vmxr", reason), optional("vmxq", qualification))
        }
        EventKind::Shutdown => format!("shutdown{ip}"),
        EventKind::Uintr { vector } => format!("uintr {vector}{ip}"),
        EventKind::Uiret => format!("uiret{ip}"),
        EventKind::Swintr { vector } => format!("swintr {vector}{ip}"),
        EventKind::Syscall => format!("syscall{ip}"),
        EventKind::Trigger { trbv, icnt, mult } => {
            let icnt = icnt.filter(|icnt| *icnt != 0).map_or(String::new(), |icnt| format!(", icnt: {icnt}"));
            format!("trig {trbv:02x}{}{ip}{icnt}", if mult { ", mult" } else { "" })
        }
        kind => format!("{kind:?}"),
    }
}
