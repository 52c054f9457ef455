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
    /// How far off a number is still the paper's: half of its last digit, or a twentieth where it says about or has it in words.
    /// None where it says above or below.
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
        Self::first(text).map(|(numbers, _)| numbers)
    }

    /// The numbers at the beginning, and what follows them.
    fn first(text: &str) -> Option<(Self, &str)> {
        let about = ["about ", "around "].into_iter().find_map(|word| text.strip_prefix(word));
        let rest = about.unwrap_or(text);
        let after = |words: &[&str]| words.iter().find_map(|word| rest.strip_prefix(word));
        let from = after(&["above ", "at least ", "over "]);
        let up_to = after(&["below ", "at most "]);
        let is_gain = text.ends_with(" more");
        let (first, slack, rest) = number(from.or(up_to).unwrap_or(rest), is_gain)?;
        let second = rest.strip_prefix(" to ").and_then(|rest| number(rest, is_gain));
        let (last, _, rest) = second.unwrap_or((first, slack, rest));
        let is_limit = from.or(up_to).is_some();
        let is_vague = about.is_some() || rest.starts_with(": ");
        let numbers = Self {
            low: up_to.is_none().then_some(first),
            high: from.is_none().then_some(last),
            slack: match (is_limit, is_vague) {
                (true, _) => 0.0,
                // Of a gain it is the gain that is about so much.
                (false, true) if is_gain => slack.max((last - 1.0) * ABOUT),
                (false, true) => last * ABOUT,
                (false, false) => slack,
            },
        };
        Some((numbers, rest))
    }

    /// Whether runs that keep a bound come to what the paper says: all of them where it is a range, those in the middle where it is
    /// one number.
    #[cfg(test)]
    pub(super) fn agree(self, bound: Bound) -> bool {
        let (least, most) = match bound.ends() {
            (least, most) if self.low == self.high => {
                let middle = f64::midpoint(least, most);
                (middle, middle)
            }
            ends => ends,
        };
        self.low.is_none_or(|low| least >= low - self.slack)
            && self.high.is_none_or(|high| most <= high + self.slack)
    }

    /// Whether runs that keep a bound may come to what was measured or fitted: all of them where it is a range, some of them
    /// where it is one number.
    #[cfg(test)]
    pub(super) fn is_met(self, bound: Bound) -> bool {
        let (least, most) = bound.ends();
        let number = self.low.filter(|_| self.low == self.high);
        number.map_or_else(|| self.agree(bound), |number| (least..=most).contains(&number))
    }
}

/// Whether a text has a number that is not seen, since it does not stand at the beginning. Behind one that does, the paper's own
/// words may repeat it.
#[cfg(test)]
pub(super) fn hides_a_number(text: &str) -> bool {
    let has_digits = |text: &str| text.contains(|c: char| c.is_ascii_digit());
    Numbers::first(text)
        .map_or_else(|| has_digits(text), |(_, rest)| rest.split('"').step_by(2).any(has_digits))
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
    fn a_number_in_brackets_or_between_words_is_refused() {
        assert!(hides_a_number("\"roughly the same\" (1.26)") && hides_a_number("\"up to 8\""));
        assert!(hides_a_number("26, though 24.6") && hides_a_number("1: \"all\", or 2"));
        assert!(!hides_a_number("8 to 9: \"up to 8 or 9\"") && !hides_a_number("\"most\""));
    }

    #[test]
    fn the_middle_of_a_bound_agrees_within_the_last_digit_or_a_twentieth_and_with_a_range_all_of_it()
     {
        let agree = |text, low, high| {
            Numbers::of(text).is_some_and(|numbers| numbers.agree(Bound::Between(low, high)))
        };
        assert!(agree("0.93", 0.92, 0.943) && !agree("0.93", 0.92, 0.96));
        assert!(agree("30", 29.0, 30.9) && !agree("30", 30.1, 30.95) && !agree("30", 0.0, 99.0));
        assert!(agree("about 38", 36.2, 41.0) && !agree("about 38", 39.6, 40.4));
        assert!(agree("1: \"the same\"", 0.9, 1.1) && !agree("1: \"the same\"", 0.88, 1.0));
        assert!(agree("0: \"the same\"", 0.0, 0.0) && !agree("0: \"the same\"", 0.0, 0.01));
        assert!(agree("around 2 % more", 1.016, 1.024) && !agree("around 2 % more", 1.02, 1.04));
        assert!(!agree("above 1", 0.99, 2.0) && !agree("over 85", 81.2, 84.1));
        assert!(agree("above 1", 1.0, 2.0) && agree("below 1", 0.5, 1.0));
        assert!(!agree("50 % to 10x more", 0.987, 2.0) && agree("50 % to 10x more", 1.5, 2.0));
    }

    #[test]
    fn what_is_fitted_is_met_by_some_run_and_a_range_by_all() {
        let is_met = |text, low, high| {
            Numbers::of(text).is_some_and(|numbers| numbers.is_met(Bound::Between(low, high)))
        };
        assert!(is_met("344", 182.0, 466.0) && !is_met("344", 344.1, 466.0));
        assert!(is_met("8 to 9", 8.1, 8.9) && !is_met("8 to 9", 8.1, 12.0));
    }
}
