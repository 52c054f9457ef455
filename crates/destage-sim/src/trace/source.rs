//! The bytes of a trace: opened, decompressed, counted.

use super::TraceError;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Decompressed bytes, of which the first can be looked at before they are read.
pub(super) struct Source {
    head: Vec<u8>,
    rest: Box<dyn Read + Send>,
    counter: Counter,
}

/// How many bytes of the file were read.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

/// How much can be looked at.
pub(super) const HEAD_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;
/// Its name in messages.
pub(super) const STANDARD_INPUT: &str = "(standard input)";

impl Source {
    /// Opens a file, or the standard input for `-`.
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        if name == "-" {
            return Self::new(Box::new(io::stdin()), None, STANDARD_INPUT);
        }
        let opened = File::open(path).and_then(|file| {
            let meta = file.metadata()?;
            if meta.is_dir() {
                return Err(io::Error::from(io::ErrorKind::IsADirectory));
            }
            Ok((file, meta.is_file().then_some(meta.len())))
        });
        match opened {
            Ok((file, total)) => Self::new(Box::new(file), total, &name),
            Err(error) => Err(TraceError::Open { name, error }),
        }
    }

    /// Takes the bytes of `input`, of which there are `total`.
    pub(super) fn new(
        input: Box<dyn Read + Send>,
        total: Option<u64>,
        name: &str,
    ) -> Result<Self, TraceError> {
        let counter = Counter { read: Arc::default(), total };
        let input = Counted { input, read: Arc::clone(&counter.read) };
        let opened = decompressed(input).and_then(|mut rest| Ok((peek(&mut rest)?, rest)));
        match opened {
            Ok((head, rest)) => Ok(Self { head, rest, counter }),
            Err(error) => Err(TraceError::Read { name: name.into(), byte: 0, error }),
        }
    }

    /// The first bytes, up to [`HEAD_BYTES`].
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    pub(super) fn counter(&self) -> Counter {
        self.counter.clone()
    }

    /// All bytes.
    pub(super) fn into_reader(self) -> Box<dyn BufRead + Send> {
        let rest = BufReader::with_capacity(BUFFER_BYTES, self.rest);
        Box::new(Cursor::new(self.head).chain(rest))
    }
}

impl Counter {
    /// Of nothing: the whole file has been read.
    pub(super) fn none() -> Self {
        Self { read: Arc::default(), total: None }
    }

    pub(super) fn get(&self) -> (u64, Option<u64>) {
        (self.read.load(Ordering::Relaxed), self.total)
    }
}

/// Counts what is read.
struct Counted {
    input: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

fn decompressed(mut input: Counted) -> io::Result<Box<dyn Read + Send>> {
    let mut magic = Vec::new();
    (&mut input).take(6).read_to_end(&mut magic)?;
    let is = |magic_of: &[u8]| magic.starts_with(magic_of);
    let [zstd, gzip, xz] =
        [is(&[0x28, 0xb5, 0x2f, 0xfd]), is(&[0x1f, 0x8b]), is(&[0xfd, b'7', b'z', b'X', b'Z', 0])];
    let input = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(magic).chain(input));
    Ok(match () {
        () if zstd => Box::new(zstd::stream::read::Decoder::with_buffer(input)?),
        () if gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        () if xz => Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(input)),
        () => Box::new(input),
    })
}

/// The first bytes. Of a file that breaks off, what is before is used; the error returns when reading goes on.
fn peek(rest: &mut Box<dyn Read + Send>) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    match rest.take(HEAD_BYTES as u64).read_to_end(&mut head) {
        Err(error) if head.is_empty() => Err(error),
        _ => Ok(head),
    }
}
