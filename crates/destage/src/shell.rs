//! What is made of the command line's own description: completions of shells, and manual pages.

use crate::error::CliError;
use crate::output::print;
use clap::Command;
use std::io;
use std::path::{Path, PathBuf};

/// Flags of `completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: clap_complete::Shell,
}

/// Flags of `man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Where to write the pages, one for each command: a folder, made if it is absent.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Prints the completions for a shell.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "destage", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes the manual pages.
pub(crate) fn man(args: &ManArgs, command: Command) -> Result<(), CliError> {
    let folder = &args.folder;
    let unwritable = |error: io::Error| {
        CliError::unwritable(format!(
            "failed to write manual pages to {}: {error}",
            folder.display()
        ))
    };
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(&command, "", folder).map_err(unwritable)
}

/// The page of a command, and of those below it: `destage.1`, `destage-serve.1`, `destage-block-serve.1`.
fn pages(command: &Command, above: &str, folder: &Path) -> io::Result<()> {
    let name = match above {
        "" => command.get_name().to_owned(),
        _ => format!("{above}-{}", command.get_name()),
    };
    let page = command.clone().display_name(name.clone());
    let man = clap_mangen::Man::new(page).title(&name).section("1").manual("Destage").date("");
    let mut text = Vec::new();
    man.render(&mut text)?;
    std::fs::write(folder.join(format!("{name}.1")), text)?;
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below
        .filter(|below| below.get_name() != "help")
        .try_for_each(|below| pages(below, &name, folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_a_page_that_names_its_flags_and_no_hidden_one() {
        let folder = tempfile::tempdir().unwrap();
        let args = ManArgs { folder: folder.path().join("man1") };
        man(&args, Cli::command()).map_err(|error| error.to_string()).unwrap();
        fn check(command: &Command, above: &str, folder: &Path) -> usize {
            let name = format!("{above}{}", command.get_name());
            let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap();
            let plain = page.replace("\\-", "-");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(long) = arg.get_long() else { continue };
                assert!(plain.contains(&format!("--{long}")), "{name}: {long}");
            }
            assert!(!plain.contains("--unsafe-no-fsync"), "{name}");
            let below = command.get_subcommands().filter(|below| !below.is_hide_set());
            1 + below.map(|below| check(below, &format!("{name}-"), folder)).sum::<usize>()
        }
        for name in ["destage", "destage-serve", "destage-mount", "destage-check"] {
            let page = std::fs::read_to_string(args.folder.join(format!("{name}.1"))).unwrap();
            for (code, _) in destage_runtime::exit::TABLE {
                assert!(page.contains(&format!("\n{code:>4}  ")), "{name}: {code}: {page}");
            }
        }
        let pages = check(&Cli::command(), "", &args.folder);
        assert_eq!(std::fs::read_dir(&args.folder).unwrap().count(), pages);
        assert!(pages > 30, "{pages}");
    }
}
