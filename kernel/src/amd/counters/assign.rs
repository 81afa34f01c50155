//! Assigns events to counters.

use super::MAX_COUNTERS;
use super::constraints::Need;

/// Returns a counter from `free` for each of `needs`; for a pair, the even one. `None` if there are not enough.
pub(super) fn assign(needs: &[Need], free: u16) -> Option<[u8; MAX_COUNTERS]> {
    if needs.len() > MAX_COUNTERS || needed(needs) > free.count_ones() {
        return None;
    }
    let mut order = [(0, Need::default()); MAX_COUNTERS];
    let order = order.get_mut(..needs.len())?;
    order.iter_mut().zip(needs.iter().copied().enumerate()).for_each(|(place, event)| *place = event);
    // Assign the events with the fewest counters first, and pairs before others, because a pair takes two counters.
    order.sort_unstable_by_key(|(_, need)| (need.counters.count_ones(), !need.pair));
    let mut counters = [0; MAX_COUNTERS];
    place(order, free, &mut counters).then_some(counters)
}

/// Returns the number of counters that the events need.
pub(super) fn needed(needs: &[Need]) -> u32 {
    needs.iter().map(|need| 1 + u32::from(need.pair)).sum()
}

fn place(order: &[(usize, Need)], free: u16, counters: &mut [u8; MAX_COUNTERS]) -> bool {
    let Some((&(event, need), rest)) = order.split_first() else { return true };
    (0..MAX_COUNTERS as u8).filter(|n| need.counters >> n & 1 == 1).any(|n| {
        let taken = (1 | u16::from(need.pair) << 1) << n;
        if free & taken != taken || !place(rest, free & !taken, counters) {
            return false;
        }
        if let Some(counter) = counters.get_mut(event) {
            *counter = n;
        }
        true
    })
}
