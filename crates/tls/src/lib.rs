//! TLS: a layer over an I/O backend that encrypts and decrypts the bytes of some connections.
//!
//! Upstream:   `kachel` puts a [`Tls`] around the backend of each shard, and starts the threads for
//!             handshakes ([`Handshakes`]).
//! Downstream: a backend of `io`, and rustls.
//!
//! ```text
//! client ---> thread for handshakes: accept, handshake ---> inbox of a core
//!                                                             |
//!                              net <--- plain bytes --- Tls <-+--- records --- io
//! ```
//!
//! A core never does a handshake: it gets a connection once the handshake is complete. From then on
//! it reads and writes records. `net` and `shard` see an ordinary [`kachel_io::Io`], and nothing
//! here knows a protocol of memcached.
//!
//! Reading order: `settings`, `certificates`, `session` (the only file that uses connections of
//! rustls), `outgoing`, `layer`, then `handshakes`.
//!
//! Architecture invariants:
//! - Nothing that a client sends makes this crate panic. A client that breaks the protocol is sent
//!   an alert and closed.
//! - Every buffer of a connection has a limit, named in `limits`. An idle connection holds no
//!   buffer.
//! - A backend without TLS is not wrapped, so TLS costs connections of such a server nothing.

#![forbid(unsafe_code)]

mod certificates;
mod counts;
mod expiry;
mod handshakes;
mod inbox;
mod layer;
mod limits;
mod moving;
mod no_authority;
mod outgoing;
mod process;
mod session;
mod settings;
#[cfg(test)]
mod tests;

pub use counts::Counts;
pub use handshakes::Handshakes;
pub use inbox::Inbox;
pub use layer::Tls;
pub use limits::{CIPHER_BLOCKS_MAX, HANDSHAKES_MAX, RECORD_PLAIN_BYTES_MAX};
pub use process::Process;
pub use settings::{ClientCertificate, KeyFormat, ListenerTls, Settings, Version};
