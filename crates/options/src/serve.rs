//! The options of the server, with types.
//!
//! Upstream:   the effects of the table's rows fill it.
//! Downstream: `kachel` opens listeners and starts shards from it; `settings.rs` formats it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use kachel_host::LogFormat;

use crate::admin::AdminOptions;
use crate::data::DataOptions;
use crate::listen::{Listeners, Protocol};
use crate::options_file::OptionsFile;
use crate::tls::TlsOptions;

/// The name by which the binary was called. It selects the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalledAs {
    /// `kachel`: loopback, dumps refused, root allowed with a warning.
    Kachel,
    /// `memcached` or `memcached-anything`: memcached's defaults, such as every interface.
    Memcached,
}

impl CalledAs {
    /// Reads the name from `argv[0]`, with or without a path before it.
    pub fn of(program: &OsStr) -> Self {
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
        if name == "memcached" || name.starts_with("memcached-") {
            Self::Memcached
        } else {
            Self::Kachel
        }
    }
}

/// Where items are, and what happens to them when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineMode {
    /// Older items are evicted.
    Cache,
    /// New items are refused; nothing stored is ever evicted.
    Store,
    /// Items are on the disk, in logs.
    Flash,
    /// Items are on the disk, in databases of RocksDB.
    Rocksdb,
}

/// Which cores read a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Any core: only a request that changes an item goes to the owner.
    Crew,
    /// Only its owner: every request for its keys goes there.
    Erew,
}

/// How many threads have each role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Threads that serve clients and own no keys.
    pub net: u16,
    /// Threads that own the keys and serve no client.
    pub shard: u16,
}

/// The program in a network card's driver that answers GETs over UDP (`docs/pipe.md`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeChoice {
    /// The interface whose packets it answers (`--pipe`); `None`: there is no such program.
    pub interface: Option<String>,
    /// Bytes of its table, which are a part of `-m` (`--pipe-memory`).
    pub memory_bytes: u64,
    /// A reply has at most this many times the bytes of its request (`--pipe-reply-times`).
    pub reply_times: u32,
}

/// How requests over UDP are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// The most datagrams of a reply (`--udp-reply-datagrams`).
    pub reply_datagrams_max: u16,
    /// The most datagrams a second that are answered of one sender (`--udp-sender-budget`). 0
    /// means no limit.
    pub sender_datagrams_max: u32,
    /// Whether each shard also has a UDP port of its own (`--udp-port-per-shard`).
    pub has_shard_ports: bool,
}

/// How many cores serve clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreChoice {
    /// As many as the load needs. The others sleep.
    Auto,
    /// All, at any load.
    All,
}

/// Which clients may flush the items of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushPrefixAccess {
    /// All that may flush.
    All,
    /// Those of this host: by a loopback address or a unix socket.
    Local,
    /// None.
    None,
}

/// The mechanisms by which clients may log in with `-S`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslChoice {
    /// All.
    All,
    /// PLAIN.
    Plain,
    /// SCRAM-SHA-256.
    ScramSha256,
}

/// The I/O backend to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoChoice {
    /// The best that this kernel allows.
    Auto,
    /// epoll.
    Epoll,
    /// io_uring.
    Uring,
}

/// The port without `-p`.
pub(crate) const DEFAULT_PORT: i32 = 11211;

/// The largest item without `-I`, in bytes.
pub(crate) const ITEM_BYTES_DEFAULT: u32 = 1 << 20;

/// All options of `kachel serve` or `memcached`, defaults included.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeOptions {
    /// The name that decided the defaults.
    pub called_as: CalledAs,
    /// Where to listen. Empty only under memcached's name, with `-p 0`.
    pub listeners: Listeners,
    /// Number of threads, one shard each; `None`: one per usable core. At most
    /// [`crate::THREADS_MAX`].
    pub threads: Option<u16>,
    /// Which threads have the clients and which the shards; `None`: each thread has both.
    pub roles: Option<Roles>,
    /// Whether each shard also listens on a TCP port of its own (`--shard-ports`).
    pub has_shard_ports: bool,
    /// The admin address, for operators and their tools.
    pub admin: AdminOptions,
    /// The names of the observers that are on from the start (`--observe`), each once.
    pub observe: Vec<&'static str>,
    /// Seconds for which clients are served after a signal that ends the server.
    pub drain_s: u32,
    /// How requests over UDP are answered.
    pub udp: Udp,
    /// The program in a network card's driver that answers GETs over UDP.
    pub pipe: PipeChoice,
    /// Bytes of data in the whole process (`-m`).
    pub memory_bytes: u64,
    /// Whether items are evicted when memory is spent; `false` with `-M` and with any other engine
    /// than the cache.
    pub evict: bool,
    /// Bytes of the largest item, key and header included (`-I`).
    pub item_bytes_max: u32,
    /// Whether items have a CAS token (`-C`: no).
    pub cas: bool,
    /// Limit of open connections.
    pub connections_max: u32,
    /// Length of the kernel's queue of new connections.
    pub backlog: i32,
    /// The most requests of one connection in one tick (`-R`); `None`: those that were received.
    pub requests_per_tick: Option<u32>,
    /// How often `-v` was given.
    pub verbosity: u32,
    /// How lines of the log are written.
    pub log_format: LogFormat,
    /// The user to become, when started by root.
    pub user: Option<String>,
    /// Whether to run in the background.
    pub daemon: bool,
    /// The file for the process ID.
    pub pidfile: Option<PathBuf>,
    /// The file that keeps items over a restart (`-e`).
    pub memory_file: Option<PathBuf>,
    /// The file of users, of whom each client must log in as one (`-Y`).
    pub auth_file: Option<PathBuf>,
    /// Whether each client must log in by SASL (`-S`). Then all listeners are for the binary
    /// protocol, and the environment names the file of users ([`crate::SASL_FILE_ENV`]).
    pub sasl: bool,
    /// The mechanisms by which clients may log in by SASL.
    pub sasl_mechanisms: SaslChoice,
    /// Whether `flush_all` does anything (`-F`: no).
    pub flush_allowed: bool,
    /// Which clients may flush a prefix, unless no client may flush (`-F`).
    pub flush_prefix: FlushPrefixAccess,
    /// Whether `stats cachedump`, `stats detail` and `lru_crawler metadump` are answered (`-X`:
    /// no).
    pub dumps_allowed: bool,
    /// Whether `mscan` is answered (`--scan`: yes).
    pub scans_allowed: bool,
    /// Whether clients may watch the log, which shows keys as a listing does.
    pub watch_allowed: bool,
    /// Whether `watch` is refused all the same (`-W`).
    pub watch_refused: bool,
    /// Whether `shutdown` is answered (`-A`: yes).
    pub shutdown_allowed: bool,
    /// Seconds after which an idle connection is closed; 0: never.
    pub idle_timeout_s: u32,
    /// Seconds that a command line may take; 0: any number.
    pub line_timeout_s: u32,
    /// The file of options, if there is one.
    pub options_file: Option<OptionsFile>,
    /// Whether the options and the files that they name are only checked.
    pub checks_only: bool,
    /// Seconds that a data block may take, and one more for each 64 KiB of it; 0: any number.
    pub block_timeout_s: u32,
    /// Seconds within which a client must have logged in (with `-Y` or `-S`); 0: any number.
    pub login_timeout_s: u32,
    /// Seconds for which a client may read nothing of its replies; 0: any number.
    pub reader_timeout_s: u32,
    /// How long a request may wait so that one wake-up serves several, in microseconds.
    pub slack_us: u32,
    /// Percent of `-m` that values may pin while they are sent; above it, slow readers are closed.
    /// 0: no limit.
    pub pinned_percent: u32,
    /// Seconds for which the token of a lease is good.
    pub lease_s: u32,
    /// Seconds for which the value of a deleted item is kept for leases; 0: none is kept.
    pub lease_stale_s: u32,
    /// The most of `-m` that values of deleted items take, in percent; 0: none is kept.
    pub lease_stale_percent: u32,
    /// The byte that ends a key's prefix in `stats detail`.
    pub prefix_delimiter: u8,
    /// Whether prefixes are counted from the start (with `-D`).
    pub detail_at_start: bool,
    /// The protocol of listeners without a protocol of their own.
    pub protocol: Protocol,
    /// The I/O backend to use.
    pub io: IoChoice,
    /// Where items are, and what happens to them when memory is full.
    pub engine: EngineMode,
    /// Where and how items are kept on a disk, if the engine does so.
    pub data: DataOptions,
    /// Which cores read a shard.
    pub reads: Reads,
    /// How many cores serve clients.
    pub cores: CoreChoice,
    /// Whether connections above the limit are closed with an error, instead of waiting.
    pub maxconns_fast: bool,
    /// Whether memory may not be swapped out (`-k`).
    pub lock_memory: bool,
    /// Whether items are kept in huge pages, where the machine has them (`-L`).
    pub huge_pages: bool,
    /// Whether a crash may leave a core file of any size (`-r`).
    pub core_dumps: bool,
    /// Whether `stats sizes` counts.
    pub track_sizes: bool,
    /// TLS for clients.
    pub tls: TlsOptions,
    /// Values that only `stats settings` reports.
    pub echo: Echo,
    /// Sentences for the operator: options without effect, and warnings.
    pub reports: Vec<String>,
}

/// memcached's settings that have no effect here. `stats settings` reports them, because tools read
/// them there.
#[derive(Clone, Debug, PartialEq)]
pub struct Echo {
    /// The `-l` list as given; `None`: every interface.
    pub inter: Option<String>,
    /// The port as given, -1 included.
    pub tcp_port: i32,
    /// `-U` as given, -1 included.
    pub udp_port: i32,
    /// `-s` as given.
    pub unix_path: Option<String>,
    /// `-a`, also without a socket.
    pub unix_mode: u32,
    /// `-f`
    pub growth_factor: f64,
    /// `-n`
    pub chunk_size: u32,
    /// `-o hashpower`
    pub hashpower: u32,
    /// `-o slab_reassign`
    pub slab_reassign: bool,
    /// `-o slab_automove`
    pub slab_automove: u32,
    /// `-o slab_automove_ratio`
    pub slab_automove_ratio: f64,
    /// `-o slab_automove_window`
    pub slab_automove_window: u32,
    /// `-o slab_chunk_max`, in bytes.
    pub slab_chunk_bytes_max: u32,
    /// `-o lru_crawler`
    pub lru_crawler: bool,
    /// `-o lru_crawler_sleep`
    pub lru_crawler_sleep: u32,
    /// `-o lru_crawler_tocrawl`
    pub lru_crawler_tocrawl: u32,
    /// `-o tail_repair_time`
    pub tail_repair_time: u32,
    /// `-o hash_algorithm`
    pub hash_algorithm: &'static str,
    /// `-o lru_maintainer`
    pub lru_maintainer: bool,
    /// `-o hot_lru_pct`
    pub hot_lru_pct: u32,
    /// `-o warm_lru_pct`
    pub warm_lru_pct: u32,
    /// `-o hot_max_factor`
    pub hot_max_factor: f64,
    /// `-o warm_max_factor`
    pub warm_max_factor: f64,
    /// `-o temporary_ttl`, when given.
    pub temporary_ttl: Option<u32>,
    /// `-o watcher_logbuf_size`, in bytes.
    pub watcher_logbuf_bytes: u64,
    /// `-o worker_logbuf_size`, in bytes.
    pub worker_logbuf_bytes: u64,
    /// `-o read_buf_mem_limit`, in bytes.
    pub read_buf_bytes_max: u64,
    /// `-N`
    pub napi_ids: u32,
}

impl ServeOptions {
    /// The defaults, without listeners.
    pub(crate) fn defaults(called_as: CalledAs) -> Self {
        let is_memcached = called_as == CalledAs::Memcached;
        Self {
            called_as,
            listeners: Listeners::default(),
            threads: None,
            roles: None,
            has_shard_ports: false,
            admin: AdminOptions::default(),
            observe: Vec::new(),
            drain_s: 0,
            udp: Udp { reply_datagrams_max: 1, sender_datagrams_max: 0, has_shard_ports: false },
            pipe: PipeChoice { interface: None, memory_bytes: 8 << 20, reply_times: 3 },
            memory_bytes: 64 << 20,
            evict: true,
            item_bytes_max: ITEM_BYTES_DEFAULT,
            cas: true,
            connections_max: 1024,
            backlog: 1024,
            requests_per_tick: None,
            verbosity: 0,
            log_format: LogFormat::Text,
            user: None,
            daemon: false,
            pidfile: None,
            memory_file: None,
            auth_file: None,
            sasl: false,
            sasl_mechanisms: SaslChoice::All,
            flush_allowed: true,
            flush_prefix: FlushPrefixAccess::All,
            dumps_allowed: is_memcached,
            scans_allowed: false,
            watch_allowed: is_memcached,
            watch_refused: false,
            shutdown_allowed: false,
            idle_timeout_s: 0,
            line_timeout_s: 10,
            options_file: None,
            checks_only: false,
            block_timeout_s: 10,
            login_timeout_s: 10,
            reader_timeout_s: 60,
            slack_us: 0,
            pinned_percent: 25,
            lease_s: 10,
            lease_stale_s: 60,
            lease_stale_percent: 5,
            prefix_delimiter: b':',
            detail_at_start: false,
            protocol: Protocol::Auto,
            io: IoChoice::Auto,
            engine: EngineMode::Cache,
            data: DataOptions::default(),
            reads: Reads::Crew,
            cores: CoreChoice::Auto,
            maxconns_fast: true,
            lock_memory: false,
            huge_pages: false,
            core_dumps: false,
            track_sizes: false,
            tls: TlsOptions::DEFAULTS,
            echo: Echo::defaults(),
            reports: Vec::new(),
        }
    }
}

impl Echo {
    const fn defaults() -> Self {
        Self {
            inter: None,
            tcp_port: DEFAULT_PORT,
            udp_port: 0,
            unix_path: None,
            unix_mode: 0o700,
            growth_factor: 1.25,
            chunk_size: 48,
            hashpower: 0,
            slab_reassign: true,
            slab_automove: 1,
            slab_automove_ratio: 0.8,
            slab_automove_window: 10,
            slab_chunk_bytes_max: 512 << 10,
            lru_crawler: true,
            lru_crawler_sleep: 100,
            lru_crawler_tocrawl: 0,
            tail_repair_time: 0,
            hash_algorithm: "murmur3",
            lru_maintainer: true,
            hot_lru_pct: 20,
            warm_lru_pct: 40,
            hot_max_factor: 0.2,
            warm_max_factor: 2.0,
            temporary_ttl: None,
            watcher_logbuf_bytes: 256 << 10,
            worker_logbuf_bytes: 64 << 10,
            read_buf_bytes_max: 0,
            napi_ids: 0,
        }
    }
}
