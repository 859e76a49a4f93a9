//! Capacity: the highest offered rate at which a server keeps a promise.
//!
//! Upstream:   the rows of one server in one round.
//! Downstream: `verdict` and `report`; `plan` ends a sweep beyond the capacity.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::row::Row;

/// An upper limit of the mean or of a percentile of the response times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Promise(pub(crate) kachel_load::Promise);

impl<'de> Deserialize<'de> for Promise {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let promise: kachel_load::Promise = text.parse().map_err(serde::de::Error::custom)?;
        match promise.statistic {
            kachel_load::Statistic::Percentile(percent)
                if !kachel_load::PERCENTILES.contains(&percent) =>
            {
                let all = kachel_load::PERCENTILES.map(|percent| percent.to_string()).join(", ");
                let error = format!("'{text}': the percentiles of the raw data are {all}");
                Err(serde::de::Error::custom(error))
            }
            _ => Ok(Self(promise)),
        }
    }
}

impl Serialize for Promise {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// The capacity of a server, as far as its steps show it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Capacity {
    /// The highest rate that kept the promise, in requests a second.
    Rate(f64),
    /// The highest rate of the sweep kept it.
    AtLeast(f64),
    /// The lowest rate of the sweep broke it.
    Below(f64),
}

impl Capacity {
    /// The capacity that these rows show. Each has a rate; they are in the order of the rates.
    /// `None`: no step says anything, because the generator was the limit.
    pub(crate) fn of(rows: &[&Row], promise: Promise) -> Option<Self> {
        assert!(rows.is_sorted_by_key(|row| row.rate_per_s), "a sweep goes up");
        let kept = |row: &&&Row| promise.judge(row) == Some(true);
        let broken = rows.iter().any(|row| promise.judge(row) == Some(false));
        match rows.iter().rfind(kept).and_then(|row| row.rate_per_s) {
            Some(rate) => {
                let is_limit = rows
                    .iter()
                    .any(|row| row.rate_per_s > Some(rate) && promise.judge(row) == Some(false));
                Some(if is_limit { Self::Rate(rate) } else { Self::AtLeast(rate) })
            }
            None if broken => Some(Self::Below(rows.first()?.rate_per_s?)),
            None => None,
        }
    }

    /// The rate, with the sign of a bound.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Rate(rate) => format!("{rate:.0}"),
            Self::AtLeast(rate) => format!(">= {rate:.0}"),
            Self::Below(rate) => format!("< {rate:.0}"),
        }
    }

    /// The rate as a number; 0 if it is below all rates.
    pub(crate) fn rate(self) -> f64 {
        match self {
            Self::Rate(rate) | Self::AtLeast(rate) => rate,
            Self::Below(_) => 0.0,
        }
    }
}

impl Promise {
    /// The promise as papers write it.
    pub(crate) fn text(self) -> String {
        let limit_ms = self.0.limit_us / 1e3;
        match self.0.statistic {
            kachel_load::Statistic::Mean => format!("mean < {limit_ms} ms"),
            kachel_load::Statistic::Percentile(percent) => format!("p{percent} < {limit_ms} ms"),
        }
    }

    /// Whether the step kept the promise. `None`: it broke it, but perhaps by the generator.
    pub(crate) fn judge(self, row: &Row) -> Option<bool> {
        let value_us = match self.0.statistic {
            kachel_load::Statistic::Mean => Some(row.mean_us),
            kachel_load::Statistic::Percentile(percent) => {
                let found = row.percentiles_us.iter().find(|(known, _)| *known == percent);
                found.map(|(_, value_us)| *value_us)
            }
        };
        match value_us.is_some_and(|value_us| value_us < self.0.limit_us) && row.errors == 0 {
            true => Some(true),
            false if !row.warnings.is_empty() => None,
            false => Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    fn promise(text: &str) -> Promise {
        Promise(text.parse().expect("a promise"))
    }

    fn capacity(means_us: &[f64], promise: Promise) -> Option<Capacity> {
        let rows: Vec<Row> = (0..means_us.len())
            .map(|step| row(1, "a", step, (step + 1) as f64 * 100.0, means_us[step]))
            .collect();
        Capacity::of(&rows.iter().collect::<Vec<_>>(), promise)
    }

    #[test]
    fn capacity_is_the_highest_rate_that_keeps_the_promise() {
        let mean = promise("mean:1ms");
        assert_eq!(capacity(&[10.0, 900.0, 1_000.0], mean), Some(Capacity::Rate(200.0)));
        // A pause of the machine at a low rate does not hide the rates above.
        assert_eq!(capacity(&[2_000.0, 20.0, 3_000.0], mean), Some(Capacity::Rate(200.0)));
        assert_eq!(capacity(&[10.0, 20.0], mean), Some(Capacity::AtLeast(200.0)));
        assert_eq!(capacity(&[1_000.0, 2_000.0], mean), Some(Capacity::Below(100.0)));
        assert_eq!(capacity(&[], mean), None);
        // In these rows the 95th percentile is twice the mean.
        assert_eq!(
            capacity(&[10.0, 499.0, 501.0], promise("p95:1ms")),
            Some(Capacity::Rate(200.0))
        );
    }

    #[test]
    fn errors_break_a_promise_and_a_late_generator_says_nothing() {
        let mut row = row(1, "a", 0, 100.0, 10.0);
        row.errors = 1;
        assert_eq!(promise("mean:1ms").judge(&row), Some(false));
        row.warnings.push("the generator may be the limit".to_owned());
        assert_eq!(promise("mean:1ms").judge(&row), None);
        assert_eq!(Capacity::of(&[&row], promise("mean:1ms")), None);
        row.errors = 0;
        assert_eq!(promise("mean:1ms").judge(&row), Some(true), "late, and kept all the same");
    }
}
