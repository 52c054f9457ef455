//! The numbers in what a paper says: they stand at its beginning, `about 14`, `1.25 to 1.30`, `above 1: "considerably worse"`.

#[cfg(test)]
use super::Bound;
use super::Says;

/// What a paper's words mean as numbers. Both ends are the same where it has one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Numbers {
    /// At least so much.
    pub(crate) low: Option<f64>,
    /// At most so much.
    pub(crate) high: Option<f64>,
    /// How far off a number is still the paper's: half of its last digit, or a twentieth where it says about. None
    /// where it says above or below.
    slack: f64,
}

const ABOUT: f64 = 0.05;

impl Says {
    /// The numbers; `None` if it says it in words only.
    pub(crate) fn numbers(self) -> Option<Numbers> {
        match self {
            Self::Paper(text) | Self::Fitted(text) | Self::Against(text) | Self::Trace(text) => {
                Numbers::of(text)
            }
            Self::Ours => None,
        }
    }
}

impl Numbers {
    fn of(text: &str) -> Option<Self> {
        let about = ["about ", "around "].into_iter().find_map(|word| text.strip_prefix(word));
        let rest = about.unwrap_or(text);
        let after = |words: &[&str]| words.iter().find_map(|word| rest.strip_prefix(word));
        let from = after(&["above ", "at least ", "over "]);
        let up_to = after(&["below ", "at most "]);
        let is_gain = text.ends_with(" more");
        let (first, slack, rest) = number(from.or(up_to).unwrap_or(rest), is_gain)?;
        let second = rest.strip_prefix(" to ").and_then(|rest| number(rest, is_gain));
        let last = second.map_or(first, |(value, ..)| value);
        let is_limit = from.or(up_to).is_some();
        Some(Self {
            low: up_to.is_none().then_some(first),
            high: from.is_none().then_some(last),
            slack: match (about, is_limit) {
                (Some(_), _) => slack.max(last * ABOUT),
                (None, true) => 0.0,
                (None, false) => slack,
            },
        })
    }

    /// Whether runs that keep a bound come to what the paper says: all of them where it has a range, some of them where it has
    /// one number.
    #[cfg(test)]
    pub(super) fn agree(self, bound: Bound) -> bool {
        let (least, most) = bound.ends();
        if self.low == self.high {
            return self
                .low
                .is_some_and(|value| (least - self.slack..=most + self.slack).contains(&value));
        }
        self.low.is_none_or(|low| least >= low - self.slack)
            && self.high.is_none_or(|high| most <= high + self.slack)
    }
}

/// The number at the beginning of a text, half of its last digit, and what follows it. A gain of 50 % is a ratio of 1.5, one of 8x
/// a ratio of 8.
fn number(text: &str, is_gain: bool) -> Option<(f64, f64, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',')));
    let digits = text[..end.unwrap_or(text.len())].trim_end_matches(['.', ',']);
    let value: f64 = digits.replace(',', "").parse().ok()?;
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let half = 0.5 / 10_f64.powi(i32::try_from(decimals).ok()?);
    let rest = &text[digits.len()..];
    if let Some(rest) = rest.strip_prefix(" %") {
        let whole = if is_gain { 1.0 } else { 0.0 };
        return Some((whole + value / 100.0, half / 100.0, rest));
    }
    if let Some((divisor, _, rest)) = rest.strip_prefix('/').and_then(|rest| number(rest, false)) {
        return Some((value / divisor, 0.0, rest));
    }
    Some((value, half, rest.strip_prefix('x').unwrap_or(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paper_that_says_it_in_words_has_no_number() {
        let one = |value| Some((Some(value), Some(value)));
        for (says, ends) in [
            (Says::Paper("32"), one(32.0)),
            (Says::Paper("about 38 with delayed writes"), one(38.0)),
            (Says::Fitted("40,548"), one(40_548.0)),
            (Says::Against("0.8"), one(0.8)),
            (Says::Against("26, though its own figures give 24.6"), one(26.0)),
            (Says::Paper("8/9"), one(8.0 / 9.0)),
            (Says::Trace("91.6"), one(91.6)),
            (Says::Paper("about 80 % of all writes"), one(0.8)),
            (Says::Fitted("1.25 to 1.30"), Some((Some(1.25), Some(1.3)))),
            (Says::Paper("10 % to 8x more"), Some((Some(1.1), Some(8.0)))),
            (Says::Paper("above 1: \"significantly better\""), Some((Some(1.0), None))),
            (Says::Paper("at most 1: \"never worse\""), Some((None, Some(1.0)))),
            (Says::Paper("\"up to 8 or 9 seconds\""), None),
            (Says::Paper("more than conventional write-back"), None),
            (Says::Ours, None),
        ] {
            let found = says.numbers().map(|numbers| (numbers.low, numbers.high));
            assert_eq!(found, ends, "{says:?}");
        }
    }

    #[test]
    fn a_number_agrees_within_its_last_digit_or_a_twentieth_and_a_range_as_a_whole() {
        let agree = |text, low, high| {
            Numbers::of(text).is_some_and(|numbers| numbers.agree(Bound::Between(low, high)))
        };
        assert!(agree("0.934", 0.93, 0.94) && !agree("0.934", 0.879, 0.932));
        assert!(agree("30", 30.1, 30.9) && !agree("30", 30.6, 30.9));
        assert!(agree("about 38", 39.0, 40.4) && !agree("about 38", 40.0, 40.4));
        assert!(!agree("above 1", 0.99, 2.0) && !agree("over 85", 81.2, 84.1));
        assert!(agree("above 1", 1.0, 2.0) && agree("below 1", 0.5, 1.0));
        assert!(!agree("50 % to 10x more", 0.987, 2.0) && agree("50 % to 10x more", 1.5, 2.0));
    }
}
