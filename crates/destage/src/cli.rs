//! The subcommands and what they share.

use crate::{
    admin, bench, block, check, commands, journal, mount, parked, replicas, sample, schema, serve,
    shell, sim, status, top, users,
};
use clap::Parser;
use destage_runtime::{exit, log};

/// Write-back caching with a contract: applications write at the speed of the medium beside them, the store behind follows
/// within a stated bound, in order, exactly once.
#[derive(Debug, Parser)]
#[command(
    name = "destage",
    version,
    after_long_help = exit::help(),
    after_help = "'destage --help' lists the exit codes; 'destage COMMAND --help' documents every flag; '--json' is short for '--format json'.",
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// What to log to stderr: error, warn, info, debug, trace, off, or a list such as info,destage_journal=debug.
    #[arg(long, global = true, env = log::LEVEL_ENV, default_value = "info", value_name = "LEVEL")]
    pub(crate) log_level: String,

    /// The form of log lines.
    #[arg(long, global = true, value_enum, default_value = "plain", value_name = "FORMAT")]
    pub(crate) log_format: log::Format,

    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

/// One file each.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Serve Redis clients in front of a database, write-back.
    #[command(after_long_help = exit::help())]
    Serve(Box<serve::args::ServeArgs>),
    /// Serve NBD clients in front of a slow disk: a host-side flash cache with four write policies.
    Block {
        #[command(subcommand)]
        command: block::BlockCommand,
    },
    /// Mount a directory of a shared file system with a journal of this host in front of it.
    #[command(after_long_help = exit::help())]
    Mount(Box<mount::MountArgs>),
    /// Simulate caches on I/O traces: which policy and how much of RAM and flash would have held what.
    Sim {
        #[command(subcommand)]
        command: sim::SimCommand,
    },
    /// Check everything that a start would, the origin's schema included; changes nothing anywhere.
    #[command(after_long_help = exit::help())]
    Check(check::CheckArgs),
    /// Print a settings file with every key, its meaning and its default.
    Settings(sample::SettingsArgs),
    /// Show which tables and columns of an origin can be reached, and what cannot be and why.
    Schema(schema::SchemaArgs),
    /// Show what a running server does: what a crash would lose now, latencies, memory.
    Status(status::StatusArgs),
    /// Watch one server or several in the terminal, as the console does in a browser.
    Top(top::TopArgs),
    /// Show or change the policy of a running server.
    Policy(commands::PolicyArgs),
    /// Stop destaging until 'resume'; the staleness bound stays in force.
    Pause(admin::AdminArgs),
    /// Destage again; also ends the back-off after a failure, and the halt of ordering domains.
    Resume(commands::ResumeArgs),
    /// Make the journal durable now.
    Flush(commands::WaitingArgs),
    /// Destage everything that is dirty and wait until the origin has it, for as long as it needs.
    #[command(after_long_help = exit::help())]
    Drain(commands::WaitingArgs),
    /// Drop the cached copy of a row, after something else has changed it at the origin.
    Invalidate(commands::InvalidateArgs),
    /// Show what the origin rejected, and decide on it: apply it after all, edited or not, or give it up.
    Parked {
        #[command(subcommand)]
        command: parked::ParkedCommand,
    },
    /// Make what the file of 'destage serve --users' is made of.
    Users {
        #[command(subcommand)]
        command: users::UsersCommand,
    },
    /// Change which servers hold the buffered writes of a running server.
    Replicas {
        #[command(subcommand)]
        command: replicas::ReplicasCommand,
    },
    /// Look into, check, export or repair the journal of a server that is not running.
    Journal(journal::JournalArgs),
    /// Measure: YCSB, BG, TPC-C and other comparisons, by the program destage-bench.
    Bench(bench::BenchArgs),
    /// Print the completions of a shell: 'destage completions bash > /etc/bash_completion.d/destage'.
    Completions(shell::CompletionsArgs),
    /// Write the manual pages of all commands to a folder.
    Man(shell::ManArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_visible_flag_is_documented() {
        fn check(command: &clap::Command) {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        let command = Cli::command();
        command.clone().debug_assert();
        check(&command);
    }

    /// 'Before' is for time: what stands between clients and a store is in front of it.
    #[test]
    fn before_is_never_said_of_a_place() {
        const PLACES: [&str; 15] = [
            "a database",
            "databases",
            "sql databases",
            "a sql database",
            "the database",
            "your database",
            "a slow disk",
            "slow disks",
            "a disk",
            "the disk",
            "the flash",
            "the filer",
            "a shared file system",
            "an origin",
            "the origin",
        ];
        fn said(text: &str) -> Option<String> {
            let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
            let text = words.join(" ");
            let mut all = PLACES.iter().map(|place| format!("before {place}"));
            // What the origin does is time: 'before the origin has it'.
            all.find(|place| {
                text.match_indices(place.as_str()).any(|(at, found)| {
                    let rest = &text[at + found.len()..];
                    !["has", "is", "takes", "can", "does", "holds", "answers"].iter().any(|verb| {
                        rest.strip_prefix(' ').is_some_and(|rest| rest.starts_with(verb))
                    })
                })
            })
        }
        fn check(command: &mut clap::Command) {
            let help = command.render_long_help().to_string();
            assert_eq!(said(&help), None, "--help of {}", command.get_name());
            command.get_subcommands_mut().for_each(check);
        }
        assert!(said("Serve Redis clients before\n a database, write-back").is_some());
        assert!(said("waits before the origin has it").is_none());
        check(&mut Cli::command());
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for folder in std::fs::read_dir(crates).unwrap() {
            let manifest = folder.unwrap().path().join("Cargo.toml");
            let text = std::fs::read_to_string(&manifest).unwrap();
            let description = text.lines().find(|line| line.starts_with("description")).unwrap();
            assert_eq!(said(description), None, "{}", manifest.display());
        }
    }

    #[test]
    fn long_help_lists_every_exit_code() {
        let help = Cli::command().render_long_help().to_string();
        for (code, meaning) in exit::TABLE {
            assert!(help.contains(&format!("{code:>2}  ")), "{code}");
            let first = meaning.split(' ').next().unwrap();
            assert!(help.contains(first));
        }
        let serve = Cli::command().find_subcommand_mut("serve").unwrap().render_long_help();
        assert!(serve.to_string().contains("Exit codes:"));
    }

    #[test]
    fn wrong_arguments_say_what_works() {
        for (args, part) in [
            (vec!["destage", "srve"], "'serve'"),
            (vec!["destage", "serve", "--policy", "writeback"], "use write-back, write-through"),
            (vec!["destage", "serve", "--when", "periodic:10"], "has no unit"),
            (vec!["destage", "serve", "--commit", "1"], "has no unit"),
            (vec!["destage", "serve", "--dirty-limit", "1GX"], "64K or 1.5G"),
            (vec!["destage", "serve", "--journal-size", "70%"], "a share, not a size"),
            (vec!["destage", "serve", "--listen", "6380"], "unix:/path"),
            (vec!["destage", "serve", "--batch", "0"], "1..=65536"),
            (vec!["destage", "serve", "--max-request", "1"], "16K to 512M"),
            (vec!["destage", "serve", "--staleness", "1ms"], "100ms to 1d"),
            (vec!["destage", "schema"], "--origin"),
            (vec!["destage", "status", "--format", "xml"], "table, json"),
        ] {
            let error = Cli::try_parse_from(&args).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{args:?}");
            assert!(error.to_string().contains(part), "{args:?}: {error}");
        }
    }
}
