//! `destage users`: what the file of `--users` is made of.

use crate::error::CliError;
use crate::output::print;
use destage_runtime::password_hash::PasswordHash;
use destage_runtime::secret_input;

/// What is done.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum UsersCommand {
    /// Print the hash of a password, for the user's line in the file of 'destage serve --users'. The password is the first line of
    /// standard input, or is asked for at a terminal.
    Hash,
}

/// Does it.
pub(crate) fn run(command: &UsersCommand) -> Result<(), CliError> {
    match command {
        UsersCommand::Hash => {
            let password = secret_input::read("password").map_err(|error| {
                CliError::usage(format!("failed to read the password: {error}"))
            })?;
            let hash = PasswordHash::make(password.as_bytes()).map_err(CliError::usage)?;
            print(&hash.to_string())
        }
    }
}
