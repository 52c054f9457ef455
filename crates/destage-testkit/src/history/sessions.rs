//! Strict serializability of sessions: one order of all of them that fits their times, in which each reads what the last
//! one before it wrote.
//!
//! Each session that writes a key has read it first and gives it a version that no other session gives, so the versions of
//! a key form a chain, known from what the clients saw. Then the sessions depend on each other in three ways (who
//! overwrites a version, who reads it, and who reads what is overwritten later), besides the order in time, and an order of
//! all exists exactly if these dependencies have no cycle. Write skew, long forks and stale reads are such cycles; lost
//! updates and reads of what was undone break a chain.
//!
//! *Source:* Adya, "Weak consistency: a generalized theory and optimistic implementations for distributed transactions"
//! (1999), for the dependencies.

use std::collections::{BTreeMap, BTreeSet};

/// A key.
pub type Key = u64;
/// What a session leaves behind in a key.
pub type Version = u64;

/// The version of every key before all sessions.
pub const INITIAL: Version = 0;

/// A session as its client knows it. Sessions that the server said were not done are no part of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// When it was sent.
    pub begun: u64,
    /// When its client was told that it is done; `None` if it was told nothing: it may have taken effect, or not.
    pub ended: Option<u64>,
    /// The keys that it read, with the versions found: also each key that it wrote.
    pub reads: BTreeMap<Key, Version>,
    /// The keys that it wrote, with the new versions.
    pub writes: BTreeMap<Key, Version>,
}

/// Why one session must come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Because {
    Overwritten(Key),
    Read(Key),
    ReadBefore(Key),
    Time,
}

/// What a history came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Sessions that took effect.
    pub sessions: usize,
    /// Those of them whose clients were told nothing.
    pub unanswered: usize,
}

/// Whether one order of the sessions explains all that was read, and the versions that are there `at_the_end`.
///
/// # Errors
/// What contradicts: a version that is lost or was never written, or a cycle of sessions each of which must come before the
/// next.
///
/// # Panics
/// If a session wrote a key that it had not read, or two gave one version: such histories cannot be judged.
pub fn check(sessions: &[Session], at_the_end: &BTreeMap<Key, Version>) -> Result<Summary, String> {
    let writers = writers(sessions);
    let effective = effective(sessions, &writers, at_the_end);
    let effective: Vec<(usize, &Session)> =
        effective.into_iter().map(|index| (index, &sessions[index])).collect();
    let next = chains(&effective, at_the_end)?;
    let mut edges = vec![Vec::new(); sessions.len()];
    for &(index, session) in &effective {
        for (&key, &version) in &session.reads {
            let writer = writers.get(&(key, version)).copied();
            if let Some(writer) = writer.filter(|_| !session.writes.contains_key(&key)) {
                edges[writer].push((index, Because::Read(key)));
            } else if let Some(writer) = writer {
                edges[writer].push((index, Because::Overwritten(key)));
            }
            let later = next.get(&(key, version)).copied().filter(|&later| later != index);
            edges[index].extend(later.map(|later| (later, Because::ReadBefore(key))));
        }
    }
    add_time(&effective, &mut edges);
    match find_cycle(&edges) {
        Some(cycle) => Err(describe(&cycle, sessions)),
        None => Ok(Summary {
            sessions: effective.len(),
            unanswered: effective.iter().filter(|(_, session)| session.ended.is_none()).count(),
        }),
    }
}

type Places = BTreeMap<(Key, Version), usize>;

fn writers(sessions: &[Session]) -> Places {
    let mut writers = Places::new();
    for (index, session) in sessions.iter().enumerate() {
        for (&key, &version) in &session.writes {
            assert!(
                session.reads.contains_key(&key),
                "session {index} wrote {key} without reading it"
            );
            let other = writers.insert((key, version), index);
            assert!(
                other.is_none() && version != INITIAL,
                "sessions {index} and {other:?} gave {key} version {version}"
            );
        }
    }
    writers
}

/// The sessions that were acknowledged, and those whose versions somebody has met.
fn effective(
    sessions: &[Session],
    writers: &Places,
    at_the_end: &BTreeMap<Key, Version>,
) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open: Vec<usize> =
        (0..sessions.len()).filter(|&index| sessions[index].ended.is_some()).collect();
    open.extend(at_the_end.iter().filter_map(|(&key, &version)| writers.get(&(key, version))));
    while let Some(index) = open.pop() {
        if found.insert(index) {
            let read = sessions[index].reads.iter();
            open.extend(read.filter_map(|(&key, &version)| writers.get(&(key, version))));
        }
    }
    found
}

/// Who overwrites each version.
///
/// # Errors
/// The versions of a key form no chain from the first to the one at the end.
fn chains(
    effective: &[(usize, &Session)],
    at_the_end: &BTreeMap<Key, Version>,
) -> Result<Places, String> {
    let mut next = Places::new();
    let mut news: BTreeMap<(Key, Version), Version> = BTreeMap::new();
    for &(index, session) in effective {
        for (&key, &version) in &session.writes {
            let read = session.reads[&key];
            if let Some(other) = next.insert((key, read), index) {
                return Err(format!(
                    "lost update: sessions {other} and {index} both overwrite version {read} of key {key}"
                ));
            }
            news.insert((key, read), version);
        }
    }
    let mut known = BTreeSet::new();
    let keys: BTreeSet<Key> =
        effective.iter().flat_map(|(_, session)| session.reads.keys().copied()).collect();
    for key in keys {
        let mut version = INITIAL;
        known.insert((key, version));
        while let Some(&later) = news.get(&(key, version)) {
            version = later;
            known.insert((key, version));
        }
        let last = at_the_end.get(&key).copied().unwrap_or(INITIAL);
        if version != last {
            return Err(format!("key {key} should be at version {version} but is at {last}"));
        }
    }
    for &(index, session) in effective {
        let met = session.reads.iter().chain(&session.writes);
        if let Some((key, version)) = met.into_iter().find(|&(&key, &v)| !known.contains(&(key, v)))
        {
            return Err(format!(
                "session {index} met version {version} of key {key}, which does not lead to the one at the end: it \
                 was undone, or never written"
            ));
        }
    }
    Ok(next)
}

type Edges = Vec<Vec<(usize, Because)>>;

/// What ended before another began comes before it: through a chain of moments behind the sessions, so that the edges stay
/// few.
fn add_time(effective: &[(usize, &Session)], edges: &mut Edges) {
    let mut ends: Vec<(u64, usize)> = effective
        .iter()
        .filter_map(|&(index, session)| session.ended.map(|ended| (ended, index)))
        .collect();
    ends.sort_unstable();
    let first = edges.len();
    for (moment, &(_, index)) in ends.iter().enumerate() {
        edges.push(Vec::new());
        if moment > 0 {
            edges[first + moment - 1].push((first + moment, Because::Time));
        }
        edges[index].push((first + moment, Because::Time));
    }
    for &(index, session) in effective {
        let before = ends.partition_point(|&(ended, _)| ended < session.begun);
        if before > 0 {
            edges[first + before - 1].push((index, Because::Time));
        }
    }
}

/// The nodes of a cycle, each with the reason why it comes before the next.
fn find_cycle(edges: &Edges) -> Option<Vec<(usize, Because)>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        OnPath,
        Done,
    }
    let mut seen = vec![Seen::No; edges.len()];
    for start in 0..edges.len() {
        if seen[start] != Seen::No {
            continue;
        }
        // Nodes on the path, and which of their edges is looked at.
        let mut path = vec![(start, 0)];
        seen[start] = Seen::OnPath;
        while let Some((node, edge)) = path.last_mut() {
            let Some(&(to, _)) = edges[*node].get(*edge) else {
                seen[*node] = Seen::Done;
                path.pop();
                continue;
            };
            *edge += 1;
            match seen[to] {
                Seen::Done => {}
                Seen::No => {
                    seen[to] = Seen::OnPath;
                    path.push((to, 0));
                }
                Seen::OnPath => {
                    let from = path.iter().position(|&(node, _)| node == to)?;
                    let cycle = path[from..].iter();
                    return Some(
                        cycle.map(|&(node, edge)| (node, edges[node][edge - 1].1)).collect(),
                    );
                }
            }
        }
    }
    None
}

fn describe(cycle: &[(usize, Because)], sessions: &[Session]) -> String {
    let mut message = "no order explains what was read:".to_owned();
    for &(index, because) in cycle {
        let Some(session) = sessions.get(index) else { continue };
        let because = match because {
            Because::Overwritten(key) => format!("the next one overwrites its key {key}"),
            Because::Read(key) => format!("the next one has read its key {key}"),
            Because::ReadBefore(key) => {
                format!("it has read key {key} before the next one wrote it")
            }
            Because::Time => "it ended before the next one began".to_owned(),
        };
        message.push_str(&format!("\n  session {index} ({session:?}): {because}"));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads and writes as `key version` pairs.
    fn session(
        begun: u64,
        ended: u64,
        reads: &[(Key, Version)],
        writes: &[(Key, Version)],
    ) -> Session {
        let map = |pairs: &[(Key, Version)]| pairs.iter().copied().collect();
        Session { begun, ended: Some(ended), reads: map(reads), writes: map(writes) }
    }

    fn verdict(sessions: &[Session], end: &[(Key, Version)]) -> Result<Summary, String> {
        check(sessions, &end.iter().copied().collect())
    }

    #[track_caller]
    fn fails(sessions: &[Session], end: &[(Key, Version)], with: &str) {
        let message = verdict(sessions, end).expect_err("it contradicts itself");
        assert!(message.contains(with), "{message}");
    }

    #[test]
    fn a_lost_update_is_told() {
        let both = [session(1, 9, &[(1, 0)], &[(1, 1)]), session(1, 9, &[(1, 0)], &[(1, 2)])];
        fails(&both, &[(1, 2)], "lost update");
    }

    #[test]
    fn write_skew_is_told() {
        let reads = [(1, 0), (2, 0)];
        let both = [session(1, 9, &reads, &[(1, 1)]), session(1, 9, &reads, &[(2, 2)])];
        fails(&both, &[(1, 1), (2, 2)], "no order explains");
    }

    #[test]
    fn a_long_fork_is_told() {
        let all = [
            session(1, 9, &[(1, 0)], &[(1, 1)]),
            session(1, 9, &[(2, 0)], &[(2, 2)]),
            session(1, 9, &[(1, 1), (2, 0)], &[]),
            session(1, 9, &[(1, 0), (2, 2)], &[]),
        ];
        fails(&all, &[(1, 1), (2, 2)], "no order explains");
    }

    #[test]
    fn a_stale_read_is_told() {
        let late = [session(1, 2, &[(1, 0)], &[(1, 1)]), session(3, 4, &[(1, 0)], &[])];
        fails(&late, &[(1, 1)], "it ended before");
    }

    #[test]
    fn half_a_session_is_told() {
        let writer = session(1, 9, &[(1, 0), (2, 0)], &[(1, 1), (2, 1)]);
        fails(std::slice::from_ref(&writer), &[(1, 1), (2, 0)], "key 2 should be at version 1");
        let reader = session(1, 9, &[(1, 1), (2, 0)], &[]);
        fails(&[writer, reader], &[(1, 1), (2, 1)], "no order explains");
    }

    #[test]
    fn what_was_acknowledged_or_read_and_then_lost_is_told() {
        fails(&[session(1, 2, &[(1, 0)], &[(1, 1)])], &[(1, 0)], "should be at version 1");
        fails(&[session(1, 2, &[(1, 7)], &[])], &[(1, 0)], "undone, or never written");
        let unanswered = Session { ended: None, ..session(1, 2, &[(1, 0)], &[(1, 1)]) };
        fails(&[unanswered, session(3, 4, &[(1, 1)], &[])], &[(1, 0)], "should be at version 1");
    }

    #[test]
    fn what_was_not_answered_may_have_taken_effect_or_not() {
        let unanswered =
            Session { ended: None, ..session(1, 2, &[(1, 0), (2, 0)], &[(1, 1), (2, 1)]) };
        let summary = verdict(std::slice::from_ref(&unanswered), &[(1, 0), (2, 0)]);
        assert_eq!(summary, Ok(Summary { sessions: 0, unanswered: 0 }));
        let summary = verdict(std::slice::from_ref(&unanswered), &[(1, 1), (2, 1)]);
        assert_eq!(summary, Ok(Summary { sessions: 1, unanswered: 1 }));
        fails(&[unanswered], &[(1, 1), (2, 0)], "key 2 should be");
    }

    #[test]
    fn sessions_one_after_the_other_pass_and_any_two_swapped_reads_do_not() {
        let mut sessions = Vec::new();
        let mut versions = BTreeMap::new();
        for number in 1..200 {
            let keys = [number * 7 % 5, 5 + number * 11 % 3];
            let reads = keys.map(|key| (key, versions.get(&key).copied().unwrap_or(INITIAL)));
            let writes = if number % 3 == 0 { vec![] } else { vec![(keys[0], number)] };
            versions.extend(writes.iter().copied());
            sessions.push(session(number * 10, number * 10 + 15, &reads, &writes));
        }
        let summary = check(&sessions, &versions).expect("they were one after the other");
        assert_eq!(summary.sessions, 199);
        // Of two readers of one key between which it was written, each gets what the other one read.
        let readers: Vec<usize> =
            (0..sessions.len()).filter(|&i| sessions[i].writes.is_empty()).collect();
        let mut swapped = 0;
        for (&first, &second) in readers.iter().zip(&readers[10..]) {
            let key = *sessions[first].reads.keys().next().expect("it reads two");
            let Some(&later) = sessions[second].reads.get(&key) else { continue };
            let mut wrong = sessions.clone();
            let earlier = wrong[first].reads.insert(key, later).expect("it was there");
            wrong[second].reads.insert(key, earlier);
            if earlier != later {
                assert!(check(&wrong, &versions).is_err(), "sessions {first} and {second}");
                swapped += 1;
            }
        }
        assert!(swapped > 3, "{swapped}");
    }
}
