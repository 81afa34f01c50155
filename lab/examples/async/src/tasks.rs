//! The tasks: one makes a number at each tick of the timer, one takes them, one sorts meanwhile.

use crate::executor;
use atomic_waker::AtomicWaker;
use core::future::poll_fn;
use core::hint::black_box;
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Poll;
use machine::timer;
use spin::Mutex;

/// Ten milliseconds at 24 MHz.
const TICK: u32 = 240_000;
const NUMBERS: usize = 12;

static TICKS: AtomicU64 = AtomicU64::new(0);
static AT_TICK: AtomicWaker = AtomicWaker::new();

/// The numbers that were made, and how many of them were taken.
static QUEUE: Mutex<([Option<u64>; NUMBERS], usize)> = Mutex::new(([None; NUMBERS], 0));
static AT_NUMBER: AtomicWaker = AtomicWaker::new();

/// The results of `consume` and `sort`.
pub static RESULTS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Runs all tasks.
pub fn run() {
    timer::every(TICK, || {
        TICKS.fetch_add(1, Ordering::Release);
        AT_TICK.wake();
    });
    executor::run([pin!(produce()), pin!(consume()), pin!(sort())]);
    timer::stop();
    x86_64::instructions::interrupts::disable();
}

async fn produce() {
    for number in 0..NUMBERS {
        tick().await;
        QUEUE.lock().0[number] = Some(mix(number as u64));
        AT_NUMBER.wake();
    }
}

async fn consume() {
    let mut sum = 0;
    for _ in 0..NUMBERS {
        sum += length(number().await % 1000 + 1);
    }
    RESULTS[0].store(sum, Ordering::Relaxed);
}

const SORTED: usize = 120;

async fn sort() {
    let mut numbers: [u64; SORTED] = core::array::from_fn(|at| mix(at as u64));
    for end in (1..SORTED).rev() {
        for at in 0..end {
            if numbers[at] > numbers[at + 1] {
                numbers.swap(at, at + 1);
            }
        }
        pause().await;
    }
    RESULTS[1].store(numbers[0], Ordering::Relaxed);
}

/// Waits for the timer's next interrupt.
async fn tick() {
    let before = TICKS.load(Ordering::Acquire);
    poll_fn(|context| {
        AT_TICK.register(context.waker());
        if TICKS.load(Ordering::Acquire) > before { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Waits for a number.
async fn number() -> u64 {
    poll_fn(|context| {
        AT_NUMBER.register(context.waker());
        let mut queue = QUEUE.lock();
        let next = queue.0[queue.1];
        queue.1 += usize::from(next.is_some());
        next.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Lets the other tasks go on.
async fn pause() {
    let mut is_polled = false;
    poll_fn(|context| {
        if is_polled {
            return Poll::Ready(());
        }
        is_polled = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Returns the length of a Collatz sequence.
#[inline(never)]
fn length(mut number: u64) -> u64 {
    let mut length = 0;
    while number != 1 {
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        length += 1;
    }
    length
}

/// Makes a step of a linear congruential generator.
#[inline(never)]
fn mix(number: u64) -> u64 {
    black_box(number).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 33
}
