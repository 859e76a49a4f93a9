//! The lines of the log that say what requests, engines and clients have done.
//!
//! Upstream:   `sample` with each request while somebody watches; `upload` with refused values;
//!             `entered` with evictions; `accept` and `send` with connections.
//! Downstream: `log`.
//!
//! As in memcached, each lookup of a request writes a line to the stream of reads, also that of a
//! store, and before the line of the store.

use kachel_engine::{DeadFound, Engine, Key, Operation, StoreMode, StoreTerms, Ttl, Verb, Verdict};
use kachel_io::{Peer, SocketName};
use kachel_net::{ClientIndex, CloseReason, ConnectionIndex};
use kachel_observe::ItemBefore;
use kachel_wire::Streams;
use kachel_wire::format::ShownKey;
use kachel_wire::format::log::{self, LogItem, LogPosition, StoreFields};

use crate::context::Context;
use crate::cores::crawler::CrawlerRun;
use crate::cores::options::ClientEvent;

/// A request that was executed, as the log shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged<'a> {
    pub(crate) operation: &'a Operation<'a>,
    pub(crate) verdict: &'a Verdict,
    /// Bytes of the value in the outcome, if it has one.
    pub(crate) value_bytes: Option<usize>,
    /// The item before the request.
    pub(crate) before: ItemBefore,
    /// Whether the request is a meta command.
    pub(crate) is_meta: bool,
    /// The descriptor of the client.
    pub(crate) descriptor: i32,
}

impl Context {
    fn log_line(&self, stream: Streams, format: impl FnOnce(&mut Vec<u8>, LogPosition)) {
        self.log.write(&self.shared.watchers, &self.counters, stream, format);
    }

    /// Writes the lines of a request.
    #[cold]
    pub(crate) fn log_operation(&self, logged: Logged<'_>) {
        let Logged { operation, verdict, before, .. } = logged;
        debug_assert!(self.log.is_on(), "log, L1: somebody watches");
        match operation.verb {
            Verb::Get(_) => self.log_read(logged),
            Verb::Inspect | Verb::Touch(_) => self.log_lookup(logged, before),
            Verb::Store(terms) => {
                self.log_lookup(logged, before);
                self.log_store(logged, &terms);
            }
            Verb::Delete(terms) => {
                self.log_lookup(logged, before);
                let is_gone = match verdict {
                    Verdict::Deleted => true,
                    Verdict::Invalidated => terms.empties && !terms.marks_stale,
                    _ => false,
                };
                if is_gone {
                    if terms.empties {
                        let ttl_s = self.ttl_s(terms.ttl.unwrap_or(Ttl(0)));
                        let store = StoreFields { status: "stored", command: "set", ttl_s };
                        self.log_stored(logged, 0, terms.client_flags, &store);
                    }
                    self.log_deletion(logged);
                }
            }
            Verb::Arithmetic(terms) => {
                self.log_lookup(logged, before);
                if let Verdict::Number { facts, number } = verdict
                    && facts.created
                {
                    let value_bytes = number.checked_ilog10().map_or(1, |digits| digits + 1);
                    let store = StoreFields {
                        status: "stored",
                        command: "add",
                        ttl_s: self.ttl_s(terms.life.vivify().unwrap_or(Ttl(0))),
                    };
                    self.log_stored(logged, value_bytes as usize, 0, &store);
                }
            }
        }
    }

    /// Writes the line of a read, whose item is in its outcome.
    fn log_read(&self, logged: Logged<'_>) {
        debug_assert!(matches!(logged.operation.verb, Verb::Get(_)), "only a read tells its item");
        let found = match logged.verdict {
            Verdict::Hit(facts) if !facts.created => {
                let value_bytes = logged.value_bytes.unwrap_or(facts.value_bytes);
                let key_bytes = logged.operation.key.bytes().len();
                let class = self.sizes.of(key_bytes, value_bytes, facts.client_flags);
                ItemBefore { is_there: true, class, value_bytes, ttl_s: None }
            }
            // Whether an item is there is not known.
            Verdict::DiskFailed | Verdict::NoMemory { .. } => return,
            _ => ItemBefore::default(),
        };
        self.log_lookup(logged, found);
    }

    /// Writes the line of a lookup that found this item, or none.
    fn log_lookup(&self, logged: Logged<'_>, found: ItemBefore) {
        let key = &logged.operation.key;
        debug_assert!(found.is_there || found.class == 0, "only an item has a class");
        let status = if found.is_there { "found" } else { self.missed(key) };
        let (class, value_bytes) = (found.class, found.value_bytes);
        let item = LogItem { key: ShownKey::of(key.bytes()), class, value_bytes };
        self.log_line(Streams::FETCHERS, |line, at| {
            log::item_get(line, at, &item, status, logged.descriptor);
        });
    }

    /// Why nothing was found under a key.
    fn missed(&self, key: &Key<'_>) -> &'static str {
        let owner = self.hasher.owner(key.hashes());
        debug_assert!(owner.0 < self.engines(), "an engine of this process");
        match self.log.take_dead(owner, key.secret_hash()) {
            DeadFound { expired: 1.., .. } => "expired",
            DeadFound { flushed: 1.., .. } => "flushed",
            _ => "not_found",
        }
    }

    /// Writes the line of a store.
    fn log_store(&self, logged: Logged<'_>, terms: &StoreTerms) {
        debug_assert!(!matches!(logged.verdict, Verdict::Hit(_)), "a store reads nothing");
        let (status, value_bytes) = match *logged.verdict {
            Verdict::Stored { value_bytes, .. } => ("stored", value_bytes),
            Verdict::Exists => ("exists", terms.value_bytes),
            Verdict::Miss => ("not_found", terms.value_bytes),
            Verdict::NoMemory { .. } => ("no_memory", terms.value_bytes),
            _ => ("not_stored", terms.value_bytes),
        };
        let extends = matches!(terms.mode, StoreMode::Append | StoreMode::Prepend);
        let ttl_s = match logged.before.is_there && extends {
            true => logged.before.ttl_s.unwrap_or(0),
            false => self.ttl_s(terms.vivify.unwrap_or(terms.ttl)),
        };
        let store = StoreFields { status, command: command(terms), ttl_s };
        self.log_stored(logged, value_bytes, terms.client_flags, &store);
    }

    fn log_stored(
        &self,
        logged: Logged<'_>,
        value_bytes: usize,
        client_flags: u32,
        store: &StoreFields,
    ) {
        let key = ShownKey::of(logged.operation.key.bytes());
        let class = self.sizes.of(key.byte_count(), value_bytes, client_flags);
        let item = LogItem { key, class, value_bytes };
        self.log_line(Streams::MUTATIONS, |line, at| {
            log::item_store(line, at, &item, store, logged.descriptor);
        });
    }

    /// Writes the line of a value that is refused before it has come.
    #[cold]
    pub(crate) fn log_refused(
        &self,
        key: &[u8],
        terms: &StoreTerms,
        is_too_large: bool,
        client: ClientIndex,
    ) {
        let status = if is_too_large { "too_large" } else { "no_memory" };
        let store = StoreFields { status, command: command(terms), ttl_s: 0 };
        let item = LogItem { key: ShownKey::of(key), class: 0, value_bytes: 0 };
        self.log_line(Streams::MUTATIONS, |line, at| {
            log::item_store(line, at, &item, &store, self.log.descriptor(client));
        });
    }

    fn log_deletion(&self, logged: Logged<'_>) {
        let ItemBefore { class, value_bytes, .. } = logged.before;
        let key = ShownKey::of(logged.operation.key.bytes());
        let item = LogItem { key, class, value_bytes };
        let command = if logged.is_meta { "md" } else { "delete" };
        self.log_line(Streams::DELETIONS, |line, at| log::deleted(line, at, &item, command));
    }

    /// The TTL that an item gets, in seconds; 0 if it never expires. For an item that is dead at
    /// once the number wraps around, as in memcached.
    fn ttl_s(&self, ttl: Ttl) -> u32 {
        let now = self.now();
        debug_assert!(now.second > 0, "no second is 0");
        match now.expiry(ttl) {
            0 => 0,
            expiry => expiry.wrapping_sub(now.second),
        }
    }

    /// Writes the lines of the items that an engine has evicted, and has the observers note those
    /// that were drawn.
    #[cold]
    pub(crate) fn log_evicted(&self, engine: &mut impl Engine) {
        let now = self.now().second;
        debug_assert!(engine.has_evicted(), "there is something to tell");
        let observers = &self.shared.observers;
        let unlisted = engine.take_evicted(|evicted| {
            if evicted.is_drawn {
                observers.note_evicted(self.core.number(), evicted.key, &self.counters);
            }
            let (key, value_bytes) = (ShownKey::of(evicted.key), evicted.value_bytes);
            let class = self.sizes.of(key.byte_count(), value_bytes, evicted.client_flags);
            let item = LogItem { key, class, value_bytes };
            let is_mortal = evicted.expiry != 0;
            let ttl_s = is_mortal.then(|| i64::from(evicted.expiry) - i64::from(now));
            let idle_s = now.saturating_sub(evicted.last_access);
            self.log_line(Streams::EVICTIONS, |line, at| {
                log::eviction(line, at, &item, evicted.is_fetched, ttl_s, idle_s);
            });
        });
        self.counters.log_worker_dropped.add(unlisted);
    }

    /// Writes the line of a run of the crawler that is over.
    pub(crate) fn log_crawled(&self, run: CrawlerRun) {
        let elapsed_s = self.now().second.saturating_sub(run.begun_s);
        self.log_line(Streams::SYSEVENTS, |line, at| {
            log::crawled(line, at, elapsed_s, run.examined, run.reclaimed);
        });
    }

    /// Writes the line of a prefix that was flushed.
    pub(crate) fn log_prefix_flushed(&self, prefix: &[u8], bytes: bool) {
        let shown = ShownKey::of(prefix);
        self.log_line(Streams::SYSEVENTS, |line, at| log::prefix_flushed(line, at, shown, bytes));
    }

    /// Notes the name of a client whose connection this core serves from now on.
    pub(crate) fn note_client(&self, connection: ConnectionIndex, name: SocketName) {
        debug_assert!(name.descriptor >= 0, "an open connection has a descriptor");
        self.log.note_name(connection, name);
    }

    /// The address of a connection's client.
    pub(crate) fn peer(&self, connection: ConnectionIndex) -> Peer {
        self.log.name(connection).peer
    }

    /// Tells the operator what happens to an open connection, if the operator wants to know.
    pub(crate) fn tell_client(&self, connection: ConnectionIndex, event: ClientEvent) {
        if let Some(tell) = self.shared.options.tell_client {
            tell(self.log.name(connection), event);
        }
    }

    /// Writes the line of a connection that was accepted.
    pub(crate) fn log_opened(&self, connection: ConnectionIndex) {
        self.tell_client(connection, ClientEvent::Opened);
        self.log_connection(connection, None);
    }

    /// Writes the line of a connection that closes.
    pub(crate) fn log_closed(&self, connection: ConnectionIndex, reason: CloseReason) {
        self.tell_client(connection, ClientEvent::Closed(reason));
        self.log_connection(connection, Some(reason.name()));
    }

    fn log_connection(&self, connection: ConnectionIndex, reason: Option<&str>) {
        self.log_line(Streams::CONNEVENTS, |line, at| {
            let SocketName { peer, descriptor } = self.log.name(connection);
            let peer = match peer {
                Peer::Local | Peer::Unknown => None, // As in memcached.
                Peer::V4(address) => Some(((*address.ip()).into(), address.port())),
                Peer::V6(address) => Some(((*address.ip()).into(), address.port())),
            };
            log::connection(line, at, peer, descriptor, reason);
        });
    }
}

/// The command of a store, as memcached calls it in its log.
fn command(terms: &StoreTerms) -> &'static str {
    debug_assert!(terms.mode != StoreMode::Lease || terms.compare_cas.is_some(), "it has a token");
    match terms.mode {
        StoreMode::Set | StoreMode::Replace if terms.compare_cas.is_some() => "cas",
        StoreMode::Set => "set",
        StoreMode::Add => "add",
        StoreMode::Replace => "replace",
        StoreMode::Append => "append",
        StoreMode::Prepend => "prepend",
        StoreMode::Lease => "lease",
    }
}
