//! `--run 'CMD'`: a command that lives as long as the server it talks to.

use std::io;
use std::process::{Command, ExitStatus};
use std::thread;

/// Starts `command` in a shell with `env` added to its environment, in which `None` unsets what this process has, and calls
/// `done` on its own thread once it has ended. It gets none of [`SECRETS`] but by `env`. Its standard streams are this process's.
/// Returns its process id.
///
/// # Errors
/// The shell or the thread could not be started.
pub fn run(
    command: &str,
    env: &[(&str, Option<String>)],
    done: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
) -> io::Result<u32> {
    let mut shell = shell(command);
    for (name, value) in env {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut child = shell.spawn()?;
    let id = child.id();
    thread::Builder::new().name("run".into()).spawn(move || done(child.wait()))?;
    Ok(id)
}

/// A command for the shell, which gets none of [`SECRETS`].
pub fn shell(command: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command);
    for name in SECRETS {
        shell.env_remove(name);
    }
    shell
}

/// Variables by which this process may have been told passwords, which are nobody else's.
pub const SECRETS: [&str; 4] =
    ["DESTAGE_PASSWORD", "DESTAGE_ORIGIN", "DESTAGE_REPLICAS", "DESTAGE_TOKENS"];

/// The exit code to pass on: the command's own, or 128 + signal as shells do.
pub fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn code_of(command: &str, env: &[(&str, Option<String>)]) -> u8 {
        let (sender, receiver) = mpsc::channel();
        run(command, env, move |status| sender.send(status.unwrap()).unwrap()).unwrap();
        exit_code(receiver.recv_timeout(Duration::from_secs(20)).unwrap())
    }

    #[test]
    fn the_command_sees_its_environment_and_its_status_comes_back() {
        let env = [("DESTAGE_PORT", Some("6380".to_string())), ("HOME", None)];
        assert_eq!(
            code_of("test \"$DESTAGE_PORT\" = 6380 && test -z \"${HOME-}\" && exit 7", &env),
            7
        );
        assert_eq!(code_of("true", &[]), 0);
        assert_eq!(code_of("kill -TERM $$", &[]), 143);
    }
}
