//! The axis of a chart: its ends, its marks, and the place of a value on it.
//!
//! Upstream:   `mod` and `bars`, with the values that the axis must show.
//! Downstream: none.

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From 0 to a round number.
    FromZero,
    /// Logarithmic, in whole decades.
    Log,
    /// Logarithmic from the least value to the greatest one, with a mark at each.
    LogAtPoints,
}

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    is_log: bool,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) marks: Vec<f64>,
}

impl Axis {
    /// An axis that shows these values.
    ///
    /// Panics: there is none, or one that the scale cannot show.
    pub(crate) fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let (Some(least), Some(most)) = (values.first().copied(), values.last().copied()) else {
            panic!("a chart has points");
        };
        assert!(least >= 0.0 && most.is_finite(), "values of a chart are finite, and at least 0");
        assert!(least > 0.0 || scale == Scale::FromZero, "a logarithmic axis shows no 0");
        match scale {
            Scale::FromZero => {
                let high = round_up(most.max(f64::MIN_POSITIVE));
                let marks = (0..=5).map(|fifth| high * f64::from(fifth) / 5.0).collect();
                Self { is_log: false, low: 0.0, high, marks }
            }
            Scale::Log => {
                // A power of ten ends its decade, also if it is rounded.
                let first = (least.log10() + 1e-9).floor() as i32;
                let last = ((most.log10() - 1e-9).ceil() as i32).max(first + 1);
                let marks = (first..=last).map(|power| 10f64.powi(power)).collect();
                Self { is_log: true, low: 10f64.powi(first), high: 10f64.powi(last), marks }
            }
            Scale::LogAtPoints => Self { is_log: true, low: least, high: most, marks: values },
        }
    }

    /// The place of a value: 0 at the lower end, 1 at the upper one.
    pub(crate) fn share(&self, value: f64) -> f64 {
        match self.is_log {
            true => {
                let span = (self.high / self.low).ln().max(f64::MIN_POSITIVE);
                (value / self.low).ln() / span
            }
            false => value / self.high,
        }
    }
}

/// The next of 1, 2, 2.5, 3, 4, 5, 6, 8 and 10 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= value).unwrap_or(10.0 * power)
}

/// A number with at most four digits after the point, and commas between thousands.
pub(crate) fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, rest) = text.split_once('.').map_or((text, None), |(a, b)| (a, Some(b)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.map_or(grouped.clone(), |rest| format!("{grouped}.{rest}"))
}

/// A number in few characters: three significant digits, with `k` for thousand from ten thousand on
/// and `M` for a million.
pub(crate) fn compact(value: f64) -> String {
    let three = |value: f64| {
        let unit = 10f64.powf(value.abs().max(1e-9).log10().floor() - 2.0);
        short((value / unit).round() * unit)
    };
    match value.abs() {
        size if size >= 999_500.0 => three(value / 1e6) + "M",
        size if size >= 9_999.5 => three(value / 1e3) + "k",
        size if size >= 100.0 => short(value.round()),
        _ => three(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number() {
        for (value, end) in [(0.31, 0.4), (0.5, 0.5), (0.21, 0.25), (7.0, 8.0), (1.0, 1.0)] {
            assert!((round_up(value) - end).abs() < 1e-12, "{value}: {}", round_up(value));
        }
    }

    #[test]
    fn a_logarithmic_axis_has_whole_decades() {
        let axis = Axis::of(Scale::Log, [1_000.0, 20.0].into_iter());
        assert_eq!((axis.low, axis.high, axis.marks.len()), (10.0, 1_000.0, 3));
        assert!((axis.share(100.0) - 0.5).abs() < 1e-12);
        assert_eq!(Axis::of(Scale::Log, [5.0].into_iter()).high, 10.0);
        assert_eq!(Axis::of(Scale::Log, [10.0].into_iter()).high, 100.0);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.1, 12.5, 1_000.0, 1_234_567.0].map(short);
        assert_eq!(shown, ["0", "0.1", "12.5", "1,000", "1,234,567"]);
        let shown = [0.0, 0.1234, 9.996, 93.0, 9_999.0, 123_456.0, 999_600.0, 1.5e6, 2e7];
        let expected = ["0", "0.123", "10", "93", "9,999", "123k", "1M", "1.5M", "20M"];
        assert_eq!(shown.map(compact), expected);
    }
}
