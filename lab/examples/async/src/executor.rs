//! An executor: it polls the tasks that were woken, and waits for an interrupt when there is none.

use core::pin::Pin;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use x86_64::instructions::interrupts;

/// A task.
pub type Task<'a> = Pin<&'a mut dyn Future<Output = ()>>;

/// A bit for each task that is to be polled.
static WOKEN: AtomicU32 = AtomicU32::new(0);

/// The functions of a waker, which is a task's bit.
static WAKER: RawWakerVTable = RawWakerVTable::new(|task| RawWaker::new(task, &WAKER), wake, wake, |_| {});

fn wake(task: *const ()) {
    WOKEN.fetch_or(1 << task.addr(), Ordering::Release);
}

/// Runs tasks to their end.
pub fn run<const TASKS: usize>(tasks: [Task<'_>; TASKS]) {
    let mut tasks = tasks.map(Some);
    WOKEN.store((1 << TASKS) - 1, Ordering::Release);
    while tasks.iter().any(Option::is_some) {
        let woken = WOKEN.swap(0, Ordering::Acquire);
        if woken == 0 {
            wait();
        }
        for (number, place) in tasks.iter_mut().enumerate().filter(|(number, _)| woken >> number & 1 != 0) {
            // SAFETY: the functions are those of the data, which owns nothing.
            let waker = unsafe { Waker::new(ptr::without_provenance(number), &WAKER) };
            if place.as_mut().is_some_and(|task| poll(task, &waker).is_ready()) {
                *place = None;
            }
        }
    }
}

/// Polls a task; it calls no other function.
#[inline(never)]
pub fn poll(task: &mut Task<'_>, waker: &Waker) -> Poll<()> {
    task.as_mut().poll(&mut Context::from_waker(waker))
}

/// Waits for an interrupt, unless one has woken a task.
fn wait() {
    interrupts::disable();
    if WOKEN.load(Ordering::Acquire) == 0 {
        interrupts::enable_and_hlt();
    } else {
        interrupts::enable();
    }
}
