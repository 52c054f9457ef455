//! Connections whose answers are read by whoever serves, on its own thread: see [`crate::Replicas::attend`].

use crate::connect::{Link, Trouble};
use crossbeam_channel::{Receiver, Sender, bounded};
use destage_replicas::{Address, Reply, Request};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Says that a connection of this number is to be watched.
pub(crate) type Watch = Box<dyn Fn(BorrowedFd<'_>, usize) -> io::Result<()> + Send>;

/// These connections.
#[derive(Default)]
pub(crate) struct Lines {
    watch: Option<Watch>,
    open: Vec<Line>,
}

struct Line {
    address: Address,
    number: usize,
    link: Link,
    /// Requests that have no answer yet.
    asked: usize,
    /// Something was under way and nothing moved since then.
    still_since: Instant,
    /// Where it is told how it has ended.
    ended: Sender<Trouble>,
}

impl Lines {
    /// From now on connections may be handed over.
    pub(crate) fn attend(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// Takes a connection without requests under way over. What comes back tells how it ends.
    ///
    /// # Errors
    /// Nobody attends such a connection, or it cannot be watched.
    pub(crate) fn take(
        &mut self,
        address: &Address,
        number: usize,
        mut link: Link,
    ) -> Result<Receiver<Trouble>, Box<Link>> {
        let (Some(watch), Some(descriptor)) = (&self.watch, link.watched()) else {
            return Err(Box::new(link));
        };
        if let Err(error) = watch(descriptor, number) {
            tracing::debug!(%error, "a connection to a server of the log cannot be watched");
            return Err(Box::new(link));
        }
        let (ended, told) = bounded(1);
        match link.stop_waiting() {
            Ok(()) => {
                let (address, still_since) = (address.clone(), Instant::now());
                self.open.push(Line { address, number, link, asked: 0, still_since, ended });
            }
            // There is room for it.
            Err(trouble) => drop(ended.send(trouble)),
        }
        Ok(told)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether every request has been answered.
    pub(crate) fn are_answered(&self) -> bool {
        self.open.iter().all(|line| line.asked == 0)
    }

    /// Sends a request, if there is such a connection.
    ///
    /// # Errors
    /// There is none: the request.
    pub(crate) fn send(&mut self, to: &Address, request: Request) -> Result<(), Request> {
        let Some(line) = self.open.iter_mut().find(|line| line.address == *to) else {
            return Err(request);
        };
        if line.asked == 0 {
            line.still_since = Instant::now();
        }
        line.asked += 1;
        let sent = line.link.send(&request);
        let address = to.clone();
        self.end_if(sent, |line| line.address == address);
        Ok(())
    }

    /// Hands all answers that have arrived on the connection of this number to `answered`, and goes on sending.
    pub(crate) fn read(&mut self, number: usize, answered: impl FnMut(&Address, Reply)) {
        let Some(line) = self.open.iter_mut().find(|line| line.number == number) else { return };
        let read = line.read(false, answered);
        self.end_if(read, |line| line.number == number);
    }

    /// The same for all of them, whether or not anything is announced. Where nothing has moved for so long although answers are
    /// due, the connection has ended.
    pub(crate) fn read_all(
        &mut self,
        patience: Duration,
        mut answered: impl FnMut(&Address, Reply),
    ) {
        let numbers: Vec<usize> = self.open.iter().map(|line| line.number).collect();
        for number in numbers {
            let Some(line) = self.open.iter_mut().find(|line| line.number == number) else {
                continue;
            };
            let read = line.read(true, &mut answered).and_then(|()| line.check(patience));
            self.end_if(read, |line| line.number == number);
        }
    }

    /// Lets go of all of them.
    pub(crate) fn clear(&mut self) {
        self.watch = None;
        self.open.clear();
    }

    fn end_if(&mut self, result: Result<(), Trouble>, is_it: impl Fn(&Line) -> bool) {
        let Err(trouble) = result else { return };
        for line in self.open.extract_if(.., |line| is_it(line)) {
            // Without anybody who waits for it, nobody connects again.
            let _ = line.ended.send(trouble.clone());
        }
    }
}

impl Line {
    /// With `to_end` also what is not asked for is looked at: the connection's end.
    fn read(
        &mut self,
        to_end: bool,
        mut answered: impl FnMut(&Address, Reply),
    ) -> Result<(), Trouble> {
        self.link.send_rest()?;
        while to_end || self.asked > 0 {
            let Some(reply) = self.link.next()? else { return Ok(()) };
            let Some(left) = self.asked.checked_sub(1) else {
                return Err(Trouble::Unreachable("it answers what nobody asked".into()));
            };
            self.asked = left;
            answered(&self.address, reply);
        }
        Ok(())
    }

    fn check(&mut self, patience: Duration) -> Result<(), Trouble> {
        if self.link.has_moved() {
            self.still_since = Instant::now();
        } else if self.asked > 0 && self.still_since.elapsed() > patience {
            return Err(Trouble::Unreachable("it does not answer".into()));
        }
        Ok(())
    }
}
