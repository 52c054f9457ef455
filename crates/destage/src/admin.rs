//! The client side of a running server's admin port.

use crate::error::CliError;
use destage_runtime::exit;
use serde::Deserialize;
use std::time::Duration;

/// Longest wait for a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a command: a drain takes as long as the origin needs; the server gives up after ten minutes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(610);

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

#[derive(Deserialize)]
struct Answer {
    result: Option<serde_json::Value>,
    error: Option<String>,
}

impl AdminArgs {
    /// The body of `GET path`.
    pub(crate) fn get(&self, path: &str) -> Result<String, CliError> {
        let mut response = agent(REPORT_TIMEOUT)
            .get(format!("http://{}{path}", self.admin))
            .call()
            .map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let body = response.body_mut().read_to_string().map_err(|e| self.unreachable(&e))?;
        if status.is_success() { Ok(body) } else { Err(self.refused(status.as_u16(), &body)) }
    }

    /// Sends a command; its result.
    pub(crate) fn command(
        &self,
        name: &str,
        args: &[String],
    ) -> Result<serde_json::Value, CliError> {
        let mut request = agent(COMMAND_TIMEOUT).post(format!("http://{}/command", self.admin));
        if let Some(password) = self.password.as_deref().filter(|password| !password.is_empty()) {
            request = request.header("Authorization", format!("Bearer {password}"));
        }
        let mut response = request
            .send_json(serde_json::json!({ "command": name, "args": args }))
            .map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let body = response.body_mut().read_to_string().map_err(|e| self.unreachable(&e))?;
        match serde_json::from_str(&body) {
            Ok(Answer { result: Some(result), .. }) if status.is_success() => Ok(result),
            Ok(Answer { result: None, error: None }) if status.is_success() => {
                Ok(serde_json::Value::Null)
            }
            _ => Err(self.refused(status.as_u16(), &body)),
        }
    }

    fn refused(&self, status: u16, body: &str) -> CliError {
        let error = serde_json::from_str::<Answer>(body).ok().and_then(|answer| answer.error);
        let code = if status == 400 { exit::USAGE } else { exit::SERVER_UNREACHABLE };
        match error {
            Some(error) => CliError::new(code, error),
            None => CliError::new(
                code,
                format!(
                    "{} answered with HTTP status {status}: is it the admin port of a destage \
                     server? Its ready line names it",
                    self.admin
                ),
            ),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> CliError {
        CliError::new(
            exit::SERVER_UNREACHABLE,
            format!(
                "failed to reach the admin port at {}: {error}; is the server running? Its ready \
                 line names its admin port (default 127.0.0.1:6381): give it by --admin or \
                 DESTAGE_ADMIN",
                self.admin
            ),
        )
    }
}

fn agent(timeout: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into()
}
