//! A server process, and clients of it.
//!
//! Upstream:   the tests of `kachel`, which name the program.
//! Downstream: the operating system.

#[cfg(feature = "tls")]
mod authority;
mod backends;
mod client;
mod http;
mod machine;
mod server;
#[cfg(feature = "tls")]
mod tunnel;
mod udp_client;
mod unheard;
mod waiting;

#[cfg(feature = "tls")]
pub use authority::{Authority, CertificateFiles, ClientCertificate, TLS_VERSIONS, Validity};
pub use backends::is_usable;
pub use client::{Client, Look, flood, set_request};
pub use http::{http_ask, http_connect, http_get, http_get_with, http_read_to_end, http_status};
pub use server::{Address, Ended, Launch, Server, announced_port, user, wants_tls};
#[cfg(feature = "tls")]
pub use tunnel::tunnel;
pub use udp_client::UdpClient;
pub use unheard::Unheard;
pub use waiting::{PATIENCE, wait_until, within};
