//! The options of UDP and of the pipe.

use super::{memcached, memcached_settings, refusal};
use crate::{Host, Listeners, Protocol, UDP_REPLY_DATAGRAMS_MAX};

#[test]
fn udp_is_off_until_it_is_asked_for() {
    assert!(memcached(&[]).listeners.udp.is_empty());
    assert!(memcached(&["-U", "0", "-Y", "file"]).listeners.udp.is_empty());
    // The address, the TCP port, the UDP port; the port of UDP is also that of TCP without -p.
    for (args, tcp, udp) in [
        (&["-U", "7000"][..], 7000, 7000),
        (&["-U", "7000", "-p", "7001"], 7001, 7000),
        (&["-p", "7001", "-U", "7000"], 7001, 7000),
        (&["-U", "-1"], 0, 0),
        (&["-U", "-1", "-p", "7001"], 7001, 0),
    ] {
        let Listeners { tcp: with_tcp, udp: with_udp, .. } = memcached(args).listeners;
        let ([with_tcp], [with_udp]) = (&with_tcp[..], &with_udp[..]) else {
            panic!("{args:?}: {with_tcp:?} {with_udp:?}");
        };
        assert_eq!((with_tcp.port, with_udp.port), (tcp, udp), "{args:?}");
        assert_eq!((&with_tcp.host, &with_udp.host), (&Host::Any, &Host::Any));
    }
    let options = memcached(&["-l", "proto[ascii]:127.0.0.1,::1:9,[::1]:9", "-U", "7000"]);
    let ports: Vec<u16> = options.listeners.udp.iter().map(|each| each.port).collect();
    assert_eq!(ports, [7000, 7000, 9]);
    assert_eq!(options.listeners.udp[0].protocol, Protocol::Ascii);
    let options = memcached(&["-U", "7000", "-s", "/tmp/socket"]);
    assert!(options.listeners.udp.is_empty());
    assert_eq!(options.reports, ["-U: ignored: with -s there is no UDP"]);
    let more = ["-U", "7000", "--udp-reply-datagrams", "16", "--udp-sender-budget", "9"];
    let udp = memcached(&more).udp;
    assert_eq!((udp.reply_datagrams_max, udp.sender_datagrams_max), (UDP_REPLY_DATAGRAMS_MAX, 9));
    refusal(&["-U", "7000", "--udp-sender-budget", "4294967296"]);
    for wrong in ["0", "17", "-1", "x"] {
        refusal(&["-U", "7000", "--udp-reply-datagrams", wrong]);
    }
    let said = memcached_settings(&["-U", "7000"]);
    assert!(said.contains(&("udpport".into(), "7000".into())));
    assert!(said.contains(&("tcpport".into(), "7000".into())));
}

#[test]
fn the_pipe_is_refused_beside_options_that_it_would_not_keep() {
    let with = |more: &[&'static str]| [&["-U", "7000", "--pipe", "eth0"], more].concat();
    let options = memcached(&with(&["-m", "64", "--pipe-memory", "32"]));
    assert_eq!(options.pipe.interface.as_deref(), Some("eth0"));
    assert_eq!((options.pipe.memory_bytes, options.pipe.reply_times), (32 << 20, 3));
    for (more, named) in [
        (&["-Y", "file"][..], "-S, -Y"),
        (&["-S"], "-S, -Y"),
        (&["--udp-sender-budget", "5"], "--udp-sender-budget"),
        (&["-m", "64", "--pipe-memory", "33"], "half of -m"),
        (&["--pipe-memory", "0"], "--pipe-memory"),
        (&["--pipe-reply-times", "0"], "--pipe-reply-times"),
    ] {
        let error = refusal(&with(more));
        assert!(error.message.contains(named), "{more:?}: {error}");
    }
    let options = memcached(&["--pipe", "eth0"]);
    assert_eq!(options.reports, ["--pipe: has no effect without UDP (-U)"]);
}
