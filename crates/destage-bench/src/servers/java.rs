//! A Java program that takes commands on its standard input and answers each by a line of JSON.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value as Json;

use super::Process;
use crate::Result;

/// The longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(180);
/// What Hazelcast's manual says a member is to be started with on Java 9 and later.
const FLAGS: [&str; 11] = [
    "-Xmx2g",
    "--add-modules=java.se",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "-XX:+UseG1GC",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
];

/// A running one.
#[derive(Debug)]
pub(crate) struct Java {
    process: Process,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Java {
    /// Starts the class `class` of the folder `programs`, which holds its libraries too, and waits until it says that it is
    /// ready. What it says besides goes to `log`.
    ///
    /// # Errors
    ///
    /// It ends or says nothing.
    pub(crate) fn start(
        programs: &Path,
        class: &str,
        arguments: &[String],
        log: &Path,
    ) -> Result<Self> {
        let folder = programs.display();
        let mut command = Command::new("java");
        command.args(FLAGS).arg("-cp").arg(format!("{folder}:{folder}/*"));
        command.arg(class).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut process = Process::start(&mut command, "java", libc::SIGTERM)?;
        let commands = process.child.stdin.take().ok_or("java has no standard input")?;
        let output = process.child.stdout.take().ok_or("java has no standard output")?;
        let (sender, answers) = channel();
        thread::spawn(move || {
            // Libraries may print what is no answer.
            let lines = BufReader::new(output).lines().map_while(std::io::Result::ok);
            for line in lines.filter(|line| line.starts_with('{')) {
                let _ = sender.send(line);
            }
        });
        let java = Self { process, commands, answers };
        java.answer().map_err(|error| {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            format!("{class} did not get ready: {error}; it said: {}", said.trim())
        })?;
        Ok(java)
    }

    /// Sends a command.
    ///
    /// # Errors
    ///
    /// The program has ended.
    pub(crate) fn send(&mut self, command: &str) -> Result<()> {
        Ok(writeln!(self.commands, "{command}")?)
    }

    /// The next answer.
    ///
    /// # Errors
    ///
    /// The program has ended, or says that it failed.
    pub(crate) fn answer(&self) -> Result<Json> {
        let line = self.answers.recv_timeout(PATIENCE).map_err(|_| "no answer from java")?;
        let json: Json = serde_json::from_str(&line)?;
        match json["error"].as_str() {
            Some(error) => Err(error.into()),
            None => Ok(json),
        }
    }

    pub(crate) fn call(&mut self, command: &str) -> Result<Json> {
        self.send(command)?;
        self.answer().map_err(|error| format!("{command}: {error}").into())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends it without a chance to tidy up.
    ///
    /// # Errors
    ///
    /// The system does not let it.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill()
    }
}
