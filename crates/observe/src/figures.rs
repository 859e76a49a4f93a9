//! Numbers as a reader wants them: short, with units.
//!
//! Upstream:   the findings and the advice of the live page; `kachel top`.
//! Downstream: nothing; these are texts.

/// A number without its part below one, in groups of three digits.
pub fn shown_count(number: f64) -> String {
    // Longer ones are no counts of a server.
    if number >= 1e15 {
        return format!("{number:.1e}");
    }
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number a second.
pub fn shown_rate(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { shown_count(rate) }
}

/// A part of one. It never looks like all or nothing unless it is.
pub fn shown_percent(part: f64) -> String {
    let percent = part * 100.0;
    let percent = match part {
        part if part > 0.0 && part < 0.001 => percent.max(0.1),
        part if part < 1.0 && part > 0.999 => percent.min(99.9),
        _ => percent,
    };
    format!("{percent:.1} %")
}

/// A time in its two greatest units.
pub fn shown_time(seconds: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")];
    let whole_seconds = seconds.floor();
    let place = UNITS.iter().position(|(unit, _)| whole_seconds >= *unit).unwrap_or(3);
    let (unit, name) = UNITS[place];
    let count = (whole_seconds / unit).floor();
    let first = format!("{} {name}", shown_count(count));
    match UNITS.get(place + 1) {
        Some((unit_below, name)) if count < 100.0 => {
            let below = ((whole_seconds - count * unit) / unit_below).floor();
            if below > 0.0 { format!("{first} {below:.0} {name}") } else { first }
        }
        _ => first,
    }
}

/// Bytes in the unit that suits.
pub fn shown_bytes(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut number, mut unit) = (bytes, 0);
    while number >= 1023.95 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{} B", shown_count(number))
    } else {
        format!("{number:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_units() {
        let whole_ones = [0.0, 999.0, 1000.0, 1_234_567.4, 1e16].map(shown_count);
        assert_eq!(whole_ones, ["0", "999", "1,000", "1,234,567", "1.0e16"]);
        assert_eq!(
            [0.0, 0.04, 1.25, 9.96, 1e4].map(shown_rate),
            ["0", "0.0", "1.2", "10", "10,000"]
        );
        let times = [0.4, 59.9, 60.0, 3725.0, 90_000.0, 1e9].map(shown_time);
        assert_eq!(times, ["0 s", "59 s", "1 min", "1 h 2 min", "1 d 1 h", "11,574 d"]);
        let bytes = [0.0, 1023.0, 1024.0, 1_048_575.0, 67_108_864.0].map(shown_bytes);
        assert_eq!(bytes, ["0 B", "1,023 B", "1.0 KiB", "1.0 MiB", "64.0 MiB"]);
        assert_eq!(
            [0.0, 1e-6, 0.004, 0.9821, 0.9996, 1.0, 1.5].map(shown_percent),
            ["0.0 %", "0.1 %", "0.4 %", "98.2 %", "99.9 %", "100.0 %", "150.0 %"]
        );
    }
}
