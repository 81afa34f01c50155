//! Arguments that cannot be used become errors, and memory goes back to the kernel.

use pugmark_kernel_c::*;
use std::alloc::{Layout, alloc};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut, without_provenance, without_provenance_mut};

const FRAME: u64 = 4096;

unsafe extern "C" fn work(_: *mut c_void) {
    panic!("traced");
}

/// A trace that has no fault but that the host has no registers for it.
fn trace() -> Trace {
    static CODE: [u8; 16] = [0xc3; 16];
    let memory = Memory { offset: 0, start: FRAME, bytes: 0, allocate: None, release: None };
    let code = (&raw const CODE).cast::<u8>();
    let code_end = code.wrapping_add(1).cast();
    Trace { memory, code_start: code.cast(), code_end, step: None, context: null_mut() }
}

fn outcome() -> Outcome {
    let mut outcome = std::mem::MaybeUninit::<Outcome>::zeroed();
    // SAFETY: zeros are a value of each field, and nothing is traced.
    unsafe { pugmark_snapshot(null(), None, null_mut(), 0, outcome.as_mut_ptr()) };
    // SAFETY: as above.
    unsafe { outcome.assume_init() }
}

/// Returns the number and the text of the error of a snapshot.
fn snapshot(trace: &Trace) -> (c_int, String) {
    let (mut outcome, mut scratch) = (outcome(), [0_u8; 64]);
    // SAFETY: all pointers are right, or null.
    let error = unsafe { pugmark_snapshot(trace, Some(work), scratch.as_mut_ptr().cast(), 64, &mut outcome) };
    (error, text(outcome.reason.as_ptr()))
}

fn text(text: *const c_char) -> String {
    // SAFETY: a text that ends with 0.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

#[test]
fn pointers_that_are_null_or_misaligned_are_errors_of_their_own() {
    let (right, mut outcome, mut scratch) = (trace(), outcome(), [0_u8; 64]);
    let scratch = scratch.as_mut_ptr().cast::<c_void>();
    let odd = |pointer: *const Trace| pointer.wrapping_byte_add(1);
    let last = without_provenance_mut(usize::MAX - 10);
    let rows: [(*const Trace, Option<WorkFunction>, *mut c_void, usize, &str); 7] = [
        (&right, Some(work), last, 64, "scratch_bytes is too large"),
        (null(), Some(work), scratch, 64, "trace is null or misaligned"),
        (odd(&right), Some(work), scratch, 64, "trace is null or misaligned"),
        (&right, None, scratch, 64, "work is null"),
        (&right, Some(work), null_mut(), 64, "scratch is null"),
        (&right, Some(work), scratch, usize::MAX, "scratch_bytes is too large"),
        (&right, Some(work), scratch, 1 << 63, "scratch_bytes is too large"),
    ];
    for (trace, work, scratch, bytes, reason) in rows {
        // SAFETY: pointers that are neither null nor misaligned are right.
        let error = unsafe { pugmark_snapshot(trace, work, scratch, bytes, &mut outcome) };
        assert_eq!((error, &text(outcome.reason.as_ptr())[..]), (ERROR_ARGUMENT, reason));
    }
    for place in [null_mut(), (&raw mut outcome).wrapping_byte_add(4)] {
        // SAFETY: as above.
        let error = unsafe { pugmark_snapshot(&right, Some(work), scratch, 64, place) };
        assert_eq!(error, ERROR_ARGUMENT);
    }
}

#[test]
fn code_must_lie_between_two_addresses_in_order() {
    let right = trace();
    for (start, end) in [
        (null(), right.code_end),
        (right.code_end, right.code_start),
        (right.code_start, right.code_start),
        (right.code_start, null()),
        (without_provenance(1), without_provenance(usize::MAX)),
    ] {
        let wrong = Trace { code_start: start, code_end: end, ..right };
        let expected = (ERROR_ARGUMENT, "code_start and code_end have no code between them".into());
        assert_eq!(snapshot(&wrong), expected);
    }
}

#[test]
fn a_region_must_be_frames_in_the_address_space() {
    let region = |offset, start, bytes| {
        let memory = Memory { offset, start, bytes, ..trace().memory };
        snapshot(&Trace { memory, ..trace() })
    };
    for (offset, start, bytes) in [
        (0, 0, FRAME),
        (0, FRAME + 8, FRAME),
        (0, FRAME, u64::MAX),
        (0, 1 << 52, FRAME),
        (u64::MAX - FRAME + 1, FRAME, FRAME),
    ] {
        let expected = (ERROR_ARGUMENT, "memory.start or memory.bytes is no region of frames".into());
        assert_eq!(region(offset, start, bytes), expected, "{offset:#x} {start:#x} {bytes:#x}");
    }
    assert_eq!(region(8, FRAME, 0).1, "memory.offset is no multiple of 4096");
}

/// The frames that an allocator has, and those that came back.
struct Kernel {
    left: Cell<u64>,
    wrong: u64,
    given: RefCell<Vec<u64>>,
    back: RefCell<Vec<u64>>,
}

unsafe extern "C" fn allocate(kernel: *mut c_void) -> u64 {
    // SAFETY: the context of these tests.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    if kernel.left.get() == 0 {
        return kernel.wrong;
    }
    kernel.left.update(|left| left - 1);
    // SAFETY: the size is not 0.
    let frame = unsafe { alloc(Layout::from_size_align(4096, 4096).unwrap()) } as u64;
    kernel.given.borrow_mut().push(frame);
    frame
}

unsafe extern "C" fn release(kernel: *mut c_void, frame: u64) {
    // SAFETY: the context of these tests.
    unsafe { &*kernel.cast::<Kernel>() }.back.borrow_mut().push(frame);
}

#[test]
fn an_allocator_that_returns_no_frame_is_an_error_and_gets_all_frames_back() {
    for wrong in [8, 1 << 52, u64::MAX] {
        let kernel = Kernel { left: Cell::new(3), wrong, given: vec![].into(), back: vec![].into() };
        let memory =
            Memory { offset: 0, start: 0, bytes: 64 << 10, allocate: Some(allocate), release: Some(release) };
        let context = (&raw const kernel).cast_mut().cast();
        let expected = (ERROR_ARGUMENT, "memory.allocate returned no frame's address".into());
        assert_eq!(snapshot(&Trace { memory, context, ..trace() }), expected);
        let (mut given, mut back) = (kernel.given.take(), kernel.back.take());
        given.sort_unstable();
        back.sort_unstable();
        assert_eq!((given.len(), &given), (3, &back));
    }
}

#[test]
fn a_processor_without_intel_pt_is_told_and_all_frames_come_back() {
    // A processor that has it would fault at its registers: this is a program.
    if core::arch::x86_64::__cpuid_count(7, 0).ebx & 1 << 25 != 0 {
        return println!("skipped: this processor has Intel PT");
    }
    let storage: &'static mut Live = Box::leak(Box::new(Live { bytes: [0; LIVE_BYTES] }));
    let (live, mut outcome) = (&raw mut *storage, outcome());
    let kernel = Kernel { left: Cell::new(99), wrong: 0, given: vec![].into(), back: vec![].into() };
    let memory =
        Memory { offset: 0, start: 0, bytes: 64 << 10, allocate: Some(allocate), release: Some(release) };
    let trace = Trace { memory, context: (&raw const kernel).cast_mut().cast(), ..trace() };
    // A failed start keeps no memory, and a second attempt gets the same errors.
    for _ in 0..2 {
        // SAFETY: all pointers are right.
        assert_eq!(unsafe { pugmark_live_start(live, &trace, &mut outcome) }, ERROR_ABSENT);
        // SAFETY: as above.
        assert_eq!(unsafe { pugmark_live_stop(live, &mut outcome) }, ERROR_SLOT);
        assert_eq!(snapshot(&trace).0, ERROR_ABSENT);
        let (mut given, mut back) = (kernel.given.take(), kernel.back.take());
        given.sort_unstable();
        back.sort_unstable();
        assert_eq!((given.len(), &given), (2 * 17, &back));
    }
}

#[test]
fn a_live_trace_that_never_started_has_no_interrupts_and_no_end() {
    let storage: &'static mut Live = Box::leak(Box::new(Live { bytes: [0; LIVE_BYTES] }));
    let (live, mut outcome) = (&raw mut *storage, outcome());
    // SAFETY: storage of zeros that is never freed.
    assert_eq!(unsafe { pugmark_live_interrupt(live, 0) }, PMI_NOT_OURS);
    // SAFETY: as above.
    assert_eq!(unsafe { pugmark_live_stop(live, &mut outcome) }, ERROR_SLOT);
    assert_eq!(text(outcome.reason.as_ptr()), "nothing is traced");
    let mut wrong = trace();
    wrong.code_end = null();
    // SAFETY: as above.
    assert_eq!(unsafe { pugmark_live_start(live, &wrong, &mut outcome) }, ERROR_ARGUMENT);
    for place in [null_mut(), live.wrapping_byte_add(8)] {
        // SAFETY: null or misaligned.
        assert_eq!(unsafe { pugmark_live_interrupt(place, 0) }, PMI_NOT_OURS);
        // SAFETY: as above.
        assert_eq!(unsafe { pugmark_live_stop(place, &mut outcome) }, ERROR_ARGUMENT);
        // SAFETY: as above.
        assert_eq!(unsafe { pugmark_live_start(place, &trace(), &mut outcome) }, ERROR_ARGUMENT);
        assert_eq!(text(outcome.reason.as_ptr()), "live is null or misaligned");
    }
}

#[test]
fn the_local_apic_has_a_page_and_another_codes_fault_is_not_the_drivers() {
    // SAFETY: nothing uses it in these tests.
    assert_eq!(unsafe { pugmark_use_local_apic(without_provenance_mut(0xfee0_0010)) }, ERROR_ARGUMENT);
    // SAFETY: as above.
    assert_eq!(unsafe { pugmark_use_local_apic(null_mut()) }, OK);
    // SAFETY: it returns, because no access of the driver is there.
    unsafe { pugmark_general_protection(0x1000, null()) };
}

#[test]
fn each_error_has_a_text_of_its_own() {
    let texts: Vec<_> = (OK - 1..=ERROR_ARGUMENT).map(|error| text(pugmark_text(error))).collect();
    let mut different = texts.clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), texts.len());
    assert_eq!(text(pugmark_text(ERROR_ARGUMENT + 1)), texts[0]);
}
