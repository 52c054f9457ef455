//! The small subcommands: each sends one command to a running server.

use crate::admin::{AdminArgs, WaitArgs};
use crate::draining;
use crate::error::CliError;
use crate::output::{print, print_json};
use crate::save::SaveArgs;
use crate::serve;

/// Flags of `policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The new policy (write-back, write-through, write-around) and parts of it as PART=VALUE, with the parts when, commit,
    /// read-priority, staleness, at-limit, dirty-limit, cache-size, journal-size, batch, linger, on-reject, parked-per-minute, auto:
    /// 'destage policy write-back when=periodic:10s'.
    /// Without any, the policy in force is shown.
    #[arg(value_name = "CHANGE")]
    changes: Vec<String>,

    #[command(flatten)]
    save: SaveArgs,
}

/// Flags of `resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// What ordering domains halted at because the origin rejected it (--on-reject stop) is parked if it is rejected once
    /// more.
    #[arg(long)]
    park: bool,
}

/// Flags of `invalidate`.
#[derive(Debug, clap::Args)]
pub(crate) struct InvalidateArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The keys, such as customers:42; customers:* for all of a table, * for everything.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
}

/// Flags of `flush` and `drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitingArgs {
    #[command(flatten)]
    admin: AdminArgs,

    #[command(flatten)]
    wait: WaitArgs,
}

/// A command that waits.
pub(crate) fn waiting(name: &str, args: &WaitingArgs) -> Result<(), CliError> {
    let send = || args.admin.command_within(args.wait.timeout.duration(), name, &[]);
    show(&if name == "drain" { draining::shown(&args.admin, &[], send) } else { send() }?)
}

/// A command without arguments.
pub(crate) fn plain(name: &str, admin: &AdminArgs) -> Result<(), CliError> {
    show(&admin.command(name, &[])?)
}

/// Destages again.
pub(crate) fn resume(args: &ResumeArgs) -> Result<(), CliError> {
    let words: &[String] = if args.park { &["park".to_owned()] } else { &[] };
    show(&args.admin.command("resume", words)?)
}

/// Shows or changes the policy.
pub(crate) fn policy(args: &PolicyArgs) -> Result<(), CliError> {
    let save = args.save.prepare(&args.changes, serve::check_text, || Ok(Vec::new()))?;
    show(&args.admin.command("policy", &args.changes)?)?;
    save.map_or(Ok(()), |save| save.write())
}

/// Drops cached copies.
pub(crate) fn invalidate(args: &InvalidateArgs) -> Result<(), CliError> {
    show(&args.admin.command("invalidate", &args.keys)?)
}

/// Prints what a server answered.
pub(crate) fn show(result: &serde_json::Value) -> Result<(), CliError> {
    match result {
        serde_json::Value::Null => print("done"),
        serde_json::Value::String(text) => print(text),
        other => print_json(other),
    }
}
