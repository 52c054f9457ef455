//! Dates and times in ISO form, years 1 to 9999; an instant is held in UTC.
//!
//! Everything is computed in microseconds since 2000-01-01, in which PostgreSQL counts and rounds.

use super::{ValueError, refused, trimmed};
use destage_core::Time;

/// `YYYY-MM-DD`.
pub(super) fn date(input: &[u8]) -> Result<String, ValueError> {
    let mut scan = Scanner(trimmed(input));
    match scan.date() {
        Some((days, _)) if scan.0.is_empty() => Ok(format_date(days)),
        _ => Err(refused("dates such as 2026-01-31, years 1 to 9999", input)),
    }
}

/// `HH:MM:SS[.ffffff]`, rounded to the precision.
pub(super) fn time(input: &[u8], precision: u8) -> Result<String, ValueError> {
    let mut scan = Scanner(trimmed(input));
    match scan.time() {
        Some(micros) if scan.0.is_empty() => Ok(format_time(rounded(micros, precision))),
        _ => Err(refused("times such as 13:37:00.25", input)),
    }
}

/// `YYYY-MM-DD HH:MM:SS[.ffffff]`, rounded to the precision; in UTC and followed by `+00` if it has a zone.
pub(super) fn timestamp(input: &[u8], zone: bool, precision: u8) -> Result<String, ValueError> {
    let takes = if zone {
        "instants such as 2026-01-31 13:37:00.25+02 (UTC without a zone), years 1 to 9999"
    } else {
        "timestamps without a zone such as 2026-01-31 13:37:00.25, years 1 to 9999"
    };
    let micros = parse_timestamp(trimmed(input), zone).ok_or_else(|| refused(takes, input))?;
    let micros = rounded(micros, precision);
    let days = micros.div_euclid(DAY);
    if !(FIRST_DAY..=LAST_DAY).contains(&days) {
        return Err(refused(takes, input));
    }
    let mut out = format_date(days);
    out.push(' ');
    out.push_str(&format_time(micros.rem_euclid(DAY)));
    if zone {
        out.push_str("+00");
    }
    Ok(out)
}

/// A time as `YYYY-MM-DD HH:MM:SS[.ffffff]` in UTC, cut off behind so many digits after the second, 0 to 6.
pub(crate) fn instant(time: Time, digits: u8) -> String {
    let micros = (time.0 / 1_000).cast_signed() - UNIX_EPOCH;
    let micros = micros - micros.rem_euclid(10i64.pow(6 - u32::from(digits.min(6))));
    let (date, of_day) = (format_date(micros.div_euclid(DAY)), micros.rem_euclid(DAY));
    format!("{date} {}", format_time(of_day))
}

fn parse_timestamp(text: &[u8], zone: bool) -> Option<i64> {
    let mut scan = Scanner(text);
    let (days, _) = scan.date()?;
    let mut micros = days * DAY;
    if scan.0.is_empty() {
        return Some(micros);
    }
    scan.take(b'T').or_else(|| scan.take(b't')).or_else(|| scan.blanks())?;
    micros += scan.time()?;
    if zone && !scan.0.is_empty() {
        scan.blanks();
        micros -= scan.zone()? * SECOND;
    }
    scan.0.is_empty().then_some(micros)
}

/// Half away from zero, as PostgreSQL rounds its microsecond counts.
fn rounded(micros: i64, precision: u8) -> i64 {
    let unit = 10i64.pow(6 - u32::from(precision.min(6)));
    let amount = (micros.abs() + unit / 2) / unit * unit;
    if micros < 0 { -amount } else { amount }
}

/// Reads from the front of a text.
struct Scanner<'a>(&'a [u8]);

impl Scanner<'_> {
    fn take(&mut self, byte: u8) -> Option<()> {
        let (&first, rest) = self.0.split_first()?;
        (first == byte).then(|| self.0 = rest)
    }

    fn blanks(&mut self) -> Option<()> {
        self.take(b' ')?;
        while self.take(b' ').is_some() {}
        Some(())
    }

    /// A number of that many digits.
    fn number(&mut self, digits_min: usize, digits_max: usize) -> Option<i64> {
        let len = self.0.iter().take(digits_max).take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(len);
        self.0 = rest;
        let value = digits.iter().fold(0, |value, d| value * 10 + i64::from(d - b'0'));
        (len >= digits_min && !rest.first().is_some_and(u8::is_ascii_digit)).then_some(value)
    }

    /// Days since 2000-01-01, and the year.
    fn date(&mut self) -> Option<(i64, i64)> {
        let year = self.number(4, 4)?;
        self.take(b'-')?;
        let month = self.number(1, 2)?;
        self.take(b'-')?;
        let day = self.number(1, 2)?;
        let valid = year >= 1
            && (1..=12).contains(&month)
            && (1..=days_of_month(year, month)).contains(&day);
        valid.then(|| (days(year, month, day), year))
    }

    /// Microseconds since midnight, up to and including the next one.
    fn time(&mut self) -> Option<i64> {
        let hour = self.number(1, 2)?;
        self.take(b':')?;
        let minute = self.number(2, 2)?;
        let mut micros = (hour * 60 + minute) * 60 * SECOND;
        if self.take(b':').is_some() {
            let second = self.number(2, 2)?;
            if second > 59 {
                return None;
            }
            micros += second * SECOND;
            if self.0.first() == Some(&b'.') {
                micros += self.fraction()?;
            }
        }
        (hour <= 24 && minute <= 59 && micros <= DAY).then_some(micros)
    }

    /// A fraction of a second in microseconds, rounded from binary floating point as PostgreSQL does.
    fn fraction(&mut self) -> Option<i64> {
        let digits = self.0[1..].iter().take_while(|b| b.is_ascii_digit()).count();
        let (fraction, rest) = self.0.split_at(digits + 1);
        self.0 = rest;
        if digits == 0 || digits > 30 {
            return None;
        }
        let value: f64 = std::str::from_utf8(fraction).ok()?.parse().ok()?;
        Some((value * 1e6).round_ties_even() as i64)
    }

    /// The zone's distance from UTC in seconds, east positive.
    fn zone(&mut self) -> Option<i64> {
        for name in ["utc", "gmt", "z"] {
            if self.0.eq_ignore_ascii_case(name.as_bytes()) {
                self.0 = &[];
                return Some(0);
            }
        }
        let sign = if self.take(b'-').is_some() { -1 } else { self.take(b'+').map(|()| 1)? };
        let digits = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (hour, minute, second) = if digits == 4 {
            let number = self.number(4, 4)?;
            (number / 100, number % 100, 0)
        } else {
            let hour = self.number(1, 2)?;
            let minute = if self.take(b':').is_some() { self.number(2, 2)? } else { 0 };
            let second = if self.take(b':').is_some() { self.number(2, 2)? } else { 0 };
            (hour, minute, second)
        };
        // PostgreSQL's limit is just under 16 hours.
        (hour <= 15 && minute <= 59 && second <= 59)
            .then(|| sign * ((hour * 60 + minute) * 60 + second))
    }
}

fn days_of_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 2000-01-01 in the proleptic Gregorian calendar. Years begin in March here, so that the leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let before = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    before + (month * 306 + 5) / 10 + day - 1 - MARCH_EPOCH
}

fn format_date(days: i64) -> String {
    let day = days + MARCH_EPOCH;
    let mut year = (10_000 * day + 14_780) / 3_652_425;
    let of_year = |year: i64| {
        day - (365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400))
    };
    let mut rest = of_year(year);
    if rest < 0 {
        year -= 1;
        rest = of_year(year);
    }
    let month = (100 * rest + 52) / 3_060;
    let date = rest - (month * 306 + 5) / 10 + 1;
    let year = year + (month + 2) / 12;
    format!("{year:04}-{:02}-{date:02}", (month + 2) % 12 + 1)
}

fn format_time(micros: i64) -> String {
    let seconds = micros / SECOND;
    let fraction = micros % SECOND;
    let mut out = format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if fraction > 0 {
        let digits = format!("{fraction:06}");
        out.push('.');
        out.push_str(digits.trim_end_matches('0'));
    }
    out
}

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// From 1970-01-01 to 2000-01-01.
const UNIX_EPOCH: i64 = 10_957 * DAY;
/// Days from 0000-03-01 to 2000-01-01.
const MARCH_EPOCH: i64 = 730_425;
/// 0001-01-01 and 9999-12-31.
const FIRST_DAY: i64 = -730_119;
const LAST_DAY: i64 = 2_921_939;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_count_from_the_year_2000_and_back() {
        assert_eq!(days(2000, 1, 1), 0);
        assert_eq!(days(1, 1, 1), FIRST_DAY);
        assert_eq!(days(9999, 12, 31), LAST_DAY);
        let mut expected = (1, 1, 1);
        for day in FIRST_DAY..=LAST_DAY {
            let (year, month, date) = expected;
            assert_eq!(format_date(day), format!("{year:04}-{month:02}-{date:02}"));
            assert_eq!(days(year, month, date), day);
            expected = if date < days_of_month(year, month) {
                (year, month, date + 1)
            } else if month < 12 {
                (year, month + 1, 1)
            } else {
                (year + 1, 1, 1)
            };
        }
    }

    #[test]
    fn timestamps_have_one_spelling() {
        for (input, output) in [
            ("2026-01-31", "2026-01-31 00:00:00+00"),
            ("2026-01-31T13:37Z", "2026-01-31 13:37:00+00"),
            ("2026-01-31 13:37:00.250+02", "2026-01-31 11:37:00.25+00"),
            ("2026-01-01 00:30:00 +0130", "2025-12-31 23:00:00+00"),
            ("2026-01-01 00:30:00-05:30", "2026-01-01 06:00:00+00"),
            ("1999-12-31 23:59:59.9999999", "2000-01-01 00:00:00+00"),
            ("2026-12-31 24:00:00", "2027-01-01 00:00:00+00"),
        ] {
            assert_eq!(timestamp(input.as_bytes(), true, 6).unwrap(), output, "{input}");
            assert_eq!(timestamp(output.as_bytes(), true, 6).unwrap(), output, "{input}");
        }
        for input in [
            "",
            "infinity",
            "0000-01-01",
            "2026-02-29",
            "2026-13-01",
            "10000-01-01",
            "0001-01-01 00:00:00+01",
            "9999-12-31 23:59:59.9999999",
            "2026-01-01 25:00",
            "2026-01-01 10:00:60",
            "2026-01-01 10:00 BC",
            "2026-01-01 10:00 Europe/Berlin",
        ] {
            assert!(timestamp(input.as_bytes(), true, 6).is_err(), "{input}");
        }
    }

    #[test]
    fn a_zone_is_refused_where_it_would_be_ignored() {
        assert!(timestamp(b"2026-01-31 13:37:00+02", false, 6).is_err());
        assert_eq!(timestamp(b"2026-01-31 13:37:00", false, 6).unwrap(), "2026-01-31 13:37:00");
    }

    #[test]
    fn fractions_round_to_the_precision() {
        assert_eq!(time(b"13:37:00.129", 2).unwrap(), "13:37:00.13");
        assert_eq!(time(b"13:37:00.125000", 6).unwrap(), "13:37:00.125");
        assert_eq!(time(b"23:59:59.6", 0).unwrap(), "24:00:00");
        assert!(time(b"24:00:01", 6).is_err());
        // Before 2000 the count is negative: half rounds to the earlier instant.
        assert_eq!(timestamp(b"1999-12-31 23:59:58.5", false, 0).unwrap(), "1999-12-31 23:59:58");
        assert_eq!(timestamp(b"2000-01-01 00:00:00.5", false, 0).unwrap(), "2000-01-01 00:00:01");
        assert_eq!(date(b" 2026-1-5 ").unwrap(), "2026-01-05");
    }
}
