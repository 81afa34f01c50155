//! Processor time, which excludes other work on the machine.

use std::time::Duration;

/// Returns the processor time of this thread.
pub(super) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local timespec that is only written to.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "Linux has had this clock since 2.6.12");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("less than a second"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{hint::black_box, thread};

    #[test]
    fn work_counts_and_waiting_does_not() {
        let start = thread_time();
        thread::sleep(Duration::from_millis(200));
        let waited = thread_time() - start;
        assert!(waited < Duration::from_millis(100), "{waited:?}");
        (0..20_000_000_u64).for_each(|number| {
            black_box(number);
        });
        assert!(thread_time() - start > waited + Duration::from_millis(1));
    }
}
