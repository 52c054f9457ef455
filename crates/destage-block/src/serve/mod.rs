//! `destage block serve`, live: sockets, threads and media around the volume engines.

use crate::settings::Settings;

/// Why the server ended other than as asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ServeError {
    code: u8,
    message: String,
}

impl ServeError {
    /// The process's exit code: one of [`destage_runtime::exit::TABLE`].
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}

/// Serves until a signal, the end of the `--run` command, or a failure.
///
/// # Errors
/// [`ServeError`] with the exit code; what was committed is in the cache in any case.
pub fn run(_settings: Settings) -> Result<(), ServeError> {
    Err(ServeError { code: destage_runtime::exit::BUG, message: "to come".into() })
}
