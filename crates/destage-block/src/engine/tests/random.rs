//! Numbers from a seed.

#[derive(Clone, Debug)]
pub(in crate::engine) struct Random(u64);

impl Random {
    pub(in crate::engine) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678))
    }

    pub(in crate::engine) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(in crate::engine) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True in `percent` of the cases.
    pub(in crate::engine) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(in crate::engine) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
