//! A server with its measured or published memory, capacity and power.
//!
//! Upstream:   the files on the command line, and `published`.
//! Downstream: `service` computes how many of them a service needs, and at what cost.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Memory, capacity and power are finite and greater than 0; a price is finite and not
//!   negative.

use std::path::Path;

use serde::Deserialize;

/// One server: a node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct System {
    /// Its name.
    pub(super) system: String,
    /// Memory for items, in GB.
    pub(super) ram_gb: f64,
    /// The highest rate at which it keeps its promise, in requests a second.
    pub(super) capacity_tps: f64,
    /// Power at that rate, at the wall, in watts.
    pub(super) power_w: f64,
    /// Its price, in any currency.
    pub(super) price: Option<f64>,
    /// Where the figures come from.
    pub(super) source: Option<String>,
}

impl System {
    /// Reads the systems in a file: a list in JSON.
    ///
    /// Errors: the file cannot be read, is no such list, or breaks I1.
    pub(super) fn read(path: &Path) -> Result<Vec<Self>, String> {
        let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
        let systems: Vec<Self> = serde_json::from_str(&text).map_err(|error| named(&error))?;
        for system in &systems {
            system.check().map_err(|error| named(&error))?;
        }
        Ok(systems)
    }

    /// Errors: a number breaks I1.
    fn check(&self) -> Result<(), String> {
        let name = &self.system;
        let parts = [
            ("ram_gb", self.ram_gb),
            ("capacity_tps", self.capacity_tps),
            ("power_w", self.power_w),
        ];
        for (part, value) in parts {
            if !value.is_finite() || value <= 0.0 {
                return Err(format!("{name}: {part} must be greater than 0, not {value}"));
            }
        }
        match self.price {
            Some(price) if !price.is_finite() || price < 0.0 => {
                Err(format!("{name}: price must not be negative: {price}"))
            }
            _ => Ok(()),
        }
    }
}
