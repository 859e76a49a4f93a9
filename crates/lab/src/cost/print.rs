//! Bills and quoted figures as text.
//!
//! Upstream:   `service` and `published`.
//! Downstream: standard output.

use std::fmt::Write as _;

use super::published::{PerWatt, Published};
use super::service::{Bill, Service};

/// Shown instead of a figure whose inputs are unknown.
const UNKNOWN: &str = "-";

/// The bills as a table, the best in requests a joule first. With `base`, the number of a bill, the
/// table has the break-even price ratio to it.
pub(super) fn bills(service: &Service, bills: &[Bill], base: Option<usize>) -> String {
    let Service { memory_gb, tps, years, pue, .. } = service;
    let mut text = format!("{memory_gb} GB");
    if *tps > 0.0 {
        let _ = write!(text, " at {tps} requests/s");
    }
    let _ = writeln!(text, ", {years} years, PUE {pue}");
    let mut rows = vec![
        [
            "system",
            "GB",
            "nodes",
            "requests/s",
            "W",
            "requests/J",
            "kWh",
            "energy",
            "purchase",
            "total",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    if let Some(base) = base {
        rows[0].push(format!("break-even to {}", bills[base].system));
    }
    let mut order: Vec<&Bill> = bills.iter().collect();
    order.sort_by(|a, b| b.tps_per_w.total_cmp(&a.tps_per_w));
    for bill in order {
        let mut row = vec![
            bill.system.clone(),
            bill.ram_gb.to_string(),
            bill.nodes.to_string(),
            bill.capacity_tps.to_string(),
            rounded(bill.power_w),
            rounded(bill.tps_per_w),
            rounded(bill.energy_kwh),
        ];
        row.extend([bill.energy_cost, bill.purchase, bill.ownership].map(or_unknown));
        if let Some(base) = base {
            row.push(bill.break_even(&bills[base]).map_or(UNKNOWN.to_owned(), break_even));
        }
        rows.push(row);
    }
    text + &table(&rows)
}

/// The systems of which memory or power was not published.
pub(super) fn quoted(published: &Published) -> String {
    let mut rows =
        vec![["system", "krequests/s", "W", "krequests/J", "", "source"].map(str::to_owned)];
    for row in &published.quoted {
        let (per_watt, how) = match row.per_watt() {
            PerWatt::Computed(value) => (format!("{value:.2}"), "computed"),
            PerWatt::Quoted(value) => (value.to_string(), "quoted"),
            PerWatt::Unknown => (UNKNOWN.to_owned(), ""),
        };
        rows.push([
            row.system.clone(),
            row.krps().map_or(UNKNOWN.to_owned(), |krps| krps.to_string()),
            row.power_w.map_or(UNKNOWN.to_owned(), |power_w| power_w.to_string()),
            per_watt,
            how.to_owned(),
            row.source.clone(),
        ]);
    }
    let mut text = "Published without memory, or without power:\n".to_owned() + &table(&rows);
    text.push_str("\nSources\n");
    for (name, paper) in &published.sources {
        let _ = writeln!(text, "  {name}  {paper}");
    }
    text
}

fn rounded(value: f64) -> String {
    format!("{value:.0}")
}

fn or_unknown(value: Option<f64>) -> String {
    value.map_or(UNKNOWN.to_owned(), rounded)
}

fn break_even(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2}") } else { "at no price".to_owned() }
}

/// Rows of cells in columns: the first to the left, the others to the right.
fn table(rows: &[impl AsRef<[String]>]) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let widest = |column: usize| rows.iter().map(|row| row.as_ref()[column].len()).max();
    let widths: Vec<usize> = (0..columns).filter_map(widest).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths).enumerate();
        let line = cells.fold(String::new(), |line, (column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{line}  {cell:>width$}"),
        });
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
