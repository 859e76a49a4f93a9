//! Requests: parsed, staged, routed to an engine and carried out.
//!
//! Upstream:   `tick`, with the connections that have input.
//! Downstream: `control` for requests without a key, `large` for large values, `waiting` for
//!             requests that this core cannot execute now, `request` for the others.

pub(crate) mod order;
pub(crate) mod serving;
pub(crate) mod carry_out;
pub(crate) mod copying;
pub(crate) mod sasl;
pub(crate) mod login;
pub(crate) mod beside;
