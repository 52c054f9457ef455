//! MONITOR: connections that are shown what all others ask for, as it is carried out.

use super::Sessions;
use crate::resp::escaped;
use destage_core::{ClientId, Time};
use std::net::SocketAddr;

/// Most lines that are shown in a second: more would cost the others more than looking is worth. How many were left out is
/// said in the next second.
const LINES_PER_SECOND: u32 = 10_000;
/// Most connections that are shown them: each line costs the others as many copies.
pub(in crate::engine) const MONITORS_MAX: usize = 16;
/// Most bytes of a line's word; the rest is left out.
const WORD_BYTES_MAX: usize = 128;
/// Most words of a line.
const WORDS_MAX: usize = 32;

/// Who looks, and how much was shown.
#[derive(Debug, Default)]
pub(super) struct Monitors {
    clients: Vec<ClientId>,
    second: u64,
    shown: u32,
    left_out: u64,
}

impl Monitors {
    /// Whether one more line is shown now. How many lines were left out in earlier seconds is told once.
    fn admit(&mut self, now: Time) -> (bool, Option<u64>) {
        let second = now.0 / 1_000_000_000;
        let mut left_out = None;
        if second != self.second {
            (self.second, self.shown) = (second, 0);
            left_out = Some(std::mem::take(&mut self.left_out)).filter(|&count| count > 0);
        }
        let is_shown = self.shown < LINES_PER_SECOND;
        if is_shown {
            self.shown += 1;
        } else {
            self.left_out += 1;
        }
        (is_shown, left_out)
    }
}

fn line(now: Time, from: &str, words: &[&[u8]]) -> Vec<u8> {
    let (seconds, micros) = (now.0 / 1_000_000_000, now.0 / 1_000 % 1_000_000);
    let mut line = format!("+{seconds}.{micros:06} [0 {from}]").into_bytes();
    for word in &words[..words.len().min(WORDS_MAX)] {
        line.push(b' ');
        escaped(&mut line, &word[..word.len().min(WORD_BYTES_MAX)]);
    }
    line.extend_from_slice(b"\r\n");
    line
}

/// An address as Redis shows it; a connection without one is from within this process, or a socket in the file system.
pub(in crate::engine) fn address(from: Option<SocketAddr>) -> String {
    from.map_or_else(|| "local:0".to_owned(), |from| from.to_string())
}

impl Sessions {
    /// A client is shown what others ask for from now on; false if too many are already.
    pub(in crate::engine) fn monitor(&mut self, client: ClientId) -> bool {
        let is_room = self.monitors.clients.len() < MONITORS_MAX;
        if is_room {
            self.monitors.clients.push(client);
        }
        is_room
    }

    /// It is shown no more.
    pub(in crate::engine) fn unmonitor(&mut self, client: ClientId) {
        self.monitors.clients.retain(|&monitor| monitor != client);
    }

    /// Whether anyone looks.
    #[inline]
    pub(in crate::engine) fn has_monitors(&self) -> bool {
        !self.monitors.clients.is_empty()
    }

    /// Shows a request to all who look.
    pub(in crate::engine) fn show(&mut self, now: Time, from: Option<SocketAddr>, words: &[&[u8]]) {
        let (is_shown, left_out) = self.monitors.admit(now);
        let mut lines = Vec::new();
        if let Some(count) = left_out {
            lines.extend(line(now, "destage", &[b"left out", count.to_string().as_bytes()]));
        }
        if is_shown {
            lines.extend(line(now, &address(from), words));
        }
        let clients = self.monitors.clients.clone();
        self.worked(lines.len() * clients.len());
        for client in clients {
            if let Some(session) = self.get_mut(client) {
                session.out.extend_from_slice(&lines);
                self.ready(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_lines_than_so_many_a_second_and_the_rest_is_counted() {
        let mut monitors = Monitors::default();
        let at = |second: u64| Time(second * 1_000_000_000);
        let shown = (0..LINES_PER_SECOND + 7).filter(|_| monitors.admit(at(1)).0).count();
        assert_eq!(shown, LINES_PER_SECOND as usize);
        assert_eq!(monitors.admit(at(2)), (true, Some(7)));
        assert_eq!(monitors.admit(at(3)), (true, None));
    }

    #[test]
    fn a_line_is_as_redis_writes_it() {
        let from = address(Some("127.0.0.1:6000".parse().unwrap()));
        let line = line(Time(1_700_000_000_000_001_000), &from, &[b"SET", b"a b", b"\x00\"\n"]);
        let expected = "+1700000000.000001 [0 127.0.0.1:6000] \"SET\" \"a b\" \"\\x00\\\"\\n\"\r\n";
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }
}
