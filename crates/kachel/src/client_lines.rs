//! The lines of the log about what happens to clients.
//!
//! Upstream:   shards, on their threads, with `-v`.
//! Downstream: `host`, which writes those that `-v` asks for, and loses lines rather than let a
//!             shard wait.
//!
//! | given | clients that |
//! |---|---|
//! | `-v` | are refused, fail to log in, or are closed because they are slow |
//! | `-vv` | connect, or whose connections close |
//! | `-vvv` | move to another core |

use kachel_host::{Level, LogField};
use kachel_io::SocketName;
use kachel_net::{CoreIndex, Overdue, TooSlow};
use kachel_shard::ClientEvent;

/// A line about a client.
struct ClientLine {
    sentence: String,
    /// The name of the event, for programs.
    event: &'static str,
    /// Fields of the event other than those of the client.
    fields: Vec<LogField<'static>>,
}

/// Logs what has happened to a client.
pub(crate) fn tell(name: SocketName, event: ClientEvent) {
    let Some(admitted) = kachel_host::admit_client_line(level(event)) else { return };
    let ClientLine { sentence, event, fields } = line(name, event);
    let client = name.peer.to_string();
    let descriptor = u64::try_from(name.descriptor).unwrap_or(0);
    let of_all = [
        LogField::text("event", event),
        LogField::text("client", &client),
        LogField::number("fd", descriptor),
    ];
    admitted.write(format_args!("{sentence}"), &[&of_all, &fields[..]].concat());
}

const fn level(event: ClientEvent) -> Level {
    match event {
        ClientEvent::Refused { .. } | ClientEvent::LoginFailed | ClientEvent::TooSlow(_) => {
            Level::Info
        }
        ClientEvent::Opened | ClientEvent::Closed(_) => Level::Debug,
        ClientEvent::Moved { .. } => Level::Trace,
    }
}

fn line(name: SocketName, event: ClientEvent) -> ClientLine {
    let told = |event, sentence, fields| ClientLine { sentence, event, fields };
    match event {
        ClientEvent::Refused { is_ending } => {
            let full = "there are as many clients as -c allows";
            let why = if is_ending { "the server ends" } else { full };
            let sentence = format!("refused {name}: {why}");
            told("refused", sentence, Vec::new())
        }
        ClientEvent::LoginFailed => {
            let sentence = format!("refused a login of {name}: wrong user or password");
            told("login_failed", sentence, Vec::new())
        }
        ClientEvent::TooSlow(overdue) => {
            let (sentence, fields) = too_slow(name, overdue);
            told("slow", sentence, fields)
        }
        ClientEvent::Opened => told("opened", format!("{name} connected"), Vec::new()),
        ClientEvent::Closed(reason) => {
            let fields = vec![LogField::text("reason", reason.name())];
            let sentence = format!("the connection of {name} closes: {}", reason.name());
            told("closed", sentence, fields)
        }
        ClientEvent::Moved { from: CoreIndex(from), to: CoreIndex(to) } => {
            let cores = [("from", from), ("to", to)];
            let fields = cores.map(|(name, core)| LogField::number(name, core.into())).to_vec();
            let sentence = format!("{name} moves from core {from} to core {to}");
            told("moved", sentence, fields)
        }
    }
}

/// Which client was too slow, with what, for how long, and by which option.
fn too_slow(name: SocketName, overdue: Overdue) -> (String, Vec<LogField<'static>>) {
    let Overdue { with, seconds } = overdue;
    let (what, option) = match with {
        TooSlow::Line => ("its command line was not whole", "line-timeout"),
        TooSlow::Block => ("its data block was not whole", "block-timeout"),
        TooSlow::Login => ("it did not log in", "login-timeout"),
        TooSlow::Reader => ("it read nothing of its replies", "reader-timeout"),
        TooSlow::Holder => ("it read large values slowly", "pinned-percent"),
    };
    let fields =
        vec![LogField::text("option", option), LogField::number("seconds", seconds.into())];
    (format!("closed {name}: {what} for {seconds} s (--{option})"), fields)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use kachel_io::Peer;
    use kachel_net::CloseReason;

    use super::*;

    const PEER: Peer = Peer::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 7), 4711));

    #[test]
    fn a_sentence_names_client_reason_time_and_option() {
        let rows = [
            (PEER, TooSlow::Line, "closed 10.0.0.7:4711, fd 9: its command line was not whole"),
            (Peer::Local, TooSlow::Block, "closed local client, fd 9: its data block was not"),
            (PEER, TooSlow::Login, "closed 10.0.0.7:4711, fd 9: it did not log in"),
            (PEER, TooSlow::Reader, "closed 10.0.0.7:4711, fd 9: it read nothing of its replies"),
            (PEER, TooSlow::Holder, "closed 10.0.0.7:4711, fd 9: it read large values slowly"),
        ];
        for (peer, with, begins) in rows {
            let name = SocketName { peer, descriptor: 9 };
            let event = ClientEvent::TooSlow(Overdue { with, seconds: 61 });
            let said = line(name, event).sentence;
            assert!(said.starts_with(begins) && said.contains(" for 61 s (--"), "{said}");
        }
    }

    #[test]
    fn each_event_has_its_level_its_word_and_the_client() {
        let (from, to) = (CoreIndex(1), CoreIndex(3));
        let rows = [
            (ClientEvent::Refused { is_ending: false }, Level::Info, "refused", ""),
            (ClientEvent::LoginFailed, Level::Info, "login_failed", ""),
            (ClientEvent::Opened, Level::Debug, "opened", ""),
            (ClientEvent::Closed(CloseReason::IdleTimeout), Level::Debug, "closed", "idle_timeout"),
            (ClientEvent::Moved { from, to }, Level::Trace, "moved", "from core 1 to core 3"),
        ];
        for (event, of_event, word, has) in rows {
            let line = line(SocketName { peer: PEER, descriptor: 9 }, event);
            assert_eq!((level(event), line.event), (of_event, word));
            let said = &line.sentence;
            assert!(said.contains("10.0.0.7:4711, fd 9") && said.contains(has), "{said}");
        }
    }
}
