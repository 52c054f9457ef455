//! The thread that writes a recording: a slow or full disk costs the recording, never a client.

use crate::FORMAT_VERSION;
use crate::frame::{self, Kind, MAGIC};
use crate::live::RecordSettings;
use crate::part::Begin;
use crate::parts::{numbered, part_path};
use destage_core::Core;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// What is to be written.
#[derive(Debug)]
pub(crate) enum Message {
    /// A new part, with the core's state.
    Begin(Begin, Box<Core>),
    /// Whole frames.
    Bytes(Vec<u8>),
}

/// Messages that may wait: with frames of 64 KiB, 16 MiB.
const QUEUE_LEN: usize = 256;
/// After a gap the writer has written all but so many messages before a part begins: the core's state is copied for it, which
/// nobody is to wait for only to have another gap.
const QUEUE_LOW: usize = QUEUE_LEN / 4;
/// Copies of the core's state at a time: one waits and one is being written.
const BEGINS_MAX: usize = 2;
/// The room is shared by so many parts, so that deleting one keeps most.
const PARTS: u64 = 4;
/// Bytes that a part may have beside its state and the events after which it ends: headers, and what the last frame is longer.
const BESIDE: u64 = 256 << 10;
/// Bytes of the core's state in one frame.
const STATE_LEN: usize = 1 << 20;

/// The thread and the way to it.
#[derive(Debug)]
pub(crate) struct Writer {
    /// Taken at the end, which ends the thread.
    messages: Option<SyncSender<Message>>,
    shared: Arc<Shared>,
    part_len_max: u64,
    thread: Option<JoinHandle<()>>,
}

/// What both sides know.
#[derive(Debug, Default)]
struct Shared {
    failed: AtomicBool,
    /// Messages that wait.
    waiting: AtomicUsize,
    /// Parts that wait to be begun, or are being begun.
    begins: AtomicUsize,
}

impl Writer {
    /// Makes the first file, so that a wrong name is known at once, and starts the thread.
    pub(crate) fn open(settings: &RecordSettings) -> io::Result<Self> {
        let part_len_max = settings.bytes_max / PARTS;
        let mut files = Files::new(settings)?;
        files.first = Some(files.create()?);
        let (sender, messages) = sync_channel(QUEUE_LEN);
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let run = move || {
            if let Err(error) = files.run(&messages, &theirs) {
                theirs.failed.store(true, Ordering::Relaxed);
                let path = files.path.display();
                tracing::error!(%error, "failed to write the recording {path}: it ends here");
            }
        };
        let thread = std::thread::Builder::new().name("destage-record".into()).spawn(run)?;
        Ok(Self { messages: Some(sender), shared, part_len_max, thread: Some(thread) })
    }

    /// A writer that writes nothing, and what it is given.
    #[cfg(test)]
    pub(crate) fn hung(part_len_max: u64) -> (Self, Receiver<Message>) {
        let (sender, messages) = sync_channel(QUEUE_LEN);
        let shared = Arc::default();
        (Self { messages: Some(sender), shared, part_len_max, thread: None }, messages)
    }

    /// Takes what waits, as the thread does.
    #[cfg(test)]
    pub(crate) fn taken(&self, messages: &Receiver<Message>) -> Vec<Message> {
        let taken: Vec<Message> = messages.try_iter().collect();
        for message in &taken {
            self.shared.took(message);
        }
        taken
    }

    /// Whether a part can be begun now without being in the way of what waits.
    pub(crate) fn can_begin(&self, after_gap: bool) -> bool {
        let (waiting_max, begins_max) =
            if after_gap { (QUEUE_LOW, 1) } else { (QUEUE_LEN, BEGINS_MAX) };
        self.shared.waiting.load(Ordering::Relaxed) < waiting_max
            && self.shared.begins.load(Ordering::Relaxed) < begins_max
    }

    /// Hands something over; false if the thread does not keep up.
    pub(crate) fn send(&self, message: Message) -> bool {
        // Before the other side can take it.
        let begins = usize::from(matches!(message, Message::Begin(..)));
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.shared.begins.fetch_add(begins, Ordering::Relaxed);
        let sent = self.messages.as_ref().is_some_and(|to| to.try_send(message).is_ok());
        if !sent {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.shared.begins.fetch_sub(begins, Ordering::Relaxed);
        }
        sent
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Bytes of events after which a part ends.
    pub(crate) fn part_len_max(&self) -> u64 {
        self.part_len_max
    }
}

impl Shared {
    /// A message was written.
    fn took(&self, message: &Message) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if matches!(message, Message::Begin(..)) {
            self.begins.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.messages.take());
        if let Some(thread) = self.thread.take() {
            // It has said in the log what went wrong.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Files {
    path: PathBuf,
    bytes_max: u64,
    /// The number of the next part.
    next: u64,
    file: Option<File>,
    /// Made at the start, for the first part.
    first: Option<File>,
    /// It was said that the state leaves too little room.
    is_told: bool,
}

/// Makes the first file and removes it again.
pub(crate) fn check(settings: &RecordSettings) -> io::Result<()> {
    let mut files = Files::new(settings)?;
    let path = part_path(&settings.path, files.next);
    files.create()?;
    std::fs::remove_file(path)
}

impl Files {
    fn new(settings: &RecordSettings) -> io::Result<Self> {
        Ok(Self {
            path: settings.path.clone(),
            bytes_max: settings.bytes_max,
            next: numbered(&settings.path)?.last().map_or(1, |last| last + 1),
            file: None,
            first: None,
            is_told: false,
        })
    }

    fn run(&mut self, messages: &Receiver<Message>, shared: &Shared) -> io::Result<()> {
        for message in messages {
            match &message {
                Message::Begin(begin, core) => {
                    let state = postcard::to_stdvec(core).map_err(io::Error::other)?;
                    self.begin(begin, &state)?;
                }
                Message::Bytes(bytes) => {
                    if let Some(file) = &mut self.file {
                        file.write_all(bytes)?;
                    }
                }
            }
            shared.took(&message);
        }
        self.forget_first()
    }

    /// Removes the file that was made at the start, if nothing was begun in it.
    fn forget_first(&mut self) -> io::Result<()> {
        let Some(file) = self.first.take() else { return Ok(()) };
        drop(file);
        std::fs::remove_file(part_path(&self.path, self.next - 1))
    }

    fn begin(&mut self, begin: &Begin, state: &[u8]) -> io::Result<()> {
        let part_len = state.len() as u64 + self.bytes_max / PARTS + BESIDE;
        if part_len > self.bytes_max && !self.is_told {
            self.is_told = true;
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            tracing::warn!(
                "the recording {} takes more than the {} MiB that it may have: the state alone, with which each part begins, \
                 takes {} MiB. Give it a larger --record-size",
                self.path.display(),
                mib(self.bytes_max),
                mib(state.len() as u64)
            );
        }
        self.make_room(part_len)?;
        let mut file = match self.first.take() {
            Some(file) => file,
            None => self.create()?,
        };
        let mut head = MAGIC.to_vec();
        head.extend(FORMAT_VERSION.to_le_bytes());
        frame::put(&mut head, Kind::Begin, &begin.encode());
        file.write_all(&head)?;
        for piece in state.chunks(STATE_LEN) {
            let mut whole = Vec::with_capacity(piece.len() + frame::HEADER_LEN);
            frame::put(&mut whole, Kind::State, piece);
            file.write_all(&whole)?;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Deletes the oldest parts, so that another one of so many bytes fits.
    fn make_room(&self, part_len: u64) -> io::Result<()> {
        let mut sizes = Vec::new();
        for number in numbered(&self.path)? {
            let path = part_path(&self.path, number);
            let found = path.metadata()?;
            // Others name files so as well, rotated logs for example.
            if found.is_file() && (found.len() == 0 || is_part(&path)?) {
                sizes.push((found.len(), path));
            }
        }
        let mut total: u64 = sizes.iter().map(|(size, _)| size).sum();
        let room = self.bytes_max.saturating_sub(part_len);
        for (size, path) in sizes {
            if total <= room {
                break;
            }
            // The first part of this run is there already, empty; another one is a failed start's.
            if size == 0 {
                continue;
            }
            std::fs::remove_file(path)?;
            total -= size;
        }
        Ok(())
    }

    fn create(&mut self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(part_path(&self.path, self.next))?;
        self.next += 1;
        Ok(file)
    }
}

/// Whether a file begins as a part of a recording does.
fn is_part(path: &Path) -> io::Result<bool> {
    let mut head = Vec::with_capacity(MAGIC.len());
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut head)?;
    Ok(head == MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_by_old_parts_and_by_nothing_of_somebody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("messages");
        let mut part = MAGIC.to_vec();
        part.resize(1_000, 0);
        let files =
            [(0, Vec::new()), (1, b"a rotated log ".repeat(100)), (2, part.clone()), (3, part)];
        for (number, bytes) in files {
            std::fs::write(part_path(&path, number), bytes).unwrap();
        }
        let settings = RecordSettings { path: path.clone(), bytes_max: 1_600, is_anonymous: false };
        Files::new(&settings).unwrap().make_room(400).unwrap();
        let left: Vec<u64> = numbered(&path).unwrap();
        assert_eq!(left, [0, 1, 3]);
    }

    #[test]
    fn a_recording_in_which_nothing_was_begun_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let settings = RecordSettings {
            path: path.clone(),
            bytes_max: RecordSettings::BYTES_MIN,
            is_anonymous: false,
        };
        let writer = Writer::open(&settings).unwrap();
        assert_eq!(numbered(&path).unwrap(), [1]);
        drop(writer);
        assert!(numbered(&path).unwrap().is_empty());
    }

    #[test]
    fn the_room_is_kept_with_the_state_at_the_begin_of_each_part() {
        let folder = tempfile::tempdir().unwrap();
        let settings = RecordSettings {
            path: folder.path().join("run"),
            bytes_max: 4 << 20,
            is_anonymous: false,
        };
        let begin = Begin {
            version: "1.2.3".into(),
            subject: "a test".into(),
            run: 1,
            part: 1,
            after_gap: false,
        };
        let after = |state: usize| {
            let mut files = Files::new(&settings).unwrap();
            for _ in 0..4 {
                files.begin(&begin, &vec![7; state]).unwrap();
                let events = vec![7; (settings.bytes_max / PARTS) as usize];
                files.file.as_mut().unwrap().write_all(&events).unwrap();
            }
            let sizes = numbered(&settings.path).unwrap().into_iter();
            let sizes =
                sizes.map(|number| part_path(&settings.path, number).metadata().unwrap().len());
            (sizes.collect::<Vec<u64>>(), files.is_told)
        };
        let (small, is_told) = after(1 << 10);
        assert_eq!((small.len(), is_told), (3, false));
        for state in [1 << 20, 2 << 20] {
            let (large, is_told) = after(state);
            assert!(large.iter().sum::<u64>() <= settings.bytes_max && !is_told, "{large:?}");
        }
        // What cannot be kept is told.
        let (larger, is_told) = after(4 << 20);
        assert!(larger.len() == 1 && is_told, "{larger:?}");
    }
}
