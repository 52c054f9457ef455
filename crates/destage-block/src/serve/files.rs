//! The server's side of the volumes' files.

use super::clients::{Asked, Asker};
use super::fuse::{self, FileEvent};
use super::server::Server;
use fuser::Errno;

impl Server {
    pub(super) fn file_event(&mut self, event: FileEvent) {
        let (now, is_draining) = (self.now(), self.shell.is_ending());
        let Some(files) = &mut self.files else { return };
        match event {
            FileEvent::Open(reply) if is_draining => reply.error(Errno::ESHUTDOWN),
            FileEvent::Open(reply) => {
                files.open += 1;
                fuse::opened(reply);
            }
            FileEvent::Close => files.open = files.open.saturating_sub(1),
            FileEvent::Ask(ask) => files.waiting.push_back((now, ask)),
            FileEvent::Ended => {
                files.open = 0;
                if !is_draining {
                    let folder = files.folder().display();
                    tracing::warn!(
                        "{folder} was unmounted: the volumes' files are there again after the next start"
                    );
                }
            }
        }
    }

    /// Hands over the requests whose volumes have room; true if there was any.
    pub(super) fn serve_files(&mut self) -> bool {
        let mut any = false;
        let waiting = self.files.as_ref().map_or(0, |files| files.waiting.len());
        for _ in 0..waiting {
            let Some(files) = &mut self.files else { break };
            let Some((at, ask)) = files.waiting.pop_front() else { break };
            if self.volumes[ask.volume].volume.is_congested() {
                files.waiting.push_back((at, ask));
                continue;
            }
            any = true;
            let (volume, asker) = (ask.volume, Asker::File(ask.answer));
            let asked = Asked::new(asker, at, volume, &ask.request);
            self.submit(asked, ask.request);
        }
        any
    }

    /// Times that a volume's file is open.
    pub(super) fn open_files(&self) -> u64 {
        self.files.as_ref().map_or(0, |files| files.open as u64)
    }

    /// Whether nobody has a file open, and no request waits for room.
    pub(super) fn files_are_quiet(&self) -> bool {
        self.files.as_ref().is_none_or(|files| files.open == 0 && files.waiting.is_empty())
    }

    /// Says who keeps a shutdown waiting, if anyone does.
    pub(super) fn warn_of_open_files(&self) {
        if let Some(files) = &self.files
            && files.open > 0
        {
            tracing::warn!(
                folder = %files.folder().display(),
                open = files.open,
                "files are in use and served until they are closed, or the drain's time is up: unmount the file systems on \
                 them, and detach their loop devices ('losetup --detach')"
            );
        }
    }
}
