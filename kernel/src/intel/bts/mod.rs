//! Intel's branch trace store: which branches are recorded, and the register that lets them be. The records go into a
//! DS save area, see [`ds`](crate::intel::ds).

mod config;
mod control;
mod messages;

pub use config::{BtsConfig, BtsRefusal};
pub use control::{Control, ControlRegister};
pub use messages::{MessageSession, Messages};

/// What records branches: nobody else may, while this driver does.
pub(crate) const RECORDERS: Control = Control::LBR.union(Control::TR).union(Control::BTS);
