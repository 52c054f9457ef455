//! `destage sim advise` on a recording.

use std::fs::File;
use std::process::Command;

use serde::Deserialize;

use super::{Bench, Measured, RPO};
use crate::Result;

/// What it said.
#[derive(Debug, Deserialize)]
pub(super) struct Advice {
    pub(super) command: String,
    pub(super) reason: Vec<String>,
    /// The defaults stay.
    pub(super) is_kept: bool,
    pub(super) sure: Vec<Sure>,
}

/// A figure of the recorded run and of the advised settings. Times are in seconds.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Sure {
    pub(super) what: String,
    pub(super) recorded: f64,
    pub(super) modelled: f64,
    pub(super) predicted: f64,
}

impl Advice {
    /// Asks for it.
    ///
    /// # Errors
    ///
    /// There is none: what it said.
    pub(super) fn on(bench: &Bench, run: &Measured, asked: &[&str]) -> Result<Self> {
        let recording = &run.recording;
        let (said, failed) = (recording.with_extension("json"), recording.with_extension("log"));
        let mut command = Command::new(&bench.bin);
        command.args(["sim", "advise", "--format", "json", "--crashes", "20", "--rpo", RPO]);
        command.args(["--warmup", &format!("{}ms", run.warmup.as_millis())]);
        command.args(asked).arg("--trace").arg(recording);
        command.stdout(File::create(&said)?).stderr(File::create(&failed)?);
        if !command.status()?.success() {
            let failed = std::fs::read_to_string(failed).unwrap_or_default();
            return Err(format!("destage sim advise failed: {}", failed.trim()).into());
        }
        Ok(serde_json::from_str(&std::fs::read_to_string(said)?)?)
    }

    /// The advised command without what is the user's own to name.
    ///
    /// # Errors
    ///
    /// It names other things than it did.
    pub(super) fn settings(&self) -> Result<Vec<String>> {
        let from = self.command.find("--cache-size").ok_or("the advice names no --cache-size")?;
        Ok(self.command[from..].split_whitespace().map(str::to_owned).collect())
    }

    /// The figure of this name.
    pub(super) fn figure(&self, what: &str) -> Option<&Sure> {
        self.sure.iter().find(|sure| sure.what == what)
    }
}
