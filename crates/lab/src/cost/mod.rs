//! `kachel-lab cost`: what a service costs with one kind of server or another.
//!
//! Upstream:   the command line, and files with measured systems.
//! Downstream: `service` computes, `print` shows.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};

mod system;
mod service;
mod published;
mod print;

pub(crate) use published::{PerJoule, per_joule};

use published::Published;
use service::{Bill, Service};
use system::System;

const HELP: &str = "\
A FILE is a list in JSON. Each system has a name, the memory for items of a node, the highest rate at
which it keeps its promise, and its power at that rate, at the wall. A price is optional:

  [{\"system\": \"ours\", \"ram_gb\": 64, \"capacity_tps\": 500000, \"power_w\": 180, \"price\": 3000}]

GB          memory for items of one node
nodes       the memory by a node's memory, or the rate by a node's rate, whichever needs more
requests/J  requests a second and watt, at full load
kWh         all nodes at full load for the years, times PUE
total       purchase and energy; staff, space and network are not in it
break-even  how many times cheaper a node must be than one of the base for both to cost the same

A figure whose inputs are unknown is shown as \"-\".

Examples:
  kachel-lab cost --published
      the published systems, scaled to 256 GB
  kachel-lab cost ours.json --published --rate 2000000 --kwh-price 0.2 --pue 1.4 --base ours
      measured beside published, for two million requests a second";

/// The options of `kachel-lab cost`.
#[derive(Debug, Parser)]
#[command(
    name = "kachel-lab cost",
    bin_name = "kachel-lab cost",
    about = "Compares what a service costs with different servers.",
    after_help = HELP
)]
struct Options {
    /// Files with systems to compare.
    #[arg(value_name = "FILE", required_unless_present = "published")]
    files: Vec<PathBuf>,
    /// Also the systems of published papers.
    #[arg(long)]
    published: bool,
    /// Memory for items that the service needs, in GB.
    #[arg(long, value_name = "GB", default_value_t = 256.0, value_parser = positive)]
    memory_gb: f64,
    /// Requests a second that the service needs; 0 is any rate.
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = not_negative)]
    rate: f64,
    /// Years of use.
    #[arg(long, value_name = "N", default_value_t = 3.0, value_parser = positive)]
    years: f64,
    /// Power of the whole building to that of the servers.
    #[arg(long, value_name = "RATIO", default_value_t = 1.0, value_parser = at_least_one)]
    pue: f64,
    /// Price of a kilowatt-hour, in the currency of the prices.
    #[arg(long, value_name = "PRICE", value_parser = not_negative)]
    kwh_price: Option<f64>,
    /// The system whose price the others are compared with.
    #[arg(long, value_name = "NAME")]
    base: Option<String>,
}

/// Runs `kachel-lab cost` with the arguments that follow it. Prints the result on standard output.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    crate::with_options(command_line(), words, compared)
}

/// The options of `kachel-lab cost`.
pub(crate) fn command_line() -> clap::Command {
    Options::command()
}

/// The tables.
fn compared(options: &Options) -> Result<String, String> {
    let mut systems = Vec::new();
    for file in &options.files {
        systems.extend(System::read(file)?);
    }
    let published = options.published.then(Published::read);
    systems.extend(published.iter().flat_map(|published| published.systems.iter().cloned()));
    let service = Service {
        memory_gb: options.memory_gb,
        tps: options.rate,
        years: options.years,
        pue: options.pue,
        kwh_price: options.kwh_price,
    };
    let bills: Vec<Bill> = systems.iter().map(|system| service.bill(system)).collect();
    let base = options.base.as_deref().map(|name| base(&systems, name)).transpose()?;
    if base.is_some() && options.kwh_price.is_none() {
        return Err("--base needs the price of energy (--kwh-price)".to_owned());
    }
    let mut text = print::bills(&service, &bills, base);
    if let Some(published) = &published {
        text.push('\n');
        text.push_str(&print::quoted(published));
    }
    Ok(text)
}

/// The number of the system that `--base` names.
///
/// Errors: no system has this name, several have it, or it has no price.
fn base(systems: &[System], name: &str) -> Result<usize, String> {
    let mut named = (0..systems.len()).filter(|index| systems[*index].system == name);
    let Some(index) = named.next() else { return Err(format!("--base {name}: no such system")) };
    if named.next().is_some() {
        return Err(format!("--base {name}: several systems have this name"));
    }
    if systems[index].price.is_none() {
        return Err(format!("--base {name}: this system has no price"));
    }
    Ok(index)
}

fn number(text: &str, is_allowed: fn(f64) -> bool, rule: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && is_allowed(number) { Ok(number) } else { Err(rule.to_owned()) }
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "must be greater than 0")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 0.0, "must not be negative")
}

fn at_least_one(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 1.0, "must be at least 1")
}
