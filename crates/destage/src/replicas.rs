//! `destage replicas`: the servers that hold the buffered writes of a running server.

use crate::admin::AdminArgs;
use crate::error::CliError;
use crate::output::print;
use serde_json::Value;

/// What to do with the servers.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ReplicasCommand {
    /// Use another server besides. It is filled, and counts from then on; 'destage status' shows it.
    Add(AddArgs),
    /// Use a server no more.
    Remove(RemoveArgs),
}

/// Flags of `replicas add`.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The server, as --replicas names it: redis://:PASSWORD@HOST:PORT or rediss://.
    #[arg(value_name = "URL")]
    url: String,
}

/// Flags of `replicas remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The server, as 'destage status' names it: HOST:PORT.
    #[arg(value_name = "SERVER")]
    server: String,
}

pub(crate) fn run(command: &ReplicasCommand) -> Result<(), CliError> {
    let (admin, word, server) = match command {
        ReplicasCommand::Add(args) => (&args.admin, "add", &args.url),
        ReplicasCommand::Remove(args) => (&args.admin, "remove", &args.server),
    };
    let answer = admin.command("replicas", &[word.to_owned(), server.clone()])?;
    match answer {
        Value::String(text) => print(&text),
        other => print(&other.to_string()),
    }
}
