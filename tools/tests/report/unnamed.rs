//! Functions without a name, which are known by the calls that lead to them.

use super::{Recorded, rows};
use pugmark_harness::scratch::Scratch;
use std::fs;

/// 1000: call 1020; 1005: jmp rax; 1020: nop; nop; 1022: jmp rax.
const CODE: [(usize, &[u8]); 3] =
    [(0, &[0xe8, 0x1b, 0, 0, 0]), (5, &[0xff, 0xe0]), (0x20, &[0x90, 0x90, 0xff, 0xe0])];
/// PSB, TSC (10), MODE.Exec (64 bit), FUP (1021), PSBEND, TIP (1000), TSC (20), TIP (1005), TSC (40), TIP.PGD: the
/// function at 1020 is executed from its second instruction on before it is called.
const TRACE: &[u8] = b"\
    \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x19\x10\0\0\0\0\0\0\x99\x01\
    \x7d\x21\x10\0\0\0\0\x02\x23\x2d\0\x10\x19\x20\0\0\0\0\0\0\x2d\x05\x10\x19\x40\0\0\0\0\0\0\x01";

#[test]
fn what_is_executed_of_a_function_before_its_first_call_is_the_functions_too() {
    let folder = Recorded(Scratch::new().unwrap());
    let mut code = [0xcc; 0x40];
    CODE.iter().for_each(|(at, bytes)| code[*at..*at + bytes.len()].copy_from_slice(bytes));
    fs::write(folder.0.file("code"), code).unwrap();
    fs::write(folder.0.file("trace"), TRACE).unwrap();
    // Its instructions and calls; those with what it called are the same.
    let expected = [("0x1020".to_owned(), 5, 1), ("[unknown]".to_owned(), 2, 0)];
    for options in [&[][..], &["--children"], &["--time"], &["--time", "--children"]] {
        let words = [&["report", "--json", "--raw", "code:0x1000"], options, &["trace"]].concat();
        let report = serde_json::from_str(&folder.text(&words)).unwrap();
        let number = |row: &serde_json::Value, name: &str| row[name].as_u64().unwrap();
        let counts = |row: &serde_json::Value| {
            let name = row["function"].as_str().unwrap().to_owned();
            (name, number(row, "instructions"), number(row, "calls"))
        };
        let mut found: Vec<_> = rows(&report).iter().map(counts).collect();
        found.sort();
        assert_eq!(found, expected, "{options:?}");
        if options.contains(&"--children") {
            let whole = |row: &serde_json::Value| number(row, "instructions_with_children");
            assert_eq!(rows(&report).iter().map(whole).collect::<Vec<_>>(), [7, 5], "{report}");
        }
    }
}
