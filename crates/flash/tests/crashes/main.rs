//! Engines of `flash` over a disk in memory that loses power, fails and is damaged, without a
//! server. Another map of the same items says what must be there.
//!
//! Upstream:   `cargo test -p kachel-flash --test crashes`. `KACHEL_FULL=1` has the long form.
//! Downstream: `kachel_flash`, by the contract of engines; the disk in memory of `kachel_io`.
//!
//! Reading order: `model`, `tokens`, `oracle`, `process`, `traffic`, then `cuts`, `backups`,
//! `failures`, `saturated`, `damage` and `volume`.

mod backups;
mod cuts;
mod damage;
mod failures;
mod files;
mod model;
mod oracle;
mod process;
mod saturated;
mod tokens;
mod traffic;
mod volume;
