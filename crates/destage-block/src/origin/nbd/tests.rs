use super::*;
use crate::nbd::server::{BlockSizes, Export, Tls};
use crate::nbd::testing::{PATIENCE, Volume, serve};
use crate::request::RequestError;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

const SIZE: usize = 64 * BLOCK + 512;

/// Serves any number of connections, one after another and side by side.
struct Server {
    port: u16,
    volume: Arc<Mutex<Volume>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    is_over: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    fn start(export: Export) -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").unwrap(), export, Volume::new(SIZE))
    }

    fn at(listener: TcpListener, export: Export, volume: Arc<Mutex<Volume>>) -> Self {
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let port = listener.local_addr().unwrap().port();
        let accepting = std::thread::spawn({
            let (streams, volume, is_over) = (streams.clone(), volume.clone(), is_over.clone());
            move || {
                while let Ok((stream, _)) = listener.accept() {
                    if is_over.load(Ordering::Acquire) {
                        return;
                    }
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    streams.lock().unwrap().push(stream.try_clone().unwrap());
                    let (export, volume) = (export.clone(), volume.clone());
                    std::thread::spawn(move || serve(stream, export, Tls::Off, &volume));
                }
            }
        });
        Self { port, volume, streams, is_over, accepting: Some(accepting) }
    }

    /// Accepts no more, and breaks what there is.
    fn stop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(accepting) = self.accepting.take() {
            // Wakes it up.
            let _ = TcpStream::connect(("127.0.0.1", self.port));
            accepting.join().unwrap();
        }
        self.break_connections();
    }

    fn uri(&self) -> Uri {
        format!("nbd://127.0.0.1:{}/vol", self.port).parse().unwrap()
    }

    fn break_connections(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn connections(&self) -> usize {
        self.streams.lock().unwrap().len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn export() -> Export {
    Export::new("vol", SIZE as u64)
}

fn open(server: &Server, connections: usize) -> NbdOrigin {
    let options = NbdOptions { connections, ..NbdOptions::default() };
    NbdOrigin::open(&server.uri(), options).unwrap()
}

/// Tries until the origin is in reach again.
fn patiently<T>(run: impl Fn() -> Result<T, OriginIoError>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match run() {
            Ok(value) => return value,
            Err(error) => {
                assert_eq!(error.kind, OriginIoErrorKind::Unavailable, "{error}");
                assert!(Instant::now() < end, "{error}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn requests_reach_the_export_over_all_connections_and_each_is_flushed() {
    let server = Server::start(export());
    let origin = open(&server, 3);
    assert_eq!(origin.connections(), 3);
    assert_eq!(origin.size(), SIZE as u64);
    let blocks: Vec<u8> = (0..SIZE).map(|at| (at / 97) as u8).collect();
    for (index, block) in blocks.chunks(BLOCK).enumerate() {
        origin.write((index * BLOCK) as u64, block).unwrap();
    }
    assert_eq!(server.connections(), 3);
    origin.flush().unwrap();
    assert_eq!(server.volume.lock().unwrap().flushes, 3);
    origin.flush().unwrap();
    assert_eq!(server.volume.lock().unwrap().flushes, 4, "nothing new: one will do");
    let mut read = vec![0; SIZE];
    origin.read(0, &mut read).unwrap();
    assert!(read == blocks);
    origin.zero(8_192, 20_000, true).unwrap();
    origin.read(8_192, &mut read[..20_000]).unwrap();
    assert!(read[..20_000].iter().all(|&b| b == 0));
    assert_eq!(origin.losses(), 0);
}

#[test]
fn a_broken_connection_comes_back_and_its_unflushed_writes_fail_a_flush() {
    let server = Server::start(export());
    let origin = open(&server, 2);
    for block in 0..4 {
        origin.write(block * BLOCK as u64, &[5; BLOCK]).unwrap();
    }
    origin.flush().unwrap();
    server.break_connections();
    let mut buf = [0; BLOCK];
    for _ in 0..4 {
        patiently(|| origin.read(0, &mut [0; BLOCK]));
    }
    assert_eq!(origin.losses(), 0, "everything was flushed");
    origin.flush().unwrap();

    for block in 0..4 {
        origin.write(block * BLOCK as u64, &[6; BLOCK]).unwrap();
    }
    server.break_connections();
    // The writes are tried again by nobody: the flush must not say that they are durable.
    assert_eq!(origin.flush().unwrap_err().kind, OriginIoErrorKind::Unavailable);
    assert!(origin.losses() > 0);
    patiently(|| origin.write(0, &[7; BLOCK]));
    patiently(|| origin.flush());
    patiently(|| origin.read(0, &mut [0; BLOCK]));
    origin.read(0, &mut buf).unwrap();
    assert_eq!(buf, [7; BLOCK]);
}

#[test]
fn a_server_that_restarted_unnoticed_fails_the_flush() {
    let server = Server::start(export());
    let origin = open(&server, 1);
    origin.write(0, &[5; BLOCK]).unwrap();
    server.break_connections();
    let failed = origin.flush().unwrap_err();
    assert_eq!(failed.kind, OriginIoErrorKind::Unavailable, "{failed}");
    let losses = origin.losses();
    patiently(|| origin.flush());
    assert!(losses > 0 && origin.losses() >= losses);
}

#[test]
fn exports_that_are_no_origin_are_refused() {
    let refused = |export: Export| {
        let server = Server::start(export);
        let error = NbdOrigin::open(&server.uri(), NbdOptions::default()).unwrap_err();
        assert_eq!(error.kind, OriginIoErrorKind::Denied, "{error}");
        error.message
    };
    assert!(refused(Export { read_only: true, ..export() }).contains("read-only"));
    assert!(refused(Export { name: "other".to_owned(), ..export() }).contains("vol"));
    let block = BlockSizes { min: 8_192, preferred: 8_192, max: 1 << 20 };
    let coarse = Export { size: 1 << 20, block, ..export() };
    assert!(refused(coarse).contains("8192 bytes and more only"));
}

#[test]
fn nobody_there_is_unavailable() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("nbd://{}/vol", nobody.local_addr().unwrap()).parse().unwrap();
    drop(nobody);
    let error = NbdOrigin::open(&uri, NbdOptions::default()).unwrap_err();
    assert_eq!(error.kind, OriginIoErrorKind::Unavailable, "{error}");
}

#[test]
fn errors_of_the_server_say_what_follows_from_them() {
    let server = Server::start(export());
    let origin = open(&server, 1);
    let cases = [
        (RequestError::Io, OriginIoErrorKind::Failed),
        (RequestError::NoSpace, OriginIoErrorKind::Denied),
        (RequestError::ReadOnly, OriginIoErrorKind::Denied),
        (RequestError::Busy, OriginIoErrorKind::Unavailable),
        (RequestError::Stopping, OriginIoErrorKind::Unavailable),
    ];
    for (reason, kind) in cases {
        server.volume.lock().unwrap().fails = Some(reason);
        assert_eq!(origin.write(0, &[1; 512]).unwrap_err().kind, kind, "{reason:?}");
        let losses = origin.losses();
        assert_eq!(origin.flush().unwrap_err().kind, kind, "{reason:?}");
        assert_eq!(origin.losses(), losses + 1, "a flush that failed");
    }
    server.volume.lock().unwrap().fails = None;
    origin.write(0, &[1; 512]).unwrap();
    origin.flush().unwrap();
}

#[test]
fn an_export_of_another_size_is_not_taken_for_the_one_that_was_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let again = listener.try_clone().unwrap();
    let mut server = Server::at(listener, export(), Volume::new(SIZE));
    let origin = open(&server, 1);
    server.stop();
    let other = Export::new("vol", 4_096);
    // The same port.
    let _other = Server::at(again, other, Volume::new(4_096));
    let end = Instant::now() + PATIENCE;
    let refused = loop {
        let error = origin.read(0, &mut [0; 512]).unwrap_err();
        if error.kind != OriginIoErrorKind::Unavailable {
            break error;
        }
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(refused.message.contains("no longer what was opened"), "{refused}");
}
