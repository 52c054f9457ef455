//! Whom a group commit waits for: the writers that are about to write again, unless readers would have to wait with them.

/// A sync leaves the asking thread if more than this part of the replies wait for none.
const READERS_DIVISOR: f32 = 4.0;
/// How much the last sync counts in the averages.
const WEIGHT: f32 = 1.0 / 8.0;

/// The clients from one sync to the next.
#[derive(Debug, Default)]
pub struct Writers {
    /// Clients that sent something since the last sync, and how many of them are worth waiting for.
    active: usize,
    expected: usize,
    /// Replies since then that waited for no sync.
    answered: usize,
    /// Averages over the last syncs of such replies and of those that each released.
    answered_mean: f32,
    released_mean: f32,
    /// The last sync left somebody out.
    has_others: bool,
}

impl Writers {
    /// A client sent something.
    pub fn came(&mut self) {
        self.active += 1;
    }

    /// Whether nobody else is expected to write soon. Those whose replies the last sync released are about to write again,
    /// and a sync that begins with the first of them makes the others wait for the next one.
    pub fn is_complete(&self) -> bool {
        self.active >= self.expected
    }

    /// So many clients were answered without a sync.
    pub fn answered(&mut self, count: usize) {
        self.answered += count;
    }

    /// A sync released the replies to so many of the clients.
    pub fn released(&mut self, count: usize, clients: usize) {
        self.expected = count.max(self.expected / 4 * 3);
        self.active = 0;
        self.has_others = clients > count;
        self.answered_mean += (self.answered as f32 - self.answered_mean) * WEIGHT;
        self.released_mean += (count as f32 - self.released_mean) * WEIGHT;
        self.answered = 0;
    }

    /// Whether there are clients who would be answered during a sync if the asking thread did not carry it out.
    pub fn has_readers(&self) -> bool {
        self.has_others && self.answered_mean * READERS_DIVISOR > self.released_mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds in which so many clients read and write.
    fn rounds(writers: &mut Writers, reading: usize, writing: usize) {
        for _ in 0..40 {
            writers.answered(reading);
            writers.released(writing, reading + writing);
        }
    }

    #[test]
    fn readers_count_once_they_are_many_and_until_they_are_gone() {
        let mut writers = Writers::default();
        rounds(&mut writers, 0, 4);
        assert!(!writers.has_readers());
        rounds(&mut writers, 1, 16);
        assert!(!writers.has_readers());
        rounds(&mut writers, 2, 2);
        assert!(writers.has_readers());
        rounds(&mut writers, 0, 4);
        assert!(!writers.has_readers());
    }

    #[test]
    fn a_client_alone_keeps_nobody_waiting() {
        let mut writers = Writers::default();
        for _ in 0..40 {
            writers.answered(1);
            writers.released(1, 1);
        }
        assert!(!writers.has_readers());
    }

    #[test]
    fn as_many_are_waited_for_as_were_released_and_fewer_as_they_stay_away() {
        let mut writers = Writers::default();
        assert!(writers.is_complete());
        writers.released(8, 8);
        (0..7).for_each(|_| writers.came());
        assert!(!writers.is_complete());
        writers.came();
        assert!(writers.is_complete());
        for _ in 0..20 {
            writers.released(1, 8);
        }
        writers.came();
        writers.came();
        assert!(writers.is_complete());
    }
}
