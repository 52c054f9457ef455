//! The users of `--users`, live: the thread that looks at passwords, and the file that is read again.

use super::{Event, Outbox};
use crate::engine::PasswordJob;
use crate::users::UsersFile;
use destage_runtime::handoff::{Sender, queue};
use destage_runtime::reload::Reread;
use std::io;
use std::thread;

/// Starts the thread that looks at passwords: one of its own, since a look takes long, and one alone, since guesses are not to
/// take more than one processor. It ends with the sender.
///
/// # Errors
/// The system has no thread to give.
pub(super) fn passwords(outbox: Outbox) -> io::Result<Sender<PasswordJob>> {
    let (sender, jobs) = queue::<PasswordJob>();
    thread::Builder::new().name("passwords".into()).spawn(move || {
        while let Ok(job) = jobs.recv() {
            let place = job.look();
            outbox.send(Event::PasswordChecked { id: job.id, place });
        }
    })?;
    Ok(sender)
}

/// Random bytes, which make the quick hashes of passwords and the UUIDs of new rows those of this process.
pub(super) fn key() -> [u8; 32] {
    let mut key = [0; 32];
    let halves = [uuid::Uuid::new_v4().into_bytes(), uuid::Uuid::new_v4().into_bytes()];
    key.copy_from_slice(halves.as_flattened());
    key
}

/// Reads the file again, too.
pub(super) fn rereading(mut file: UsersFile, outbox: Outbox, mut settings: Reread) -> Reread {
    Box::new(move |apply| {
        match file.read() {
            Err(error) => tracing::error!(%error, "SIGHUP: the users stay as they are"),
            Ok(users) => outbox.send(Event::Control(Box::new(move |engine| {
                let count = users.iter().len();
                let disconnected = engine.set_users(engine.now(), users, key());
                tracing::info!(users = count, disconnected, "SIGHUP: the users were read again");
            }))),
        }
        settings(apply);
    })
}
