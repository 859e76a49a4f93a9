//! TLS for the clients, in a server that is built with it (the feature `tls`).
//!
//! Upstream:   `serve` and `shards`, with the options.
//! Downstream: `kachel_tls`; without the feature, nothing: the options refuse TLS.

#[cfg(feature = "tls")]
mod with;
#[cfg(not(feature = "tls"))]
mod without;

#[cfg(feature = "tls")]
pub(crate) use with::{CERTIFICATES_WITHOUT_TLS, Encryption};
#[cfg(not(feature = "tls"))]
pub(crate) use without::{CERTIFICATES_WITHOUT_TLS, Encryption};
