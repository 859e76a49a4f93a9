//! Listings of all items: `lru_crawler metadump` and `mgdump`, `stats cachedump`, and the topics of
//! `stats` that count items.
//!
//! Upstream:   `admin` begins a listing; `tick` continues all listings by one bounded step;
//!             `records` passes on the pieces that other cores have listed.
//! Downstream: the engine of each shard in turn, which walks its segments; `class_stats` formats
//!             what was counted.
//!
//! ```text
//! our listings, in turn --(engines that this core may take)--+
//!         |                                                  +--> one piece a tick
//!         +--(others: parked, one request a shard)           |
//! pieces that other cores ask for, in turn ------------------+
//! ```
//!
//! Invariants:
//! - I1  In one tick a core examines at most `LISTED_ITEMS_PER_TICK_MAX` items for all listings
//!   together, those of its own clients and those of other cores, or `COUNTED_ITEMS_PER_TICK_MAX`
//!   if they are only counted. So other requests wait for at most one piece, for any number of
//!   listings.
//! - I2  While a listing runs, no other request of its connection is executed.
//! - I3  A core asks each other core for one piece at a time, so at most one request of each other
//!   core waits here. It asks with `erew`, and for what only that core has.
//! - I4  Each listing that can continue gets its turn: a core's own listings take turns with each
//!   other, and with the pieces that other cores ask for. A listing whose client does not read
//!   loses only its turns.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use kachel_engine::{Cursor, Engine, ReadValue};
use kachel_io::{Peer, SocketId, SocketName};
use kachel_net::{AnswerRoom, Connection, ConnectionIndex};
use kachel_stdx::Chain;
use kachel_wire::request::BinaryHead;
use kachel_wire::{Reply, format};

use crate::LISTED_ITEMS_PER_TICK_MAX;
use crate::backlog::Left;
use crate::census::{Census, NOTE_BYTES, take_note};
use crate::class_stats::SIZE_STEP_BYTES;
use crate::clients::Clients;
use crate::context::Context;
use crate::engines::Engines;
use crate::form::{Ended, Form};
use crate::parked::{ANSWER_BYTES_MAX, Ask};
use crate::prefixes::{self, PrefixCounts};
use crate::process::OpenSocket;
use crate::records::{Outgoing, Records};
use crate::stats::Answering;

/// Listings that one step checks for whether they may continue.
const LISTINGS_CHECKED_MAX: usize = 64;
/// Bytes of the longest line of a listing: a key with each byte as `%XX`, and the item's facts.
const LINE_BYTES_MAX: usize = 1024;
/// Bytes of one piece, so that it fits an answer.
const PIECE_BYTES_MAX: usize = ANSWER_BYTES_MAX - LINE_BYTES_MAX;

/// The steps of `stats sizes`. Longer items count in the last one.
const SIZE_STEPS_MAX: usize = 1 << 15;
/// The most bytes that `stats cachedump` sends, about.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;
/// Lines of what was counted that are sent in one tick.
const COUNTED_LINES_PER_TICK_MAX: usize = 512;

const _: () = assert!(Form::Items.items_max() * NOTE_BYTES <= PIECE_BYTES_MAX);

/// A listing that a client waits for.
#[derive(Debug)]
struct Listing {
    connection: ConnectionIndex,
    /// The head that replies of the binary protocol repeat. `None` in other protocols.
    head: Option<BinaryHead>,
    form: Form,
    /// What was counted so far.
    census: Census,
    /// What the cores have counted by prefix.
    prefixes: BTreeMap<Vec<u8>, PrefixCounts>,
    /// Bytes of the lines that were sent.
    sent_bytes: usize,
    /// The number of shards whose items are all listed. A listing begins with the shard of its
    /// client, so that many listings do not all need the same shard.
    listed_shards: u16,
    cursor: Cursor,
    /// Whether another core was asked for a piece and has not answered yet.
    awaited: bool,
    begun: bool,
}

impl Listing {
    /// The shard whose items come next, for a client of shard `id` of `shards`. `None` if all items
    /// were listed.
    fn owner(&self, id: u16, shards: u16) -> Option<u16> {
        let owner = (u32::from(id) + u32::from(self.listed_shards)) % u32::from(shards);
        (self.listed_shards < shards).then_some(owner as u16)
    }

    /// Goes on after a piece of `shard`, whose lines or notes are `text`. Returns the lines to
    /// send.
    fn go_on<'t>(
        &mut self,
        context: &Context,
        shard: u16,
        text: &'t [u8],
        ended: Ended,
    ) -> &'t [u8] {
        debug_assert!(!self.awaited, "a listing goes on with the piece that it waited for");
        debug_assert!(self.listed_shards < context.shards(), "it was not over");
        let mut is_last = ended.next.is_none();
        if self.form.counts() {
            self.census.add(text, u64::from(ended.examined));
            let cut = !is_last && self.census.is_enough(context.shards());
            is_last |= cut;
            if is_last {
                let items = context.shared.counters[usize::from(shard)].items.value();
                self.census.end_shard(cut.then_some(items));
            }
        } else if self.form == Form::Prefixes {
            prefixes::read(text, &mut self.prefixes);
        } else {
            self.sent_bytes += text.len();
        }
        self.listed_shards += u16::from(is_last);
        self.cursor = if is_last { Cursor::default() } else { ended.next.unwrap_or_default() };
        if let Form::Cachedump { lines_left, .. } = &mut self.form {
            let lines = text.iter().filter(|&&byte| byte == b'\n').count();
            *lines_left = lines_left.saturating_sub(u32::try_from(lines).unwrap_or(u32::MAX));
            if *lines_left == 0 || self.sent_bytes >= CACHEDUMP_BYTES_MAX {
                self.listed_shards = context.shards();
            }
        }
        if self.form.counts() || self.form == Form::Prefixes { b"" } else { text }
    }
}

/// The listings of a core's clients.
#[derive(Debug)]
pub(crate) struct Listings {
    /// The listings, the next in turn first (I4).
    listings: VecDeque<Listing>,
    /// For each other core, whether it owes this one a piece (I3).
    awaited: Vec<bool>,
    /// Whether the last piece was for a listing of this core, so that others come first (I4).
    was_ours: bool,
    /// Memory for the lines of a piece.
    lines: Vec<u8>,
}

impl Listings {
    /// No listings, in a process of `shards` shards.
    pub(crate) fn new(shards: u16) -> Self {
        Self {
            listings: VecDeque::new(),
            awaited: vec![false; usize::from(shards)],
            was_ours: false,
            lines: Vec::new(),
        }
    }

    /// Begins a listing for this client. `head` is that of its request.
    pub(crate) fn begin(
        &mut self,
        connection: ConnectionIndex,
        head: Option<BinaryHead>,
        form: Form,
    ) {
        // A client that is gone may have left a listing, and its index may be this client's now.
        self.listings.retain(|other| other.connection != connection);
        self.listings.push_back(Listing {
            connection,
            head,
            form,
            census: Census::default(),
            prefixes: BTreeMap::new(),
            sent_bytes: 0,
            listed_shards: 0,
            cursor: Cursor::default(),
            awaited: false,
            begun: false,
        });
    }

    /// Notes that another core has sent its piece, whose lines or notes are `text`. The listing
    /// goes on if its client is still there. Returns the lines to send.
    pub(crate) fn went_on<'t>(
        &mut self,
        context: &Context,
        (shard, connection): (u16, Option<ConnectionIndex>),
        text: &'t [u8],
        ended: Ended,
    ) -> &'t [u8] {
        let was_awaited = std::mem::take(&mut self.awaited[usize::from(shard)]);
        assert!(was_awaited, "I3");
        let mut listings = self.listings.iter_mut();
        let waiting = listings.find(|dump| Some(dump.connection) == connection && dump.awaited);
        let Some(listing) = waiting else { return b"" };
        listing.awaited = false;
        listing.go_on(context, shard, text, ended)
    }
}

/// The parts of a shard that a step of the listings uses.
pub(crate) struct Step<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) records: &'a mut Records<E>,
    /// The kind of requests that wait for the engine of this core; pieces of listings are among
    /// [`Left::Requests`].
    pub(crate) left: Left,
    /// Names a socket of this core.
    pub(crate) names: &'a mut dyn FnMut(SocketId) -> SocketName,
    /// The number of the last sweep.
    pub(crate) sweep: u32,
}

/// The result of checking a listing.
enum Check {
    /// It is complete, or its client is gone.
    Over,
    /// It waits for its client or for an answer, so the listings behind it come first.
    Waits,
    /// It needs a piece of a shard whose engine this core may take.
    Wants(u16),
    /// It needs a piece of a shard that cannot be asked now. It keeps its turn.
    MustAsk,
}

impl Listings {
    /// Whether a listing can continue now, so that the core must not sleep. A piece without a line
    /// sends nothing, so no event would wake the core after it.
    pub(crate) fn may_go_on<P: ReadValue>(&self, context: &Context, clients: &Clients<P>) -> bool {
        let may = |listing: &Listing| {
            let open = clients.connections.get(listing.connection);
            let owner = listing.owner(context.id, context.shards());
            let owes = owner.is_some_and(|owner| self.awaited[usize::from(owner)]);
            open.is_none_or(|open| {
                !open.is_listing() || !(listing.awaited || owes || open.is_full())
            })
        };
        self.listings.iter().any(may)
    }

    /// Continues the listings by one piece (I1), and asks other cores for pieces of theirs.
    pub(crate) fn step<E: Engine>(&mut self, mut step: Step<'_, E>) {
        if self.listings.is_empty() && step.left == Left::Nothing {
            return;
        }
        let ours = self.check_all(&mut step);
        step.context.counters.listings.set(self.listings.len() as u64);
        let theirs_first = self.was_ours || ours.is_none();
        if theirs_first && step.left == Left::Requests && answer_asked(&mut step) {
            self.was_ours = false;
            return;
        }
        let Some((place, shard)) = ours else { return };
        self.was_ours = true;
        let Some(&Listing { form, cursor, .. }) = self.listings.get(place) else { return };
        self.lines.clear();
        let ended = if form.is_of_cores() {
            core_piece(&mut step, form, cursor, &mut self.lines)
        } else {
            // While another core holds the engine, the piece waits.
            let Some(mut engine) = step.engines.take(shard, step.context) else { return };
            piece(step.context, &mut *engine, form, cursor, &mut self.lines)
        };
        let Some(mut listing) = self.listings.remove(place) else { return };
        debug_assert!(!listing.awaited, "I3: it needs this piece only");
        let lines = listing.go_on(step.context, shard, &self.lines, ended);
        step.clients.text(listing.connection, lines);
        self.listings.push_back(listing);
    }

    /// Checks the listings in turn. Returns the place of the first one that needs a piece of a
    /// shard whose engine this core may take, and that shard.
    fn check_all<E: Engine>(&mut self, step: &mut Step<'_, E>) -> Option<(usize, u16)> {
        let (mut place, mut ours) = (0, None);
        for _ in 0..self.listings.len().min(LISTINGS_CHECKED_MAX) {
            let Some(mut listing) = self.listings.remove(place) else { break };
            match self.check(step, &mut listing) {
                Check::Over => {}
                Check::Waits => self.listings.push_back(listing),
                checked => {
                    if let (Check::Wants(shard), None) = (checked, ours) {
                        ours = Some((place, shard));
                    }
                    self.listings.insert(place, listing);
                    place += 1;
                }
            }
        }
        debug_assert!(ours.is_none_or(|(place, _)| place < self.listings.len()), "it is listed");
        ours
    }

    /// Continues one listing as far as it needs no items.
    fn check<E: Engine>(&mut self, step: &mut Step<'_, E>, listing: &mut Listing) -> Check {
        let Step { context, clients, engines, records, .. } = step;
        let connection = listing.connection;
        let Some(open) = clients.connections.get(connection) else { return Check::Over };
        if !open.is_listing() {
            return Check::Over;
        }
        if listing.awaited || open.is_full() {
            return Check::Waits;
        }
        if !listing.begun {
            listing.begun = true;
            if listing.form.begins_with_ok() {
                clients.text(connection, Reply::Ok.bytes());
            }
            if listing.form == Form::Connections {
                clients.text(connection, &sockets(context));
            }
        }
        let Some(shard) = listing.owner(context.id, context.shards()) else {
            if !finish(context, engines, clients, listing) {
                return Check::Waits; // The other lines follow in the next ticks.
            }
            // The requests after the listing can be served again.
            clients.with(connection, Connection::end_listing);
            clients.mark_dirty(connection);
            return Check::Over;
        };
        let is_here = match listing.form.is_of_cores() {
            true => shard == context.id,
            false => engines.may_take(shard, context),
        };
        if is_here {
            return Check::Wants(shard);
        }
        if self.awaited[usize::from(shard)] {
            return Check::MustAsk;
        }
        let ask =
            Ask::Piece { form: listing.form, cursor: listing.cursor, ended: Ended::default() };
        let outgoing =
            Outgoing { ask, text: b"", key: None, reads_value: false, room: AnswerRoom::default() };
        let Ok(work) = records.prepare(context, clients, connection, shard, outgoing) else {
            return Check::MustAsk;
        };
        // If this core has taken the engine, it leaves the piece to the core of that shard.
        drop(engines.park(work, context));
        self.awaited[usize::from(shard)] = true;
        listing.awaited = true;
        Check::Waits
    }
}

/// Answers the next piece that another core asks for. Returns `false` if none is asked for, or if
/// another core holds the engine.
fn answer_asked<E: Engine>(step: &mut Step<'_, E>) -> bool {
    let (context, engines) = (step.context, step.engines);
    let Some(mut engine) = engines.take(context.id, context) else { return false };
    let Some(mut work) = engine.backlog().next_piece() else { return false };
    let Ask::Piece { form, cursor, .. } = work.ask else { unreachable!("it is a piece") };
    debug_assert!(work.answer.text.is_empty(), "parked, P1: it was not answered yet");
    let mut lines = std::mem::take(&mut work.answer.text);
    let ended = if form.is_of_cores() {
        drop(engine);
        core_piece(step, form, cursor, &mut lines)
    } else {
        piece(context, &mut *engine, form, cursor, &mut lines)
    };
    work.answer.text = lines;
    work.ask = Ask::Piece { form, cursor, ended };
    let mut done = Chain::new();
    done.push(work);
    engines.mailboxes().answer(context, done);
    true
}

/// Sends the end of a listing whose items were all walked. Returns whether that was all.
fn finish<E: Engine>(
    context: &Context,
    engines: &Engines<E>,
    clients: &mut Clients<E::Pinned>,
    listing: &mut Listing,
) -> bool {
    debug_assert!(listing.listed_shards == context.shards(), "all items were walked");
    let Listing { connection, head, form, census, prefixes, .. } = listing;
    let (connection, head) = (*connection, *head);
    let mut answering = Answering { context, engines, clients, connection, head };
    match form {
        Form::Metadump { .. } | Form::Cachedump { .. } | Form::Connections => {
            answering.reply(Reply::End);
        }
        Form::Prefixes => return answering.prefixes(prefixes, COUNTED_LINES_PER_TICK_MAX),
        Form::Mgdump { .. } => answering.reply(Reply::En),
        Form::Items => answering.items(census),
        Form::Slabs => answering.slabs(census),
        Form::Sizes => return answering.sizes(census, COUNTED_LINES_PER_TICK_MAX),
    }
    true
}

/// Formats one piece of the items of an engine (I1), or takes notes of them.
fn piece<E: Engine>(
    context: &Context,
    engine: &mut E,
    form: Form,
    mut cursor: Cursor,
    lines: &mut Vec<u8>,
) -> Ended {
    let (now, sizes) = (&context.now(), &context.sizes);
    let unix = |second| u64::try_from(now.unix(second)).unwrap_or(0);
    let expiry = |second: u32| (second != 0).then(|| unix(second));
    let mut lines_left = if let Form::Cachedump { lines_left, .. } = form { lines_left } else { 0 };
    let walked = engine.walk(&mut cursor, now, form.items_max(), |key, item| {
        let (value_bytes, client_flags) = (item.value_bytes(), item.client_flags());
        let class_of = || sizes.of(key.len(), value_bytes, client_flags);
        if let Form::Metadump { classes } | Form::Mgdump { classes } = form
            && classes != u64::MAX
            && classes & 1 << class_of() == 0
        {
            return true;
        }
        match form {
            Form::Mgdump { .. } => format::mgdump_line(lines, key, item.protocol_mark()),
            Form::Metadump { .. } => {
                let facts = format::DumpFacts {
                    expiry_unix_s: expiry(item.expiry()),
                    access_unix_s: unix(item.last_access()),
                    cas: item.cas(),
                    fetched: item.is_fetched(),
                    class: class_of(),
                    item_bytes: item.memory_bytes(),
                    client_flags,
                };
                format::metadump_line(lines, key, &facts);
            }
            Form::Cachedump { class, .. } => {
                if class_of() == class {
                    let expiry_unix_s = expiry(item.expiry()).unwrap_or(0);
                    format::cachedump_line(lines, key, value_bytes, expiry_unix_s);
                    lines_left -= 1;
                }
                return lines_left > 0 && lines.len() < PIECE_BYTES_MAX;
            }
            Form::Items | Form::Slabs => {
                let class = u32::from(class_of());
                take_note(lines, class, item.memory_bytes(), item.last_access());
            }
            Form::Prefixes | Form::Connections => unreachable!("no engine has them"),
            Form::Sizes => {
                let bytes = sizes.nominal_bytes(key.len(), value_bytes, client_flags);
                let step = bytes.div_ceil(SIZE_STEP_BYTES as usize).min(SIZE_STEPS_MAX);
                let step = u32::try_from(step).unwrap_or(u32::MAX);
                take_note(lines, step, item.memory_bytes(), item.last_access());
            }
        }
        lines.len() < PIECE_BYTES_MAX
    });
    assert!(walked.items <= form.items_max(), "I1");
    context.counters.listed_items.add(walked.items as u64);
    Ended { next: walked.more.then_some(cursor), examined: walked.items as u32 }
}

/// Formats one piece of what this core has: its connections, or its counts by prefix.
fn core_piece<E: Engine>(
    step: &mut Step<'_, E>,
    form: Form,
    cursor: Cursor,
    lines: &mut Vec<u8>,
) -> Ended {
    let from = usize::try_from(cursor.to_u64()).unwrap_or(usize::MAX);
    let next = match form {
        Form::Prefixes => step.context.prefixes().write(from, lines, PIECE_BYTES_MAX),
        Form::Connections => connections(step, from, lines),
        _ => unreachable!("a core does not have {form:?}"),
    };
    debug_assert!(next.is_none_or(|next| next > from), "a piece goes on");
    Ended { next: next.map(|next| Cursor::from_u64(next as u64)), examined: 0 }
}

/// Formats the sockets of the process for clients and datagrams, as `stats conns` shows them.
fn sockets(context: &Context) -> Vec<u8> {
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
fn connections<E: Engine>(
    step: &mut Step<'_, E>,
    from: usize,
    lines: &mut Vec<u8>,
) -> Option<usize> {
    let Step { clients, names, sweep, .. } = step;
    let table = &clients.connections;
    let last = (from + LISTED_ITEMS_PER_TICK_MAX).min(table.places());
    for index in from..last {
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
        let listener = step.context.shared.options.listeners.get(endpoint);
        match peer {
            Peer::Local => line("addr", listener.map_or(&"unix", |path| path)),
            Peer::V4(address) => line("addr", &format_args!("tcp:{address}")),
            Peer::V6(address) => line("addr", &format_args!("tcp6:{address}")),
        }
        if let Some(listener) = listener {
            line("listen_addr", listener);
        }
        line("state", &state);
        line("secs_since_last_cmd", &open.idle_sweeps(*sweep));
    }
    (last < table.places()).then_some(last)
}
