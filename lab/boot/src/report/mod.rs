//! Reports the recording of a session.

mod addresses;
mod error;
mod flow;
mod session;

pub(crate) use error::RecordingError;
pub(crate) use flow::Flow;
pub(crate) use session::{Recorded, ReportOptions, SessionReport};
