//! The arithmetic of cost: how many nodes a service needs, their power, and what they cost.
//!
//! Upstream:   `system`, and the service that the command line describes.
//! Downstream: `print` shows the bills.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The nodes of a bill hold the memory and serve the rate of the service.
//! - I2  A figure whose inputs are unknown is `None`.
//!
//! Source of nodes, power and requests a joule: Berezecki, Frachtenberg, Paleczny, Steele,
//! "Many-Core Key-Value Store", IGCC 2011, table II, which scales measured nodes to 256 GB.

use super::system::System;

/// Hours of a year of 365 days.
const HOURS_PER_YEAR: f64 = 24.0 * 365.0;
/// Two decimal numbers and their quotient are rounded by less than this share.
const ROUNDED: f64 = 1e-12;

/// The service that is needed, its time, and the price of energy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    /// Memory for items, in GB.
    pub(super) memory_gb: f64,
    /// Requests a second. 0: any rate.
    pub(super) tps: f64,
    pub(super) years: f64,
    /// Power of the whole building to the power of the servers (power usage effectiveness).
    pub(super) pue: f64,
    /// The price of a kilowatt-hour.
    pub(super) kwh_price: Option<f64>,
}

/// The cost of a service with nodes of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bill {
    pub(super) system: String,
    /// Memory for items of a node, in GB.
    pub(super) ram_gb: f64,
    pub(super) nodes: f64,
    /// Requests a second of all nodes.
    pub(super) capacity_tps: f64,
    /// Watts of all nodes, without the building.
    pub(super) power_w: f64,
    pub(super) tps_per_w: f64,
    /// Energy over the years, with the building, in kWh.
    pub(super) energy_kwh: f64,
    pub(super) energy_cost: Option<f64>,
    pub(super) purchase: Option<f64>,
    /// Purchase and energy.
    pub(super) ownership: Option<f64>,
}

impl Service {
    /// The bill of this service with nodes like `system`, each at its full power.
    pub(super) fn bill(&self, system: &System) -> Bill {
        let for_memory = nodes(self.memory_gb, system.ram_gb);
        let for_rate = nodes(self.tps, system.capacity_tps);
        let nodes = for_memory.max(for_rate).max(1.0);
        assert!(nodes * system.ram_gb >= self.memory_gb * (1.0 - 2.0 * ROUNDED), "I1");
        assert!(nodes * system.capacity_tps >= self.tps * (1.0 - 2.0 * ROUNDED), "I1");
        let power_w = nodes * system.power_w;
        let energy_kwh = power_w / 1000.0 * HOURS_PER_YEAR * self.years * self.pue;
        let energy_cost = self.kwh_price.map(|price| price * energy_kwh);
        let purchase = system.price.map(|price| price * nodes);
        Bill {
            system: system.system.clone(),
            ram_gb: system.ram_gb,
            nodes,
            capacity_tps: nodes * system.capacity_tps,
            power_w,
            tps_per_w: system.capacity_tps / system.power_w,
            energy_kwh,
            energy_cost,
            purchase,
            ownership: purchase.zip(energy_cost).map(|(purchase, energy)| purchase + energy),
        }
    }
}

/// How many nodes with `each` have `needed`: 6 of 0.6 GB for 3.6 GB, whatever is rounded.
fn nodes(needed: f64, each: f64) -> f64 {
    (needed / each * (1.0 - ROUNDED)).ceil()
}

impl Bill {
    /// How many times cheaper than a node of `base` a node of this kind must be for both services
    /// to cost the same in the end. Below 1, it may be dearer. Infinite if its energy alone costs
    /// more than the whole other service.
    ///
    /// `None` if the price of `base` or of energy is unknown (I2).
    pub(super) fn break_even(&self, base: &Self) -> Option<f64> {
        let (purchase, total) = (base.purchase?, base.ownership?);
        let most = (total - self.energy_cost?) / self.nodes;
        assert!(self.nodes >= 1.0 && base.nodes >= 1.0, "I1");
        Some(if most > 0.0 { purchase / base.nodes / most } else { f64::INFINITY })
    }
}

#[cfg(test)]
mod tests {
    use super::super::published::Published;
    use super::*;

    fn service(memory_gb: f64) -> Service {
        Service { memory_gb, tps: 0.0, years: 3.0, pue: 1.0, kwh_price: None }
    }

    fn system(name: &str, ram_gb: f64, capacity_tps: f64, power_w: f64, price: f64) -> System {
        let (system, price) = (name.to_owned(), Some(price));
        System { system, ram_gb, capacity_tps, power_w, price, source: None }
    }

    /// Table II of the TILEPro64 paper, from the rows of its table I that it names.
    #[test]
    fn the_table_of_256_gb_follows_from_the_measured_nodes() {
        let published = Published::read();
        let file: serde_json::Value = serde_json::from_str(include_str!("published.json")).unwrap();
        let table = file["capacity_power_at_256gb"].as_array().unwrap();
        for (measured, ram_gb, printed) in [
            ("4x TILEPro64", 128.0, "TILEPro64"),
            ("Single Opteron", 64.0, "Opteron"),
            ("Single Xeon", 64.0, "Xeon"),
        ] {
            let is_measured = |row: &&System| row.system == measured && row.ram_gb == ram_gb;
            let bill = service(256.0).bill(published.systems.iter().find(is_measured).unwrap());
            let row = table.iter().find(|row| row["system"] == printed).unwrap();
            let printed = |name: &str| row[name].as_f64().unwrap();
            assert_eq!(bill.capacity_tps, printed("capacity_tps"));
            assert_eq!(bill.power_w, printed("power_w"));
            assert!((bill.tps_per_w - printed("tps_per_w")).abs() < 1.0, "{bill:?}");
        }
    }

    #[test]
    fn the_scarcer_of_memory_and_rate_decides_the_nodes() {
        let node = system("a", 64.0, 100_000.0, 200.0, 1.0);
        for (memory_gb, tps, nodes) in
            [(1.0, 0.0, 1.0), (64.0, 1.0, 1.0), (65.0, 0.0, 2.0), (64.0, 250_000.0, 3.0)]
        {
            let bill = Service { tps, ..service(memory_gb) }.bill(&node);
            assert_eq!(bill.nodes, nodes, "{memory_gb} GB, {tps}/s");
        }
    }

    /// A quotient of numbers that are rounded is itself rounded.
    #[test]
    fn the_nodes_of_a_bill_hold_the_memory_whatever_is_rounded() {
        let all = [(3.6, 0.6, 6.0), (5.95, 1.19, 5.0), (3.7, 0.6, 7.0), (2.1, 0.7, 3.0)];
        for (memory_gb, ram_gb, nodes) in all {
            let bill = service(memory_gb).bill(&system("a", ram_gb, 1.0, 1.0, 1.0));
            assert_eq!(bill.nodes, nodes, "{memory_gb} in {ram_gb}");
        }
        service(1e300).bill(&system("a", 1e-300, 1.0, 1.0, 1.0));
    }

    /// 1 kW for a year of 8,760 hours, half as much again for the building.
    #[test]
    fn energy_costs_power_times_hours_times_building_times_price() {
        let one_year = Service { years: 1.0, pue: 1.5, kwh_price: Some(0.1), ..service(10.0) };
        let bill = one_year.bill(&system("a", 1.0, 1.0, 100.0, 50.0));
        assert_eq!((bill.nodes, bill.power_w, bill.energy_kwh), (10.0, 1000.0, 13_140.0));
        assert!((bill.energy_cost.unwrap() - 1314.0).abs() < 1e-9);
        assert!((bill.ownership.unwrap() - 1814.0).abs() < 1e-9);
        let unpriced = Service { kwh_price: None, ..one_year };
        let bill = unpriced.bill(&system("a", 1.0, 1.0, 100.0, 50.0));
        assert_eq!((bill.energy_cost, bill.ownership, bill.purchase), (None, None, Some(500.0)));
    }

    /// Three small nodes do the work of a large one. Without energy they may cost a third each.
    #[test]
    fn at_the_break_even_price_both_services_cost_the_same() {
        let energy = |kwh_price| Service { tps: 300.0, kwh_price: Some(kwh_price), ..service(1.0) };
        let large = system("large", 1.0, 300.0, 400.0, 9000.0);
        let small = system("small", 1.0, 100.0, 20.0, 0.0);
        let free = energy(0.0);
        assert_eq!(free.bill(&small).break_even(&free.bill(&large)), Some(3.0));
        for kwh_price in [0.05, 0.3, 2.0] {
            let service = energy(kwh_price);
            let base = service.bill(&large);
            let ratio = service.bill(&small).break_even(&base).unwrap();
            let priced = System { price: Some(9000.0 / ratio), ..small.clone() };
            let difference = service.bill(&priced).ownership.unwrap() - base.ownership.unwrap();
            assert!(difference.abs() < 1e-6, "{difference} at {kwh_price}");
            assert!(ratio < 3.0, "it saves energy");
        }
        let hot = system("hot", 1.0, 100.0, 4000.0, 0.0);
        let dear = energy(10.0);
        assert_eq!(dear.bill(&hot).break_even(&dear.bill(&large)), Some(f64::INFINITY));
        assert_eq!(service(1.0).bill(&small).break_even(&service(1.0).bill(&large)), None);
    }
}
