use super::{batch::answer_lines, encode, levels, row::BatchRow};
use pugmark_pfm::Levels;
use std::{cell::RefCell, io::Write, rc::Rc};

#[test]
fn levels_are_letters_or_a_mask() {
    for (text, expected) in [
        ("ku", Some(9)),
        ("u", Some(8)),
        ("kuh", Some(25)),
        ("9", Some(9)),
        ("0x10", Some(16)),
        ("6", Some(6)),
        ("", Some(0)),
        ("kx", None),
        ("-1", None),
    ] {
        assert_eq!(levels(text).ok(), expected.map(Levels::from_bits_retain), "{text:?}");
    }
}

#[test]
fn encode_answers_in_three_columns() {
    for (event, answer) in [
        (
            "amd64_k8_revg::DISPATCHED_FPU:0xff:k",
            "SUCCESS\t0x52ff00\tamd64_k8_revg::DISPATCHED_FPU:0xff:k=1:u=0:e=0:i=0:c=0",
        ),
        ("amd64_k8_revg::DISPATCHED_FPU:0x4ff", "ATTR\t-\t-"),
        ("", "NOTFOUND\t-\t-"),
    ] {
        assert_eq!(encode::answer(event, Levels::default()), answer);
    }
}

#[test]
fn dispatch_answers_in_four_columns() {
    for (row, answer) in [
        (
            "k7\tCPU_CLK_UNHALTED\t9\t0x7\tno\t0\t0x0\t0x0\t0x0/0\t0x0/0",
            "SUCCESS\tpmc3@0xc0010003=0x530076\tpmd3@0xc0010007/rdpmc3\tfetch_base=0 op_base=0",
        ),
        // Levels of the event, and levels of the request. Columns after the tenth are ignored.
        (
            "k7\tCPU_CLK_UNHALTED@1,RETIRED_UOPS@0\t8\t0\tno\t0\t0\t0\t0/0\t0/0\tan\tanswer",
            "SUCCESS\tpmc0@0xc0010000=0x520076 pmc1@0xc0010001=0x5100c1\t\
             pmd0@0xc0010004/rdpmc0 pmd1@0xc0010005/rdpmc1\tfetch_base=0 op_base=0",
        ),
        (
            "fam10h_revc\tRETIRED_UOPS\t9\t0\tyes\t1\t0x2\t0x3\t0x1230/1\t0x4560/1",
            "SUCCESS\tpmc0@0xc0010000=0x15700c1 pmc6@0x0=0x201000000000123 pmc7@0x0=0xa0456\t\
             pmd0@0xc0010004/rdpmc0 pmd6@0x0/rdpmc0 pmd9@0x0/rdpmc0\tfetch_base=1 op_base=2",
        ),
        // Without model input the flags have no effect.
        ("fam10h_revc\t-\t9\t0\tno\t1\t0x2\t0x3\t0x1230/1\t0x4560/1", "INVAL\t-\t-\t-"),
        ("k8_revb\t-\t9\t0\tyes\t0\t0x0\t0x2\t0/0\t0x10/0", "BADHOST\t-\t-\t-"),
        // An error in the event string comes before all others.
        ("k8_revb\tRETIRED_UOPS@6,PROBE\t6\t0\tno\t0\t0\t0\t0/0\t0/0", "find:UMASK\t-\t-\t-"),
        ("k8_revb\tRETIRED\t9\t0\tno\t0\t0\t0\t0/0\t0/0", "find:NOTFOUND\t-\t-\t-"),
    ] {
        assert_eq!(BatchRow::parse(row).expect(row).answer(), answer, "{row}");
    }
}

#[test]
fn a_row_that_is_no_request_says_which_column_is_wrong() {
    for (row, message) in [
        ("", "1 columns, but a request has 10"),
        ("k9\t-\t9\t0\tno\t0\t0\t0\t0/0\t0/0", "column 1: no processor is called \"k9\""),
        ("k7\tRETIRED_UOPS@x\t9\t0\tno\t0\t0\t0\t0/0\t0/0", "column 2: \"RETIRED_UOPS@x\""),
        ("k7\t-\tk\t0\tno\t0\t0\t0\t0/0\t0/0", "column 3: \"k\" is not a number of up to 32 bits"),
        ("k7\t-\t9\t0y\tno\t0\t0\t0\t0/0\t0/0", "column 4: \"0y\" is not a mask"),
        ("k7\t-\t9\t0\t1\t0\t0\t0\t0/0\t0/0", "column 5: \"1\" is neither yes nor no"),
        ("k7\t-\t9\t0\tyes\tx\t0\t0\t0/0\t0/0", "column 6: \"x\" is not a number of up to 32 bits"),
        ("k7\t-\t9\t0\tyes\t0\t0\t0\t0\t0/0", "column 9: \"0\" is not MAXCNT/OPTIONS"),
        ("k7\t-\t9\t0\tyes\t0\t0\t0\t0/0\t0/x", "column 10: \"x\" is not a number of up to 32 bits"),
    ] {
        let error = BatchRow::parse(row).expect_err(row);
        assert!(format!("{error:#}").starts_with(message), "{row:?}: {error:#}");
    }
}

#[test]
fn each_line_has_an_answer_whatever_is_in_it() {
    let mut answers = Vec::new();
    answer_lines(&b"a\r\n\nb\xff\nlast"[..], &mut answers, |number, line| format!("{number} {line:?}"))
        .expect("answers");
    assert_eq!(String::from_utf8_lossy(&answers), "1 \"a\"\n2 \"\"\n3 \"b\u{fffd}\"\n4 \"last\"\n");
}

/// Records how many bytes were written before each flush.
struct Flushes(Rc<RefCell<(usize, Vec<usize>)>>);

impl Write for Flushes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let mut all = self.0.borrow_mut();
        let written = all.0;
        all.1.push(written);
        Ok(())
    }
}

#[test]
fn answers_are_flushed_before_there_is_anything_to_wait_for() {
    struct Chunks(Vec<&'static [u8]>);
    impl std::io::Read for Chunks {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            let Some(words) = self.0.pop() else { return Ok(0) };
            to[..words.len()].copy_from_slice(words);
            Ok(words.len())
        }
    }
    let flushes = Rc::new(RefCell::new((0, Vec::new())));
    answer_lines(Chunks(vec![b"c\n", b"a\nb\n"]), Flushes(flushes.clone()), |_, line| line.to_owned())
        .expect("answers");
    assert_eq!(flushes.borrow().1, [4, 6, 6]);
}
