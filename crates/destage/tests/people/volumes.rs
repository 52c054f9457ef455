//! A block server with volumes of its own.

use crate::harness::Scratch;
use crate::harness::scratch::{adopt, release};
use crate::harness::server::binary;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Ended with its test.
pub(crate) struct Volumes {
    child: Child,
    /// Where it listens for administration.
    pub(crate) admin: String,
    /// Of each volume, in the order of their names.
    pub(crate) uris: Vec<String>,
    /// The file that it was started with.
    pub(crate) settings: PathBuf,
    log: PathBuf,
}

impl Volumes {
    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        crate::harness::server::signal(self.child.id(), signal);
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log is there")
    }

    /// Starts one in front of empty disks.
    pub(crate) fn start(scratch: &Scratch, names: &[&str]) -> Self {
        let mut text = String::from("listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n");
        for name in names {
            let disk = scratch.join(format!("{name}.img"));
            std::fs::File::create(&disk).and_then(|file| file.set_len(8 << 20)).expect("a disk");
            text += &format!(
                "[volume.{name}]\norigin = \"file:{}\"\ncache = \"{}\"\ncache-size = \"64M\"\n",
                disk.display(),
                scratch.join(format!("{name}.cache")).display()
            );
        }
        let settings = scratch.join("block.toml");
        std::fs::write(&settings, text).expect("the file can be written");
        Self::again(scratch, names.len(), &[])
    }

    /// Starts one with the settings of an earlier one, which had so many volumes, and with this in its environment.
    pub(crate) fn again(scratch: &Scratch, volumes: usize, environment: &[(&str, &str)]) -> Self {
        let settings = scratch.join("block.toml");
        let log_path = scratch.join("block.log");
        let log = std::fs::File::create(&log_path).expect("a log");
        let mut command = Command::new(binary());
        command.args(["block", "serve", "--config"]).arg(&settings).env_remove("DESTAGE_PASSWORD");
        command.envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("the binary starts");
        adopt(child.id());
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready: Vec<String> = lines.map_while(Result::ok).take(volumes).collect();
        let word = |line: &String, name: &str| {
            let rest = line.split_once(name).expect("the ready line has it").1;
            rest.split(' ').next().expect("a word").to_owned()
        };
        let uris = ready.iter().map(|line| word(line, "uri=")).collect();
        let admin = ready.first().map(|line| word(line, "admin=")).expect("it gets ready");
        Self { child, admin, uris, settings, log: log_path }
    }
}

impl Drop for Volumes {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        release(self.child.id());
    }
}
