//! Intel's branch trace store (BTS): which branches are recorded, and the register that enables the recording. The
//! records go into a DS save area, see [`ds`](crate::intel::ds).

mod config;
mod messages;

pub use config::{BtsConfig, BtsRefusal};
pub use messages::{MessageSession, Messages};
