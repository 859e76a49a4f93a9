//! Log lines for clients that were closed because they were slow.
//!
//! Upstream:   shards, on their threads, with `-v`.
//! Downstream: standard error, by `host`, which drops a line rather than let a shard wait.

use kachel_host::Level;
use kachel_net::{Overdue, TooSlow};
use kachel_shard::ClosedClient;

/// Logs which client was closed, why, after how long, and by which option.
pub(crate) fn tell(closed: &ClosedClient) {
    kachel_host::log_line(Level::Warning, &sentence(closed));
}

fn sentence(closed: &ClosedClient) -> String {
    let Overdue { with, seconds } = closed.overdue;
    let (what, option) = match with {
        TooSlow::Line => ("its command line was not whole", "line-timeout"),
        TooSlow::Block => ("its data block was not whole", "block-timeout"),
        TooSlow::Login => ("it did not log in", "login-timeout"),
        TooSlow::Reader => ("it read nothing of its replies", "reader-timeout"),
        TooSlow::Holder => ("it read large values slowly", "pinned-percent"),
    };
    format!("closed {}: {what} for {seconds} s (--{option})", closed.name)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use kachel_io::{Peer, SocketName};

    use super::*;

    #[test]
    fn a_sentence_names_client_reason_time_and_option() {
        let peer = Peer::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 7), 4711));
        let rows = [
            (peer, TooSlow::Line, "closed 10.0.0.7:4711, fd 9: its command line was not whole"),
            (Peer::Local, TooSlow::Block, "closed local client, fd 9: its data block was not"),
            (peer, TooSlow::Login, "closed 10.0.0.7:4711, fd 9: it did not log in"),
            (peer, TooSlow::Reader, "closed 10.0.0.7:4711, fd 9: it read nothing of its replies"),
            (peer, TooSlow::Holder, "closed 10.0.0.7:4711, fd 9: it read large values slowly"),
        ];
        for (peer, with, begins) in rows {
            let name = SocketName { peer, descriptor: 9 };
            let said = sentence(&ClosedClient { name, overdue: Overdue { with, seconds: 61 } });
            assert!(said.starts_with(begins) && said.contains(" for 61 s (--"), "{said}");
        }
    }
}
