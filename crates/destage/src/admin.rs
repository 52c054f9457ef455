//! The client side of a running server's admin port.

use crate::error::CliError;
use destage_runtime::admin::COMMAND_BYTES_MAX;
use destage_runtime::exit;
use destage_runtime::units::Interval;
use serde::Deserialize;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest wait for a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a command that waits for nothing but the server, which gives up a freeze after ten minutes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(610);
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much longer than it was told to wait a server may take to say that the time is over.
const ANSWER_GRACE: Duration = Duration::from_secs(10);
/// How long a server that has ended may go on listening, and how often that is looked at.
const GONE_MAX: Duration = Duration::from_secs(10);
const GONE_LOOK_EVERY: Duration = Duration::from_millis(10);
/// From this size on a command is sent only once the server has said that it wants it.
const ASKED_FIRST_BYTES: usize = 64 * 1024;

/// Where the running server's admin port is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// The server's admin port; its ready line names it.
    #[arg(long, env = "DESTAGE_ADMIN", default_value = "127.0.0.1:6381", value_name = "ADDR")]
    pub(crate) admin: String,

    /// The server's password; needed to send commands where it has one.
    #[arg(long, env = "DESTAGE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    pub(crate) password: Option<String>,
}

/// Flags of the commands that wait.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// How long to wait, such as 30s or 5m; exit code 19 when it is over, and what was begun goes on. Without it the command
    /// waits for as long as the server needs, also while the origin is away or destaging is paused.
    #[arg(long, default_value = "none", hide_default_value = true, value_name = "TIME")]
    pub(crate) timeout: Interval,
}

#[derive(Deserialize)]
struct Answer {
    result: Option<serde_json::Value>,
    error: Option<String>,
}

impl AdminArgs {
    /// The body of `GET path`.
    pub(crate) fn get(&self, path: &str) -> Result<String, CliError> {
        let mut response = agent(Some(REPORT_TIMEOUT))
            .get(format!("http://{}{path}", self.admin))
            .call()
            .map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let body = response.body_mut().read_to_string().map_err(|e| self.unreachable(&e))?;
        if path == "/readyz" && status == 503 {
            return Err(CliError::new(exit::REFUSED, body.trim_end()));
        }
        if status.is_success() { Ok(body) } else { Err(self.refused(status.as_u16(), &body)) }
    }

    /// Sends a command that does not wait for the origin; its result.
    pub(crate) fn command(
        &self,
        name: &str,
        args: &[String],
    ) -> Result<serde_json::Value, CliError> {
        self.exchange(None, Some(COMMAND_TIMEOUT), name, args)
    }

    /// Sends a command that waits for as long as it takes, or for that time; its result.
    pub(crate) fn command_within(
        &self,
        limit: Option<Duration>,
        name: &str,
        args: &[String],
    ) -> Result<serde_json::Value, CliError> {
        let patience = limit.and_then(|limit| limit.checked_add(ANSWER_GRACE));
        self.exchange(limit, patience, name, args)
    }

    /// Waits until nobody listens there any more, for a while: a server that has ended is still about to go.
    pub(crate) fn wait_until_gone(&self) {
        let until = Instant::now() + GONE_MAX;
        let is_there = || {
            let mut addresses = self.admin.to_socket_addrs().into_iter().flatten();
            let left = until.saturating_duration_since(Instant::now());
            !left.is_zero()
                && addresses.any(|address| TcpStream::connect_timeout(&address, left).is_ok())
        };
        while is_there() {
            std::thread::sleep(GONE_LOOK_EVERY);
        }
    }

    fn exchange(
        &self,
        limit: Option<Duration>,
        patience: Option<Duration>,
        name: &str,
        args: &[String],
    ) -> Result<serde_json::Value, CliError> {
        let mut command = serde_json::json!({ "command": name, "args": args });
        if let Some(limit) = limit {
            let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            command["timeout_ms"] = millis.into();
        }
        let body = command.to_string();
        if body.len() > COMMAND_BYTES_MAX {
            return Err(CliError::usage(format!(
                "the command has {} bytes, more than a server takes ({COMMAND_BYTES_MAX})",
                body.len()
            )));
        }
        let mut request = agent(patience)
            .post(format!("http://{}/command", self.admin))
            .header("Content-Type", "application/json");
        if body.len() > ASKED_FIRST_BYTES {
            request = request.header("Expect", "100-continue");
        }
        if let Some(password) = self.password.as_deref().filter(|password| !password.is_empty()) {
            request = request.header("Authorization", format!("Bearer {password}"));
        }
        let mut response = request.send(body).map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let answer = response.body_mut().with_config().limit(COMMAND_BYTES_MAX as u64);
        let answer = answer.read_to_string().map_err(|e| self.unread(&e))?;
        match serde_json::from_str(&answer) {
            Ok(Answer { result: Some(result), .. }) if status.is_success() => Ok(result),
            Ok(Answer { result: None, error: None }) if status.is_success() => {
                Ok(serde_json::Value::Null)
            }
            _ => Err(self.refused(status.as_u16(), &answer)),
        }
    }

    fn refused(&self, status: u16, body: &str) -> CliError {
        let error = serde_json::from_str::<Answer>(body).ok().and_then(|answer| answer.error);
        let code = match status {
            400 => exit::USAGE,
            503 => exit::SERVER_UNREACHABLE,
            504 => exit::TIMED_OUT,
            _ => exit::REFUSED,
        };
        match error {
            Some(error) => CliError::new(code, error),
            None => CliError::new(
                exit::SERVER_UNREACHABLE,
                format!(
                    "{} answered with HTTP status {status}: is it the admin port of a destage \
                     server? Its ready line names it",
                    self.admin
                ),
            ),
        }
    }

    fn unread(&self, error: &ureq::Error) -> CliError {
        CliError::new(
            exit::SERVER_UNREACHABLE,
            format!(
                "failed to read the answer of the admin port at {}: {error}; the command was \
                 received, see 'destage status' for what became of it",
                self.admin
            ),
        )
    }

    fn unreachable(&self, error: &ureq::Error) -> CliError {
        CliError::new(
            exit::SERVER_UNREACHABLE,
            format!(
                "failed to reach the admin port at {}: {error}; is the server running? Its ready \
                 line names its admin port (127.0.0.1:6381 unless told, of a block server 6382): give it \
                 by --admin or DESTAGE_ADMIN",
                self.admin
            ),
        )
    }
}

fn agent(limit: Option<Duration>) -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(limit)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into()
}
