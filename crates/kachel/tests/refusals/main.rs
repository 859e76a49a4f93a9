//! System calls that the kernel refuses to the server, and how the server reacts.
//!
//! Upstream:   `kernel`, which refuses the calls that a test names to the server that it starts.
//! Downstream: the real process, started by `kachel_testkit`.

mod cores;
mod door;
mod families;
mod kernel;
mod memory;
mod rights;
mod rings;
mod space;

use std::path::Path;

use kachel_testkit::{Client, Launch, Server};

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

fn start(options: &[&str]) -> Server {
    Launch::memcached(program(), options).start()
}

/// The reply to `mn`.
fn noop(server: &Server) -> String {
    server.connect().ask("mn\r\n", "\n")
}

/// The first line of the reply to `line`, without its end.
fn ask(client: &mut Client, line: &str) -> String {
    client.ask(format!("{line}\r\n"), "\r\n").trim_end().to_owned()
}
