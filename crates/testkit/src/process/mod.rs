//! A server process, and clients of it.
//!
//! Upstream:   the tests of `kachel`, which name the program.
//! Downstream: the operating system.

mod backends;
mod client;
mod machine;
mod server;
mod waiting;

pub use backends::is_usable;
pub use client::{Client, Look, flood, set_request};
pub use server::{Address, Ended, Launch, Server, announced_port, user};
pub use waiting::{PATIENCE, wait_until, within};
