//! Amounts as people read them; for machines there is JSON.

/// `1.5 GiB`, `320 B`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // From 999.95 on, one decimal would show as 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `840 ns`, `1.2 ms`, `3.4 s`, `2m 05s`, `3h 12m`, `5d 04h`.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        s if !s.is_finite() => "none".into(),
        s if s <= 0.0 => "0".into(),
        s if s < 0.999_5e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 0.999_5e-3 => format!("{} us", short(s * 1e6)),
        s if s < 0.999_5 => format!("{} ms", short(s * 1e3)),
        s if s < 59.95 => format!("{} s", short(s)),
        _ if whole < 3_600 => format!("{}m {:02}s", whole / 60, whole % 60),
        _ if whole < 86_400 => format!("{}h {:02}m", whole / 3_600, whole / 60 % 60),
        _ => format!("{}d {:02}h", whole / 86_400, whole / 3_600 % 24),
    }
}

/// `1,234,567`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `99.3 %`.
pub fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

fn short(value: f64) -> String {
    if value < 99.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_keep_their_unit() {
        for (amount, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (3 << 29, "1.5 GiB"),
        ] {
            assert_eq!(bytes(amount), text);
        }
        for (amount, text) in [
            (0.0, "0"),
            (84e-9, "84 ns"),
            (1.25e-6, "1.2 us"),
            (0.000_25, "250 us"),
            (0.001_5, "1.5 ms"),
            (0.999_9, "1.0 s"),
            (30.0, "30.0 s"),
            (59.99, "1m 00s"),
            (125.0, "2m 05s"),
            (11_520.0, "3h 12m"),
            (446_400.0, "5d 04h"),
            (f64::INFINITY, "none"),
        ] {
            assert_eq!(seconds(amount), text);
        }
        for (amount, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(amount), text);
        }
        assert_eq!(percent(0.9934), "99.3 %");
    }
}
