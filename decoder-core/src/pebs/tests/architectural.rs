//! Architectural records, made word by word as Linux's structures have them.

use super::*;

/// The bits of a header that list groups, and the words of each group.
fn groups() -> [(u64, Vec<u64>); 6] {
    let aux = vec![0x34, 0, 0, 0, 0, 0x35, 0x36, 0x37];
    // RFLAGS, RIP, then RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15, SSP, and a reserved word.
    let mut registers = vec![0x10, 0x11, 0x12, 0x14, 0x15, 0x13, 0x19, 0x18, 0x16, 0x17];
    registers.extend((0x20..0x28).chain([0x29, 0]));
    // XSTATE_BV and a reserved word; then 32 words of XMM, 32 of YMM, 8 opmasks, 64 of ZMM0 to 15, 128 of ZMM16 to 31.
    let vectors = [0, 0].into_iter().chain(0x100..0x100 + 32 + 32 + 8 + 64 + 128).collect();
    // A reserved word, IA32_LBR_CTL, the depth, three words of the last event record.
    let branches = [0, 0, 2, 0, 0, 0, 0x41, 0x42, 0x43, 0x51, 0x52, 0x53].to_vec();
    // Counters 0 and 2, fixed counter 1, metrics.
    let counters = vec![0b101 | 0b10 << 32, 3, 0x60, 0x61, 0x62, 0x63, 0x64];
    [
        (1 << 63, vec![0x31, 0x33, 0x38, 0x99 | 1 << 16, 0, 0]),
        (1 << 62, aux),
        (1 << 61, registers),
        (1 << 49 | 1 << 50 | 0b111 << 53, vectors),
        (0b11 << 40, branches),
        (0b111 << 36, counters),
    ]
}

/// Returns a fragment with these groups, by their places in [`groups`], padded to 16 bytes.
fn fragment(places: &[usize], flags: u64) -> Vec<u8> {
    let all = groups();
    let mut words = vec![0, 0];
    let mut header = flags;
    for place in places {
        header |= all[*place].0;
        words.extend(&all[*place].1);
    }
    words.resize(words.len().next_multiple_of(2), 0);
    words[0] = header | (words.len() as u64 * 8);
    bytes(&words)
}

fn parse(bytes: &[u8]) -> Result<(PebsRecord<'_>, usize), ErrorKind> {
    PebsRecord::parse(Format::Architectural, bytes)
}

const MODE_64: u64 = 1 << 30;
const CONTINUES: u64 = 1 << 31;

#[test]
fn architectural_records_have_the_groups_that_they_say() {
    for which in 0..64_usize {
        let has = |place: usize| which >> place & 1 == 1;
        let places: Vec<usize> = (0..6).filter(|place| has(*place)).collect();
        let bytes = fragment(&places, MODE_64);
        let (record, size) = parse(&bytes).unwrap();
        assert_eq!(size, bytes.len());
        assert_eq!(record.mode_64, Some(true));
        assert_eq!(record.eventing_ip, has(0).then_some(0x31), "{which:#b}");
        assert_eq!(record.applicable_counters, has(0).then_some(0x33));
        assert_eq!((record.tsc, record.retire_latency), (has(0).then_some(0x38), has(0).then_some(0x99)));
        assert_eq!(
            (record.memory, record.tx_abort),
            match has(1) {
                true => (full().memory, full().tx_abort),
                false => (None, None),
            }
        );
        assert_eq!(record.registers, has(2).then(registers));
        assert_eq!(record.ssp, has(2).then_some(0x29));
        let vector_words: Vec<u64> = (0x100..0x208).collect();
        let vectors = super::bytes(&vector_words);
        let of = |from: usize, to: usize| has(3).then_some(&vectors[8 * from..8 * to]);
        assert_eq!(record.xmm.map(|it| &it[..]), of(0, 32));
        assert_eq!(record.vectors.ymm_high.map(|it| &it[..]), of(32, 64));
        assert_eq!(record.vectors.opmask.map(|it| &it[..]), of(64, 72));
        assert_eq!(record.vectors.zmm_high.map(|it| &it[..]), of(72, 136));
        assert_eq!(record.vectors.zmm_16_31.map(|it| &it[..]), of(136, 264));
        let branches: Option<Vec<_>> = record.branches.map(|it| it.iter().map(|it| it.info).collect());
        assert_eq!(branches, has(4).then(|| vec![0x43, 0x53]));
        let counted = record.counters.map(|it| it.general().chain(it.fixed()).collect::<Vec<_>>());
        assert_eq!(counted, has(5).then(|| vec![(0, 0x60), (2, 0x61), (1, 0x62)]));
        assert_eq!(record.counters.and_then(|it| it.metrics()), has(5).then_some((0x63, 0x64)));
        let mut emitted = vec![0xaa; bytes.len()];
        assert_eq!(record.emit(Format::Architectural, &mut emitted), Ok(bytes.len()));
        assert_eq!(emitted, bytes, "{which:#b}");
        for len in (0..bytes.len()).step_by(5) {
            let needed = if len < 16 { 16 } else { bytes.len() };
            assert_eq!(parse(&bytes[..len]), Err(ErrorKind::Truncated { bytes: len, needed }));
            let error = ErrorKind::Truncated { bytes: len, needed: bytes.len() };
            assert_eq!(record.emit(Format::Architectural, &mut emitted[..len]), Err(error));
        }
    }
}

#[test]
fn each_vector_register_has_its_own_bit() {
    // (bit, words, the first word's place)
    for (bit, words) in [(49, 32), (50, 32), (53, 8), (54, 64), (55, 128)] {
        let mut all = vec![0, 0, 0, 0];
        all.extend(0x100..0x100 + words);
        all[0] = 1 << bit | (all.len() as u64 * 8);
        let bytes = bytes(&all);
        let (record, _) = parse(&bytes).unwrap();
        let VectorRegisters { ymm_high, opmask, zmm_high, zmm_16_31 } = record.vectors;
        let found: [Option<&[u8]>; 5] = [
            record.xmm.map(|it| &it[..]),
            ymm_high.map(|it| &it[..]),
            opmask.map(|it| &it[..]),
            zmm_high.map(|it| &it[..]),
            zmm_16_31.map(|it| &it[..]),
        ];
        let place = [49, 50, 53, 54, 55].into_iter().position(|it| it == bit).unwrap();
        for (n, registers) in found.into_iter().enumerate() {
            assert_eq!(registers, (n == place).then_some(&bytes[32..]), "bit {bit}");
        }
        let mut emitted = vec![0; bytes.len()];
        assert_eq!(record.emit(Format::Architectural, &mut emitted), Ok(bytes.len()));
        assert_eq!(emitted, bytes);
    }
}

#[test]
fn eight_and_sixteen_branches_need_no_depth() {
    for (field, count) in [(1, 8), (2, 16), (3, 32), (3, 0)] {
        let mut words = vec![0, 0, 0, 0, if field == 3 { count } else { 0xdead }, 0, 0, 0];
        words.extend((0..3 * count).map(|n| 0x1000 + n));
        words[0] = field << 40 | (words.len() as u64 * 8);
        let bytes = bytes(&words);
        let (record, size) = parse(&bytes).unwrap();
        assert_eq!(size, bytes.len());
        let from: Vec<u64> = record.branches.unwrap().iter().map(|branch| branch.from).collect();
        assert_eq!(from, (0..count).map(|n| 0x1000 + 3 * n).collect::<Vec<_>>());
        let mut emitted = vec![0; bytes.len()];
        record.emit(Format::Architectural, &mut emitted).unwrap();
        assert_eq!(parse(&emitted).unwrap().0, record);
        assert_eq!(emitted[..4], bytes[..4], "{field}");
    }
}

#[test]
fn a_latency_that_is_not_valid_is_none() {
    let mut words = vec![1 << 63 | 64, 0, 0x31, 0x33, 0x38, 0x99, 0, 0];
    assert_eq!(parse(&bytes(&words)).unwrap().0.retire_latency, None);
    words[5] = 1 << 16;
    assert_eq!(parse(&bytes(&words)).unwrap().0.retire_latency, Some(0));
    assert_eq!(parse(&bytes(&words)).unwrap().0.mode_64, Some(false));
}

#[test]
fn a_record_goes_on_in_the_next_fragment() {
    let whole = fragment(&[0, 1, 2, 3, 4, 5], MODE_64);
    let (whole, _) = parse(&whole).unwrap();
    let null = bytes(&[16, 0]);
    let cases = [
        vec![fragment(&[0], CONTINUES | MODE_64), fragment(&[1, 2, 3, 4, 5], MODE_64)],
        vec![
            fragment(&[0, 1], CONTINUES | MODE_64),
            fragment(&[2, 3], CONTINUES | MODE_64),
            fragment(&[4, 5], MODE_64),
        ],
        // A header without any bit beside its size: a fragment follows.
        vec![null.clone(), fragment(&[0, 1, 2, 3, 4, 5], MODE_64)],
        vec![fragment(&[0, 1, 2, 3, 4], CONTINUES | MODE_64), null, fragment(&[5], MODE_64)],
    ];
    for fragments in cases {
        let bytes = fragments.concat();
        assert_eq!(parse(&bytes), Ok((whole, bytes.len())));
        // Two records in a row are two records.
        let two = [bytes.clone(), fragment(&[0], 0)].concat();
        let read: Vec<_> = PebsRecords::new(&two, Format::Architectural).map(|it| it.unwrap().ssp).collect();
        assert_eq!(read, [Some(0x29), None]);
        // A record that ends between two fragments is cut.
        let first = fragments[0].len();
        assert_eq!(parse(&bytes[..first]), Err(ErrorKind::Truncated { bytes: first, needed: first + 16 }));
    }
    let twice = [fragment(&[0], CONTINUES), fragment(&[1, 0], 0)].concat();
    assert_eq!(parse(&twice), Err(ErrorKind::RepeatedGroups { format: 0xc000_0000 }));
    for group in [4, 5] {
        let twice = [fragment(&[group], CONTINUES), fragment(&[group], 0)].concat();
        let format = (groups()[group].0 >> 32) as u32;
        assert_eq!(parse(&twice), Err(ErrorKind::RepeatedGroups { format }));
    }
}

#[test]
fn architectural_records_that_contradict_themselves_are_refused() {
    let size = |size, groups| Some(ErrorKind::RecordSize { size, groups });
    let unknown = |bit: u32| Some(ErrorKind::UnknownGroups { format: 1 << (bit - 32) });
    let rows = [
        (1 << 63 | 64_u64, None),
        // Padding after the groups.
        (1 << 63 | 80, None),
        (0, size(0, 16)),
        (1 << 63 | 15, size(15, 16)),
        (1 << 63 | 48, size(48, 64)),
        (1 << 62 | 64, size(64, 80)),
        (1 << 61 | 80, size(80, 176)),
        (1 << 49 | 80, size(80, 288)),
        (1 << 40 | 80, size(80, 16 + 48 + 192)),
        (1 << 36 | 16, size(16, 32)),
        (1 << 42 | 16, unknown(42)),
        (1 << 48 | 16, unknown(48)),
        (1 << 51 | 16, unknown(51)),
        (1 << 52 | 16, unknown(52)),
        (1 << 56 | 16, unknown(56)),
        (1 << 60 | 16, unknown(60)),
        // Reserved bits that are not in the list.
        (1 << 63 | 0x7 << 32 | 0x3fff << 16 | 64, None),
    ];
    for (header, expected) in rows {
        let bytes = bytes(&[header, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parse(&bytes).err(), expected, "{header:#x}");
    }
    // More branches than any size has, and counters that no header lists.
    let huge = bytes(&[3 << 40 | 80, 0, 0, 0, u64::MAX, 0, 0, 0, 0, 0]);
    assert_eq!(parse(&huge).err(), size(80, usize::MAX));
    let counters = bytes(&[1 << 38 | 32, 0, 0, 7]);
    assert_eq!(parse(&counters).err(), unknown(38));
    let branches = vec![[0; 24]; 3000];
    let many = PebsRecord { branches: Some(SampledBranches::new(&branches)), ..PebsRecord::default() };
    let error = ErrorKind::TooWide { value: 72064 };
    assert_eq!(many.emit(Format::Architectural, &mut vec![0; 80_000]), Err(error));
}
