//! The whole server but for the kernel: shards over the in-memory door, on one thread.

mod allocation;
mod binary;
mod clocks;
mod crew;
mod detail;
mod ending;
mod flushes;
mod full_records;
mod full_store;
mod gathering;
mod input;
mod large_values;
mod leases;
mod limits;
mod listings;
mod logins;
mod pinned;
mod readers;
mod replies;
mod roles;
mod sasl;
mod size_classes;
mod sleeping;
mod statistics;
mod waiting;
mod wire_cuts;
