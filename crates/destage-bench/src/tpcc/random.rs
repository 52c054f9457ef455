//! TPC-C's random inputs.
//!
//! *Source:* TPC Benchmark C, revision 5.11, clauses 2 (transactions), 4.3 (population), 5.2.3 (mix).

use super::Scale;

/// Districts of a warehouse.
pub(crate) const DISTRICTS: i64 = 10;
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// A stream of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        let count = high.abs_diff(low) + 1;
        low + (self.next() % count).cast_signed()
    }

    /// NURand of clause 2.1.6, scaled to ranges that are smaller than the standard's.
    fn uneven(&mut self, a: i64, low: i64, high: i64) -> i64 {
        let c = a / 3;
        let a = a.min((high - low).max(1));
        (((self.between(0, a) | self.between(low, high)) + c) % (high - low + 1)) + low
    }

    pub(crate) fn text(&mut self, low: i64, high: i64) -> String {
        let len = self.between(low, high);
        (0..len).map(|_| char::from(b'a' + (self.next() % 26) as u8)).collect()
    }

    /// The numbers from 1 to `count` in some order.
    pub(crate) fn shuffled(&mut self, count: i64) -> Vec<i64> {
        let mut numbers: Vec<i64> = (1..=count).collect();
        for last in (1..numbers.len()).rev() {
            numbers.swap(last, self.between(0, last as i64) as usize);
        }
        numbers
    }
}

/// The last name of that number.
pub(crate) fn last_name(number: i64) -> String {
    let syllable = |digit: i64| SYLLABLES[(digit % 10) as usize];
    [syllable(number / 100), syllable(number / 10), syllable(number)].concat()
}

/// Who a transaction is about.
#[derive(Clone, Debug)]
pub(crate) enum Who {
    Number(i64),
    Name(String),
}

/// A line of a new order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) item: i64,
    pub(crate) supplier: i64,
    pub(crate) quantity: i64,
}

/// What a client asks for. Amounts are in cents.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    NewOrder { w: i64, d: i64, c: i64, lines: Vec<Line>, is_unused: bool },
    Payment { w: i64, d: i64, of: (i64, i64), who: Who, amount: i64 },
    OrderStatus { w: i64, d: i64, who: Who },
    Delivery { w: i64, carrier: i64 },
    StockLevel { w: i64, d: i64, threshold: i64 },
}

/// The transactions' names, in the order of [`Input::kind`].
pub(crate) const KINDS: [&str; 5] =
    ["New-Order", "Payment", "Order-Status", "Delivery", "Stock-Level"];

impl Input {
    pub(crate) fn kind(&self) -> usize {
        match self {
            Self::NewOrder { .. } => 0,
            Self::Payment { .. } => 1,
            Self::OrderStatus { .. } => 2,
            Self::Delivery { .. } => 3,
            Self::StockLevel { .. } => 4,
        }
    }

    /// The next input of a client at warehouse `w`: 45 % New-Order, 43 % Payment, 4 % each of the others.
    pub(crate) fn next(random: &mut Random, scale: &Scale, w: i64) -> Self {
        let d = random.between(1, DISTRICTS);
        match random.between(1, 100) {
            ..=45 => Self::new_order(random, scale, w, d),
            46..=88 => Self::payment(random, scale, w, d),
            89..=92 => Self::OrderStatus { w, d, who: who(random, scale) },
            93..=96 => Self::Delivery { w, carrier: random.between(1, 10) },
            _ => Self::StockLevel { w, d, threshold: random.between(10, 20) },
        }
    }

    fn new_order(random: &mut Random, scale: &Scale, w: i64, d: i64) -> Self {
        let count = random.between(5, 15).min(scale.items);
        let mut lines: Vec<Line> = Vec::new();
        while (lines.len() as i64) < count {
            let item = random.uneven(8_191, 1, scale.items);
            if lines.iter().any(|line| line.item == item) {
                continue;
            }
            let is_remote = scale.warehouses > 1 && random.between(1, 100) == 1;
            let supplier = if is_remote { another(random, scale, w) } else { w };
            lines.push(Line { item, supplier, quantity: random.between(1, 10) });
        }
        let is_unused = random.between(1, 100) == 1;
        Self::NewOrder { w, d, c: customer(random, scale), lines, is_unused }
    }

    fn payment(random: &mut Random, scale: &Scale, w: i64, d: i64) -> Self {
        let is_remote = scale.warehouses > 1 && random.between(1, 100) > 85;
        let of = if is_remote {
            (another(random, scale, w), random.between(1, DISTRICTS))
        } else {
            (w, d)
        };
        Self::Payment { w, d, of, who: who(random, scale), amount: random.between(100, 500_000) }
    }
}

fn another(random: &mut Random, scale: &Scale, w: i64) -> i64 {
    (w - 1 + random.between(1, scale.warehouses - 1)) % scale.warehouses + 1
}

fn customer(random: &mut Random, scale: &Scale) -> i64 {
    random.uneven(1_023, 1, scale.customers)
}

fn who(random: &mut Random, scale: &Scale) -> Who {
    match random.between(1, 100) {
        ..=60 => Who::Name(last_name(random.uneven(255, 0, scale.customers.min(1_000) - 1))),
        _ => Who::Number(customer(random, scale)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_standard() {
        assert_eq!((last_name(371), last_name(40)), ("PRICALLYOUGHT".into(), "BARPRESBAR".into()));
    }

    #[test]
    fn inputs_stay_in_their_ranges() {
        let scale = Scale { warehouses: 3, items: 50, customers: 20 };
        let mut random = Random::new(7);
        let mut counts = [0; 5];
        for _ in 0..2_000 {
            let input = Input::next(&mut random, &scale, 2);
            counts[input.kind()] += 1;
            match input {
                Input::NewOrder { c, lines, .. } => {
                    assert!((1..=20).contains(&c) && (5..=15).contains(&lines.len()));
                    assert!(lines.iter().all(|l| (1..=50).contains(&l.item)));
                    assert!(lines.iter().all(|l| (1..=3).contains(&l.supplier)));
                }
                Input::Payment { of, .. } => assert!((1..=3).contains(&of.0)),
                _ => {}
            }
        }
        assert!(counts[0] > 800 && counts[1] > 760 && counts[2..].iter().all(|n| *n > 40));
    }
}
