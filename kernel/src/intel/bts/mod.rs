//! Intel's branch trace store (BTS): its configuration, and the register that enables the recording. The records go
//! into a DS save area, see [`ds`](crate::intel::ds), which can also send branches as messages instead.
//!
//! ```
//! use pugmark_kernel::intel::{bts::BtsConfig, ds::DsConfig};
//!
//! // The branches of user code; a DS save area with a buffer for them takes this.
//! let config = DsConfig::new().bts(BtsConfig::new().os(false));
//! # let _ = config;
//! ```

mod config;

pub(crate) use config::BtsCapabilities;
pub use config::{BtsConfig, BtsRefusal};
