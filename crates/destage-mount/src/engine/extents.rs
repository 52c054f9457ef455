//! What of a file's content the origin does not hold: ranges of bytes or of zeros, the newest on top.

use super::held::Held;
use destage_core::Lsn;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Ranges of a file, none of which overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    by_start: BTreeMap<u64, Extent>,
}

#[derive(Clone, Debug)]
struct Extent {
    len: u64,
    content: Content,
    lsn: Lsn,
}

/// What a range holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Bytes, from this place of the buffer on.
    Bytes(Arc<Held>, usize),
    /// Zeros.
    Zeros,
}

impl Content {
    pub(crate) fn is_bytes(&self) -> bool {
        matches!(self, Self::Bytes(..))
    }

    /// The same from a later place on.
    fn after(&self, skipped: u64) -> Self {
        match self {
            Self::Bytes(bytes, from) => Self::Bytes(bytes.clone(), from + skipped as usize),
            Self::Zeros => Self::Zeros,
        }
    }

    /// Adds so many bytes of it.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>, len: u64) {
        match self {
            Self::Bytes(bytes, from) => out.extend_from_slice(&bytes[*from..*from + len as usize]),
            Self::Zeros => out.resize(out.len() + len as usize, 0),
        }
    }
}

/// A part of what was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// `None` where there is nothing on top of the origin.
    pub(crate) content: Option<Content>,
}

impl Extents {
    /// From now on the range holds this.
    pub(crate) fn put(&mut self, range: Range<u64>, content: Content, lsn: Lsn) {
        if range.is_empty() {
            return;
        }
        self.clear(range.clone());
        let len = range.end - range.start;
        self.by_start.insert(range.start, Extent { len, content, lsn });
    }

    /// Nothing is behind this place any more.
    pub(crate) fn cut(&mut self, size: u64) {
        self.clear(size..u64::MAX);
    }

    /// What was put up to then is at the origin.
    pub(crate) fn forget(&mut self, upto: Lsn) {
        self.by_start.retain(|_, extent| extent.lsn > upto);
    }

    /// All there is.
    pub(crate) fn forget_all(&mut self) {
        self.by_start.clear();
    }

    /// The parts of a range, in order, without gaps between them.
    pub(crate) fn fragments(&self, range: Range<u64>) -> Vec<Fragment> {
        let mut fragments = Vec::new();
        let mut at = range.start;
        let before = self.by_start.range(..range.start).next_back();
        let inside = self.by_start.range(range.clone());
        for (&start, extent) in before.into_iter().chain(inside) {
            let end = start + extent.len;
            if end <= at {
                continue;
            }
            if start > at {
                fragments.push(Fragment { offset: at, len: start - at, content: None });
                at = start;
            }
            let len = end.min(range.end) - at;
            fragments.push(Fragment {
                offset: at,
                len,
                content: Some(extent.content.after(at - start)),
            });
            at += len;
        }
        if at < range.end {
            fragments.push(Fragment { offset: at, len: range.end - at, content: None });
        }
        fragments
    }

    /// All ranges, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, u64, &Content)> {
        self.by_start.iter().map(|(&start, extent)| (start, extent.len, &extent.content))
    }

    /// The next range from a place on: where it begins and ends.
    pub(crate) fn next(&self, from: u64) -> Option<Range<u64>> {
        let fragment = |(&start, extent): (&u64, &Extent)| start..start + extent.len;
        let before = self.by_start.range(..from).next_back().map(fragment);
        before
            .filter(|range| range.end > from)
            .or_else(|| self.by_start.range(from..).next().map(fragment))
    }

    fn clear(&mut self, range: Range<u64>) {
        let before = self.by_start.range_mut(..range.start).next_back();
        if let Some((&start, extent)) = before {
            let end = start + extent.len;
            if end > range.start {
                let rest = extent.clone();
                extent.len = range.start - start;
                if end > range.end {
                    self.insert_rest(start, rest, range.end);
                }
            }
        }
        while let Some((&start, _)) = self.by_start.range(range.clone()).next() {
            let Some(extent) = self.by_start.remove(&start) else { break };
            if start + extent.len > range.end {
                self.insert_rest(start, extent, range.end);
            }
        }
    }

    /// What of an extent is behind a place.
    fn insert_rest(&mut self, start: u64, extent: Extent, from: u64) {
        let content = extent.content.after(from - start);
        let len = start + extent.len - from;
        self.by_start.insert(from, Extent { len, content, lsn: extent.lsn });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Put(u64, u64, bool),
        Cut(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..SIZE, 0..SIZE, any::<bool>()).prop_map(|(at, len, zero)| Step::Put(at, len, zero)),
            1 => (0..SIZE).prop_map(Step::Cut),
        ];
        proptest::collection::vec(step, 1..40)
    }

    /// What each byte is, and since when, where it is anything.
    type Model = Vec<Option<(u8, u64)>>;

    fn apply(extents: &mut Extents, model: &mut Model, lsn: u64, step: &Step) {
        match *step {
            Step::Put(at, len, is_zero) => {
                let end = (at + len).min(SIZE);
                let byte = if is_zero { 0 } else { lsn as u8 };
                let bytes: Arc<[u8]> = vec![byte; (end - at) as usize].into();
                let content = if is_zero {
                    Content::Zeros
                } else {
                    Content::Bytes(Arc::new(bytes.into()), 0)
                };
                extents.put(at..end, content, Lsn(lsn));
                model[at as usize..end as usize].fill(Some((byte, lsn)));
            }
            Step::Cut(at) => {
                extents.cut(at);
                model[at as usize..].fill(None);
            }
        }
    }

    fn shown(extents: &Extents, range: Range<u64>) -> Vec<Option<u8>> {
        let mut found = Vec::new();
        for fragment in extents.fragments(range) {
            match fragment.content {
                None => found.extend(std::iter::repeat_n(None, fragment.len as usize)),
                Some(content) => {
                    let mut bytes = Vec::new();
                    content.append_to(&mut bytes, fragment.len);
                    found.extend(bytes.into_iter().map(Some));
                }
            }
        }
        found
    }

    proptest! {
        #[test]
        fn extents_are_what_a_map_of_bytes_is(steps in steps(), from in 0..SIZE, len in 0..SIZE, upto in 0..40_u64) {
            let (mut extents, mut model) = (Extents::default(), vec![None; SIZE as usize]);
            for (lsn, step) in steps.iter().enumerate() {
                apply(&mut extents, &mut model, lsn as u64 + 1, step);
            }
            let end = (from + len).min(SIZE);
            let part = &model[from as usize..end as usize];
            let bytes = |part: &[Option<(u8, u64)>]| part.iter().map(|byte| byte.map(|(byte, _)| byte)).collect::<Vec<_>>();
            prop_assert_eq!(shown(&extents, from..end), bytes(part));
            let next = model.iter().skip(from as usize).position(Option::is_some).map(|at| at as u64 + from);
            prop_assert_eq!(extents.next(from).map(|range| range.start.max(from)), next);
            extents.forget(Lsn(upto));
            let left: Vec<_> = model.iter().map(|byte| byte.filter(|&(_, lsn)| lsn > upto)).collect();
            prop_assert_eq!(shown(&extents, 0..SIZE), bytes(&left));
        }
    }
}
