//! The options of the command line, as the shards have them.
//!
//! Upstream:   `shards`, at the start.
//! Downstream: `kachel_shard::SharedOptions`. `shards` adds what only it knows: sockets, TLS, the
//!             pipe.

use std::sync::Arc;

use kachel_engine::PARTITIONS;
use kachel_host::Cores;
use kachel_net::{ClientLimits, ClientProtocol, Endpoint, Endpoints};
use kachel_observe::log_rows;
use kachel_options::{
    CoreChoice, FlushPrefixAccess, KACHEL_VERSION, MEMCACHED_VERSION, Protocol, Reads,
    ServeOptions, TEST_TIME_ENV,
};
use kachel_shard::{
    ObserverSet, OtherCounts, PlainOptions, PrefixFlushPermission, SharedOptions, UdpOptions,
};

use crate::client_lines;
use crate::tls::CERTIFICATES_WITHOUT_TLS;

/// All protocols of a listener, in the order of their numbers.
pub(crate) const PROTOCOLS: [Protocol; 3] = [Protocol::Auto, Protocol::Ascii, Protocol::Binary];

/// The endpoints of the listeners for clients of all shards; then those of the listeners that are
/// one shard's own, one for each protocol; then those of UDP.
fn endpoints(options: &ServeOptions, protocols: &[Protocol]) -> Endpoints {
    let (limits, asks_login) = (limits(options), options.auth_file.is_some() || options.sasl);
    let is_binary = |protocol: &Protocol| *protocol == Protocol::Binary;
    debug_assert!(!options.sasl || protocols.iter().all(is_binary), "the options were checked");
    let endpoint = |protocol, stays| {
        let protocol = match protocol {
            // The binary protocol has no such login. With `-S` all listeners are binary.
            _ if options.auth_file.is_some() => ClientProtocol::Text,
            Protocol::Auto => ClientProtocol::Negotiated,
            Protocol::Ascii => ClientProtocol::Text,
            Protocol::Binary => ClientProtocol::Binary,
        };
        Endpoint { protocol, limits, asks_login, stays }
    };
    let of_all = protocols.iter().map(|&protocol| endpoint(protocol, false));
    let of_one = PROTOCOLS.map(|protocol| endpoint(protocol, true));
    let of_udp = options.listeners.udp.iter().map(|udp| endpoint(udp.protocol, true));
    Endpoints::new(of_all.chain(of_one).chain(of_udp).collect())
}

/// The options of the shards that the command line has, too.
fn plain_options(options: &ServeOptions) -> PlainOptions {
    PlainOptions {
        cores_max: cores_max(options),
        net_cores: options.roles.map(|roles| roles.net),
        connections_max: options.connections_max,
        requests_per_tick: options.requests_per_tick,
        flush_allowed: options.flush_allowed,
        prefix_flushes: match options.flush_prefix {
            FlushPrefixAccess::All => PrefixFlushPermission::FromAnywhere,
            FlushPrefixAccess::Local => PrefixFlushPermission::FromHost,
            FlushPrefixAccess::None => PrefixFlushPermission::Refused,
        },
        dumps_allowed: options.dumps_allowed,
        scans_allowed: options.scans_allowed,
        crawler_on: options.echo.lru_crawler,
        watch_allowed: options.watch_allowed && !options.watch_refused,
        watcher_bytes_max: capacity(options.echo.watcher_logbuf_bytes),
        log_bytes_max: capacity(options.echo.worker_logbuf_bytes),
        shutdown_allowed: options.shutdown_allowed,
        time_moves: std::env::var_os(TEST_TIME_ENV).is_some(),
        prefix_delimiter: options.prefix_delimiter,
        detail_at_start: options.detail_at_start,
        tracks_sizes: options.track_sizes,
        observers: observers(options),
        pinned_percent: options.pinned_percent,
    }
}

/// The observers that are on from the start.
fn observers(options: &ServeOptions) -> ObserverSet {
    options.observe.iter().fold(ObserverSet::NONE, |set, name| {
        let named = ObserverSet::named(name.as_bytes());
        set.with(named.expect("the options know the same observers"))
    })
}

/// The options of a process with `shards` shards, whose listeners for clients of all shards speak
/// these protocols.
pub(crate) fn shared_options(
    options: &ServeOptions,
    shards: u16,
    protocols: &[Protocol],
) -> SharedOptions {
    let mut settings = options.settings(shards);
    settings.push(("kachel_partitions".to_string(), PARTITIONS.to_string()));
    SharedOptions {
        shards,
        engines: None, // The caller knows it.
        plain: plain_options(options),
        endpoints: endpoints(options, protocols),
        listeners: Vec::new(), // The caller knows them, the sockets and the ports.
        named_prefixes: options.admin.prefixes.clone(),
        sockets: Vec::new(),
        udp: UdpOptions {
            reply_datagrams_max: options.udp.reply_datagrams_max,
            sender_datagrams_max: options.udp.sender_datagrams_max,
            ..UdpOptions::default()
        },
        tell_client: (options.verbosity > 0).then_some(client_lines::tell),
        tell_direct_io_refused: Some(|refusal| {
            kachel_host::log(kachel_host::Level::Warning, format_args!("{refusal}"), &[]);
        }),
        pid: std::process::id(),
        usage: kachel_host::usage,
        version: MEMCACHED_VERSION,
        own_version: KACHEL_VERSION,
        settings,
        certificates: CERTIFICATES_WITHOUT_TLS,
        copies: None,
        other_counts: vec![OtherCounts(Arc::new(|| log_rows(kachel_host::lost_log_lines())))],
        pipe: None,
    }
}

/// A number of bytes, for this machine.
fn capacity(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The most cores that serve clients at once, if cores follow the load. A core that serves clients
/// must be able to change any shard without waking the shard's own core.
fn cores_max(options: &ServeOptions) -> Option<u16> {
    let follows = options.cores == CoreChoice::Auto && options.reads == Reads::Crew;
    follows.then(|| Cores::of_this_process().thread_count())
}

fn limits(options: &ServeOptions) -> ClientLimits {
    ClientLimits {
        line_s: options.line_timeout_s,
        block_s: options.block_timeout_s,
        login_s: options.login_timeout_s,
        reader_s: options.reader_timeout_s,
        idle_s: options.idle_timeout_s,
    }
}

#[cfg(test)]
mod tests {
    use kachel_options::{Command, parse};

    use super::*;

    #[test]
    fn options_and_commands_know_the_same_observers() {
        for (list, wanted) in [("off", ObserverSet::NONE), ("all", ObserverSet::ALL)]
            .into_iter()
            .chain(ObserverSet::NAMES)
        {
            let words = ["serve", "--observe", list].map(std::ffi::OsString::from);
            let Ok(Command::Serve(options)) = parse(words, "kachel".as_ref()) else {
                panic!("{list}: it starts a server");
            };
            assert_eq!(observers(&options), wanted, "{list}");
        }
    }

    #[test]
    fn options_that_are_not_given_change_no_limit() {
        for words in [&["serve"][..], &["serve", "--line-timeout=9", "--line-timeout=10"]] {
            let words: Vec<_> = words.iter().map(std::ffi::OsString::from).collect();
            let Ok(Command::Serve(options)) = parse(words, "kachel".as_ref()) else {
                panic!("it starts a server");
            };
            assert_eq!(limits(&options), ClientLimits::default());
            assert_eq!(options.pinned_percent, PlainOptions::default().pinned_percent);
        }
    }
}
