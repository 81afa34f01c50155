//! A trace is decoded in place: the driver copies no byte.

mod common;

use common::{Machine, Ram, Registers, assert_same, user_code};
use pugmark_decoder_core::block_cache::{BlockCache, ExecutionSink, InstructionRun};
use pugmark_decoder_core::event::Event;
use pugmark_decoder_core::image::{AddressSpace, Image, Section};
use pugmark_decoder_core::resume::{BlockStream, Kept, Lost};
use pugmark_kernel::drain::{KeepAll, Sink};
use pugmark_kernel::intel::pt::{Layout, Mode, PtDecoder, PtTracer, RegionSize};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::loss::Gap;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_kernel::slot::Slot;
use pugmark_model::intel::IntelSettings;

const FULL: Mode = Mode::StopWhenFull { spare: 1 };

/// Returns the machine's user code: a jump in every 16 bytes.
fn code() -> Vec<u8> {
    let mut code = vec![0; 0x4000];
    code.chunks_mut(0x10).for_each(|place| place[..2].copy_from_slice(&[0xff, 0xe0]));
    code
}

/// The addresses of all instructions, and the number of gaps.
#[derive(Default)]
struct Executed {
    addresses: Vec<u64>,
    lost: u32,
}

impl ExecutionSink for Executed {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.addresses.extend(insns);
    }
    fn event(&mut self, _: &Event) {}
    fn lost(&mut self, _: &Lost) {
        self.lost += 1;
    }
}

/// A sink that counts the bytes in place and those from elsewhere.
struct Counted<'a, S> {
    ram: &'a Ram,
    sink: S,
    in_place: u64,
    elsewhere: u64,
}

impl<S: Sink> Sink for Counted<'_, S> {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let there = self.ram.holds(bytes) && self.ram.numbers(bytes).iter().all(Option::is_some);
        *(if there { &mut self.in_place } else { &mut self.elsewhere }) += bytes.len() as u64;
        self.sink.bytes(bytes)
    }
    fn gap(&mut self, gap: Gap) -> bool {
        self.sink.gap(gap)
    }
}

#[test]
fn bytes_are_decoded_in_the_handler_where_the_processor_wrote_them_and_none_is_copied() {
    for contiguous in [false, true] {
        let machine = Machine::new("skylake", IntelSettings::default());
        let (code, mut kept, mut blocks) = (code(), <Kept>::new(), vec![0; 1 << 16]);
        let sections = [Section { base: 0x40_0000, bytes: &code, space: AddressSpace::Any }];
        let config = user_code().for_decoder(&machine.capabilities()).unwrap();
        let stream = BlockStream::new(Image::new(&sections), config, &mut kept);
        let decoder = PtDecoder::new(stream, BlockCache::new(&mut blocks), Executed::default());
        let sink = Counted { ram: &machine.ram, sink: decoder, in_place: 0, elsewhere: 0 };
        let layout = Layout::Topa { size: RegionSize::K4, regions: 4, regions_per_table: 3, contiguous };
        let buffer = machine.buffer(layout, FULL);
        machine.disarm();
        // SAFETY: one thread uses it, with one machine.
        let slot =
            unsafe { Slot::new(Handler::new(Delivery::Nmi), || (machine.registers(), machine.registers())) };
        slot.start(|| PtTracer::start(machine.unit(), &user_code(), buffer, sink)).unwrap();
        let mut pmis = 0;
        for _ in 0..100_000 {
            if machine.jump().is_some() {
                machine.deliver();
                assert_eq!(slot.interrupt(None), Ok(Pmi::Served));
                pmis += 1;
            }
        }
        // The kernel is entered, as by a system call.
        machine.deliver();
        let (stopped, mut counted) = slot.stop(|tracer, _| tracer.stop()).unwrap().unwrap();
        assert!(stopped.loss.is_none() && stopped.trace.is_empty() && pmis > 20, "{pmis} PMIs");
        counted.sink.finish();

        // Bytes copied by the driver, for each byte traced: 0.
        assert_eq!((counted.elsewhere, counted.in_place), (0, machine.ram.written()));
        assert_eq!(counted.sink.bytes_decoded(), machine.ram.written());
        assert_eq!((counted.sink.gaps(), counted.sink.stream.errors(), counted.sink.sink.lost), (0, 0, 0));
        // Each jump's target is the next jump's address. The last target is the end of the trace.
        let (addresses, jumps) = (&counted.sink.sink.addresses, machine.jumps());
        assert_eq!(addresses[0], 0x40_0000);
        assert_same(&addresses[1..], &jumps[..jumps.len() - 1], "all that was executed");
    }
}

#[test]
fn a_gap_is_passed_to_the_decoder_with_the_number_of_bytes_where_it_is_known() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let (code, mut kept, mut blocks) = (code(), <Kept>::new(), vec![0; 1 << 16]);
    let sections = [Section { base: 0x40_0000, bytes: &code, space: AddressSpace::Any }];
    let config = user_code().for_decoder(&machine.capabilities()).unwrap();
    let stream = BlockStream::new(Image::new(&sections), config, &mut kept);
    let mut decoder = PtDecoder::new(stream, BlockCache::new(&mut blocks), Executed::default());
    let layout = Layout::contiguous_topa(RegionSize::K4, 4);
    let tracing = machine.start(layout, Mode::Overwrite);
    machine.run(8000);
    machine.deliver();
    let mut stopped = tracing.stop().map_err(|failed| failed.fault).unwrap();
    // A sink that keeps everything takes nothing.
    assert!(!stopped.trace.drain_to(&mut KeepAll));
    assert!(stopped.trace.drain_to(&mut decoder));
    assert!(stopped.trace.is_empty() && stopped.trace.chunks().next().is_none());
    // The offset of the next byte includes overwritten bytes.
    assert_eq!((decoder.stream.offset(), decoder.gaps()), (machine.ram.written(), 1));
    decoder.finish();
    assert_eq!(decoder.bytes_decoded() + stopped.loss.wrapped_bytes, machine.ram.written());
    let (addresses, jumps) = (&decoder.sink.addresses, machine.jumps());
    assert!(addresses.len() > 1000);
    assert_same(addresses, &jumps[jumps.len() - 1 - addresses.len()..jumps.len() - 1], "the newest");
}

#[test]
fn a_sink_that_does_not_take_everything_leaves_the_rest_in_the_trace() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let layout = Layout::topa(RegionSize::K4, 4);
    let sink = common::Collector { appetite: Some(100), ..common::Collector::new() };
    let buffer = machine.buffer(layout, FULL);
    let tracer: PtTracer<Registers, &Ram, _> =
        PtTracer::start(machine.unit(), &user_code(), buffer, sink).unwrap();
    machine.run(1000);
    let (mut stopped, mut sink) = tracer.stop().unwrap();
    assert_eq!((sink.stretches[0].len(), stopped.trace.len()), (100, machine.ram.written() - 100));
    sink.appetite = None;
    assert!(stopped.trace.drain_to(&mut sink));
    assert_same(&common::tips(sink.whole()), &machine.jumps(), "all of it");
}
