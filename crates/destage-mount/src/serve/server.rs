//! The server's own thread: signals, the command that runs beside, the end.

use super::{Event, ServeError};
use crate::settings::Settings;
use destage_runtime::fuse;
use destage_runtime::shell::{EndRequest, Shell};
use fuser::BackgroundSession;
use mio::Events;
use std::io::Write;
use std::path::PathBuf;

/// The live server.
pub(super) struct Server {
    shell: Shell<Event>,
    session: BackgroundSession,
    mountpoint: PathBuf,
    settings: Settings,
}

impl Server {
    pub(super) fn new(
        settings: Settings,
        shell: Shell<Event>,
        session: BackgroundSession,
        mountpoint: PathBuf,
    ) -> Self {
        Self { shell, session, mountpoint, settings }
    }

    fn announce(&self) {
        let mut text = format!(
            "destage ready: mounted={} origin={} journal={} admin={}\n",
            self.mountpoint.display(),
            self.settings.origin.display(),
            self.settings.journal.display(),
            self.shell.admin_address(),
        );
        if self.settings.is_example {
            let place = self.mountpoint.display();
            text.push_str(&format!(
                "try:  ls -l {place}\n      cp -r /etc/skel {place}/\n      destage mount status {place}\n"
            ));
        }
        // Whoever started it may not want to know.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    pub(super) fn run(mut self) -> Result<(), ServeError> {
        self.announce();
        if let Some(command) = &self.settings.run {
            let place = self.mountpoint.display().to_string();
            let started = self.shell.run_child(command, &[("mountpoint", Some(place))]);
            started.map_err(|error| ServeError::internal(&error))?;
        }
        let mut events = Events::with_capacity(16);
        while !self.shell.is_ending() {
            let timeout = self.shell.timeout(None);
            Shell::<Event>::waited(self.shell.wait(&mut events, timeout))?;
            while let Some(event) = self.shell.next_event() {
                self.event(event);
            }
        }
        fuse::unmount(self.session, &self.mountpoint);
        self.shell.finish_progress();
        self.shell.child_result()
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Unmounted => self.end(),
            Event::End(request) => {
                self.end();
                if matches!(request, EndRequest::ChildEnded(_)) || self.shell.is_ending() {
                    self.shell.heed(request);
                }
            }
        }
    }

    fn end(&mut self) {
        if !self.shell.is_ending() {
            self.shell.drain(0, self.settings.drain_timeout);
        }
    }
}
