//! What is run where, and what is expected of it.

/// One boot of the guest kernel: a machine's settings and the workloads that go with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The monitor's command line.
    pub monitor_options: String,
    /// The guest's.
    pub command_line: String,
}

/// The boots that make a whole run on a profile; `only` narrows the workloads down.
#[must_use]
pub fn boots(profile: &str, only: Option<&str>) -> Vec<Boot> {
    let _ = only;
    vec![Boot { monitor_options: format!("profile={profile}"), command_line: String::new() }]
}
