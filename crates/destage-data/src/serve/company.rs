//! Who is there when the journal is to be synced: writers that come together in one sync, and readers that none should
//! keep waiting.

/// A sync leaves the server's thread if more than this part of the replies wait for none.
const READERS_DIVISOR: f32 = 4.0;
/// How much the last sync counts in the averages.
const WEIGHT: f32 = 1.0 / 8.0;

/// The clients from one sync to the next.
#[derive(Debug, Default)]
pub(super) struct Company {
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

impl Company {
    /// A client sent something.
    pub(super) fn came(&mut self) {
        self.active += 1;
    }

    /// Whether nobody else is expected to write soon. Those whose replies the last sync released are about to write again,
    /// and a sync that begins with the first of them makes the others wait for the next one.
    pub(super) fn is_complete(&self) -> bool {
        self.active >= self.expected
    }

    /// So many clients were answered without a sync.
    pub(super) fn answered(&mut self, count: usize) {
        self.answered += count;
    }

    /// A sync released the replies to so many of the clients.
    pub(super) fn released(&mut self, count: usize, clients: usize) {
        self.expected = count.max(self.expected / 4 * 3);
        self.active = 0;
        self.has_others = clients > count;
        self.answered_mean += (self.answered as f32 - self.answered_mean) * WEIGHT;
        self.released_mean += (count as f32 - self.released_mean) * WEIGHT;
        self.answered = 0;
    }

    /// Whether there are clients who would be answered during a sync if the server's thread did not carry it out.
    pub(super) fn has_readers(&self) -> bool {
        self.has_others && self.answered_mean * READERS_DIVISOR > self.released_mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many rounds in which clients read and write.
    fn rounds(company: &mut Company, readers: usize, writers: usize) {
        for _ in 0..40 {
            company.answered(readers);
            company.released(writers, readers + writers);
        }
    }

    #[test]
    fn readers_count_once_they_are_many_and_until_they_are_gone() {
        let mut company = Company::default();
        rounds(&mut company, 0, 4);
        assert!(!company.has_readers());
        rounds(&mut company, 1, 16);
        assert!(!company.has_readers());
        rounds(&mut company, 2, 2);
        assert!(company.has_readers());
        rounds(&mut company, 0, 4);
        assert!(!company.has_readers());
    }

    #[test]
    fn a_client_alone_keeps_nobody_waiting() {
        let mut company = Company::default();
        for _ in 0..40 {
            company.answered(1);
            company.released(1, 1);
        }
        assert!(!company.has_readers());
    }

    #[test]
    fn as_many_are_waited_for_as_were_released_and_fewer_as_they_stay_away() {
        let mut company = Company::default();
        assert!(company.is_complete());
        company.released(8, 8);
        (0..7).for_each(|_| company.came());
        assert!(!company.is_complete());
        company.came();
        assert!(company.is_complete());
        for _ in 0..20 {
            company.released(1, 8);
        }
        company.came();
        company.came();
        assert!(company.is_complete());
    }
}
