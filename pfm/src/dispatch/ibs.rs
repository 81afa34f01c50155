//! Sets up the units of Instruction Based Sampling (IBS).

use super::{
    error::DispatchError,
    ibs_control::{fetch_control, op_control},
    output::{Dispatch, IBS_FETCH_PMC, IBS_FETCH_PMD, IBS_OP_PMC, IBS_OP_PMD, Pmc, Pmd},
    request::Features,
};
use crate::cpu::Cpu;

/// Appends the registers of the IBS units to `dispatch`. As in libpfm3 their address is 0; [`Pmc::msr`] returns the
/// real one.
pub(super) fn dispatch(cpu: &Cpu, features: Features, dispatch: &mut Dispatch) -> Result<(), DispatchError> {
    if !cpu.is_extended() {
        return Err(DispatchError::NoIbs);
    }
    if let Some(fetch) = features.ibs_fetch {
        dispatch.fetch_base = dispatch.push(
            Pmc { number: IBS_FETCH_PMC, address: 0, value: fetch_control(fetch.max_count, fetch.random) },
            Pmd { number: IBS_FETCH_PMD, address: 0, rdpmc: 0 },
        );
    }
    if let Some(op) = features.ibs_op {
        if op.ops && !cpu.counts_ops() {
            return Err(DispatchError::NoOpCount { event: None });
        }
        dispatch.op_base = dispatch.push(
            Pmc { number: IBS_OP_PMC, address: 0, value: op_control(op.max_count, op.ops) },
            Pmd { number: IBS_OP_PMD, address: 0, rdpmc: 0 },
        );
    }
    Ok(())
}
