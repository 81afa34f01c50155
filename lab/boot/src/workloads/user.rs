//! User level and back: by SYSRET and SYSCALL, with RFLAGS.TF masked or kept, or by IRET and INT; also traced at one
//! level only.

use core::hint::black_box;

use crate::arch::paging::{PageTableRoot, USER_BASE};
use crate::arch::user::{self, UserEntry};
use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_protocol::Level;

const ROUNDS: u64 = 40;
/// Maximum number of steps per call of the kernel in a round.
const SERVICE: u64 = 6;
const SEED: u64 = 42;
const STACK: u64 = USER_BASE + 4 * 4096;

/// Work at user level that calls the kernel repeatedly.
pub(super) struct User {
    entry: UserEntry,
    mask_trap_flag: bool,
    level: Level,
    space: PageTableRoot,
    result: u64,
    /// Number of system calls by INT.
    interrupts: u64,
}

impl User {
    /// # Panics
    /// If there is no memory for the address space.
    pub(super) fn new(entry: UserEntry, mask_trap_flag: bool, level: Level) -> Self {
        Self { entry, mask_trap_flag, level, space: space_with_stack(), result: 0, interrupts: 0 }
    }
}

impl Workload for User {
    fn plan(&self) -> Plan {
        Plan::everything().at_level(self.level)
    }

    fn run(&mut self) {
        let kernel = PageTableRoot::current();
        user::mask_trap_flag(self.mask_trap_flag);
        self.space.enter();
        let code = match self.entry {
            UserEntry::SystemCall => by_system_call,
            UserEntry::Interrupt => by_interrupt,
        };
        let before = user::interrupt_calls();
        // SAFETY: the address space has a stack of four pages there, and the code uses no other memory of its own.
        self.result = unsafe { user::run(self.entry, code, SEED, STACK) };
        self.interrupts = user::interrupt_calls() - before;
        kernel.enter();
        user::mask_trap_flag(true);
    }

    fn check(&self) -> Result<(), Mismatch> {
        let expected = work(SEED, |number, value| (0..number).fold(value, |value, _| user::lcg(value)));
        expect("result", self.result, expected)?;
        // One per round, and the final one.
        let interrupts = if self.entry == UserEntry::Interrupt { ROUNDS + 1 } else { 0 };
        expect("system calls by INT", self.interrupts, interrupts)
    }
}

/// Makes an address space with four pages of stack below [`STACK`].
///
/// # Panics
/// If there is no memory for it.
fn space_with_stack() -> PageTableRoot {
    let mut space = PageTableRoot::new().expect("memory for an address space");
    for page in 0..4 {
        space.map_user(USER_BASE + page * 4096, &[], false).expect("memory for a user stack");
    }
    space
}

extern "C" fn by_system_call(seed: u64) -> ! {
    user::exit(
        UserEntry::SystemCall,
        work(seed, |number, value| user::call(UserEntry::SystemCall, number, value)),
    )
}

extern "C" fn by_interrupt(seed: u64) -> ! {
    user::exit(
        UserEntry::Interrupt,
        work(seed, |number, value| user::call(UserEntry::Interrupt, number, value)),
    )
}

/// Mixes a value, alternating between this level and the kernel's.
#[inline(always)]
fn work(seed: u64, service: impl Fn(u64, u64) -> u64) -> u64 {
    (0..ROUNDS).fold(seed, |value, round| mix(service(1 + round % SERVICE, value), round))
}

#[inline(never)]
fn mix(value: u64, depth: u64) -> u64 {
    if depth == 0 { value } else { black_box(mix(value.rotate_left(7) ^ depth, depth / 2)) }
}
