//! The flags of the servers in groups, for `--help` and the manual pages.

use clap::Command;

/// A heading, and the flags below it by their names.
type Group = (&'static str, &'static [&'static str]);

const GROUPS: &[Group] = &[
    (
        "Where",
        &[
            "origin",
            "data",
            "journal",
            "cache",
            "redo",
            "listen",
            "fuse",
            "admin",
            "admin-host",
            "config",
            "run",
        ],
    ),
    (
        "The contract",
        &[
            "policy",
            "order",
            "commit",
            "staleness",
            "when",
            "read-priority",
            "at-limit",
            "atomic",
            "group",
            "coordinator",
            "fsync",
            "fsync-origin",
            "preset",
        ],
    ),
    (
        "Sizes and limits",
        &[
            "dirty-limit",
            "journal-size",
            "journal-depth",
            "cache-size",
            "log-size",
            "batch",
            "batch-size",
            "linger",
            "auto",
            "auto-linger",
            "auto-batch",
            "auto-period",
            "auto-advice",
            "retain",
            "bypass-sequential",
            "parked-limit",
            "once-tokens",
            "once-limit",
            "tracking-table-max-keys",
            "threads",
        ],
    ),
    (
        "Buffered writes on other servers",
        &["replicas", "copies", "replica-log", "journal-alone", "failover", "standby", "advertise"],
    ),
    (
        "Several hosts (experimental)",
        &["tokens", "token-lease", "fence", "fence-command", "ceph-conf", "ceph-name"],
    ),
    (
        "Clients",
        &[
            "max-clients",
            "max-request",
            "max-pipeline",
            "output-limit",
            "output-limit-total",
            "client-wait",
            "handshake-timeout",
            "unmapped",
            "absent-filter",
            "spin",
            "read-only",
        ],
    ),
    (
        "Who is let in",
        &[
            "password",
            "users",
            "no-auth",
            "tls-certificate",
            "tls-key",
            "tls-client-ca",
            "tls-optional",
            "origin-tls-ca",
            "origin-tls-certificate",
            "origin-tls-key",
        ],
    ),
    (
        "When the origin rejects or is away",
        &["on-reject", "on-away", "parked-per-minute", "origin-timeout", "origin-check"],
    ),
    ("Starting and ending", &["drain-timeout", "take-over", "adopt", "change-origin"]),
    (
        "Recording and logging",
        &["record", "record-size", "record-anonymous", "log-level", "log-format"],
    ),
];

/// Puts the flags of the servers in groups.
pub(crate) fn grouped(command: Command) -> Command {
    let servers = |command: Command| {
        command.mut_args(|arg| {
            let heading = arg.get_long().and_then(heading);
            if heading.is_some() { arg.help_heading(heading) } else { arg }
        })
    };
    command
        .mut_subcommand("serve", servers)
        .mut_subcommand("mount", servers)
        .mut_subcommand("block", |block| block.mut_subcommand("serve", servers))
}

fn heading(flag: &str) -> Option<&'static str> {
    GROUPS.iter().find(|(_, flags)| flags.contains(&flag)).map(|(heading, _)| *heading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    #[test]
    fn every_flag_of_a_server_has_a_group_and_every_group_its_flags() {
        let command = grouped(Cli::command());
        let block = command.find_subcommand("block").unwrap();
        let servers = [
            command.find_subcommand("serve").unwrap(),
            command.find_subcommand("mount").unwrap(),
            block.find_subcommand("serve").unwrap(),
        ];
        let mut found = BTreeSet::from(["log-level", "log-format"]);
        for server in servers {
            for arg in server.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(long) = arg.get_long() else { continue };
                assert!(arg.get_help_heading().is_some(), "{}: --{long}", server.get_name());
                found.insert(long);
            }
        }
        let named: BTreeSet<&str> =
            GROUPS.iter().flat_map(|(_, flags)| flags.iter().copied()).collect();
        assert_eq!(named.difference(&found).collect::<Vec<_>>(), [&""; 0]);
    }
}
