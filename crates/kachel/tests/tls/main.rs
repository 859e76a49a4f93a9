//! TLS: handshakes, certificates, records, and clients that misbehave in them.
//!
//! The other suites run over TLS as well, with `KACHEL_TLS=1` (`tests/tls/run`). Here are the cases
//! that only TLS has.

mod admin;
mod certificates;
mod handshakes;
mod records;
mod resumption;
mod site;
mod storm;
