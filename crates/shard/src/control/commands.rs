//! Requests that are not about one key.
//!
//! Upstream:   `serve`, when no request of the connection is staged.
//! Downstream: the engine (both flushes), `listing` (dumps), `stats`, and the counters, the budget
//!             and the flags of the process.
//!
//! Invariants:
//! - I1  `flush_all`, `flush_prefix`, `stats` and `mscan` concern all engines and cores. They wait
//!   until all parked requests of their connection are answered. So the requests of a connection
//!   take effect in order.

use kachel_engine::{Common, Engine, FlushFailed, PrefixRefused};
use kachel_io::Peer;
use kachel_net::{ClientIndex, CloseReason, Connection, ConnectionIndex};
use kachel_stdx::BytePrefix;
use kachel_wire::request::{Admin, BinaryHead, DumpForm, Request, Scan, Ttl};
use kachel_wire::{
    Cachedump, DetailTopic, ObserverSet, Reply, Sink as _, StatsTopic, Streams, binary_stats_topic,
    stats_topic,
};

use crate::clients::Clients;
use crate::connections::watching;
use crate::context::Context;
use crate::cores::options::{PrefixFlushPermission, Switched};
use crate::cores::refreshes::Certificates;
use crate::cores::work::{REQUEST_BYTES, TURN_BYTES_MAX};
use crate::listings::listing::Listings;
use crate::listings::scan::Scanning;
use crate::request::form::Form;
use crate::stats::topics::Answering;
use crate::waiting::engines::Engines;

/// Parked requests of the connection are not answered yet, so an administrative request must wait.
/// Nothing was done.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Awaits;

/// `cache_memlimit` refuses a number of megabytes below this.
const MEMLIMIT_MEGABYTES_MIN: u32 = 8;
/// `cache_memlimit` refuses a number of megabytes above this, because the client probably means
/// bytes.
const MEMLIMIT_MEGABYTES_MAX: u32 = 1_000_000_000;

/// The parts of a shard that an administrative request uses.
pub(crate) struct Administration<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) listings: &'a mut Listings,
    pub(crate) client: ClientIndex,
    /// The head that replies of the binary protocol repeat. `None` in other protocols.
    pub(crate) head: Option<BinaryHead>,
    /// The name of the I/O backend, for `stats`.
    pub(crate) io_kind: &'static str,
}

/// Whether the client wants no reply to a request that is refused over UDP.
const fn is_silent(admin: &Admin<'_>) -> bool {
    match admin {
        Admin::CacheMemlimit { noreply, .. }
        | Admin::Crawl { noreply, .. }
        | Admin::SwitchCrawler { noreply, .. }
        | Admin::Dump { noreply, .. }
        | Admin::SwitchPipe { noreply, .. }
        | Admin::Observe { noreply, .. }
        | Admin::RefreshCertificates { noreply } => *noreply,
        _ => false,
    }
}

/// What a request counts as (`cores/work`, W1). One that switches observers, or asks for what those
/// of all cores have noted, may take as long as a turn, and longer on a machine of many cores. So
/// does a flush that waits for the disk.
pub(crate) fn work_bytes<C: Common>(request: &Request<'_>) -> u64 {
    let (admin, is_binary) = match request {
        Request::Admin(admin) => (admin, false),
        Request::BinaryAdmin { admin, .. } => (admin, true),
        _ => return REQUEST_BYTES,
    };
    let topic = match admin {
        Admin::Observe { .. } => return TURN_BYTES_MAX,
        Admin::FlushAll { .. } | Admin::FlushPrefix { .. } if C::FLUSH_WAITS => {
            return TURN_BYTES_MAX;
        }
        Admin::Stats { topic } if is_binary => binary_stats_topic(topic),
        Admin::Stats { topic } => stats_topic(topic),
        _ => return REQUEST_BYTES,
    };
    match topic {
        StatsTopic::HotKeys(_) | StatsTopic::MissCurve | StatsTopic::Prefixes(_) => TURN_BYTES_MAX,
        _ => REQUEST_BYTES,
    }
}

impl<E: Engine> Administration<'_, E> {
    /// Executes `mn` or an administrative request.
    ///
    /// The reply to `mn` is sent after the replies to all earlier requests, as every reply is.
    ///
    /// Errors: the request must wait, and nothing was done.
    pub(crate) fn carry_out(&mut self, request: &Request<'_>) -> Result<(), Awaits> {
        let admin = match request {
            Request::MetaNoop => return self.done(Reply::Mn, false),
            Request::Admin(admin) => admin,
            Request::BinaryAdmin { head, admin } => {
                self.head = Some(*head);
                admin
            }
            other => unreachable!("{other:?} is about a key"),
        };
        match self.by_any(admin) {
            Some(done) => done,
            None => match self.client.connection() {
                Some(connection) => self.by_connection(connection, admin),
                None => self.done(Reply::NotOverUdp, is_silent(admin)),
            },
        }
    }

    /// Executes an administrative request that any client may send, also one over UDP. `None`: it
    /// is not such a request, and nothing was done.
    fn by_any(&mut self, admin: &Admin<'_>) -> Option<Result<(), Awaits>> {
        let shutdown_allowed = self.context.shared.options.plain.shutdown_allowed;
        Some(match *admin {
            Admin::FlushAll { delay, noreply } => self.settle_before().and_then(|()| {
                let reply = self.flush_all(delay);
                self.done(reply, noreply)
            }),
            Admin::FlushPrefix { prefix, bytes, noreply } => self.settle_before().and_then(|()| {
                let reply = self.flush_prefix(prefix, bytes);
                self.done(reply, noreply)
            }),
            Admin::Version => {
                self.version();
                Ok(())
            }
            Admin::Verbosity { noreply, .. } => self.done(Reply::Ok, noreply),
            Admin::Quit => {
                // Only the binary protocol has a reply to it.
                let replies = self.head.is_some();
                self.clients.drain(self.client, CloseReason::Normal);
                self.done(Reply::Ok, !replies)
            }
            Admin::Settled { reply: Reply::InvalidShutdownMode, .. } if !shutdown_allowed => {
                self.done(Reply::ShutdownNotEnabled, false)
            }
            Admin::Settled { reply, noreply } => self.done(reply, noreply),
            _ => return None,
        })
    }

    /// Executes an administrative request that is refused over UDP. Statistics and listings are
    /// longer than a datagram. Limits and the end of the process are not for a sender whose address
    /// may be forged.
    fn by_connection(
        &mut self,
        connection: ConnectionIndex,
        admin: &Admin<'_>,
    ) -> Result<(), Awaits> {
        let context = self.context;
        let options = &context.shared.options;
        debug_assert!(!self.client.is_exchange(), "it has a socket");
        match *admin {
            Admin::Shutdown { .. } if !options.plain.shutdown_allowed => {
                self.done(Reply::ShutdownNotEnabled, false)
            }
            Admin::Shutdown { graceful } => {
                context.shared.ask_for_shutdown(graceful);
                self.clients.drain(connection, CloseReason::Shutdown);
                Ok(())
            }
            Admin::CacheMemlimit { megabytes, noreply } => {
                let reply = self.set_limit(megabytes);
                self.done(reply, noreply)
            }
            Admin::RefreshCertificates { noreply } => {
                self.refresh_certificates(connection, noreply)
            }
            Admin::SwitchPipe { on, noreply } => self.switch_pipe(on, noreply),
            Admin::Observe { observers, on, noreply } => {
                self.switch_observers(observers, on);
                self.done(Reply::Ok, noreply)
            }
            Admin::ShowHash { key } => {
                self.show_hash(key);
                Ok(())
            }
            Admin::Dump { noreply, .. }
            | Admin::Crawl { noreply, .. }
            | Admin::SwitchCrawler { noreply, .. } => {
                let reply = self.crawler(connection, admin).unwrap_or_else(|refused| refused);
                self.done(reply, noreply)
            }
            Admin::Stats { topic } => {
                self.settle_before()?;
                self.stats(connection, topic);
                Ok(())
            }
            Admin::Scan(ref scan) => {
                self.settle_before()?;
                let reply = self.scan(connection, scan).err();
                self.done(reply.unwrap_or(Reply::Nothing), false)
            }
            Admin::MoveTime { seconds } => self.done(self.move_time(seconds), false),
            Admin::Watch { streams } => {
                let reply = self.watch(connection, streams);
                self.done(reply, false)
            }
            Admin::FlushAll { .. }
            | Admin::FlushPrefix { .. }
            | Admin::Version
            | Admin::Verbosity { .. }
            | Admin::Quit
            | Admin::Settled { .. } => unreachable!("any client may send {admin:?}"),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "what every request ends with")]
    fn done(&mut self, reply: Reply, noreply: bool) -> Result<(), Awaits> {
        if !noreply {
            self.clients.reply(self.client, self.head, reply);
        }
        Ok(())
    }

    fn version(&mut self) {
        let version = self.context.shared.options.version.as_bytes();
        let Some(mut sink) = self.clients.answering(self.client) else { return };
        debug_assert!(!version.is_empty(), "a server has a version");
        match self.head {
            Some(head) => head.put_body(&mut sink, version),
            None => sink.put_all([b"VERSION ", version, b"\r\n"]),
        }
    }

    /// Tells the hash by which a key is shown.
    fn show_hash(&mut self, key: &[u8]) {
        debug_assert!(self.head.is_none(), "the binary protocol has no such request");
        let hasher = &self.context.hasher;
        let hash = hasher.shown_hash(hasher.secret_hash(key));
        let Some(mut sink) = self.clients.answering(self.client) else { return };
        sink.put(format!("HASH {hash:016x}\r\n").as_bytes());
    }

    fn stats(&mut self, connection: ConnectionIndex, topic: &[u8]) {
        let topic =
            if self.head.is_some() { binary_stats_topic(topic) } else { stats_topic(topic) };
        let Self { context, engines, head, .. } = *self;
        if topic == StatsTopic::Reset {
            context.shared.totals.reset();
            engines.class_sums.reset();
            return self.clients.reply(connection, head, Reply::Reset);
        }
        if let Some(form) = self.form_of(topic) {
            return self.begin_listing(connection, form);
        }
        let clients = &mut *self.clients;
        Answering { context, engines, clients, connection, head }.stats(topic, self.io_kind);
    }

    /// Checks that other shards have answered all earlier requests of the connection.
    ///
    /// Errors: they have not, so a request about all shards must wait.
    fn settle_before(&self) -> Result<(), Awaits> {
        let open = self.clients.connections.get(self.client);
        let awaits = open.is_some_and(|open| open.outbox().awaits_answers());
        if awaits { Err(Awaits) } else { Ok(()) }
    }

    /// Flushes all items of all shards, now or in a later second. A Unix time from before the start
    /// flushes nothing and replaces a pending flush, as in memcached: it is most likely a delay of
    /// more than 30 days.
    fn flush_all(&mut self, delay: Ttl) -> Reply {
        let Context { counters, shared, .. } = self.context;
        let now = self.context.now();
        let is_allowed = shared.options.plain.flush_allowed;
        // As in memcached, a `flush_all` that is not allowed counts in the text protocol only.
        counters.cmd_flush.add(u64::from(is_allowed || self.head.is_none()));
        if !is_allowed {
            return Reply::FlushNotAllowed;
        }
        let common = self.engines.common();
        if now.is_uncounted(delay) {
            return kept(common.cancel_flush(&now));
        }
        let due = now.expiry(delay);
        debug_assert!(delay.0 <= 0 || due > 0, "a delay ends");
        if delay.0 > 0 && due > now.second + 1 {
            // As in memcached, the flush is in the second before `due`, so that it covers all items
            // stored until then and none of them is live in `due`.
            shared.observers.note_flush(due - 1, now.second);
            kept(common.flush_in(due - 1, &now))
        } else {
            shared.observers.note_flush(now.second, now.second);
            kept(common.flush(&now))
        }
    }

    /// Flushes the items of all shards whose keys `prefix` takes. With `bytes`, it takes all keys
    /// that begin with it; without, the prefix ends at a delimiter (`-D`).
    fn flush_prefix(&mut self, prefix: &[u8], bytes: bool) -> Reply {
        let Context { counters, shared, .. } = self.context;
        let options = &shared.options.plain;
        debug_assert!(self.head.is_none(), "the binary protocol has no such request");
        counters.cmd_flush_prefix.add(1);
        if !options.flush_allowed {
            return Reply::FlushNotAllowed;
        }
        match options.prefix_flushes {
            PrefixFlushPermission::FromAnywhere => {}
            PrefixFlushPermission::FromHost if self.is_of_host() => {}
            PrefixFlushPermission::FromHost => return Reply::FlushPrefixLocalOnly,
            PrefixFlushPermission::Refused => return Reply::FlushPrefixNotAllowed,
        }
        let prefix = match bytes {
            true => BytePrefix::of_bytes(prefix),
            false => BytePrefix::of_name(prefix, options.prefix_delimiter),
        };
        let prefix = prefix.expect("the parser has checked the length");
        match self.engines.common().flush_prefix(&prefix) {
            Ok(()) => {
                self.context.log_prefix_flushed(prefix.bytes(), bytes);
                Reply::Ok
            }
            Err(PrefixRefused::TooMany) => Reply::TooManyPrefixes,
            Err(PrefixRefused::Unsupported) => Reply::PrefixesUnsupported,
            Err(PrefixRefused::DiskFailed) => Reply::DiskError,
        }
    }

    /// Whether the client is a process of this host.
    fn is_of_host(&self) -> bool {
        let Some(connection) = self.client.connection() else { return false };
        match self.context.peer(connection) {
            Peer::Local => true,
            Peer::Unknown => false,
            Peer::V4(address) => address.ip().is_loopback(),
            Peer::V6(address) => address.ip().to_canonical().is_loopback(),
        }
    }

    /// Moves the clock of the process on, if it may be moved.
    fn move_time(&self, seconds: u32) -> Reply {
        let context = self.context;
        if !context.shared.options.plain.time_moves {
            return Reply::Error;
        }
        context.shared.move_time(seconds);
        // The requests after this one in the same tick see the new time.
        context.move_on();
        Reply::Ok
    }

    fn set_limit(&mut self, megabytes: u32) -> Reply {
        if megabytes < MEMLIMIT_MEGABYTES_MIN {
            return Reply::MemlimitTooSmall;
        }
        if megabytes > MEMLIMIT_MEGABYTES_MAX {
            return Reply::MemlimitNotMegabytes;
        }
        let bytes = u64::from(megabytes) << 20;
        if bytes > self.engines.common().bytes_max() {
            return Reply::MemlimitFailed;
        }
        debug_assert!(bytes >= u64::from(MEMLIMIT_MEGABYTES_MIN) << 20, "no less than the least");
        self.context.shared.budget.set_limit_bytes(bytes);
        Reply::Ok
    }

    fn refresh_certificates(
        &mut self,
        connection: ConnectionIndex,
        noreply: bool,
    ) -> Result<(), Awaits> {
        debug_assert!(self.head.is_none(), "the binary protocol has no such request");
        match self.context.shared.options.certificates {
            Certificates::Unknown => return self.done(Reply::Error, noreply),
            Certificates::NotEnabled => return self.done(Reply::TlsNotEnabled, false),
            Certificates::Readable => {}
        }
        self.clients.ask_refresh(self.context, connection, noreply);
        Ok(())
    }

    /// Switches observers on or off. The cores that walk for them are woken.
    fn switch_observers(&self, observers: ObserverSet, on: bool) {
        let Self { context, engines, .. } = self;
        let draw = |every| engines.common().draw_evictions(every);
        context.shared.observers.switch(observers, on, context.now_ns(), draw);
        if observers.has(ObserverSet::PREFIXES) {
            context.others().for_each(|core| context.note_wake(core));
        }
        // The requests after this one in the same tick follow it.
        context.begin_sample();
    }

    /// Switches the pipe on or off. It is off before the client hears so.
    fn switch_pipe(&mut self, on: bool, noreply: bool) -> Result<(), Awaits> {
        debug_assert!(self.head.is_none(), "the binary protocol has no such request");
        let switched = self.context.shared.options.pipe.as_ref().map(|pipe| (pipe.switch)(on));
        let reply = match switched {
            Some(Switched::Done) => Reply::Ok,
            None | Some(Switched::NotEnabled) => Reply::PipeNotEnabled,
            Some(Switched::Detached) => Reply::PipeDetached,
            Some(Switched::StillAnswers) => Reply::PipeStillAnswers,
        };
        self.done(reply, noreply)
    }

    /// Executes a request of `lru_crawler`.
    ///
    /// Errors: the reply says why nothing was begun.
    fn crawler(&mut self, connection: ConnectionIndex, admin: &Admin<'_>) -> Result<Reply, Reply> {
        match *admin {
            Admin::Dump { form, classes, .. } => self.dump(connection, form, classes),
            Admin::Crawl { classes, .. } => self.crawl(classes),
            Admin::SwitchCrawler { on, .. } => {
                self.context.shared.crawler.switch(on);
                Ok(Reply::Ok)
            }
            _ => unreachable!("{admin:?} is not about the crawler"),
        }
    }

    /// Begins a dump. The reasons to refuse one are checked in memcached's order.
    fn dump(
        &mut self,
        connection: ConnectionIndex,
        form: DumpForm,
        classes: Result<u64, Reply>,
    ) -> Result<Reply, Reply> {
        let keys_only = form == DumpForm::Mgdump;
        let shared = &self.context.shared;
        if !shared.crawler.is_on() {
            return Err(Reply::CrawlerDisabled);
        }
        if !shared.options.plain.dumps_allowed {
            return Err(if keys_only {
                Reply::MgdumpNotAllowed
            } else {
                Reply::MetadumpNotAllowed
            });
        }
        if self.is_pipelined() {
            return Err(if keys_only { Reply::MgdumpPipelined } else { Reply::MetadumpPipelined });
        }
        let classes = classes?;
        debug_assert!(classes != 0, "the parser has found a class");
        let form = if keys_only { Form::Mgdump { classes } } else { Form::Metadump { classes } };
        self.begin_listing(connection, form);
        Ok(Reply::Nothing)
    }

    /// Begins a scan. The next step of the listings sends its first items.
    ///
    /// Errors: the reply says why none was begun.
    fn scan(&mut self, connection: ConnectionIndex, scan: &Scan<'_>) -> Result<(), Reply> {
        debug_assert!(self.head.is_none(), "the binary protocol has no such request");
        if !self.context.shared.options.plain.scans_allowed {
            return Err(Reply::ScanNotAllowed);
        }
        if !E::ORDERED {
            return Err(Reply::ScanUnordered);
        }
        self.clients.with(connection, Connection::begin_listing);
        self.context.counters.listings_begun.add(1);
        self.listings.begin_scan(connection, Scanning::new(scan));
        Ok(())
    }

    /// Begins a listing. The next step of the listings sends its first lines.
    fn begin_listing(&mut self, connection: ConnectionIndex, form: Form) {
        let open = self.clients.connections.get(connection);
        debug_assert!(open.is_none_or(|open| !open.is_listing()), "listing, I2: one at a time");
        self.clients.with(connection, Connection::begin_listing);
        self.context.counters.listings_begun.add(1);
        self.listings.begin(connection, self.head, form);
    }

    /// The listing that answers a topic of `stats`, if one does.
    fn form_of(&self, topic: StatsTopic) -> Option<Form> {
        let options = &self.context.shared.options;
        match topic {
            StatsTopic::Items => Some(Form::Items),
            StatsTopic::Slabs => Some(Form::Slabs),
            StatsTopic::Conns => Some(Form::Connections),
            StatsTopic::Detail(DetailTopic::Dump) if options.plain.dumps_allowed => {
                Some(Form::Prefixes)
            }
            StatsTopic::Sizes if options.plain.tracks_sizes => Some(Form::Sizes),
            StatsTopic::Cachedump(Ok(Cachedump { class, limit }))
                if options.plain.dumps_allowed =>
            {
                debug_assert!(class < 64, "the parser refuses other classes");
                let lines_left = if limit == 0 { u32::MAX } else { limit };
                Some(Form::Cachedump { class: class as u8, lines_left })
            }
            _ => None,
        }
    }

    /// Has all shards reclaim the space of dead items of these size classes.
    fn crawl(&mut self, classes: Result<u64, Reply>) -> Result<Reply, Reply> {
        let context = self.context;
        if !context.shared.crawler.is_on() {
            return Err(Reply::CrawlerDisabled);
        }
        let classes = classes?;
        debug_assert!(classes != 0, "the parser has found a class");
        if !context.shared.crawler.begin(context.cores(), context.now().second, classes) {
            return Err(Reply::CrawlerBusy);
        }
        context.counters.listings_begun.add(1);
        context.others().for_each(|core| context.note_wake(core));
        Ok(Reply::Ok)
    }

    /// Has the client watch these streams from now on.
    fn watch(&mut self, connection: ConnectionIndex, streams: Option<Streams>) -> Reply {
        let Self { context, engines, .. } = *self;
        if !context.shared.options.plain.watch_allowed {
            return Reply::WatchNotAllowed;
        }
        if self.is_pipelined() {
            return Reply::WatchPipelined;
        }
        debug_assert!(self.head.is_none(), "the binary protocol has no such request");
        match streams {
            Some(streams) => watching::begin(context, engines, self.clients, connection, streams),
            None => Reply::Error,
        }
    }

    /// Whether replies to earlier requests were not sent yet.
    fn is_pipelined(&self) -> bool {
        let open = self.clients.connections.get(self.client);
        open.is_some_and(|open| open.outbox().has_unsent() || open.outbox().slots_in_use() > 0)
    }
}

/// The reply to a flush.
fn kept(flushed: Result<(), FlushFailed>) -> Reply {
    match flushed {
        Ok(()) => Reply::Ok,
        Err(FlushFailed) => Reply::DiskError,
    }
}
