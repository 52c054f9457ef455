//! A program in Python that does as it is told, line by line, and answers each line by one.

use crate::harness::{PATIENCE, millis};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// Ended with its test.
pub(crate) struct Told {
    program: Child,
    says: Receiver<String>,
}

impl Told {
    /// Starts it in a folder.
    pub(crate) fn new(script: &str, folder: &Path) -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", script]).current_dir(folder);
        python.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = python.spawn().expect("Python starts");
        let output = BufReader::new(program.stdout.take().expect("its output is piped"));
        let (said, says) = channel();
        // So that one that never answers holds up no test.
        thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| said.send(line))
        });
        Self { program, says }
    }

    /// Tells it a line, and does not wait for the answer.
    pub(crate) fn tell(&mut self, words: &str) {
        let input = self.program.stdin.as_mut().expect("its input is piped");
        writeln!(input, "{words}").expect("it listens");
    }

    /// What it answers to the line that is next.
    pub(crate) fn answer(&mut self) -> String {
        self.says.recv_timeout(PATIENCE).expect("it answers").trim().to_owned()
    }

    /// Tells it a line; the answer.
    pub(crate) fn ask(&mut self, words: &str) -> String {
        self.tell(words);
        self.answer()
    }

    /// Tells it a line. False if it waits for a page of a file before it answers.
    pub(crate) fn answers(&mut self, words: &str) -> bool {
        self.tell(words);
        loop {
            if self.says.recv_timeout(millis(1)).is_ok() {
                return true;
            }
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.program.id()));
            if stat.is_ok_and(|stat| stat.contains(") D ")) {
                return self.says.recv_timeout(millis(500)).is_ok();
            }
        }
    }

    /// Whether it is in one of these system calls, by their numbers.
    pub(crate) fn is_in(&self, calls: &[u32]) -> bool {
        let state = fs::read_to_string(format!("/proc/{}/syscall", self.program.id()));
        let call = state.ok().and_then(|state| state.split(' ').next()?.parse().ok());
        call.is_some_and(|call| calls.contains(&call))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
