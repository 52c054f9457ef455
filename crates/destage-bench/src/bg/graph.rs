//! Who is whose friend and who has invited whom: the model that actions are drawn from, and that the origin must equal.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, section 4.2 and table 5; the
//! actions are those of BG (Barahmand and Ghandeharizadeh, CIDR 2013).

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::Result;
use crate::keys::Rng;

/// A member's number, from 0.
pub(super) type Member = i64;
/// Two of them: of friends the smaller first, of an invitation who invites first.
pub(super) type Pair = (Member, Member);

/// Kinds of actions.
pub(super) const KINDS: usize = 7;
pub(super) const NAMES: [&str; KINDS] = [
    "View Profile",
    "List Friends",
    "List Pending Friends",
    "Invite Friend",
    "Reject Friend",
    "Accept Friend",
    "Thaw Friendship",
];

/// Table 5: how many of 10,000 actions are of each kind.
pub(super) const MIXES: [(&str, [u64; KINDS]); 3] = [
    ("90 % reads", [8_000, 500, 500, 400, 200, 200, 200]),
    ("99 % reads", [8_900, 500, 500, 40, 20, 20, 20]),
    ("99.9 % reads", [8_990, 500, 500, 4, 2, 2, 2]),
];
const MIX_TOTAL: u64 = 10_000;
/// Draws of a pair that may be friends or busy before another action is taken instead.
const DRAWS: usize = 100;

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    View(Member),
    Friends(Member),
    Pending(Member),
    Invite { from: Member, to: Member },
    Reject { from: Member, to: Member },
    Accept { from: Member, to: Member },
    Thaw { one: Member, other: Member },
}

impl Action {
    pub(super) fn kind(self) -> usize {
        match self {
            Self::View(_) => 0,
            Self::Friends(_) => 1,
            Self::Pending(_) => 2,
            Self::Invite { .. } => 3,
            Self::Reject { .. } => 4,
            Self::Accept { .. } => 5,
            Self::Thaw { .. } => 6,
        }
    }

    /// The two whom it changes, if it changes anything.
    fn pair(self) -> Option<Pair> {
        match self {
            Self::View(_) | Self::Friends(_) | Self::Pending(_) => None,
            Self::Invite { from, to } | Self::Reject { from, to } | Self::Accept { from, to } => {
                Some(sorted(from, to))
            }
            Self::Thaw { one, other } => Some(sorted(one, other)),
        }
    }
}

fn sorted(one: Member, other: Member) -> Pair {
    (one.min(other), one.max(other))
}

/// The kind that is drawn, `dice` being below 10,000.
pub(super) fn drawn(mix: &[u64; KINDS], mut dice: u64) -> usize {
    for (kind, share) in mix.iter().enumerate() {
        if dice < *share {
            return kind;
        }
        dice -= share;
    }
    0
}

/// Pairs, of which one can be drawn.
#[derive(Clone, Debug, Default)]
struct Pairs {
    list: Vec<Pair>,
    places: HashMap<Pair, usize>,
}

impl Pairs {
    fn insert(&mut self, pair: Pair) {
        if self.places.insert(pair, self.list.len()).is_none() {
            self.list.push(pair);
        }
    }

    fn remove(&mut self, pair: Pair) {
        let Some(place) = self.places.remove(&pair) else { return };
        self.list.swap_remove(place);
        if let Some(moved) = self.list.get(place) {
            self.places.insert(*moved, place);
        }
    }

    fn contains(&self, pair: Pair) -> bool {
        self.places.contains_key(&pair)
    }

    fn draw(&self, random: &mut Rng) -> Option<Pair> {
        let count = self.list.len() as u64;
        (count > 0).then(|| self.list[random.below(count) as usize])
    }
}

/// What the origin holds, as rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Member and friend; each friendship is there twice.
    pub(super) friends: Vec<Pair>,
    /// Who invites, and who is invited.
    pub(super) pending: Vec<Pair>,
    /// Each member's counts of friends and of invitations.
    pub(super) counts: BTreeMap<Member, (i64, i64)>,
}

/// The model.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    members: u64,
    friends: Pairs,
    pending: Pairs,
    /// Pairs whose action is under way: nobody else touches them, and after a crash either outcome is right.
    busy: HashMap<Pair, Action>,
    /// Grows with every write.
    since: i64,
}

impl Graph {
    /// Everybody is a friend of the `friends` nearest, and is invited by the `pending` next ones.
    ///
    /// # Errors
    ///
    /// There are not enough members for that, or the number of friends is odd.
    pub(super) fn new((members, friends, pending): (u64, u64, u64)) -> Result<Self> {
        let is_large = members > friends + 2 * pending + 1;
        if !friends.is_multiple_of(2) || friends == 0 || !is_large || members > 100_000_000 {
            return Err(format!(
                "{members} members cannot have {friends} friends and {pending} invitations each: the friends must be even, \
                 and there must be more members than friends and twice the invitations"
            )
            .into());
        }
        let mut graph = Self {
            members,
            friends: Pairs::default(),
            pending: Pairs::default(),
            busy: HashMap::new(),
            since: (friends + pending).cast_signed(),
        };
        for member in 0..members {
            let next = |distance: u64| ((member + distance) % members).cast_signed();
            let member = member.cast_signed();
            for distance in 1..=friends / 2 {
                graph.friends.insert(sorted(member, next(distance)));
            }
            for distance in 1..=pending {
                graph.pending.insert((next(friends / 2 + distance), member));
            }
        }
        Ok(graph)
    }

    /// An action of that kind, or View Profile where there is none; it must be finished.
    pub(super) fn begin(&mut self, mix: &[u64; KINDS], random: &mut Rng) -> Action {
        let anybody = Action::View(self.anybody(random));
        let action = match drawn(mix, random.below(MIX_TOTAL)) {
            1 => Some(Action::Friends(self.anybody(random))),
            2 => Some(Action::Pending(self.anybody(random))),
            3 => self.strangers(random).map(|(from, to)| Action::Invite { from, to }),
            4 => self.pending.draw(random).map(|(from, to)| Action::Reject { from, to }),
            5 => self.pending.draw(random).map(|(from, to)| Action::Accept { from, to }),
            6 => self.friends.draw(random).map(|(one, other)| Action::Thaw { one, other }),
            _ => None,
        }
        .unwrap_or(anybody);
        if let Some(pair) = action.pair() {
            self.busy.insert(pair, action);
            self.since += 1;
        }
        match action {
            Action::Reject { from, to } | Action::Accept { from, to } => {
                self.pending.remove((from, to));
            }
            Action::Thaw { one, other } => self.friends.remove((one, other)),
            _ => {}
        }
        action
    }

    /// It was acknowledged.
    pub(super) fn finish(&mut self, action: Action) {
        if let Some(pair) = action.pair() {
            self.busy.remove(&pair);
        }
        match action {
            Action::Invite { from, to } => self.pending.insert((from, to)),
            Action::Accept { from, to } => self.friends.insert(sorted(from, to)),
            _ => {}
        }
    }

    /// A number that grows with every write: when a friendship or an invitation began.
    pub(super) fn since(&self) -> i64 {
        self.since
    }

    /// What an origin would hold that equals the model.
    pub(super) fn rows(&self) -> Found {
        let both = |&(one, other): &Pair| [(one, other), (other, one)];
        let friends: Vec<Pair> = self.friends.list.iter().flat_map(both).collect();
        let pending = self.pending.list.clone();
        let mut counts: BTreeMap<_, _> =
            (0..self.members.cast_signed()).map(|member| (member, (0, 0))).collect();
        friends.iter().for_each(|(member, _)| counts.entry(*member).or_default().0 += 1);
        pending.iter().for_each(|(_, member)| counts.entry(*member).or_default().1 += 1);
        Found { friends, pending, counts }
    }

    /// What was under way when its clients ended.
    pub(super) fn interrupted(&self) -> Vec<Action> {
        self.busy.values().copied().collect()
    }

    fn anybody(&self, random: &mut Rng) -> Member {
        random.below(self.members).cast_signed()
    }

    fn strangers(&self, random: &mut Rng) -> Option<Pair> {
        (0..DRAWS).map(|_| (self.anybody(random), self.anybody(random))).find(|&(from, to)| {
            let is_known = self.friends.contains(sorted(from, to))
                || self.pending.contains((from, to))
                || self.pending.contains((to, from))
                || self.busy.contains_key(&sorted(from, to));
            from != to && !is_known
        })
    }

    /// Compares what the origin holds; then takes over what became of the actions under way.
    ///
    /// # Errors
    ///
    /// A friendship is on one side only, a count is wrong, something acknowledged is missing, or something is there that
    /// nobody did.
    pub(super) fn check(&mut self, found: &Found) -> Result<()> {
        let friends: HashSet<Pair> = found.friends.iter().copied().collect();
        if let Some((one, other)) =
            friends.iter().find(|(one, other)| !friends.contains(&(*other, *one)))
        {
            return Err(format!("{one} has the friend {other}, who does not have {one}").into());
        }
        let friends: HashSet<Pair> =
            friends.into_iter().filter(|(one, other)| one < other).collect();
        let pending: HashSet<Pair> = found.pending.iter().copied().collect();
        self.check_counts(found)?;
        for (&pair, &action) in &self.busy {
            let is_invited = pending.contains(&pair) || pending.contains(&(pair.1, pair.0));
            let state = (friends.contains(&pair), is_invited);
            let (before, after) = match action {
                Action::Invite { .. } => ((false, false), (false, true)),
                Action::Accept { .. } => ((false, true), (true, false)),
                Action::Reject { .. } => ((false, true), (false, false)),
                _ => ((true, false), (false, false)),
            };
            if state != before && state != after {
                return Err(format!("{action:?} was done in part: {state:?}").into());
            }
        }
        for (what, there, expected) in
            [("friends", &friends, &self.friends), ("invitations", &pending, &self.pending)]
        {
            let is_busy = |pair: &Pair| self.busy.contains_key(&sorted(pair.0, pair.1));
            let lost = expected.list.iter().find(|pair| !there.contains(*pair));
            let extra = there.iter().find(|pair| !expected.contains(**pair) && !is_busy(pair));
            if let Some(pair) = lost {
                return Err(format!("{what}: {pair:?} was acknowledged and is missing").into());
            }
            if let Some(pair) = extra {
                return Err(format!(
                    "{what}: {pair:?} is there, though it was undone or never done"
                )
                .into());
            }
        }
        for pair in std::mem::take(&mut self.busy).into_keys() {
            if friends.contains(&pair) {
                self.friends.insert(pair);
            }
            let invitations = [pair, (pair.1, pair.0)];
            invitations
                .into_iter()
                .filter(|it| pending.contains(it))
                .for_each(|it| self.pending.insert(it));
        }
        Ok(())
    }

    fn check_counts(&self, found: &Found) -> Result<()> {
        let mut counts: BTreeMap<Member, (i64, i64)> = BTreeMap::new();
        found.friends.iter().for_each(|(member, _)| counts.entry(*member).or_default().0 += 1);
        found.pending.iter().for_each(|(_, member)| counts.entry(*member).or_default().1 += 1);
        if found.counts.len() as u64 != self.members {
            return Err(
                format!("{} members of {} are there", found.counts.len(), self.members).into()
            );
        }
        for (member, shown) in &found.counts {
            let counted = counts.get(member).copied().unwrap_or_default();
            if *shown != counted {
                return Err(format!(
                    "member {member} shows {shown:?} friends and invitations, but has {counted:?}"
                )
                .into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        Graph::new((50, 6, 3)).expect("it fits")
    }

    #[test]
    fn mixes_are_those_of_the_paper() {
        for (name, mix) in MIXES {
            assert_eq!(mix.iter().sum::<u64>(), MIX_TOTAL, "{name}");
            let mut counts = [0; KINDS];
            (0..MIX_TOTAL).for_each(|dice| counts[drawn(&mix, dice)] += 1);
            assert_eq!(counts, mix, "{name}");
        }
        assert!(Graph::new((6, 6, 0)).is_err() && Graph::new((50, 5, 0)).is_err());
    }

    #[test]
    fn everybody_begins_with_as_many_friends_and_invitations() {
        let found = graph().rows();
        assert!(found.counts.values().all(|counts| *counts == (6, 3)), "{:?}", found.counts);
    }

    #[test]
    fn actions_fit_the_state_and_repeat_with_their_seed() {
        let run = |seed| {
            let (mut graph, mut random) = (graph(), Rng::new(seed));
            let actions: Vec<Action> = (0..5_000)
                .map(|_| {
                    let action = graph.begin(&MIXES[0].1, &mut random);
                    graph.finish(action);
                    action
                })
                .collect();
            graph.check(&graph.clone().rows()).expect("equal");
            actions
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let kinds: HashSet<usize> = run(1).iter().map(|action| action.kind()).collect();
        assert_eq!(kinds.len(), KINDS);
    }

    #[test]
    fn two_under_way_never_touch_one_pair() {
        let (mut graph, mut random) = (graph(), Rng::new(5));
        let mut seen = HashSet::new();
        for _ in 0..400 {
            if let Some(pair) = graph.begin(&MIXES[0].1, &mut random).pair() {
                assert!(seen.insert(pair), "{pair:?}");
            }
        }
        assert!(seen.len() > 20);
    }

    #[test]
    fn lost_halved_and_foreign_changes_are_noticed() {
        let mut graph = graph();
        let refused = |graph: &mut Graph, change: &dyn Fn(&mut Found)| {
            let mut found = graph.rows();
            change(&mut found);
            graph.check(&found).expect_err("noticed").to_string()
        };
        let one_sided =
            refused(&mut graph, &|found| found.friends.truncate(found.friends.len() - 1));
        assert!(one_sided.contains("who does not have"), "{one_sided}");
        let counted = refused(&mut graph, &|found| found.pending.truncate(found.pending.len() - 1));
        assert!(counted.contains("shows"), "{counted}");
        let lost = refused(&mut graph, &|found| {
            let (_, to) = found.pending.remove(0);
            found.counts.entry(to).or_default().1 -= 1;
        });
        assert!(lost.contains("is missing"), "{lost}");
        let extra = refused(&mut graph, &|found| {
            found.pending.push((30, 1));
            found.counts.entry(1).or_default().1 += 1;
        });
        assert!(extra.contains("never done"), "{extra}");
    }

    #[test]
    fn what_was_under_way_is_there_whole_or_not_at_all() {
        let (from, to) = (5, 1);
        let accept = Action::Accept { from, to };
        let mut graph = graph();
        let before = graph.rows();
        assert!(before.pending.contains(&(from, to)));
        graph.pending.remove((from, to));
        graph.busy.insert((to, from), accept);
        graph.clone().check(&before).expect("as before");
        let mut done = graph.clone();
        done.finish(accept);
        let after = done.rows();
        let mut settled = graph.clone();
        settled.check(&after).expect("as after");
        assert!(settled.friends.contains((to, from)) && settled.busy.is_empty());
        let mut half = after;
        half.pending.push((from, to));
        half.counts.entry(to).or_default().1 += 1;
        assert!(graph.check(&half).expect_err("both").to_string().contains("in part"));
    }
}
