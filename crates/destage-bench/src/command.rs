//! Client programs, run to their end.

use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

/// `Command::output` with an end: a server that stops answering would hold the client for ever.
///
/// # Errors
///
/// It cannot be started, or was stopped.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("failed to start {name}: {error}"))?;
    let deadline = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(format!("{name} did not end within {} s", limit.as_secs()).into());
        }
        // Its few lines fit into the pipes; its clock is its own, so this one may be coarse.
        thread::sleep(Duration::from_millis(10));
    }
    Ok(child.wait_with_output()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_never_ends_is_stopped() {
        let mut command = Command::new("sleep");
        let error = output_within(command.arg("60"), Duration::from_millis(50));
        assert_eq!(error.expect_err("stopped").to_string(), "sleep did not end within 0 s");
    }
}
