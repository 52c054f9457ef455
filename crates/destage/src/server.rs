//! What the command lines of all servers share: flags, and the rules about negative controls.

use crate::error::CliError;
use crate::values::bytes;
use clap::Args;
use destage_record::RecordSettings;
use destage_runtime::units::Bytes;
use std::path::PathBuf;

/// The flags of a recording.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecordArgs {
    /// Record what the policy is told and what it answers, for `destage sim replay`: files FILE.1, FILE.2 and so on. Sizes, times
    /// and hashes, no data.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Bytes of the recording; the oldest file is deleted before it gets larger. 4M to 16T.
    #[arg(long, default_value = "1G", value_parser = |s: &str| bytes(s, "4M", "16T"), value_name = "SIZE")]
    record_size: Bytes,
}

impl RecordArgs {
    /// Where a recording goes, if there is to be one.
    pub(crate) fn settings(self) -> Option<RecordSettings> {
        let bytes_max = self.record_size.get();
        self.record.map(|path| RecordSettings { path, bytes_max })
    }
}

/// Refuses flags of negative controls in a build that has none.
///
/// # Errors
/// There are some, and this build has none.
pub(crate) fn refuse_controls(any: bool) -> Result<(), CliError> {
    if any && !destage_engine::CONTROLS {
        return Err(CliError::usage(
            "--unsafe-...: this build keeps all its promises; what breaks them on purpose is for tests, in a build with \
             --features destage-engine/controls",
        ));
    }
    Ok(())
}

/// Says aloud, whatever the log level, what has been switched off: of each flag whether it is given, its name and what it
/// costs.
pub(crate) fn warn_of_controls(flags: &[(bool, &str, &str)]) {
    for (_, flag, loss) in flags.iter().filter(|(is_set, ..)| *is_set) {
        eprintln!("WARNING: {flag}: {loss}; for tests only, never with data that matters");
    }
}
