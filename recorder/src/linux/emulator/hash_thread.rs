//! Hashes the addresses of the traced instructions on a thread of its own.
//!
//! That is half of the work of recording, and the recorder is slower than the emulator: a processor that waits for the
//! recorder can do it. What each thread of the program executes is passed on as a stream of words, a block as one word.

use super::{
    super::{block::Block, truth::Truth},
    plugin::wire::MESSAGE,
};
use crate::OFTEN;
use pugmark_decoder_core::hash::{AddressHash, Run};
use std::{
    cell::RefCell,
    rc::Rc,
    sync::{
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
};

/// The number of words that are passed on at once; it may be a few more.
const WORDS: usize = 1 << 14;
/// The number of such messages that may wait for the thread.
const WAITING: usize = 16;

/// A word that is no block's number: the address of one instruction follows, its lower half first.
const ADDRESS: u32 = MESSAGE;
/// Likewise: a block's number, how many instructions it has, and their addresses.
const DEFINITION: u32 = MESSAGE + 1;

/// The number of blocks after one that are hashed together with it.
const AHEAD: usize = 3;

/// The thread that hashes. It ends when this value and all streams are dropped.
#[derive(Clone)]
pub(super) struct HashThread(Rc<Channels>);

/// The ways to the thread and back.
struct Channels {
    work: SyncSender<Work>,
    /// Memory of words that were hashed.
    spare: Receiver<Vec<u32>>,
}

/// Words of a stream.
struct Work {
    stream: usize,
    words: Vec<u32>,
    /// If somebody waits for the hash of the stream up to here: where to send it. What comes later is hashed from the
    /// beginning.
    wanted: Option<SyncSender<AddressHash>>,
}

/// The code that one thread of the program executes, on its way to be hashed.
#[derive(Clone)]
pub(super) struct BlockTruth(Rc<RefCell<Outgoing>>);

struct Outgoing {
    thread: HashThread,
    stream: usize,
    words: Vec<u32>,
    count: u64,
}

impl HashThread {
    pub(super) fn new() -> Self {
        let ((work, incoming), (emptied, spare)) = (sync_channel(WAITING), channel());
        thread::spawn(move || hash(&incoming, &emptied));
        Self(Rc::new(Channels { work, spare }))
    }

    /// Begins a stream. Each needs a number of its own.
    pub(super) fn stream(&self, number: usize) -> BlockTruth {
        let outgoing = Outgoing { thread: self.clone(), stream: number, words: vec![], count: 0 };
        BlockTruth(Rc::new(RefCell::new(outgoing)))
    }
}

impl BlockTruth {
    /// Says what a block's number stands for from now on. Where one number gets another meaning, all numbers do
    /// before any of them is executed again: each call forgets what was learned about which blocks follow one
    /// another.
    pub(super) fn define(&self, number: u32, block: &Block) {
        let mut outgoing = self.0.borrow_mut();
        outgoing.words.extend([DEFINITION, number, block.len() as u32]);
        outgoing.words.extend((0..block.len()).flat_map(|n| halves(block.ip(n))));
        outgoing.send_if_full();
    }

    /// Blocks were executed, which have this many instructions together: `first`, and all of `next` but the last one,
    /// which has only begun.
    pub(super) fn add_blocks(&mut self, first: u32, next: &[AtomicU32], count: u64) {
        let Some((_, next)) = next.split_last() else { return };
        let mut outgoing = self.0.borrow_mut();
        outgoing.words.push(first);
        outgoing.words.extend(next.iter().map(|number| number.load(Relaxed)));
        outgoing.count += count;
        outgoing.send_if_full();
    }
}

impl Truth for BlockTruth {
    fn add(&mut self, address: u64) {
        let mut outgoing = self.0.borrow_mut();
        let [low, high] = halves(address);
        outgoing.words.extend([ADDRESS, low, high]);
        outgoing.count += 1;
        outgoing.send_if_full();
    }

    fn count(&self) -> u64 {
        self.0.borrow().count
    }

    fn take(&mut self) -> AddressHash {
        let (sender, receiver) = sync_channel(1);
        self.0.borrow_mut().send(Some(sender));
        let hash = receiver.recv().expect(WORKS_ON);
        self.0.borrow_mut().count = 0;
        hash
    }
}

const WORKS_ON: &str = "the thread works until nobody can want anything";

impl Outgoing {
    fn send_if_full(&mut self) {
        if self.words.len() >= WORDS {
            self.send(None);
        }
    }

    fn send(&mut self, wanted: Option<SyncSender<AddressHash>>) {
        let Channels { work, spare } = &*self.thread.0;
        let next = spare.try_recv().unwrap_or_else(|_| Vec::with_capacity(2 * WORDS));
        let words = std::mem::replace(&mut self.words, next);
        work.send(Work { stream: self.stream, words, wanted }).expect(WORKS_ON);
    }
}

const fn halves(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}

const fn address(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Hashes what comes until nothing can come any more.
fn hash(incoming: &Receiver<Work>, emptied: &Sender<Vec<u32>>) {
    let mut streams: Vec<HashedStream> = vec![];
    for Work { stream, mut words, wanted } in incoming {
        if streams.len() <= stream {
            streams.resize_with(stream + 1, HashedStream::default);
        }
        streams[stream].add(&words);
        words.clear();
        // Nobody waits for that if the recording has ended, nor for the hash if it has failed.
        let _ = emptied.send(words);
        if let Some(wanted) = wanted {
            let _ = wanted.send(std::mem::take(&mut streams[stream].hash));
        }
    }
}

/// A stream, as far as it is hashed.
#[derive(Default)]
struct HashedStream {
    hash: AddressHash,
    blocks: Vec<HashedBlock>,
}

/// A block, with what is known of the blocks that are executed after it.
#[derive(Default)]
struct HashedBlock {
    /// The hash run of the block alone, once it was executed often; and of the block with those in `ahead`, once
    /// those came often after it.
    run: Option<Box<Run>>,
    path: Option<Box<Run>>,
    ahead: [u32; AHEAD],
    /// The number of its executions until it has a run; then the number of times that `ahead` came, minus those that
    /// something else did
    /// since.
    seen: u16,
    addresses: Box<[u64]>,
}

impl HashedStream {
    /// Adds words.
    ///
    /// The words of a run are seldom in a cache. Many such loads overlap, because nothing here waits for them.
    fn add(&mut self, mut words: &[u32]) {
        while let [number, rest @ ..] = words {
            let Some(block) = self.blocks.get_mut(*number as usize) else {
                words = self.add_other(words);
                continue;
            };
            words = rest;
            let follows = rest.first_chunk() == Some(&block.ahead);
            match (&block.path, &block.run) {
                (Some(path), _) if follows => {
                    self.hash.add_run(path);
                    words = &rest[AHEAD..];
                    block.seen = OFTEN;
                    continue;
                }
                (_, Some(run)) => self.hash.add_run(run),
                (_, None) => block.addresses.iter().for_each(|address| self.hash.add(*address)),
            }
            self.learn(*number, follows, rest);
        }
    }

    /// Adds what is no block. Returns what comes after it.
    #[cold]
    fn add_other<'w>(&mut self, words: &'w [u32]) -> &'w [u32] {
        match words {
            [ADDRESS, low, high, rest @ ..] => {
                self.hash.add(address(*low, *high));
                rest
            }
            [DEFINITION, number, count, rest @ ..] => {
                let number = *number as usize;
                let (halves, rest) = rest.split_at(2 * *count as usize);
                if self.blocks.len() <= number {
                    self.blocks.resize_with(number + 1, HashedBlock::default);
                }
                let addresses = halves.as_chunks().0.iter().map(|[low, high]| address(*low, *high)).collect();
                self.blocks[number] = HashedBlock { addresses, ..HashedBlock::default() };
                rest
            }
            _ => unreachable!("no such words are sent: {:x?}", words.first()),
        }
    }

    /// Learns from a block that was executed, before these words.
    #[inline]
    fn learn(&mut self, number: u32, follows: bool, rest: &[u32]) {
        let block = &mut self.blocks[number as usize];
        if follows || block.run.is_none() {
            block.seen += 1;
            if block.seen == OFTEN {
                self.make_run(number as usize);
            }
        } else if block.seen > 1 {
            block.seen -= 1;
        } else if let Some(ahead) =
            rest.first_chunk().filter(|ahead| ahead.iter().all(|word| *word < MESSAGE))
        {
            (block.ahead, block.seen, block.path) = (*ahead, 1, None);
        }
    }

    #[cold]
    fn make_run(&mut self, number: usize) {
        let run = |numbers: &mut dyn Iterator<Item = usize>| {
            let addresses = numbers.flat_map(|number| self.blocks[number].addresses.iter().copied());
            Some(Box::new(Run::new(addresses)))
        };
        let block = &self.blocks[number];
        if block.run.is_none() {
            let run = run(&mut [number].into_iter());
            let block = &mut self.blocks[number];
            (block.run, block.seen) = (run, 0);
        } else {
            let ahead = block.ahead;
            let path = run(&mut [number].into_iter().chain(ahead.map(|number| number as usize)));
            self.blocks[number].path = path;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns a block of instructions that are one byte long.
    fn block(start: u64, count: usize) -> Block {
        Block::read(start, &vec![1; count], &vec![0x90; count]).expect("a block")
    }

    /// Numbers that repeat themselves, and change from time to time what they repeat.
    fn numbers(seed: u64) -> impl Iterator<Item = u32> {
        let mut random = seed;
        let mut next = move |below: u32| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as u32 % below
        };
        let mut way = [0; 16];
        (0_u32..).map(move |turn| {
            if turn % 4096 == 0 {
                way.iter_mut().for_each(|number| *number = next(40));
            }
            if next(20) == 0 { next(40) } else { way[turn as usize % way.len()] }
        })
    }

    #[test]
    fn what_is_hashed_elsewhere_is_what_was_executed() {
        let thread = HashThread::new();
        let mut streams = [0, 1].map(|number| (thread.stream(number), AddressHash::new()));
        let begun = [AtomicU32::new(0)];
        for (number, (truth, plain)) in streams.iter_mut().enumerate() {
            // Another program is executed under the same numbers then.
            for base in [0x40_0000, 0xffff_ffff_8100_0000, 0x7fff_f7df_0000] {
                let mut defined = BTreeSet::new();
                let blocks: Vec<Block> = (0..40).map(|n| block(base + 64 * n, 1 + n as usize % 7)).collect();
                for (turn, executed) in numbers(base + number as u64).take(50_000).enumerate() {
                    let block = &blocks[executed as usize];
                    if defined.insert(executed) {
                        truth.define(executed, block);
                    }
                    truth.add_blocks(executed, &begun, block.len() as u64);
                    (0..block.len()).for_each(|n| plain.add(block.ip(n)));
                    if turn % 1000 == 999 {
                        truth.add(base);
                        plain.add(base);
                    }
                }
                assert_eq!(Truth::count(truth), plain.count());
            }
        }
        for (mut truth, plain) in streams {
            assert_eq!(truth.take(), plain);
            // Another part begins. The blocks are still known.
            truth.add_blocks(3, &[AtomicU32::new(0)], 4);
            let mut alone = AddressHash::new();
            (0..4).for_each(|n| alone.add(0x7fff_f7df_0000 + 3 * 64 + n));
            assert_eq!(truth.count(), 4);
            assert_eq!(truth.take(), alone);
        }
    }

    #[test]
    fn what_comes_often_is_hashed_at_once() {
        let mut stream = HashedStream::default();
        for number in 0..5 {
            stream.add(&[DEFINITION, number, 1, number, 0]);
        }
        let is_at_once = |stream: &HashedStream| stream.blocks[0].path.is_some();
        let way = [0, 1, 2, 3];
        (0..2 * OFTEN - 1).for_each(|_| stream.add(&way));
        assert!(stream.blocks[0].run.is_some() && !is_at_once(&stream));
        // Once for the first time that it is noticed.
        (0..2).for_each(|_| stream.add(&way));
        assert!(is_at_once(&stream));
        // Another way is learned in its place, if it is the usual one from then on.
        (0..OFTEN - 1).for_each(|_| stream.add(&[0, 4, 4, 4]));
        assert_eq!(stream.blocks[0].ahead, [1, 2, 3]);
        stream.add(&way);
        (0..OFTEN - 1).for_each(|_| stream.add(&[0, 4, 4, 4]));
        assert_eq!(stream.blocks[0].ahead, [1, 2, 3]);
        (0..OFTEN).for_each(|_| stream.add(&[0, 4, 4, 4]));
        assert_eq!(stream.blocks[0].ahead, [4, 4, 4]);
        // Single addresses end what is hashed at once.
        (0..3 * OFTEN).for_each(|_| stream.add(&[1, 2, ADDRESS, 9, 0]));
        assert!(stream.blocks[1].path.is_none());
    }
}
