use super::*;
use alloc::{
    format,
    string::{String, ToString},
};

const BARCELONA: &str = "amd64_fam10h_barcelona";

/// Returns the code and the canonical string, or the name of the error and the text with the error.
fn encoded(request: &str) -> Result<(u64, String), (&'static str, &str)> {
    match encode(request, Levels::default()) {
        Ok(encoding) => Ok((encoding.select(), encoding.to_string())),
        Err(error) => {
            assert_eq!(&request[error.offset..error.offset + error.text.len()], error.text);
            Err((error.kind.name(), error.text))
        }
    }
}

#[test]
fn encodes_unit_masks_and_modifiers() {
    for (request, code, canonical) in [
        // Without attributes: default unit masks, default levels.
        ("amd64_k8_revb::DATA_CACHE_MISSES", 0x53_0041, "DATA_CACHE_MISSES:k=1:u=1:e=0:i=0:c=0"),
        ("amd64_k7::DATA_CACHE_REFILLS", 0x53_1f42, "DATA_CACHE_REFILLS:ALL:k=1:u=1:e=0:i=0:c=0"),
        // A unit mask instead of the default; two of them, in any order and case, and one of them twice.
        (
            "amd64_k7::DATA_CACHE_REFILLS:L2_OWNED",
            0x53_0842,
            "DATA_CACHE_REFILLS:L2_OWNED:k=1:u=1:e=0:i=0:c=0",
        ),
        (
            "AMD64_K7::data_cache_REFILLS:l2_owned.L2_Shared:L2_SHARED",
            0x53_0a42,
            "DATA_CACHE_REFILLS:L2_SHARED:L2_OWNED:k=1:u=1:e=0:i=0:c=0",
        ),
        // A number instead of unit masks.
        ("amd64_k7::DATA_CACHE_REFILLS:0X0f", 0x53_0f42, "DATA_CACHE_REFILLS:0xf:k=1:u=1:e=0:i=0:c=0"),
        ("amd64_k7::DATA_CACHE_MISSES:0x81", 0x53_8141, "DATA_CACHE_MISSES:0x81:k=1:u=1:e=0:i=0:c=0"),
        // Each modifier. If a level is given, even with 0, the default levels do not apply.
        ("amd64_k7::DATA_CACHE_MISSES:k", 0x52_0041, "DATA_CACHE_MISSES:k=1:u=0:e=0:i=0:c=0"),
        ("amd64_k7::DATA_CACHE_MISSES:u=0", 0x50_0041, "DATA_CACHE_MISSES:k=0:u=0:e=0:i=0:c=0"),
        ("amd64_k7::DATA_CACHE_MISSES:e=y:i=T", 0xd7_0041, "DATA_CACHE_MISSES:k=1:u=1:e=1:i=1:c=0"),
        ("amd64_k7::DATA_CACHE_MISSES:e=N:i=f", 0x53_0041, "DATA_CACHE_MISSES:k=1:u=1:e=0:i=0:c=0"),
        ("amd64_k7::DATA_CACHE_MISSES:c=255", 0xff53_0041, "DATA_CACHE_MISSES:k=1:u=1:e=0:i=0:c=255"),
        ("amd64_k7::DATA_CACHE_MISSES:c=0x10", 0x1053_0041, "DATA_CACHE_MISSES:k=1:u=1:e=0:i=0:c=16"),
        ("amd64_k7::DATA_CACHE_MISSES:c=010", 0x853_0041, "DATA_CACHE_MISSES:k=1:u=1:e=0:i=0:c=8"),
    ] {
        let (pmu, _) = request.split_once("::").expect("a PMU");
        let canonical = format!("{}::{canonical}", pmu.to_ascii_lowercase());
        assert_eq!(encoded(request), Ok((code, canonical)), "{request}");
    }
}

#[test]
fn since_family_10h_there_are_guest_host_and_twelve_bits() {
    for (event, code, canonical) in [
        ("CPU_CLK_UNHALTED:g", 0x100_0053_0076, "CPU_CLK_UNHALTED:k=1:u=1:e=0:i=0:c=0:h=0:g=1"),
        ("CPU_CLK_UNHALTED:h", 0x200_0050_0076, "CPU_CLK_UNHALTED:k=0:u=0:e=0:i=0:c=0:h=1:g=0"),
        // Two groups of unit masks, each with its default.
        ("L3_CACHE_MISSES", 0x4_0053_f7e1, "L3_CACHE_MISSES:ANY_READ:ALL_CORES:k=1:u=1:e=0:i=0:c=0:h=0:g=0"),
        (
            "L3_CACHE_MISSES:READ_BLOCK_SHARED",
            0x4_0053_f2e1,
            "L3_CACHE_MISSES:READ_BLOCK_SHARED:ALL_CORES:k=1:u=1:e=0:i=0:c=0:h=0:g=0",
        ),
        // A group from which nothing needs to be chosen.
        (
            "HYPERTRANSPORT_LINK3:NOP_DWORD_SENT",
            0x1_0053_08f9,
            "HYPERTRANSPORT_LINK3:NOP_DWORD_SENT:k=1:u=1:e=0:i=0:c=0:h=0:g=0",
        ),
        (
            "HYPERTRANSPORT_LINK3:SUBLINK_MASK",
            0x1_0053_bff9,
            "HYPERTRANSPORT_LINK3:ALL:SUBLINK_MASK:k=1:u=1:e=0:i=0:c=0:h=0:g=0",
        ),
    ] {
        let request = format!("{BARCELONA}::{event}");
        assert_eq!(encoded(&request), Ok((code, format!("{BARCELONA}::{canonical}"))), "{request}");
    }
}

#[test]
fn says_what_is_wrong_and_where() {
    for (request, name, text) in [
        ("", "NOTFOUND", ""),
        ("DATA_CACHE_MISSES", "NOTFOUND", "DATA_CACHE_MISSES"),
        ("i386::DATA_CACHE_MISSES", "NOTFOUND", "i386"),
        ("amd64_k7::", "NOTFOUND", ""),
        ("amd64_k7::DATA_CACHE", "NOTFOUND", "DATA_CACHE"),
        ("amd64_k8_revb::SIZED_BLOCKS", "NOTFOUND", "SIZED_BLOCKS"),
        // Only libpfm3 has this event.
        ("amd64_fam10h_barcelona::IBSOP_EVENT", "NOTFOUND", "IBSOP_EVENT"),
        ("amd64_k7::DATA_CACHE_MISSES,RETIRED_UOPS", "INVAL", ","),
        ("amd64_k7::DATA_CACHE_MISSES ", "INVAL", " "),
        ("amd64_k7::DATA_CACHE_MISSES:", "ATTR", ""),
        ("amd64_k7::DATA_CACHE_MISSES:zzz", "ATTR", "zzz"),
        ("amd64_k7::DATA_CACHE_MISSES:g", "ATTR", "g"),
        ("amd64_k7::DATA_CACHE_REFILLS:ALL=1", "ATTR", "ALL=1"),
        ("amd64_fam10h_barcelona::L1_DTLB_MISS_AND_L2_DTLB_HIT:L2_1G_TLB_HIT", "ATTR", "L2_1G_TLB_HIT"),
        ("amd64_k7::DATA_CACHE_REFILLS:ALL:0x1", "ATTR", "0x1"),
        ("amd64_k7::DATA_CACHE_REFILLS:0x1:u:ALL", "ATTR", "ALL"),
        ("amd64_k7::DATA_CACHE_REFILLS:0x1:0x1", "ATTR", "0x1"),
        ("amd64_k7::DATA_CACHE_REFILLS:0x100", "ATTR", "0x100"),
        ("amd64_k7::DATA_CACHE_REFILLS:0xg", "ATTR", "0xg"),
        ("amd64_k7::DATA_CACHE_REFILLS:0x1=1", "ATTR_VAL", "0x1=1"),
        ("amd64_k7::DATA_CACHE_MISSES:c", "ATTR_VAL", "c"),
        ("amd64_k7::DATA_CACHE_MISSES:c=", "ATTR_VAL", "c="),
        ("amd64_k7::DATA_CACHE_MISSES:c=256", "ATTR_VAL", "c=256"),
        ("amd64_k7::DATA_CACHE_MISSES:u=2", "ATTR_VAL", "u=2"),
        ("amd64_k7::DATA_CACHE_MISSES:u=yes", "ATTR_VAL", "u=yes"),
        ("amd64_k7::DATA_CACHE_MISSES:u:k:u=0", "ATTR_SET", "u=0"),
        ("amd64_k7::DATA_CACHE_MISSES:c=1:c=2", "ATTR_SET", "c=2"),
        ("amd64_k7::DATA_CACHE_REFILLS:L2_OWNED:ALL", "FEATCOMB", "ALL"),
        ("amd64_k7::DATA_CACHE_REFILLS:ALL:L2_OWNED", "FEATCOMB", "L2_OWNED"),
        ("amd64_fam10h_barcelona::MAB_REQUESTS:u", "UMASK", "MAB_REQUESTS"),
        // The first error in the string is reported, but a conflicting value of a modifier comes before all others.
        ("amd64_k7::DATA_CACHE_REFILLS:c=256:ALL:L2_OWNED", "ATTR_VAL", "c=256"),
        ("amd64_k7::DATA_CACHE_REFILLS:ALL:L2_OWNED:c=256", "FEATCOMB", "L2_OWNED"),
        ("amd64_k7::DATA_CACHE_REFILLS:ALL:L2_OWNED:e:e=0", "ATTR_SET", "e=0"),
    ] {
        assert_eq!(encoded(request), Err((name, text)), "{request}");
    }
}

#[test]
fn tells_a_unit_mask_of_other_revisions_from_none() {
    for (request, kind) in [
        (
            "amd64_fam10h_barcelona::L1_DTLB_MISS_AND_L2_DTLB_HIT:L2_1G_TLB_HIT",
            EncodeErrorKind::UnitMaskOfOtherRevision,
        ),
        ("amd64_fam10h_barcelona::L1_DTLB_MISS_AND_L2_DTLB_HIT:zzz", EncodeErrorKind::UnknownAttribute),
        ("amd64_k7::RETIRED_UOPS:zzz", EncodeErrorKind::UnknownAttribute),
    ] {
        assert_eq!(
            encode(request, Levels::default()).map(|_| ()).map_err(|error| error.kind),
            Err(kind),
            "{request}"
        );
    }
}

#[test]
fn of_three_equal_attributes_two_stay_as_in_libpfm() {
    let canonical = |request| encoded(request).map(|(_, canonical)| canonical);
    assert_eq!(
        canonical("amd64_k7::DATA_CACHE_REFILLS:L2_OWNED:L2_OWNED:L2_OWNED").as_deref(),
        Ok("amd64_k7::DATA_CACHE_REFILLS:L2_OWNED:L2_OWNED:k=1:u=1:e=0:i=0:c=0")
    );
    assert_eq!(encoded("amd64_k7::DATA_CACHE_REFILLS:ALL:ALL:ALL"), Err(("FEATCOMB", "ALL")));
    // The last attribute is not compared with the first.
    assert_eq!(encoded("amd64_k7::RETIRED_UOPS:u:u:u=0").map(|(code, _)| code), Ok(0x50_00c1));
}

#[test]
fn the_canonical_string_is_cut_off_where_libpfms_buffer_ends() {
    // Of eight equal attributes three remain.
    let masks = [
        "READ_BLOCK",
        "READ_BLOCK_SHARED",
        "READ_BLOCK_MODIFIED",
        "CHANGE_TO_DIRTY",
        "LOCAL_TO_0",
        "LOCAL_TO_1",
    ]
    .map(|mask| format!(":{mask}").repeat(8));
    let request = format!("{BARCELONA}::CPU_READ_COMMAND_LATENCY_TO_TARGET_NODE_0_3{}", masks.concat());
    let (_, canonical) = encoded(&request).expect("an event");
    assert_eq!(canonical.len(), BARCELONA.len() + 2 + 255);
    assert!(canonical.ends_with(":CHANGE_TO_DIRTY:LOCAL_TO_0:LOCAL"), "{canonical}");
}

#[test]
fn there_are_64_attributes_at_most() {
    let request = |count| format!("amd64_k7::RETIRED_UOPS{}", ":u".repeat(count));
    assert_eq!(encoded(&request(64)).map(|(code, _)| code), Ok(0x51_00c1));
    assert_eq!(encoded(&request(65)), Err(("TOOMANY", "u")));
}

#[test]
fn counts_where_the_caller_says_when_the_request_does_not() {
    let bits = |event, levels| {
        let pmu = Pmu::by_name("amd64_k8_revg").expect("a PMU");
        pmu.encode(event, levels).map(|encoding| encoding.select())
    };
    assert_eq!(bits("RETIRED_UOPS", Levels::KERNEL), Ok(0x52_00c1));
    assert_eq!(bits("RETIRED_UOPS:u", Levels::KERNEL), Ok(0x51_00c1));
    // K8 has no bit for the host.
    assert_eq!(bits("RETIRED_UOPS", Levels::HOST | Levels::USER), Ok(0x51_00c1));
    let request = "amd64_fam10h_istanbul::RETIRED_UOPS";
    let encoding = encode(request, Levels::HOST).expect("an event");
    assert_eq!(encoding.select(), 0x200_0050_00c1);
}

#[test]
fn no_cut_and_no_change_of_a_request_makes_it_panic() {
    let request = "amd64_fam10h_shanghai::READ_REQUEST_TO_L3_CACHE:ANY_READ.0x10:c=0x7f:u=y:e:i=0";
    for end in 0..=request.len() {
        _ = encoded(&request[..end]);
        for change in [":", ".", "=", "::", "0x", "é", "\0", " ", "-"] {
            let (front, back) = request.split_at(end);
            _ = encoded(&format!("{front}{change}{back}"));
            _ = encoded(&format!("{front}{change}"));
        }
    }
}
