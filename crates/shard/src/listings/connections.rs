//! The lines of `stats conns`: the connections of a core, and the sockets of the process.
//!
//! Upstream:   `listing`, a bounded piece at a time.
//! Downstream: `net` for the state of a connection; `wire` formats the lines.

use std::fmt;

use kachel_io::{Peer, SocketId, SocketName};
use kachel_net::{ConnectionIndex, Connections};
use kachel_wire::format;

use crate::context::Context;
use crate::cores::options::OpenSocket;
use crate::request::form::LISTED_ITEMS_PER_TICK_MAX;
use crate::waiting::parked::PIECE_BYTES_MAX;

/// Formats the sockets of the process for clients and datagrams, as `stats conns` shows them.
pub(super) fn sockets(context: &Context) -> Vec<u8> {
    let mut lines = Vec::new();
    let age_s = context.now().since_start();
    for OpenSocket { descriptor, address, is_udp } in &context.shared.options.sockets {
        let mut line = |name: &str, value: &str| {
            let name = format!("{descriptor}:{name}");
            format::stat(&mut lines, name.as_bytes(), value.as_bytes());
        };
        if *is_udp {
            line("UDP", "UDP");
        }
        line("addr", address);
        line("state", if *is_udp { "conn_read" } else { "conn_listening" });
        line("secs_since_last_cmd", &age_s.to_string());
    }
    lines
}

/// Formats the connections of this core from an index on, as `stats conns` shows them. Returns the
/// index at which the next piece begins.
pub(super) fn connections(
    context: &Context,
    table: &Connections,
    names: &mut dyn FnMut(SocketId) -> SocketName,
    sweep: u32,
    from: usize,
    lines: &mut Vec<u8>,
) -> Option<usize> {
    let last = (from + LISTED_ITEMS_PER_TICK_MAX).min(table.places());
    for index in from..last {
        if lines.len() >= PIECE_BYTES_MAX {
            return Some(index);
        }
        let at = ConnectionIndex(u32::try_from(index).unwrap_or(u32::MAX));
        let Some(open) = table.get(at) else { continue };
        let SocketName { peer, descriptor } = names(open.socket());
        let state = match () {
            () if open.is_draining() => "conn_closing",
            () if open.is_watching() => "conn_watch",
            () if open.is_listing() => "conn_parse_cmd",
            () if open.outbox().owed_bytes() > 0 => "conn_mwrite",
            () if open.is_in_block() && !open.is_uploading() => "conn_swallow",
            () if open.awaits_block() => "conn_nread",
            () if open.is_paused() => "conn_waiting",
            () => "conn_read",
        };
        let mut line = |name: &str, value: &dyn fmt::Display| {
            let name = format!("{descriptor}:{name}");
            format::stat(lines, name.as_bytes(), value.to_string().as_bytes());
        };
        let endpoint = usize::from(open.endpoint().0);
        let listener = context.shared.options.listeners.get(endpoint);
        match peer {
            Peer::Local => line("addr", listener.map_or(&"unix", |path| path)),
            Peer::Unknown => line("addr", &"unknown"),
            Peer::V4(address) => line("addr", &format_args!("tcp:{address}")),
            Peer::V6(address) => line("addr", &format_args!("tcp6:{address}")),
        }
        if let Some(listener) = listener {
            line("listen_addr", listener);
        }
        line("state", &state);
        line("secs_since_last_cmd", &open.idle_sweeps(sweep));
    }
    (last < table.places()).then_some(last)
}
