//! `destage top`: one server or several, live in a terminal.

mod history;
mod view;

use crate::admin::AdminArgs;
use crate::error::CliError;
use crate::output::print;
use destage_runtime::exit;
use destage_runtime::status::Report;
use history::History;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};
use std::io::IsTerminal;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Flags of `top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// The admin port of a server; may be given several times, for rows and volumes side by side.
    #[arg(
        long,
        env = "DESTAGE_ADMIN",
        default_value = "127.0.0.1:6381",
        value_delimiter = ',',
        value_name = "ADDR"
    )]
    admin: Vec<String>,

    /// How often to ask, in seconds. 1 to 60.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(1..=60), value_name = "SECONDS")]
    every: u64,

    /// Print one picture as text after two answers, and end: for scripts, and where there is no terminal.
    #[arg(long)]
    once: bool,

    /// Columns of that picture. 40 to 300.
    #[arg(long, default_value = "100", requires = "once", value_parser = clap::value_parser!(u16).range(40..=300), value_name = "COUNT")]
    width: u16,
}

/// What one server said.
struct Answer {
    server: usize,
    result: Result<Box<Report>, String>,
}

/// All servers, and the one that is shown in full.
pub(crate) struct Servers {
    all: Vec<Server>,
    chosen: usize,
}

struct Server {
    address: String,
    history: History,
    /// Why there is no newer answer.
    error: Option<String>,
}

/// Watches until the user has enough.
pub(crate) fn run(args: &TopArgs) -> Result<(), CliError> {
    let every = Duration::from_secs(args.every);
    let mut servers = Servers::new(&args.admin);
    let heard = ask(&args.admin, every);
    if args.once {
        return once(&mut servers, &heard, args.width);
    }
    if !std::io::stdout().is_terminal() {
        return Err(CliError::usage("this is no terminal: use --once, or destage status"));
    }
    let mut terminal = ratatui::try_init().map_err(|error| failed(&error))?;
    let result = watch(&mut terminal, &mut servers, &heard);
    ratatui::restore();
    result.map_err(|error| failed(&error))
}

fn failed(error: &std::io::Error) -> CliError {
    CliError::new(exit::OUTPUT_UNWRITABLE, format!("the terminal cannot be used: {error}"))
}

/// Each server is asked on a thread of its own, so that one that hangs does not hold up the others.
fn ask(addresses: &[String], every: Duration) -> Receiver<Answer> {
    let (sender, heard) = mpsc::channel();
    for (server, address) in addresses.iter().enumerate() {
        let admin = AdminArgs { admin: address.clone(), password: None };
        let sender = sender.clone();
        thread::spawn(move || {
            loop {
                let began = Instant::now();
                let body = admin.get("/status").map_err(|error| error.to_string());
                let report = body.and_then(|body| {
                    serde_json::from_str(&body).map(Box::new).map_err(|error| {
                        format!("it does not answer as a destage server does: {error}")
                    })
                });
                if sender.send(Answer { server, result: report }).is_err() {
                    return;
                }
                thread::sleep(every.saturating_sub(began.elapsed()));
            }
        });
    }
    heard
}

fn watch(
    terminal: &mut DefaultTerminal,
    servers: &mut Servers,
    heard: &Receiver<Answer>,
) -> std::io::Result<()> {
    loop {
        heard.try_iter().for_each(|heard| servers.hear(heard));
        terminal.draw(|frame| view::draw(frame, servers))?;
        if !event::poll(Duration::from_millis(200))? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        let is_interrupt =
            key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
        match key.code {
            _ if key.kind != KeyEventKind::Press => {}
            _ if is_interrupt => return Ok(()),
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Down | KeyCode::Tab | KeyCode::Char('j') => servers.choose(1),
            KeyCode::Up | KeyCode::BackTab | KeyCode::Char('k') => {
                servers.choose(servers.all.len() - 1)
            }
            _ => {}
        }
    }
}

/// Two answers, so that there are rates; or the first error of each.
fn once(servers: &mut Servers, heard: &Receiver<Answer>, width: u16) -> Result<(), CliError> {
    while !servers.all.iter().all(|server| server.error.is_some() || server.history.len() >= 2) {
        match heard.recv() {
            Ok(heard) => servers.hear(heard),
            Err(_) => break,
        }
    }
    print(&picture(servers, width))?;
    let answers = servers.all.iter().any(|server| server.history.len() > 0);
    match servers.all.iter().find_map(|server| server.error.clone()).filter(|_| !answers) {
        Some(error) => Err(CliError::new(exit::SERVER_UNREACHABLE, error)),
        None => Ok(()),
    }
}

/// What a terminal of this width would show, as text.
fn picture(servers: &Servers, width: u16) -> String {
    let height = view::height(servers);
    let mut terminal = match Terminal::new(TestBackend::new(width, height)) {
        Ok(terminal) => terminal,
        Err(never) => match never {},
    };
    match terminal.draw(|frame| view::draw(frame, servers)) {
        Ok(_) => {}
        Err(never) => match never {},
    }
    let buffer = terminal.backend().buffer();
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

impl Servers {
    fn new(addresses: &[String]) -> Self {
        let server = |address: &String| Server {
            address: address.clone(),
            history: History::default(),
            error: None,
        };
        Self { all: addresses.iter().map(server).collect(), chosen: 0 }
    }

    fn hear(&mut self, heard: Answer) {
        let server = &mut self.all[heard.server];
        match heard.result {
            Ok(report) => {
                server.error = None;
                server.history.push(*report);
            }
            Err(error) => server.error = Some(error),
        }
    }

    fn choose(&mut self, further: usize) {
        self.chosen = (self.chosen + further) % self.all.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_runtime::status::VolumeReport;

    fn report(front_end: &str, uptime: f64, writes: u64) -> Report {
        let mut report =
            Report { front_end: front_end.into(), uptime_seconds: uptime, ..Report::default() };
        report.mode = "normal".into();
        report.policy.staleness_seconds = Some(30.0);
        report.rpo.total_loss_seconds = 1.5;
        report.writes.groups_total = writes;
        report.clients.commands_total = writes * 2;
        report
    }

    fn servers() -> Servers {
        let mut servers = Servers::new(&["rows:1".into(), "volumes:2".into(), "gone:3".into()]);
        for (uptime, writes) in [(10.0, 100), (12.0, 300)] {
            let mut block = report("block", uptime, writes);
            block.volumes = vec![VolumeReport {
                name: "database".into(),
                mode: "normal".into(),
                ..VolumeReport::default()
            }];
            for (server, report) in [(0, report("serve", uptime, writes)), (1, block)] {
                servers.hear(Answer { server, result: Ok(Box::new(report)) });
            }
        }
        servers.hear(Answer { server: 2, result: Err("it cannot be reached".into()) });
        servers
    }

    #[test]
    fn each_server_has_a_line_and_the_chosen_one_its_contract() {
        for width in [100, 40] {
            let text = picture(&servers(), width);
            for part in ["rows:1", "volumes:2", "gone:3", "1.5 s", "100"] {
                assert!(text.contains(part), "{width}: {part} in\n{text}");
            }
        }
        let text = picture(&servers(), 100);
        assert!(text.contains("it cannot be reached"), "{text}");
        assert!(text.contains("this host and its journal are lost"), "{text}");
        assert!(!text.contains("database"), "{text}");
    }

    #[test]
    fn the_next_one_is_chosen_and_shows_its_volumes() {
        let mut servers = servers();
        servers.choose(1);
        let text = picture(&servers, 120);
        assert!(text.contains("database"), "{text}");
        servers.choose(2);
        assert_eq!(servers.chosen, 0);
    }
}
