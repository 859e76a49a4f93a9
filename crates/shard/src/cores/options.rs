//! The options of the process, as its shards have them.
//!
//! Upstream:   `kachel` makes them from the command line; `testkit` for a server in memory.
//! Downstream: `process`, which keeps them for all shards. They never change.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use kachel_engine::Copies;
use kachel_host::Usage;
use kachel_io::{DirectIoRefusal, SocketName};
use kachel_net::{CloseReason, CoreIndex, Endpoints, Overdue, PINNED_PERCENT_MAX};
use kachel_observe::{PrefixNames, Row};
use kachel_wire::ObserverSet;

use crate::cores::homes::Homes;
use crate::cores::refreshes::Certificates;

/// Which clients may flush the items of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixFlushPermission {
    /// Any client, also one over UDP.
    FromAnywhere,
    /// Clients of this host: by a loopback address or a unix socket. None over UDP, because the
    /// address of a datagram may be forged.
    FromHost,
    /// No client.
    Refused,
}

/// The options that are plain numbers and switches. Code that starts shards embeds them whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainOptions {
    /// The most cores that serve clients at once. Fewer serve them at low load. `None` if all of
    /// them serve clients at any load.
    pub cores_max: Option<u16>,
    /// The cores that serve clients if only some may: the first ones. They are the home of no
    /// engine.
    pub net_cores: Option<u16>,
    /// Connections open at once, in the whole process (`-c`).
    pub connections_max: u32,
    /// The most requests of one connection in one tick (`-R`). `None`: all that were received.
    pub requests_per_tick: Option<u32>,
    /// Whether `flush_all` works (not with `-F`).
    pub flush_allowed: bool,
    /// Which clients may send `flush_prefix` (`--flush-prefix`). None may if `flush_all` does not
    /// work.
    pub prefix_flushes: PrefixFlushPermission,
    /// Whether items may be listed (not with `-X`).
    pub dumps_allowed: bool,
    /// Whether clients may scan the items (`--scan`).
    pub scans_allowed: bool,
    /// Whether `lru_crawler` may crawl and dump from the start (not with `-o no_lru_crawler`).
    pub crawler_on: bool,
    /// Whether clients may watch the log (not with `-W`).
    pub watch_allowed: bool,
    /// Bytes of lines that may wait for each client that watches (`-o watcher_logbuf_size`). They
    /// are charged to the budget.
    pub watcher_bytes_max: usize,
    /// Bytes of lines that each core may keep before it hands them on (`-o worker_logbuf_size`).
    pub log_bytes_max: usize,
    /// Whether `shutdown` works (`-A`).
    pub shutdown_allowed: bool,
    /// Whether clients may move the clock on (`debugtime`). For tests.
    pub time_moves: bool,
    /// The byte that ends the prefix of a key (`-D`).
    pub prefix_delimiter: u8,
    /// Whether requests are counted by prefix from the start (`-D`).
    pub detail_at_start: bool,
    /// Whether `stats sizes` counts the sizes of items (`-o track_sizes`).
    pub tracks_sizes: bool,
    /// The observers that are on from the start (`--observe`).
    pub observers: ObserverSet,
    /// Percent of `-m` that values may pin while they are sent. Slow readers are closed above that.
    /// 0 means no limit.
    pub pinned_percent: u32,
}

impl Default for PlainOptions {
    fn default() -> Self {
        Self {
            cores_max: None,
            net_cores: None,
            connections_max: 1024,
            requests_per_tick: None,
            flush_allowed: true,
            prefix_flushes: PrefixFlushPermission::FromAnywhere,
            dumps_allowed: true,
            scans_allowed: false,
            crawler_on: true,
            watch_allowed: true,
            watcher_bytes_max: 256 << 10,
            log_bytes_max: 64 << 10,
            shutdown_allowed: false,
            time_moves: false,
            prefix_delimiter: b':',
            detail_at_start: false,
            tracks_sizes: false,
            observers: ObserverSet::NONE,
            pinned_percent: PINNED_PERCENT_MAX,
        }
    }
}

/// The options with which the process was started.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// The number of shards. Each shard is one thread.
    pub shards: u16,
    /// The number of engines. `None`: as many as shards, without those that only serve clients.
    pub engines: Option<u16>,
    /// The plain ones.
    pub plain: PlainOptions,
    /// The endpoints of the process, with the limits of their clients.
    pub endpoints: Endpoints,
    /// The addresses of the listeners, in the order of their endpoints, for `stats conns`: as
    /// `tcp:ADDRESS:PORT`, `tcp6:[ADDRESS]:PORT` or `unix:PATH`.
    pub listeners: Vec<String>,
    /// The prefixes that metrics show, without their delimiters (`--admin-prefixes`).
    pub named_prefixes: Vec<String>,
    /// All sockets of the process for clients and datagrams, for `stats conns`.
    pub sockets: Vec<OpenSocket>,
    /// How requests over UDP are answered.
    pub udp: UdpOptions,
    /// Reports what happens to clients to the operator (`-v`). It must not block.
    pub tell_client: Option<fn(SocketName, ClientEvent)>,
    /// A function that the server calls when the files of a folder use the page cache, because
    /// direct I/O is refused there.
    pub tell_direct_io_refused: Option<fn(&DirectIoRefusal)>,
    /// The process ID.
    pub pid: u32,
    /// Returns the processor time that the process has used.
    pub usage: fn() -> Usage,
    /// The memcached version that clients see.
    pub version: &'static str,
    /// Kachel's own version.
    pub own_version: &'static str,
    /// The names and values that `stats settings` shows, in memcached's order.
    pub settings: Vec<(String, String)>,
    /// Whether `refresh_certs` works.
    pub certificates: Certificates,
    /// The copies of items that answer requests over UDP, if there are any. The engines report
    /// their changes to them.
    pub copies: Option<Arc<dyn Copies>>,
    /// Statistics that other parts of the process count.
    pub other_counts: Vec<OtherCounts>,
    /// The pipe of the process, if it has one.
    pub pipe: Option<PipeControl>,
}

impl Default for SharedOptions {
    /// One shard, with the default options.
    fn default() -> Self {
        Self {
            shards: 1,
            engines: None,
            plain: PlainOptions::default(),
            endpoints: Endpoints::default(),
            listeners: Vec::new(),
            named_prefixes: Vec::new(),
            sockets: Vec::new(),
            udp: UdpOptions::default(),
            tell_client: None,
            tell_direct_io_refused: None,
            pid: 1,
            usage: Usage::default,
            version: "1.6.45",
            own_version: "0",
            settings: Vec::new(),
            certificates: Certificates::Unknown,
            copies: None,
            other_counts: Vec::new(),
            pipe: None,
        }
    }
}

impl SharedOptions {
    /// The home cores of the engines.
    ///
    /// # Panics
    /// If there is no engine, or no shard that can be the home of one.
    pub fn homes(&self) -> Homes {
        let net_cores = self.plain.net_cores.unwrap_or(0);
        let engines = self.engines.unwrap_or(self.shards.saturating_sub(net_cores));
        Homes::new(engines, self.shards, net_cores)
    }

    /// How observers find the prefixes of keys.
    pub(crate) fn prefix_names(&self) -> PrefixNames {
        let named = self.named_prefixes.iter().map(|name| name.as_bytes().into()).collect();
        PrefixNames { delimiter: self.plain.prefix_delimiter, named }
    }

    /// The rows that other parts of the process count: Kachel's own ones, or those that have
    /// memcached's names.
    pub(crate) fn other_rows(&self, own: bool) -> Vec<Row<'static>> {
        let rows = self.other_counts.iter().flat_map(|OtherCounts(rows)| rows());
        rows.filter(|row| row.name.starts_with("kachel_") == own).collect()
    }
}

/// What happens to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// It is refused: the process has as many clients as it may have (`-c`), or ends.
    Refused {
        /// Whether the process ends.
        is_ending: bool,
    },
    /// Its user or its password is wrong.
    LoginFailed,
    /// It is closed, because it has exceeded a limit of time. `Closed` follows.
    TooSlow(Overdue),
    /// Its connection is accepted.
    Opened,
    /// Its connection closes.
    Closed(CloseReason),
    /// Another core serves it from now on.
    Moved {
        /// The core that served it.
        from: CoreIndex,
        /// The core that serves it.
        to: CoreIndex,
    },
}

/// A socket on which the process waits for clients or datagrams.
#[derive(Clone, Debug)]
pub struct OpenSocket {
    /// Its number in this process.
    pub descriptor: i32,
    /// Its address: as `tcp:ADDRESS:PORT`, `tcp6:[ADDRESS]:PORT`, `udp:`, `udp6:` or `unix:PATH`.
    pub address: String,
    /// Whether it receives datagrams. Otherwise it listens.
    pub is_udp: bool,
}

/// How requests over UDP are answered.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// The most datagrams of a reply, from 1 to `kachel_net::REPLY_DATAGRAMS_MAX`.
    pub reply_datagrams_max: u16,
    /// The most datagrams a second that are answered of one sender. 0 means no limit.
    pub sender_datagrams_max: u32,
    /// The UDP ports of this process. Nothing that comes from such a port is answered.
    pub own_ports: Vec<RangeInclusive<u16>>,
}

impl Default for UdpOptions {
    /// Replies of one datagram, by a process without UDP ports.
    fn default() -> Self {
        Self { reply_datagrams_max: 1, sender_datagrams_max: 0, own_ports: Vec::new() }
    }
}

/// The pipe of a process, as clients see it.
#[derive(Clone)]
pub struct PipeControl {
    /// The names and values of `stats pipe`.
    pub facts: Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>,
    /// Switches the pipe on or off. When it returns after the latter, the pipe answers nothing.
    pub switch: Arc<dyn Fn(bool) -> Switched + Send + Sync>,
}

/// The result of an attempt to switch the pipe on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switched {
    /// The pipe is on, or off.
    Done,
    /// The pipe is not in use.
    NotEnabled,
    /// An administrator has taken it from its interface, so it cannot be switched on.
    Detached,
    /// It is switched off, and still answers a packet.
    StillAnswers,
}

impl fmt::Debug for PipeControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PipeControl").finish_non_exhaustive()
    }
}

/// Statistics that another part of the process counts, in the order of `stats`.
#[derive(Clone)]
pub struct OtherCounts(pub Arc<dyn Fn() -> Vec<Row<'static>> + Send + Sync>);

impl fmt::Debug for OtherCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OtherCounts").finish_non_exhaustive()
    }
}
