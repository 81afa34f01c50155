//! Builds paths: follows outcomes over the code as far as only code and outcomes decide.

use super::{
    BlockDecoder,
    path::{End, Key, Leg, OUTCOMES, Path},
    run::Run,
};
use crate::{flow::Way, mode::ExecMode};

/// The most runs of code in one leg, joined by direct jumps and calls. The limit excludes endless loops.
const STRETCHES: u32 = 16;

/// Where an explorer is.
struct Explorer {
    key: Key,
    ip: u64,
    /// How many outcomes are left.
    left: u8,
    /// The calls of the path that have not returned.
    calls: [u64; OUTCOMES],
    depth: usize,
    /// How many calls before the path have returned in it.
    returned: usize,
}

impl BlockDecoder<'_> {
    /// Builds the path of a key. The path ends before an error, or where it is too long to store.
    #[cold]
    #[inline(never)]
    pub(super) fn explore(&mut self, key: Key, mode: ExecMode) -> Path {
        let left = 7 - key.outcomes.leading_zeros() as u8;
        let mut way = Explorer { key, ip: key.ip, left, calls: [0; OUTCOMES], depth: 0, returned: 0 };
        let mut path = Path { key, ..Path::default() };
        while path.is_open()
            && let Some((leg, section)) = self.leg(&mut way, mode)
            && (path.is_empty() || path.section == section)
        {
            path.section = section;
            path.push(leg);
        }
        path
    }

    /// The next leg, and the section that it is in.
    fn leg(&mut self, way: &mut Explorer, mode: ExecMode) -> Option<(Leg, u32)> {
        let first = way.key.ip;
        let relative = |ip: u64| i32::try_from(ip.wrapping_sub(first).cast_signed()).ok();
        let mut leg = Leg::default();
        let mut section = None;
        for _ in 0..STRETCHES {
            let run = self.run_at(way.ip, mode)?;
            if run.truncated || *section.get_or_insert(run.section) != run.section {
                return None;
            }
            let next = way.ip.wrapping_add(u64::from(run.span));
            leg.last = relative(way.ip.wrapping_add(u64::from(run.last)))?;
            leg.insns = leg.insns.checked_add(run.insns.into())?;
            way.ip = match run.end {
                Way::On => next,
                Way::Jump | Way::CallNext => run.target,
                Way::Call if leg.calls => return None,
                Way::Call => {
                    (leg.calls, leg.returns_to, leg.end) = (true, relative(next)?, End::Cond);
                    way.call(next)?;
                    run.target
                }
                Way::Cond if way.take()? => run.target,
                Way::Cond => next,
                Way::Return if way.left > 0 => {
                    leg.end = End::Return;
                    // A not-taken outcome is an error.
                    way.take()?.then_some(())?;
                    match way.depth.checked_sub(1) {
                        Some(depth) => {
                            way.depth = depth;
                            *way.calls.get(depth)?
                        }
                        None => {
                            way.returned += 1;
                            self.walker.returns_to(way.returned - 1)?
                        }
                    }
                }
                // A deferred target.
                Way::Return | Way::IndirectCall | Way::Indirect if way.left > 0 => return None,
                Way::Return => {
                    leg.end = End::NamedReturn;
                    next
                }
                Way::IndirectCall => {
                    leg.end = End::NamedCall;
                    next
                }
                Way::Indirect => {
                    leg.end = End::Named;
                    next
                }
            };
            if !matches!(run.end, Way::On | Way::Jump | Way::Call | Way::CallNext) {
                leg.next = relative(way.ip)?;
                return Some((leg, section?));
            }
        }
        None
    }

    fn run_at(&mut self, ip: u64, mode: ExecMode) -> Option<Run> {
        if let Some(run) = self.cache.get(ip, mode) {
            return Some(*run);
        }
        let run = Run::decode(self.walker.image, self.walker.space, ip, mode).ok()?;
        self.cache.insert(ip, run);
        Some(run)
    }
}

impl Explorer {
    fn take(&mut self) -> Option<bool> {
        self.left = self.left.checked_sub(1)?;
        Some(self.key.outcomes >> self.left & 1 != 0)
    }

    fn call(&mut self, returns_to: u64) -> Option<()> {
        *self.calls.get_mut(self.depth)? = returns_to;
        self.depth += 1;
        Some(())
    }
}
