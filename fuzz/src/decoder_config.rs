//! Configurations of a decoder, chosen by input bytes.

use arbitrary::{Result, Unstructured};
use pugmark_decoder_core::{
    ErrorKind,
    config::{AddressFilter, AddressRange, Clocks, Config, Flags, Position, RangeKind, UnknownPackets},
    errata::Errata,
    packet::{Context, Unknown},
};

/// Makes any configuration.
///
/// # Errors
/// If there are not enough bytes left to choose with.
pub fn config(u: &mut Unstructured<'_>) -> Result<Config<'static>> {
    let bits: u8 = u.arbitrary()?;
    let bit = |bit: u32| bits >> bit & 1 != 0;
    let mut config = Config {
        flags: Flags { iflags: bit(1), keep_calibration: bit(2), ticks: bit(3), ..Flags::NONE },
        ..Config::new()
    };
    if bit(4) {
        let more: u8 = u.arbitrary()?;
        config.flags.statuses = more & 1 != 0;
        config.flags.end_on_call = more & 2 != 0;
        config.flags.end_on_jump = more & 4 != 0;
        config.unknown = (more & 8 != 0).then(|| UnknownPackets::new(&unknown));
    }
    if bit(5) {
        config.errata = errata(u)?;
    }
    if bit(6) {
        config.clocks = clocks(u)?;
    }
    if bit(7) {
        config.filter = filter(u)?;
    }
    Ok(config)
}

fn errata(u: &mut Unstructured<'_>) -> Result<Errata> {
    let bits: u16 = u.arbitrary()?;
    let bit = |bit: u32| bits >> bit & 1 != 0;
    Ok(Errata {
        bdm64: bit(0),
        bdm70: bit(1),
        skd007: bit(2),
        skd022: bit(3),
        skd010: bit(4),
        skl014: bit(5),
        skl168: bit(6),
        skz84: bit(7),
        apl11: bit(8),
        apl12: bit(9),
    })
}

fn clocks(u: &mut Unstructured<'_>) -> Result<Clocks> {
    Ok(Clocks {
        mtc_freq: u.arbitrary()?,
        nom_freq: u.arbitrary()?,
        cpuid_15h_eax: u.arbitrary()?,
        cpuid_15h_ebx: u.arbitrary()?,
        cpuid_15h_ecx: u.arbitrary()?,
        cpuid_16h_eax: u.arbitrary()?,
        tsc_adjust: u.arbitrary()?,
        tsc_varies: u.arbitrary()?,
    })
}

fn filter(u: &mut Unstructured<'_>) -> Result<AddressFilter> {
    let mut filter = AddressFilter::default();
    for range in &mut filter.ranges {
        let kind = RangeKind::from(u.int_in_range(0..=3)?);
        let first = u64::from(u.arbitrary::<u16>()?);
        *range = AddressRange { kind, first, last: first.saturating_add(u64::from(u.arbitrary::<u8>()?)) };
    }
    Ok(filter)
}

/// Reads packets with an unknown opcode. Their last opcode byte selects an error or a length, which may be 0 or go past
/// the trace's end.
fn unknown(_: &Config<'_>, position: Position<'_>, _: Context) -> core::result::Result<Unknown, ErrorKind> {
    let size = match *position.bytes() {
        [0x02, 0xc3, third, ..] => third,
        [0x02, second, ..] => second,
        [first, ..] => first,
        [] => 0,
    };
    match size & 0x3f {
        code @ 0x30.. => Err(ErrorKind::Refused(code.into())),
        size => Ok(Unknown { size, value: position.offset as u64 }),
    }
}
