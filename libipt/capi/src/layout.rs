//! Compares the layouts of our structures with the header's.
//!
//! A C program sets each field to all ones in a structure of zeros, and prints which bits are set.

use crate::{
    config::{PtConfig, PtCpu, PtErrata, PtFilter},
    event::{PtEvent, flag},
    events::{INTERRUPT_FLAG_EVENTS, KEEP_CALIBRATION},
    flow::block::PtBlock,
    image::{
        PtAsid,
        insn::{PtInsn, flag as insn_flag},
    },
    packet::{Field, PtPacket, field},
    version::Version,
};
#[allow(dead_code, unreachable_pub, reason = "a module of another crate, of which this needs the headers")]
#[path = "../../../lab/harness/src/libipt/release.rs"]
mod release;

use release::{RELEASES, Release};
use std::{collections::BTreeMap, fmt::Write as _, fs, mem::offset_of, process::Command};

/// A structure of the header, our size of it, and the place of each field: first bit and number of bits.
struct Layout {
    name: &'static str,
    size: usize,
    fields: Vec<(String, u32, u32)>,
}

/// The fields of a structure that has them as Rust fields: C's name of each and its type's size.
macro_rules! layout {
    ($c:literal, $rust:ty, [$($name:literal = $field:ident: $type:ty),* $(,)?]) => {
        Layout {
            name: $c,
            size: size_of::<$rust>(),
            fields: vec![$(($name.into(), offset_of!($rust, $field) as u32 * 8, size_of::<$type>() as u32 * 8)),*],
        }
    };
}

fn layouts() -> Vec<Layout> {
    let mut packet = layout!("pt_packet", PtPacket, ["type" = kind: u32]);
    packet.fields.push(("size".into(), offset_of!(PtPacket, size) as u32 * 8, 8));
    let payload = offset_of!(PtPacket, payload) as u32 * 8;
    packet.fields.extend(
        payload_fields().map(|(name, Field { at, width })| (format!("payload.{name}"), payload + at, width)),
    );
    let mut errata = Layout { name: "pt_errata", size: size_of::<PtErrata>(), fields: vec![] };
    for (name, bit) in [
        ("bdm70", PtErrata::BDM70),
        ("bdm64", PtErrata::BDM64),
        ("skd007", PtErrata::SKD007),
        ("skd022", PtErrata::SKD022),
        ("skd010", PtErrata::SKD010),
        ("skl014", PtErrata::SKL014),
        ("apl12", PtErrata::APL12),
        ("apl11", PtErrata::APL11),
        ("skl168", PtErrata::SKL168),
        ("skz84", PtErrata::SKZ84),
    ] {
        errata.fields.push((name.into(), bit.trailing_zeros(), 1));
    }
    let mut filter = layout!("pt_conf_addr_filter", PtFilter, ["config.addr_cfg" = config: u64]);
    let ranges = offset_of!(PtFilter, ranges) as u32 * 8;
    for range in 0..4 {
        filter.fields.push((format!("addr{range}_a"), ranges + range * 128, 64));
        filter.fields.push((format!("addr{range}_b"), ranges + range * 128 + 64, 64));
    }
    let mut config = layout!("pt_config", PtConfig, [
        "size" = size: usize, "begin" = begin: usize, "end" = end: usize,
        "decode.callback" = callback: usize, "decode.context" = context: usize,
        "cpuid_0x15_eax" = cpuid_15h_eax: u32, "cpuid_0x15_ebx" = cpuid_15h_ebx: u32,
        "mtc_freq" = mtc_freq: u8, "nom_freq" = nom_freq: u8,
        "flags.variant.reserved[0]" = flags: u32,
    ]);
    // Nested structures, by their first or last field.
    for (name, at, width) in [
        ("cpu.vendor", offset_of!(PtConfig, cpu) * 8, 32),
        ("errata.bdm70", offset_of!(PtConfig, errata) * 8, 1),
        ("addr_filter.config.addr_cfg", offset_of!(PtConfig, filter) * 8, 64),
        ("flags.variant.block.end_on_call", offset_of!(PtConfig, flags) * 8, 1),
        ("flags.variant.block.enable_tick_events", offset_of!(PtConfig, flags) * 8 + 1, 1),
        ("flags.variant.block.end_on_jump", offset_of!(PtConfig, flags) * 8 + 2, 1),
        ("flags.variant.insn.enable_tick_events", offset_of!(PtConfig, flags) * 8, 1),
    ] {
        config.fields.push((name.into(), at as u32, width));
    }
    let mut event = layout!("pt_event", PtEvent, [
        "type" = kind: u32, "tsc" = tsc: u64, "lost_mtc" = lost_mtc: u32, "lost_cyc" = lost_cyc: u32,
    ]);
    let flags = offset_of!(PtEvent, flags) as u32 * 8;
    for (name, bit) in [
        ("ip_suppressed", flag::IP_SUPPRESSED),
        ("status_update", flag::STATUS_UPDATE),
        ("has_tsc", flag::HAS_TSC),
    ] {
        event.fields.push((name.into(), flags + bit.trailing_zeros(), 1));
    }
    let variant = offset_of!(PtEvent, variant) as u32 * 8;
    for (name, word, bit, width) in variant_fields() {
        event.fields.push((format!("variant.{name}"), variant + word * 64 + bit.trailing_zeros(), width));
    }
    let mut insn = layout!("pt_insn", PtInsn, [
        "ip" = ip: u64, "isid" = isid: u32, "mode" = mode: u32, "iclass" = class: u32, "size" = size: u8,
    ]);
    let flags = offset_of!(PtInsn, flags) as u32 * 8;
    insn.fields.extend([
        ("raw[0]".into(), offset_of!(PtInsn, raw) as u32 * 8, 8),
        ("speculative".into(), flags + insn_flag::SPECULATIVE.trailing_zeros(), 1),
        ("truncated".into(), flags + insn_flag::TRUNCATED.trailing_zeros(), 1),
    ]);
    let mut block = layout!("pt_block", PtBlock, [
        "ip" = ip: u64, "end_ip" = end_ip: u64, "isid" = isid: u32, "mode" = mode: u32, "iclass" = class: u32,
        "ninsn" = insns: u16, "size" = size: u8,
    ]);
    let flags = offset_of!(PtBlock, flags) as u32 * 8;
    block.fields.extend([
        ("raw[0]".into(), offset_of!(PtBlock, raw) as u32 * 8, 8),
        ("speculative".into(), flags + insn_flag::SPECULATIVE.trailing_zeros(), 1),
        ("truncated".into(), flags + insn_flag::TRUNCATED.trailing_zeros(), 1),
    ]);
    vec![
        block,
        event,
        insn,
        layout!("pt_version", Version, [
            "major" = major: u8, "minor" = minor: u8, "patch" = patch: u16, "build" = build: u32, "ext" = ext: usize,
        ]),
        layout!("pt_cpu", PtCpu, [
            "vendor" = vendor: u32, "family" = family: u16, "model" = model: u8, "stepping" = stepping: u8,
        ]),
        layout!("pt_asid", PtAsid, ["size" = size: usize, "cr3" = cr3: u64, "vmcs" = vmcs: u64]),
        errata,
        filter,
        config,
        packet,
    ]
}

/// Returns the fields of an event's union: the word, the first bit in it, and the number of bits.
fn variant_fields() -> [(&'static str, u32, u64, u32); 36] {
    [
        ("enabled.ip", 0, 1, 64),
        ("enabled.resumed", 1, flag::RESUMED, 1),
        ("disabled.ip", 0, 1, 64),
        ("async_disabled.at", 0, 1, 64),
        ("async_disabled.ip", 1, 1, 64),
        ("async_branch.from", 0, 1, 64),
        ("async_branch.to", 1, 1, 64),
        ("paging.cr3", 0, 1, 64),
        ("paging.non_root", 1, 1, 1),
        ("async_paging.cr3", 0, 1, 64),
        ("async_paging.non_root", 1, 1, 1),
        ("async_paging.ip", 2, 1, 64),
        ("overflow.ip", 0, 1, 64),
        ("exec_mode.mode", 0, 1, 32),
        ("exec_mode.ip", 1, 1, 64),
        ("tsx.ip", 0, 1, 64),
        ("tsx.speculative", 1, flag::SPECULATIVE, 1),
        ("tsx.aborted", 1, flag::ABORTED, 1),
        ("vmcs.base", 0, 1, 64),
        ("async_vmcs.base", 0, 1, 64),
        ("async_vmcs.ip", 1, 1, 64),
        ("exstop.ip", 0, 1, 64),
        ("mwait.ip", 0, 1, 64),
        ("mwait.hints", 1, 1, 32),
        ("mwait.ext", 1, 1 << 32, 32),
        ("pwre.state", 0, 1, 8),
        ("pwre.sub_state", 0, 1 << 8, 8),
        ("pwre.hw", 0, flag::PWRE_HW, 1),
        ("pwrx.last", 0, 1, 8),
        ("pwrx.deepest", 0, 1 << 8, 8),
        ("pwrx.interrupt", 0, flag::PWRX_INTERRUPT, 1),
        ("pwrx.store", 0, flag::PWRX_STORE, 1),
        ("pwrx.autonomous", 0, flag::PWRX_AUTONOMOUS, 1),
        ("ptwrite.size", 1, 1, 8),
        ("ptwrite.payload", 2, 1, 64),
        ("cbr.ratio", 0, 1, 16),
    ]
}

/// Returns the same for the fields of events that the header has since 2.1.
fn newer_variant_fields() -> [(&'static str, u32, u64, u32); 26] {
    [
        ("tip.ip", 0, 1, 64),
        ("tnt.bits", 0, 1, 64),
        ("tnt.size", 1, 1, 8),
        ("iflags.iflag", 0, 1, 1),
        ("iflags.ip", 1, 1, 64),
        ("interrupt.has_cr2", 0, flag::INTERRUPT_HAS_CR2, 1),
        ("interrupt.vector", 0, 1 << 8, 8),
        ("interrupt.cr2", 1, 1, 64),
        ("interrupt.ip", 2, 1, 64),
        ("iret.ip", 0, 1, 64),
        ("smi.ip", 0, 1, 64),
        ("rsm.ip", 0, 1, 64),
        ("sipi.vector", 0, 1, 8),
        ("init.ip", 0, 1, 64),
        ("vmentry.ip", 0, 1, 64),
        ("vmexit.has_vector", 0, flag::VMEXIT_HAS_VECTOR, 1),
        ("vmexit.has_vmxr", 0, flag::VMEXIT_HAS_REASON, 1),
        ("vmexit.has_vmxq", 0, flag::VMEXIT_HAS_QUALIFICATION, 1),
        ("vmexit.vector", 0, 1 << 8, 8),
        ("vmexit.vmxr", 1, 1, 64),
        ("vmexit.vmxq", 2, 1, 64),
        ("vmexit.ip", 3, 1, 64),
        ("shutdown.ip", 0, 1, 64),
        ("uintr.vector", 0, 1, 8),
        ("uintr.ip", 1, 1, 64),
        ("uiret.ip", 0, 1, 64),
    ]
}

/// Returns the fields that the header has since 2.1, by the structure's name.
fn newer_fields() -> BTreeMap<&'static str, Vec<(String, u32, u32)>> {
    let variant = offset_of!(PtEvent, variant) as u32 * 8;
    let event = newer_variant_fields()
        .map(|(name, word, bit, width)| {
            (format!("variant.{name}"), variant + word * 64 + bit.trailing_zeros(), width)
        })
        .to_vec();
    let payload = offset_of!(PtPacket, payload) as u32 * 8;
    let packet = [
        ("mode.bits.exec.iflag", field::MODE_EXEC_IFLAG),
        ("cfe.type", field::CFE_TYPE),
        ("cfe.vector", field::CFE_VECTOR),
        ("cfe.ip", field::CFE_IP),
        ("evd.type", field::EVD_TYPE),
        ("evd.payload", field::EVD_PAYLOAD),
    ]
    .map(|(name, Field { at, width })| (format!("payload.{name}"), payload + at, width))
    .to_vec();
    let flags = offset_of!(PtConfig, flags) as u32 * 8;
    let config =
        [("event.keep_tcal_on_ovf", KEEP_CALIBRATION), ("event.enable_iflags_events", INTERRUPT_FLAG_EVENTS)]
            .map(|(name, bit)| (format!("flags.variant.{name}"), flags + bit.trailing_zeros(), 1))
            .to_vec();
    BTreeMap::from([("pt_event", event), ("pt_packet", packet), ("pt_config", config)])
}

fn payload_fields() -> impl Iterator<Item = (&'static str, Field)> {
    [
        ("tnt.bit_size", field::TNT_BIT_SIZE),
        ("tnt.payload", field::TNT_PAYLOAD),
        ("ip.ipc", field::IP_IPC),
        ("ip.ip", field::IP_IP),
        ("mode.leaf", field::MODE_LEAF),
        ("mode.bits.exec.csl", field::MODE_EXEC_CSL),
        ("mode.bits.exec.csd", field::MODE_EXEC_CSD),
        ("mode.bits.tsx.intx", field::MODE_TSX_INTX),
        ("mode.bits.tsx.abrt", field::MODE_TSX_ABRT),
        ("pip.cr3", field::PIP_CR3),
        ("pip.nr", field::PIP_NR),
        ("vmcs.base", field::VMCS_BASE),
        ("cbr.ratio", field::CBR_RATIO),
        ("tsc.tsc", field::TSC_TSC),
        ("tma.ctc", field::TMA_CTC),
        ("tma.fc", field::TMA_FC),
        ("mtc.ctc", field::MTC_CTC),
        ("cyc.value", field::CYC_VALUE),
        ("mnt.payload", field::MNT_PAYLOAD),
        ("exstop.ip", field::EXSTOP_IP),
        ("mwait.hints", field::MWAIT_HINTS),
        ("mwait.ext", field::MWAIT_EXT),
        ("pwre.state", field::PWRE_STATE),
        ("pwre.sub_state", field::PWRE_SUB_STATE),
        ("pwre.hw", field::PWRE_HW),
        ("pwrx.last", field::PWRX_LAST),
        ("pwrx.deepest", field::PWRX_DEEPEST),
        ("pwrx.interrupt", field::PWRX_INTERRUPT),
        ("pwrx.store", field::PWRX_STORE),
        ("pwrx.autonomous", field::PWRX_AUTONOMOUS),
        ("ptw.payload", field::PTW_PAYLOAD),
        ("ptw.plc", field::PTW_PLC),
        ("ptw.ip", field::PTW_IP),
        ("unknown.packet", field::UNKNOWN_PACKET),
        ("unknown.priv", field::UNKNOWN_PRIV),
    ]
    .into_iter()
}

/// Returns a C program that prints "NAME SIZE" for each structure, and "NAME.FIELD FIRST-BIT BITS" for each field.
fn program(layouts: &[Layout]) -> String {
    let mut text = String::from(
        r#"#include <intel-pt.h>
#include <stdio.h>
#include <string.h>
static void show(const char *name, const unsigned char *bytes, unsigned long size)
{
    unsigned long bit, first = 0, bits = 0;
    for (bit = size * 8; bit-- > 0;)
        if (bytes[bit / 8] >> bit % 8 & 1) { first = bit; ++bits; }
    printf("%s %lu %lu\n", name, first, bits);
}
int main(void)
{
"#,
    );
    for Layout { name, fields, .. } in layouts {
        let _ = writeln!(text, "printf(\"{name} %lu 0\\n\", (unsigned long) sizeof(struct {name}));");
        for (field, ..) in fields {
            let _ = writeln!(
                text,
                "{{ struct {name} s; memset(&s, 0, sizeof s); s.{field} = (__typeof__(s.{field} + 0)) -1; \
                 show(\"{name}.{field}\", (unsigned char *) &s, sizeof s); }}"
            );
        }
    }
    text + "return 0;\n}\n"
}

/// Compares our structures with the header of a release, if it is there. Newer releases add fields in bits and words
/// that older ones leave free, and words at the end of events. Our events have those words, too, as callers give the
/// size of their structure.
fn compare(release: &Release) -> bool {
    let Some(include) = release.include() else {
        println!("{}", release.skipped());
        return false;
    };
    let mut layouts = layouts();
    if release.version >= (2, 1, 0) {
        let mut newer = newer_fields();
        for layout in &mut layouts {
            layout.fields.extend(newer.remove(layout.name).unwrap_or_default());
        }
    }
    let name = release.folder_name();
    let folder = std::env::temp_dir().join(format!("pugmark-capi-layout-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&source, program(&layouts)).unwrap();
    let compiled =
        Command::new("cc").arg("-w").arg("-I").arg(include).arg("-o").arg(&binary).arg(&source).status();
    assert!(compiled.unwrap().success(), "{}", source.display());
    let output = Command::new(&binary).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let theirs: BTreeMap<String, (u32, u32)> = str::from_utf8(&output.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap();
            (word().into(), (word().parse().unwrap(), word().parse().unwrap()))
        })
        .collect();
    for Layout { name, size, fields } in layouts {
        let size = if name == "pt_event" { release.event_size } else { size };
        assert_eq!(theirs[name].0 as usize, size, "{name}");
        for (field, at, width) in fields {
            assert_eq!(theirs[&format!("{name}.{field}")], (at, width), "{name}.{field}");
        }
    }
    true
}

#[test]
fn events_have_room_for_those_of_each_release() {
    let longest = RELEASES.iter().map(|release| release.event_size).max();
    assert_eq!(longest, Some(size_of::<PtEvent>()));
}

#[test]
fn structures_have_the_sizes_and_places_that_each_releases_header_gives_them() {
    let compared = RELEASES.into_iter().filter(|release| compare(release)).count();
    println!("{compared} headers");
}
