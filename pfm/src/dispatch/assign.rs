//! Assigns events to counters.

use super::{
    error::DispatchError,
    find::Selection,
    ibs_control::{OP_MSR, fetch_control, op_control},
    output::{Dispatch, IBS_FETCH_PMC, IBS_FETCH_PMD, IBS_OP_PMC, IBS_OP_PMD, MAX_COUNTERS, Pmc, Pmd},
    request::{CounterFeatures, CounterFlags, Request},
};
use crate::{cpu::Cpu, event_select::EventSelect, levels::Levels, table::Flags};

/// The levels that no counter can select.
const UNSELECTABLE_LEVELS: Levels = Levels::LEVEL1.union(Levels::LEVEL2);
/// The number of possible counter masks.
const COUNTER_MASKS: u32 = 4;
/// The address that libpfm3 returns for the control register of its fetch event. The register is really at `C001_1030`.
const IBS_FETCH_EVENT_ADDRESS: u32 = 0xc001_1031;

/// An event of a request, with the request's settings for it.
#[derive(Clone, Copy)]
struct RequestedEvent<'a> {
    index: usize,
    selection: &'a Selection,
    /// The event's levels, or the request's if it has none.
    levels: Levels,
    features: CounterFeatures,
}

/// Appends the registers of the events to `dispatch`.
pub(super) fn dispatch(
    cpu: &'static Cpu,
    request: &Request<'_>,
    dispatch: &mut Dispatch,
) -> Result<(), DispatchError> {
    let counters = assign(cpu, request)?;
    for (item, counter) in requested_events(request).zip(counters) {
        let RequestedEvent { index, selection, .. } = item;
        if let Some(mask) = selection.unit_masks().find(|mask| !cpu.scope().has_mask(mask)) {
            return Err(DispatchError::OtherRevision { event: index, unit_mask: mask.name() });
        }
        let (pmc, pmd) = match selection.event.flags() {
            flags if flags.contains(Flags::IBS_OP) => ibs_op_registers(cpu, index, selection)?,
            flags if flags.contains(Flags::IBS_FETCH) => ibs_fetch_registers(selection),
            _ => counter_registers(cpu, &item, counter)?,
        };
        dispatch.push(pmc, pmd);
    }
    Ok(())
}

fn requested_events<'a>(request: &Request<'a>) -> impl Iterator<Item = RequestedEvent<'a>> + use<'a> {
    let (default, counters) = (request.levels, request.features.unwrap_or_default().counters);
    request.events.iter().zip(counters).enumerate().map(move |(index, (selection, features))| {
        let levels = if selection.levels.is_empty() { default } else { selection.levels };
        RequestedEvent { index, selection, levels, features }
    })
}

/// Returns the counter of each event: the next available one, in the order of the events.
fn assign(cpu: &'static Cpu, request: &Request<'_>) -> Result<[u8; MAX_COUNTERS], DispatchError> {
    if request.levels.intersects(UNSELECTABLE_LEVELS) {
        return Err(DispatchError::Levels { event: None, levels: request.levels });
    }
    let mut assigned = [0; MAX_COUNTERS];
    let mut free = (0..cpu.bank().counters()).filter(|n| request.unavailable >> n & 1 == 0);
    for (item, place) in requested_events(request).zip(&mut assigned) {
        check(cpu, &item)?;
        *place = free.next().ok_or(DispatchError::NoCounter { event: item.index })?;
    }
    Ok(assigned)
}

fn check(cpu: &'static Cpu, item: &RequestedEvent<'_>) -> Result<(), DispatchError> {
    let &RequestedEvent { index, selection, levels, features } = item;
    if levels.intersects(UNSELECTABLE_LEVELS) {
        return Err(DispatchError::Levels { event: Some(index), levels });
    }
    if selection.has_many_masks() && selection.event.all_masks().iter().all(|mask| mask.is_exclusive()) {
        return Err(DispatchError::Combination { event: index });
    }
    if selection.cpu != cpu {
        return Err(DispatchError::OtherCpu { event: index, cpu: selection.cpu.name() });
    }
    let unknown = features.flags.difference(CounterFlags::all());
    if !unknown.is_empty() {
        return Err(DispatchError::Flags { event: index, flags: unknown.bits() });
    }
    if features.counter_mask >= COUNTER_MASKS {
        return Err(DispatchError::CounterMask { event: index, mask: features.counter_mask });
    }
    Ok(())
}

/// Returns the registers of an event that is counted.
fn counter_registers(cpu: &Cpu, item: &RequestedEvent<'_>, counter: u8) -> Result<(Pmc, Pmd), DispatchError> {
    let &RequestedEvent { index, selection, levels, features } = item;
    let mut select = EventSelect::counting(selection.event.code())
        .with_unit_mask(unit_mask(selection))
        // The counter mask was checked to be below COUNTER_MASKS.
        .with_counter_mask(features.counter_mask as u8);
    select.set(EventSelect::USR, levels.contains(Levels::USER));
    select.set(EventSelect::OS, levels.contains(Levels::KERNEL));
    select.set(EventSelect::INV, features.flags.contains(CounterFlags::INV));
    select.set(EventSelect::EDGE, features.flags.contains(CounterFlags::EDGE));
    select.set(EventSelect::GUEST_ONLY, features.flags.contains(CounterFlags::GUEST));
    select.set(EventSelect::HOST_ONLY, features.flags.contains(CounterFlags::HOST));
    if select.intersects(EventSelect::SINCE_FAM10H) && !cpu.is_extended() {
        return Err(DispatchError::SinceFam10h { event: index });
    }
    let bank = cpu.bank();
    Ok((
        Pmc { number: counter, address: bank.select_msr(counter), value: select.bits() },
        Pmd { number: counter, address: bank.counter_msr(counter), rdpmc: u32::from(counter) },
    ))
}

/// Returns the registers of libpfm3's event that stands for the IBS op unit. The event has no period.
fn ibs_op_registers(cpu: &Cpu, index: usize, selection: &Selection) -> Result<(Pmc, Pmd), DispatchError> {
    let in_ops = unit_mask(selection) != 1;
    if in_ops && !cpu.counts_ops() {
        return Err(DispatchError::NoOpCount { event: Some(index) });
    }
    Ok((
        Pmc { number: IBS_OP_PMC, address: OP_MSR, value: op_control(0, in_ops) },
        Pmd { number: IBS_OP_PMD, address: OP_MSR, rdpmc: 0 },
    ))
}

/// Returns the registers of libpfm3's event that stands for the IBS fetch unit. The event has no period.
fn ibs_fetch_registers(selection: &Selection) -> (Pmc, Pmd) {
    let (address, random) = (IBS_FETCH_EVENT_ADDRESS, unit_mask(selection) == 1);
    (
        Pmc { number: IBS_FETCH_PMC, address, value: fetch_control(0, random) },
        Pmd { number: IBS_FETCH_PMD, address, rdpmc: 0 },
    )
}

fn unit_mask(selection: &Selection) -> u8 {
    selection.unit_masks().fold(0, |bits, mask| bits | mask.code())
}
