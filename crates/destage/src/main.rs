//! The command line of Destage: one file per subcommand. Stdout is the result, stderr the log.

mod admin;
mod bench;
mod block;
mod check;
mod cli;
mod commands;
#[cfg(test)]
mod doc_tests;
mod draining;
mod error;
mod file;
mod groups;
mod invalidation;
mod journal;
mod mount;
mod output;
mod parked;
mod reload;
mod replicas;
mod sample;
mod save;
mod schema;
mod serve;
mod server;
mod shell;
mod sim;
mod status;
mod tls;
mod top;
#[cfg(test)]
mod tree_tests;
mod users;
mod values;
mod words;

use clap::{CommandFactory, FromArgMatches};
use cli::{Cli, Subcommand};
use destage_runtime::foreign::escaped_lines;
use destage_runtime::{exit, log};
use error::CliError;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    stop_at_a_bug();
    let (arguments, told) = words::todays(std::env::args_os());
    if let Some(told) = told {
        say(&format!("note: {told}"));
    }
    let matches = command().try_get_matches_from(arguments);
    let read = matches.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match read {
        Ok(read) => read,
        Err(error) => return not_understood(&error),
    };
    match run(cli, &matches) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            let is_service = std::env::var_os("NOTIFY_SOCKET").is_some();
            say(&escaped_lines(&format!("error: {error}{}", error.advice(is_service))));
            ExitCode::from(error.code)
        }
    }
}

/// The command line's description.
fn command() -> clap::Command {
    let own_ports = mount::with_its_own_admin_port(block::with_its_own_admin_port(Cli::command()));
    groups::grouped(own_ports)
}

fn run(cli: Cli, matches: &clap::ArgMatches) -> Result<(), CliError> {
    log::init(&cli.log_level, cli.log_format).map_err(CliError::usage)?;
    match cli.command {
        Subcommand::Serve(_) => {
            let own = matches.subcommand_matches("serve").expect("the subcommand was matched");
            serve::run(own)
        }
        Subcommand::Block { command } => {
            let own = matches.subcommand_matches("block").expect("the subcommand was matched");
            block::run(&command, own)
        }
        Subcommand::Mount(args) => mount::run(*args),
        Subcommand::Sim { command } => sim::run(&command),
        Subcommand::Check(args) => check::run(&args),
        Subcommand::Settings(args) => sample::run(&args),
        Subcommand::Completions(args) => shell::completions(&args, command()),
        Subcommand::Man(args) => shell::man(&args, command()),
        Subcommand::Schema(args) => schema::run(&args),
        Subcommand::Status(args) => status::run(&args),
        Subcommand::Top(args) => top::run(&args),
        Subcommand::Policy(args) => commands::policy(&args),
        Subcommand::Pause(args) => commands::plain("pause", &args),
        Subcommand::Resume(args) => commands::resume(&args),
        Subcommand::Flush(args) => commands::waiting("flush", &args),
        Subcommand::Drain(args) => commands::waiting("drain", &args),
        Subcommand::Invalidate(args) => commands::invalidate(&args),
        Subcommand::Parked { command } => parked::run(&command),
        Subcommand::Users { command } => users::run(&command),
        Subcommand::Replicas { command } => replicas::run(&command),
        Subcommand::Journal(args) => journal::run(&args),
        Subcommand::Bench(args) => bench::run(&args),
    }
}

/// Help that was asked for, or what is wrong with the command line: without addresses, which may hold passwords.
fn not_understood(error: &clap::Error) -> ExitCode {
    let said = error.render().to_string();
    let shown = std::env::args().fold(said.clone(), |said, argument| {
        let value = argument.split_once('=').map_or(&*argument, |(_, value)| value);
        match value.split_once("://") {
            Some((scheme, rest)) if rest.contains('@') => {
                said.replace(value, &format!("{scheme}://..."))
            }
            _ => said,
        }
    });
    if shown == said {
        error.exit();
    }
    say(shown.trim_end());
    ExitCode::from(exit::USAGE)
}

/// Tells the user, if anybody can be told: where the log cannot be written, as on a full disk, the exit code still counts.
fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// A panic in any thread ends the process with the exit code of a bug: half a server must not go on. The journal holds
/// what was acknowledged.
fn stop_at_a_bug() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        say("error: this is a bug in Destage; what was acknowledged is in the journal");
        std::process::exit(exit::BUG.into());
    }));
}
