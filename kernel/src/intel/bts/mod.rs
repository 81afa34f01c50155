//! Intel's branch trace store (BTS): its configuration, and the register that enables the recording. The records go
//! into a DS save area, see [`ds`](crate::intel::ds), which can also send branches as messages instead.

mod config;

pub(crate) use config::BtsCapabilities;
pub use config::{BtsConfig, BtsRefusal};
