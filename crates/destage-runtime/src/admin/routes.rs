//! The requests of the admin port and their answers.

use super::caller::Caller;
use super::listener::{Limits, Peer, Stage, moved};
use super::{COMMAND_BYTES_MAX, COMMANDS_MAX, Control, ControlError};
use crate::auth::{Auth, Verdict};
use crate::clock::Clock;
use crate::console;
use crate::foreign::escaped;
use crate::metrics::Exporter;
use crate::status::Report;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use destage_core::Span;
use serde::Deserialize;
use serde_json::json;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// What is read of a body that is not wanted, so that its sender sees the answer rather than a lost connection.
const UNWANTED_BYTES_MAX: usize = 64 * 1024;
/// How long it is waited for.
const UNWANTED_MAX: Duration = Duration::from_secs(1);
/// Bodies that are no longer than this are read whenever they come.
const SHORT_BYTES_MAX: u64 = 64 * 1024;
/// Longest wait for a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of a command's arguments is logged: an edited write may be long.
const LOGGED_CHARS_MAX: usize = 200;

struct Shared {
    control: Arc<dyn Control>,
    auth: Arc<Auth>,
    clock: Clock,
    /// Names of this host besides its addresses.
    hosts: Vec<String>,
    /// Held from the making of a report to its rendering, so that counters are rendered in order.
    exporter: Mutex<Exporter>,
    /// Commands that may begin.
    commands: Arc<Semaphore>,
    /// Long bodies are read one at a time.
    bodies: Semaphore,
    limits: Limits,
}

type Admin = State<Arc<Shared>>;

impl Shared {
    fn report(&self) -> Result<Report, ControlError> {
        let mut report = self.control.report()?;
        report.clients.set_auth(&self.auth);
        Ok(report)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    /// How long its sender waits for it; for as long as it takes if not given.
    timeout_ms: Option<u64>,
}

pub(super) fn router(
    control: Arc<dyn Control>,
    auth: Arc<Auth>,
    clock: Clock,
    hosts: Vec<String>,
    limits: Limits,
) -> Router {
    let commands = Arc::new(Semaphore::new(COMMANDS_MAX));
    let exporter = Mutex::new(Exporter::new(control.exports()));
    let bodies = Semaphore::new(1);
    let shared =
        Arc::new(Shared { control, auth, clock, hosts, exporter, commands, bodies, limits });
    let paced = middleware::from_fn_with_state(shared.clone(), paced);
    let known = middleware::from_fn_with_state(shared.clone(), of_known_host);
    Router::new()
        .route("/", get(console::page))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .layer(known)
        .route("/command", post(command))
        .layer(DefaultBodyLimit::max(COMMAND_BYTES_MAX))
        .layer(paced)
        .with_state(shared)
}

/// The connection is told where a request begins and where its answer does. One that has had its time ends with the answer, so
/// that others get its place.
async fn paced(
    State(shared): Admin,
    ConnectInfo(Peer { pace, .. }): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    pace.enter(Stage::Request);
    let mut answer = next.run(request).await;
    if pace.age() > shared.limits.rest {
        close_behind(&mut answer);
    }
    pace.enter(Stage::Answer);
    answer
}

fn close_behind(answer: &mut Response) {
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

/// A page of the web can give its own name this host's address, and would read the answers: it cannot say another name than
/// its own, nor none, as the checks of load balancers do. Commands ask for the password, or look themselves.
async fn of_known_host(State(shared): Admin, request: Request, next: Next) -> Response {
    let is_of_no_browser = !request.headers().contains_key(header::HOST);
    if is_of_no_browser || is_known_host(request.headers(), &shared.hosts) {
        return next.run(request).await;
    }
    let message = "ask for the admin port by its address, as localhost, or by a name that --admin-host allows";
    error(StatusCode::MISDIRECTED_REQUEST, message)
}

fn is_known_host(headers: &HeaderMap, hosts: &[String]) -> bool {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("");
    is_address(host) || hosts.iter().any(|known| known.eq_ignore_ascii_case(name_of(host)))
}

async fn status(State(shared): Admin) -> Response {
    let report = blocking(REPORT_TIMEOUT, move || shared.report()).await;
    report.map_or_else(failure, |report| Json(report).into_response())
}

async fn metrics(State(shared): Admin) -> Response {
    let render = move || {
        // A panic elsewhere leaves the exporter usable: each metric is set as a whole.
        let exporter = shared.exporter.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.report().map(|report| exporter.render(&report))
    };
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    blocking(REPORT_TIMEOUT, render).await.map_or_else(failure, |text| (kind, text).into_response())
}

async fn ready(State(shared): Admin) -> Response {
    let report = blocking(REPORT_TIMEOUT, move || shared.control.report()).await;
    match report.as_ref().map(Report::ready) {
        Ok(Ok(())) => "ready\n".into_response(),
        Ok(Err(reason)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn command(
    State(shared): Admin,
    ConnectInfo(Peer { address, .. }): ConnectInfo<Peer>,
    request: Request,
) -> Response {
    if let Err(mut refusal) = authorize(request.headers(), address, &shared) {
        // Who asks before sending it is told not to.
        if !request.headers().contains_key(header::EXPECT) {
            let unwanted = axum::body::to_bytes(request.into_body(), UNWANTED_BYTES_MAX);
            let _ = timeout(UNWANTED_MAX, unwanted).await;
        }
        close_behind(&mut refusal);
        return refusal;
    }
    let Command { command, args, timeout_ms } = match body(&shared, request).await {
        Ok(command) => command,
        Err(refusal) => return refusal,
    };
    let Ok(place) = Arc::clone(&shared.commands).try_acquire_owned() else {
        let message = format!("{COMMANDS_MAX} commands are under way: wait for one, or end it");
        return error(StatusCode::SERVICE_UNAVAILABLE, &message);
    };
    tracing::info!("admin command: {}", logged(&command, &args));
    let limit = timeout_ms.map(Duration::from_millis);
    let caller = limit.map_or_else(Caller::patient, Caller::within);
    // It ends with this future, which ends with the connection.
    let _present = caller.present();
    let work = move || {
        let _place = place;
        shared.control.command(&command, &args, &caller)
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(panicked()))
        .map_or_else(failure, |value| Json(json!({ "result": value })).into_response())
}

async fn body(shared: &Shared, request: Request) -> Result<Command, Response> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > COMMAND_BYTES_MAX as u64) {
        let message = format!("a command has at most {COMMAND_BYTES_MAX} bytes");
        return Err(error(StatusCode::PAYLOAD_TOO_LARGE, &message));
    }
    // Who sends a long one keeps nobody waiting who sends a short one.
    let _turn = if length.is_some_and(|length| length <= SHORT_BYTES_MAX) {
        None
    } else {
        let Ok(turn) = timeout(shared.limits.rest, shared.bodies.acquire()).await else {
            return Err(error(
                StatusCode::SERVICE_UNAVAILABLE,
                "other long commands are coming in",
            ));
        };
        Some(turn.expect("the semaphore is never closed"))
    };
    let limit = shared.limits.rest + moved(length.unwrap_or(COMMAND_BYTES_MAX as u64));
    match timeout(limit, Json::from_request(request, &())).await {
        Ok(Ok(Json(command))) => Ok(command),
        Ok(Err(rejection)) => Err(error(rejection.status(), &rejection.body_text())),
        Err(_) => Err(error(StatusCode::REQUEST_TIMEOUT, "the command has not come in time")),
    }
}

/// What the log says of a command: no rows, and no addresses with passwords in them.
fn logged(command: &str, args: &[String]) -> String {
    let words = match command {
        // Behind these are rows, and servers' addresses.
        "parked" => 2,
        "replicas" => 1,
        "invalidate" => return format!("invalidate ({} keys)", args.len()),
        _ => args.len(),
    };
    let all = args[..words.min(args.len())].join(" ");
    let (command, all) = (escaped(command), escaped(&all));
    match all.char_indices().nth(LOGGED_CHARS_MAX) {
        None => format!("{command} {all}"),
        Some((cut, _)) => format!("{command} {}... ({} bytes)", &all[..cut], all.len()),
    }
}

/// Runs `work` where it may block.
async fn blocking<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, ControlError> + Send + 'static,
) -> Result<T, ControlError> {
    match timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(panicked()),
        Err(_) => Err(ControlError::Unavailable(format!(
            "the engine did not answer within {} s",
            limit.as_secs()
        ))),
    }
}

fn panicked() -> ControlError {
    ControlError::Failed("a bug: the request panicked; see the log".into())
}

#[expect(clippy::result_large_err, reason = "the refusal is the response itself")]
fn authorize(headers: &HeaderMap, from: IpAddr, shared: &Shared) -> Result<(), Response> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    if !shared.auth.is_asked_for() {
        return if is_known_host(headers, &shared.hosts) {
            Ok(())
        } else {
            let message = "without a password, commands must name the host by its address, as \
                           localhost, or by a name that --admin-host allows";
            Err(error(StatusCode::FORBIDDEN, message))
        };
    }
    if let Some(given) = text(header::AUTHORIZATION).strip_prefix("Bearer ") {
        match shared.auth.check(shared.clock.now(), Some(from), false, given.as_bytes()) {
            Verdict::Right => return Ok(()),
            Verdict::Wrong => {}
            Verdict::Held(span) => return Err(held(span)),
        }
    }
    let message = "the password is missing or wrong: send 'Authorization: Bearer PASSWORD' \
                   (--password or DESTAGE_PASSWORD)";
    Err(error(StatusCode::UNAUTHORIZED, message))
}

fn held(span: Span) -> Response {
    let seconds = span.as_nanos().div_ceil(1_000_000_000);
    let message = format!(
        "too many wrong passwords came from this address: this one was not looked at, try again in {seconds} s"
    );
    let mut refusal = error(StatusCode::TOO_MANY_REQUESTS, &message);
    refusal.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    refusal
}

/// A `Host` without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    }
}

/// Whether a `Host` is an address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn failure(failed: ControlError) -> Response {
    let status = match failed {
        ControlError::Invalid(_) => StatusCode::BAD_REQUEST,
        ControlError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        ControlError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        ControlError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
    };
    error(status, &failed.to_string())
}

fn error(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": message }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_was_asked_and_neither_rows_nor_passwords() {
        for (words, said) in [
            (&["policy", "write-through", "D=1s"][..], "policy write-through D=1s"),
            (&["replicas", "add", "redis://:hush@d:6379"], "replicas add"),
            (&["replicas"], "replicas "),
            (&["parked", "edit", "7", "hush"], "parked edit 7"),
            (&["invalidate", "mail:hush", "t:*"], "invalidate (2 keys)"),
        ] {
            let args: Vec<String> = words[1..].iter().map(|&word| word.to_owned()).collect();
            assert_eq!(logged(words[0], &args), said);
        }
        let long = logged("policy", &["x".repeat(LOGGED_CHARS_MAX + 1)]);
        assert!(long.ends_with("x... (201 bytes)") && long.len() < 230, "{long}");
    }

    #[test]
    fn only_addresses_and_localhost_are_hosts() {
        for host in ["127.0.0.1:6381", "127.0.0.1", "[::1]:80", "localhost:1", "LOCALHOST"] {
            assert!(is_address(host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:6381", "localhost.evil.example", "["] {
            assert!(!is_address(host), "{host}");
        }
    }
}
