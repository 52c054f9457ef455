//! What `--auto` has done.

use serde::{Deserialize, Serialize};

/// Settings that the server tries out by itself. Counters count from when it was switched on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutoReport {
    /// What is to become less: `writes` or `latency`.
    pub goal: String,
    /// `measuring` what is in force, `trying` a step, or `idle` under a policy that leaves it nothing to do.
    pub state: String,
    /// What the user has set, and what it returns to: how long a lone group waits for company.
    pub user_linger_seconds: f64,
    /// The same: most groups of a batch.
    pub user_batch_groups: u64,
    /// Changes of a setting.
    pub changes_total: u64,
    /// Steps that were kept.
    pub kept_total: u64,
    /// Times that what was before came back.
    pub went_back_total: u64,
    /// What it did last, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// What was advised last (`--auto-advice`), or why nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl AutoReport {
    /// Adds what was counted of another volume.
    pub fn add(&mut self, other: &Self) {
        self.changes_total += other.changes_total;
        self.kept_total += other.kept_total;
        self.went_back_total += other.went_back_total;
    }
}
