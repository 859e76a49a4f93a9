//! Figures that papers have published.
//!
//! Upstream:   `published.json`: facts, each with its source.
//! Downstream: `service` computes with the systems; `print` shows the others as quoted.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::system::System;

/// The published figures.
#[derive(Debug, Deserialize)]
pub(super) struct Published {
    /// The papers, by the short names that the rows use.
    pub(super) sources: BTreeMap<String, String>,
    /// Systems of which memory, capacity and power were published.
    #[serde(rename = "capacity_power")]
    pub(super) systems: Vec<System>,
    /// Systems of which only a rate, or requests a joule, was published.
    #[serde(rename = "performance_per_watt")]
    pub(super) quoted: Vec<Quoted>,
}

/// A system as its paper quotes it.
#[derive(Debug, Deserialize)]
pub(super) struct Quoted {
    pub(super) system: String,
    /// Thousand requests a second.
    krps: Option<f64>,
    /// Million requests a second.
    mrps: Option<f64>,
    pub(super) power_w: Option<f64>,
    /// Thousand requests a second and watt, as printed.
    krps_per_w: Option<f64>,
    pub(super) source: String,
}

/// Thousand requests a second and watt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PerWatt {
    /// From the published rate and power.
    Computed(f64),
    /// As printed: an input is not published.
    Quoted(f64),
    /// Not published.
    Unknown,
}

impl Published {
    /// Reads the figures, which are part of this program.
    pub(super) fn read() -> Self {
        serde_json::from_str(include_str!("published.json")).expect("the tests read it")
    }
}

impl Quoted {
    /// Thousand requests a second.
    pub(super) fn krps(&self) -> Option<f64> {
        self.krps.or(self.mrps.map(|mrps| mrps * 1000.0))
    }

    pub(super) fn per_watt(&self) -> PerWatt {
        match (self.krps(), self.power_w, self.krps_per_w) {
            (Some(krps), Some(power_w), _) => PerWatt::Computed(krps / power_w),
            (.., Some(printed)) => PerWatt::Quoted(printed),
            _ => PerWatt::Unknown,
        }
    }
}

/// Requests a joule of a published system.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PerJoule {
    pub(crate) system: String,
    pub(crate) per_joule: f64,
    /// From the published rate and power; or else as printed.
    pub(crate) is_computed: bool,
    /// The paper.
    pub(crate) source: String,
}

/// All published systems whose requests a joule are known.
pub(crate) fn per_joule() -> Vec<PerJoule> {
    let published = Published::read();
    let title = |source: &str| published.sources.get(source).cloned().unwrap_or_default();
    let of_system = |row: &System| PerJoule {
        system: format!("{}, {} GB", row.system, row.ram_gb),
        per_joule: row.capacity_tps / row.power_w,
        is_computed: true,
        source: title(row.source.as_deref().unwrap_or_default()),
    };
    let of_quoted = |row: &Quoted| {
        let (thousand, is_computed) = match row.per_watt() {
            PerWatt::Computed(thousand) => (thousand, true),
            PerWatt::Quoted(thousand) => (thousand, false),
            PerWatt::Unknown => return None,
        };
        let (system, source) = (row.system.clone(), title(&row.source));
        Some(PerJoule { system, per_joule: thousand * 1e3, is_computed, source })
    };
    let systems = published.systems.iter().map(of_system);
    systems.chain(published.quoted.iter().filter_map(of_quoted)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_source_and_computed_figures_agree_with_the_printed_ones() {
        let published = Published::read();
        let is_known = |source: &str| published.sources.contains_key(source);
        let sources = published.systems.iter().map(|row| row.source.as_deref());
        assert!(sources.flatten().filter(|source| is_known(source)).count() == 11);
        let (mut computed, mut quoted) = (0, 0);
        for row in &published.quoted {
            assert!(is_known(&row.source), "{row:?}");
            match (row.per_watt(), row.krps_per_w) {
                (PerWatt::Computed(ours), Some(printed)) => {
                    computed += 1;
                    assert!((ours / printed - 1.0).abs() < 0.01, "{row:?}: {ours}");
                }
                (PerWatt::Quoted(_), Some(_)) => quoted += 1,
                (per_watt, printed) => assert!(printed.is_none(), "{row:?}: {per_watt:?}"),
            }
        }
        assert_eq!((computed, quoted), (6, 11));
    }

    /// 335,000 requests a second by 90 W, and 17.62 thousand a second and watt.
    #[test]
    fn requests_a_joule_are_those_of_the_papers() {
        let all = per_joule();
        let of = |name: &str| all.iter().find(|row| row.system == name).expect("published");
        let tile = of("1x TILEPro64, 32 GB");
        assert!((tile.per_joule - 3722.2).abs() < 0.1 && tile.is_computed, "{tile:?}");
        let quoted = of("Memcached, Xeon (ISCA '13)");
        assert!((quoted.per_joule - 1e3).abs() < 1.0 && !quoted.is_computed, "{quoted:?}");
        assert!(all.iter().all(|row| !row.source.is_empty()));
    }
}
