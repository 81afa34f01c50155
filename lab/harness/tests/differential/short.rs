//! All short traces over a few programs: each difference has a name there, too.

use crate::{
    Tally,
    classes::judge,
    own_decoder::OwnResult,
    releases::READINGS,
    subject::{Code, START},
};
use pugmark_harness::libipt;

/// Maximum number of these packets in a trace.
const LONGEST: u32 = 3;

/// One packet each, of the kinds on which the walk or the events depend.
const PACKETS: [&[u8]; 19] = [
    b"\x06",                   // TNT (T)
    b"\x04",                   // TNT (N)
    b"\x2d\0\x10",             // TIP (1000)
    b"\x2d\0\x20",             // TIP (2000)
    b"\x0d",                   // TIP ()
    b"\x01",                   // TIP.PGD ()
    b"\x21\0\x10",             // TIP.PGD (1000)
    b"\x31\0\x10",             // TIP.PGE (1000)
    b"\x3d\x01\x10",           // FUP (1001)
    b"\x02\xf3",               // OVF
    b"\x99\x02",               // MODE.Exec (32 bit)
    b"\x99\x01",               // MODE.Exec (64 bit)
    b"\x02\x43\0\x02\0\0\0\0", // PIP
    b"\x02\x83",               // TraceStop
    b"\x02\x23",               // PSBEND
    b"\x09",                   // none
    b"\xed\0\0",               // TIP with IPBytes 7
    b"\x02\x92\0\0\0\0",       // PTW with IP
    b"\x4d",                   // TIP that is cut off
];

const PROGRAMS: [&[u8]; 9] = [
    b"\x90\x90\x90",
    b"\x75\xfe",
    b"\x75\0",
    b"\xff\xe0",
    b"\xc3",
    b"\x0f\x22\xd8\x90\xff\xe0",
    b"\x90\x90\xcf",
    b"\xd5\0\0\0\x90",
    b"\xe8\0\0\0\0\xc3",
];

#[test]
fn the_differences_of_short_traces_have_names() {
    let mut tallies = READINGS.each_ref().map(|reading| (reading, Tally::default()));
    for program in PROGRAMS {
        let code = Code::new(&[(0x1000, program)]);
        for number in 0..PACKETS.len().pow(LONGEST) {
            let trace = trace(number);
            let own = OwnResult::both(&trace, &code.own);
            for (reading, tally) in &mut tallies {
                let theirs = libipt::decode_to_error(reading.release, &trace, &code.theirs, 1000);
                let Some(theirs) = theirs else { return println!("{}", reading.release.skipped()) };
                tally.add(judge(reading, &trace, &code, &own, &theirs), || {
                    let packets = &trace[START.len()..];
                    format!("{program:x?}, {packets:x?}: own {own:x?}, libipt {theirs:x?}")
                });
            }
        }
    }
    for (reading, tally) in &tallies {
        tally.check("short", reading, 0, &reading.short);
    }
}

/// Returns the trace whose packets the digits of the number select. Shorter traces are prefixes of these.
fn trace(number: usize) -> Vec<u8> {
    let digits = (0..LONGEST).map(|place| number / PACKETS.len().pow(place) % PACKETS.len());
    START.iter().copied().chain(digits.flat_map(|digit| PACKETS[digit].iter().copied())).collect()
}
