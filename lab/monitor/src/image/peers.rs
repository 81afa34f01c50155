//! The processors of the machine, and the calls between them.
//!
//! Each of them runs one of the guest's processors in its own loop, and no other one touches its data. A processor
//! calls another one by an NMI, which is noticed at once even if the guest there runs freely or has halted.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use pugmark_monitor::local_apic::{ApicIdentity, Destination, NMI_COMMAND};
use pugmark_monitor::startup::StartupState;

use crate::image::apic_registers::send;
use crate::image::exit::fatal;
use crate::image::tsc::tsc;

/// Cycles of the time-stamp counter within which a processor must end: a second or more.
const END_TIMEOUT: u64 = 4_000_000_000;

/// The guest is ending, so every processor must end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The part of a processor's state that other processors may access.
struct Peer {
    id: AtomicU8,
    ldr: AtomicU32,
    dfr: AtomicU32,
    startup: StartupState,
    /// The next NMI that arrives is a call from another processor.
    called: AtomicBool,
    ended: AtomicBool,
}

/// All processors, as seen by one of them.
#[derive(Clone, Copy)]
pub(crate) struct Peers {
    all: &'static [Peer],
    own: usize,
}

impl Peers {
    /// Makes the list of processors with these local APIC IDs. The first processor runs; the others wait to be started.
    pub(crate) fn new(ids: &[u8]) -> impl Iterator<Item = Self> + use<> {
        let peer = |(index, &id)| Peer {
            id: AtomicU8::new(id),
            ldr: AtomicU32::new(0),
            dfr: AtomicU32::new(u32::MAX),
            startup: if index == 0 { StartupState::running() } else { StartupState::waiting() },
            called: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        };
        let all: &'static [Peer] = Box::leak(ids.iter().enumerate().map(peer).collect::<Vec<_>>().into());
        (0..all.len()).map(move |own| Self { all, own })
    }

    /// Returns whether the machine has no other processor.
    pub(crate) fn is_alone(&self) -> bool {
        self.all.len() == 1
    }

    /// Returns the index of this processor. The machine started with processor 0.
    pub(crate) fn index(&self) -> u16 {
        self.own as u16
    }

    /// Returns this processor's local APIC ID.
    pub(crate) fn id(&self) -> u8 {
        self.own_peer().id.load(Ordering::Relaxed)
    }

    /// Records that the guest has changed the local APIC ID.
    pub(crate) fn set_id(&self, id: u8) {
        self.own_peer().id.store(id, Ordering::Relaxed);
    }

    /// Records that the guest has changed the logical destination register.
    pub(crate) fn set_ldr(&self, ldr: u32) {
        self.own_peer().ldr.store(ldr, Ordering::Relaxed);
    }

    /// Records that the guest has changed the destination format register.
    pub(crate) fn set_dfr(&self, dfr: u32) {
        self.own_peer().dfr.store(dfr, Ordering::Relaxed);
    }

    /// Returns the state of INIT and start-up interrupts of this processor.
    pub(crate) fn startup(&self) -> &StartupState {
        &self.own_peer().startup
    }

    /// Returns whether the guest is ending.
    pub(crate) fn machine_ends(&self) -> bool {
        ENDING.load(Ordering::Acquire)
    }

    /// Returns whether the NMI just taken was a call, and not the guest's.
    pub(crate) fn take_call(&self) -> bool {
        self.own_peer().called.swap(false, Ordering::AcqRel)
    }

    /// Sends INIT to the addressed processors.
    pub(crate) fn send_init(&self, to: Destination) {
        for index in self.addressed(to) {
            if index == 0 {
                // After INIT the first processor would start in the firmware, where the monitor cannot follow.
                fatal!("the guest sends INIT to its first processor, which the monitor cannot start again");
            }
            self.all[index].startup.send_init();
            self.call(index);
        }
    }

    /// Sends a start-up interrupt to the addressed processors.
    pub(crate) fn send_start_up(&self, to: Destination, vector: u8) {
        for index in self.addressed(to) {
            if self.all[index].startup.send_start_up(vector) {
                self.call(index);
            }
        }
    }

    /// Makes the other processors end, and waits for them. Returns `false` if another processor is already doing so.
    pub(crate) fn end_others(&self) -> bool {
        if ENDING.swap(true, Ordering::AcqRel) {
            return false;
        }
        let start = tsc();
        for index in (0..self.all.len()).filter(|&index| index != self.own) {
            self.call(index);
            while !self.all[index].ended.load(Ordering::Acquire) && tsc() - start < END_TIMEOUT {
                core::hint::spin_loop();
            }
        }
        true
    }

    /// Records that this processor has ended.
    pub(crate) fn record_end(&self) {
        self.own_peer().ended.store(true, Ordering::Release);
    }

    fn own_peer(&self) -> &'static Peer {
        &self.all[self.own]
    }

    fn addressed(&self, to: Destination) -> impl Iterator<Item = usize> {
        let all = self.all;
        let own = self.own;
        (0..all.len()).filter(move |&index| to.includes(&all[index].identity(), index == own))
    }

    /// Makes a processor check its requests from others. This processor checks anyway before it enters the guest.
    fn call(&self, index: usize) {
        let peer = &self.all[index];
        // One pending NMI is enough for all requests.
        if index != self.own && !peer.called.swap(true, Ordering::AcqRel) {
            send(peer.id.load(Ordering::Relaxed), NMI_COMMAND);
        }
    }
}

impl Peer {
    fn identity(&self) -> ApicIdentity {
        ApicIdentity {
            id: self.id.load(Ordering::Relaxed),
            ldr: self.ldr.load(Ordering::Relaxed),
            dfr: self.dfr.load(Ordering::Relaxed),
        }
    }
}
