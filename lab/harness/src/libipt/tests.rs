//! Tests with small traces of each kind.

use super::*;

const PSB: &[u8] = b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";

#[test]
fn finds_the_instructions_of_a_small_trace() {
    // MODE.Exec (64 bit), FUP (1000), PSBEND, FUP (1003), TIP.PGD.
    let trace = [PSB, b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x3d\x03\x10\x01"].concat();
    let Some(decoded) = decode(&trace, &[(0x1000, &[0x90; 16])]) else {
        println!("{}", REFERENCE.skipped());
        return;
    };
    assert_eq!(decoded.addresses, [0x1000, 0x1001, 0x1002]);
    assert_eq!((decoded.errors, decoded.overflows), (vec![], 0));
}

#[test]
fn ends_at_the_first_error_where_that_is_asked_for() {
    // FUP (1002), TIP (1000), a byte that begins no packet; another PSB.
    let start = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
    let first = [PSB, start, b"\x3d\x02\x10\x2d\0\x10"].concat();
    let trace = [&first[..], b"\x09", PSB, start, b"\x3d\x02\x10\x01"].concat();
    let code = [Section { base: 0x1000, bytes: &[0x90; 2], cr3: None }];
    let Some(decoded) = decode_to_error(REFERENCE, &trace, &code, 100) else {
        println!("{}", REFERENCE.skipped());
        return;
    };
    let errors: Vec<_> = decoded.errors.iter().map(|error| error.text).collect();
    assert_eq!((decoded.addresses, errors), (vec![], vec!["unknown opcode"]));
    let Some((_, Some(error))) = packets(REFERENCE, &trace) else { panic!("it has no error") };
    assert_eq!((error.offset, error.text), (first.len() as u64, "unknown opcode"));
}

#[test]
fn the_library_is_used_where_it_is_there() {
    assert_eq!(packets(REFERENCE, PSB).is_some(), REFERENCE.open().is_some());
}

#[test]
fn goes_on_at_the_next_psb_after_an_error() {
    let start = b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23";
    // FUP (1002), TIP (1000), a byte that begins no packet.
    let trace = [PSB, start, b"\x3d\x02\x10\x2d\0\x10\x09", PSB, start, b"\x3d\x02\x10\x01"].concat();
    let Some(decoded) = decode(&trace, &[(0x1000, &[0xcc; 2]), (0x1000, &[0x90; 2])]) else {
        println!("{}", REFERENCE.skipped());
        return;
    };
    // libipt looks one event ahead, so the error is before the first instruction.
    assert_eq!(decoded.addresses, [0x1000, 0x1001]);
    let errors: Vec<_> = decoded.errors.iter().map(|error| (error.after, error.text)).collect();
    assert_eq!(errors, [(0, "unknown opcode")]);
}

#[test]
fn reads_the_code_of_the_address_space() {
    // PIP (CR3 2000), MODE.Exec (64 bit), FUP (1000), PSBEND, FUP (1002), TIP.PGD.
    let pip = b"\x02\x43\0\x02\0\0\0\0";
    let trace = [PSB, pip, b"\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x3d\x02\x10\x01"].concat();
    let one_byte = Section { base: 0x1000, bytes: &[0x90; 16], cr3: Some(0x2000) };
    let two_bytes = Section { base: 0x1000, bytes: &[0x66, 0x90, 0x66, 0x90], cr3: Some(0x3000) };
    let Some(decoded) = decode_sections(None, &trace, &[one_byte, two_bytes]) else {
        println!("{}", REFERENCE.skipped());
        return;
    };
    assert_eq!((decoded.addresses, decoded.errors), (vec![0x1000, 0x1001], vec![]));
}

#[test]
fn counts_overflows() {
    // OVF, FUP (1001), FUP (1002), TIP.PGD.
    let trace = [PSB, b"\x02\x23\x02\xf3\x7d\x01\x10\0\0\0\0\x3d\x02\x10\x01"].concat();
    let Some(decoded) = decode(&trace, &[(0x1000, &[0x90; 16])]) else {
        println!("{}", REFERENCE.skipped());
        return;
    };
    assert_eq!(decoded.overflows, 1);
}
