//! A TCP proxy that delays each direction by a fixed time and limits nothing else.
//!
//! Each direction has a reader that stamps what it receives and a writer that sends it when its
//! time has come, so the delay adds to latency while throughput stays: any amount may be under way
//! at once, up to a bound that only a stalled receiver reaches. Threads with blocking sockets wake
//! within tens of microseconds; an event loop's timers are a millisecond coarse, which would
//! double the delay.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

const CHUNK_BYTES: usize = 64 * 1024;

/// Chunks under way per direction: 64 MiB at most.
const CHUNKS_MAX: usize = 1024;

/// Accepts on `listener` for ever and forwards to `to`, each byte `delay` later.
pub(crate) fn serve(listener: &TcpListener, to: SocketAddr, delay: Duration) -> Result<()> {
    for near in listener.incoming() {
        let near = near?;
        thread::spawn(move || {
            if let Err(error) = forward(near, to, delay) {
                eprintln!("warning: failed to forward a connection to {to}: {error}");
            }
        });
    }
    Ok(())
}

fn forward(near: TcpStream, to: SocketAddr, delay: Duration) -> Result<()> {
    let far = TcpStream::connect(to)?;
    for (from, into) in [(&near, &far), (&far, &near)] {
        from.set_nodelay(true)?;
        let (from, into) = (from.try_clone()?, into.try_clone()?);
        let (sender, receiver) = sync_channel(CHUNKS_MAX);
        thread::spawn(move || receive(from, &sender, delay));
        thread::spawn(move || send(into, &receiver));
    }
    Ok(())
}

/// Bytes and the moment to send them.
type Chunk = (Instant, Vec<u8>);

/// Ends at the sender's end of stream; dropping `queue` tells the writer once it has sent all.
fn receive(mut from: TcpStream, queue: &SyncSender<Chunk>, delay: Duration) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let due = Instant::now() + delay;
        if queue.send((due, buffer[..count].to_vec())).is_err() {
            break;
        }
    }
}

fn send(mut into: TcpStream, queue: &Receiver<Chunk>) {
    fine_timer();
    while let Ok((due, bytes)) = queue.recv() {
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        if into.write_all(&bytes).is_err() {
            break;
        }
    }
    // One direction may end before the other, as with any TCP connection.
    let _ = into.shutdown(Shutdown::Write);
}

/// Lets this thread sleep to the microsecond instead of the usual 50.
fn fine_timer() {
    // SAFETY: the call takes plain numbers and affects the calling thread alone.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo server behind a proxy; the proxy's address.
    fn echo_behind(delay: Duration) -> SocketAddr {
        let echo = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let to = echo.local_addr().expect("bound");
        thread::spawn(move || {
            for stream in echo.incoming() {
                let mut stream = stream.expect("accepted");
                thread::spawn(move || {
                    let mut output = stream.try_clone().expect("cloned");
                    let _ = std::io::copy(&mut stream, &mut output);
                    let _ = output.shutdown(Shutdown::Write);
                });
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        thread::spawn(move || serve(&listener, to, delay));
        address
    }

    fn round_trip(stream: &mut TcpStream) -> Duration {
        let start = Instant::now();
        let mut byte = [7];
        stream.write_all(&byte).expect("sent");
        stream.read_exact(&mut byte).expect("received");
        start.elapsed()
    }

    #[test]
    fn a_round_trip_takes_twice_the_delay() {
        let delay = Duration::from_millis(5);
        let mut stream = TcpStream::connect(echo_behind(delay)).expect("connected");
        stream.set_nodelay(true).expect("a socket option");
        let start = Instant::now();
        let mut shortest = Duration::MAX;
        // The machine may be busy; an idle one shows about 0.2 ms above.
        while shortest >= delay * 2 + delay / 2 {
            assert!(start.elapsed() < Duration::from_secs(60), "never less than {shortest:?}");
            shortest = shortest.min(round_trip(&mut stream));
            assert!(shortest >= delay * 2, "earlier than the delay: {shortest:?}");
        }
    }

    #[test]
    fn the_delay_does_not_limit_throughput_and_ends_are_passed_on() {
        let mut stream =
            TcpStream::connect(echo_behind(Duration::from_millis(200))).expect("connected");
        let mut input = stream.try_clone().expect("cloned");
        let start = Instant::now();
        let total = 64 << 20;
        let writer = thread::spawn(move || {
            stream.write_all(&vec![5u8; total]).expect("sent");
            stream.shutdown(Shutdown::Write).expect("ended");
        });
        let mut got = Vec::new();
        input.read_to_end(&mut got).expect("the end arrives");
        writer.join().expect("wrote");
        assert_eq!(got.len(), total);
        // One 64 KiB chunk per 200 ms would take more than 200 s.
        assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
    }
}
