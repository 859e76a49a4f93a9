//! Listings of all items: `lru_crawler metadump` and `mgdump`, `stats cachedump`, `mscan`, and the
//! topics of `stats` that count items.
//!
//! Upstream:   `control` begins a listing; `tick` continues all listings by one bounded step;
//!             `records` passes on the pieces that other cores have listed.
//! Downstream: each engine in turn, which walks its items; `tally`, which keeps what is counted;
//!             `classes`, which formats it.
//!
//! ```text
//! our listings, in turn --(engines that this core may take)--+
//!         |                                                  +--> one piece a tick
//!         +--(others: parked, or asked of their cores)       |
//! pieces that other cores ask for, in turn ------------------+
//! ```
//!
//! Invariants:
//! - I1  In one tick a core examines at most `LISTED_ITEMS_PER_TICK_MAX` items for all listings
//!   together, those of its own clients and those of other cores, or `COUNTED_ITEMS_PER_TICK_MAX`
//!   if they are only counted. So other requests wait for at most one piece, for any number of
//!   listings.
//! - I2  While a listing runs, no other request of its connection is executed.
//! - I3  A core awaits at most one piece of each other core, for what only that core has, and with
//!   `erew` at most one piece of each engine. So at most one request of each other core waits here,
//!   and one with each engine.
//! - I4  Each listing that can continue gets its turn: a core's own listings take turns with each
//!   other, and with the pieces that other cores ask for. A listing whose client does not read
//!   loses only its turns.
//! - I5  All listings of a core together take at most `LISTING_BYTES_PER_CORE_MAX`, for any number
//!   of clients. What they count is shared (`tally`), and none of it is kept for a client that
//!   does not read. Its lines are in its outbox, which has its own limit (`net`, `outbox`, I5).
//! - I6  A listing that waits for a disk does nothing until the engine has completed an operation,
//!   and the core may sleep. A listing that an engine cannot go on with ends with an error.

use std::collections::VecDeque;

use kachel_engine::{Cursor, Engine, EngineIndex, WalkNext};
use kachel_io::{SocketId, SocketName};
use kachel_net::{ClientIndex, Connection, ConnectionIndex, OWED_BYTES_MAX};
use kachel_observe::{
    CENSUS_BYTES_MAX, NOTE_BYTES, SIZE_STEP_BYTES, SIZE_STEPS_MAX, WINDOW_BYTES_MAX, take_note,
};
use kachel_stdx::{Chain, Work};
use kachel_wire::format::ShownKey;
use kachel_wire::request::{BinaryHead, ScanFields};
use kachel_wire::{Reply, format};

use crate::clients::Clients;
use crate::context::Context;
use crate::listings::connections::{connections, sockets};
use crate::listings::scan::{self, Scanning, WINDOWS_MEMORY_MAX};
use crate::listings::tally::{Listing, Part, Tally};
use crate::request::form::{Ended, Form};
use crate::stats::topics::Answering;
use crate::waiting::engines::Engines;
use crate::waiting::homes::HomeEngines;
use crate::waiting::parked::{ANSWER_BYTES_MAX, Ask, Brought, Executor, PIECE_BYTES_MAX, Parked};
use crate::waiting::records::{Outgoing, Records};

/// Listings that one step checks for whether they may continue.
const LISTINGS_CHECKED_MAX: usize = 64;

/// The most bytes of memory that the listings of one core take together (I5): a census; the window
/// of prefixes, with what is added before it is cut, and twice that for the tree; the lines of a
/// piece, as a vector grows; and the windows of scans. Each client with a listing has an outbox
/// besides, as any client.
pub const LISTING_BYTES_PER_CORE_MAX: usize =
    CENSUS_BYTES_MAX + 4 * WINDOW_BYTES_MAX + 2 * ANSWER_BYTES_MAX + WINDOWS_MEMORY_MAX;

const _: () = {
    assert!(Form::Items.items_max() * NOTE_BYTES <= PIECE_BYTES_MAX);
    assert!(WINDOW_BYTES_MAX <= PIECE_BYTES_MAX, "the lines of a window are a piece");
    assert!(2 * PIECE_BYTES_MAX < OWED_BYTES_MAX, "a piece is not longer than a reply may be");
};

/// The pieces that this core awaits (I3).
#[derive(Debug)]
struct Awaited {
    /// For each core, whether it owes this one a piece of what it has.
    of_cores: Vec<bool>,
    /// For each engine, whether its home core owes this one a piece of its items.
    of_engines: Vec<bool>,
}

impl Awaited {
    fn of(&mut self, executor: Executor) -> &mut bool {
        match executor {
            Executor::Core(core) => &mut self.of_cores[core.number()],
            Executor::Engine(engine) => &mut self.of_engines[engine.number()],
        }
    }

    fn is_of(&self, executor: Executor) -> bool {
        match executor {
            Executor::Core(core) => self.of_cores[core.number()],
            Executor::Engine(engine) => self.of_engines[engine.number()],
        }
    }
}

/// The listings of a core's clients.
#[derive(Debug)]
pub(crate) struct Listings {
    /// The listings, the next in turn first (I4).
    listings: VecDeque<Listing>,
    awaited: Awaited,
    /// Whether the last piece was for a listing of this core, so that others come first (I4).
    was_ours: bool,
    /// Whether the last piece for another core was one of what this core has, so that pieces of our
    /// engine come first (I4).
    was_of_core: bool,
    /// The last of our engines of which another core got a piece. Those behind it come first (I4).
    last_engine: EngineIndex,
    /// Memory for the lines of a piece.
    lines: Vec<u8>,
    tally: Tally,
}

impl Listings {
    /// No listings of any client of this core.
    pub(crate) fn new(context: &Context) -> Self {
        Self {
            listings: VecDeque::new(),
            awaited: Awaited {
                of_cores: vec![false; usize::from(context.cores())],
                of_engines: vec![false; usize::from(context.engines())],
            },
            was_ours: false,
            was_of_core: false,
            last_engine: EngineIndex::default(),
            lines: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Begins a listing for this client. `head` is that of its request.
    pub(crate) fn begin(
        &mut self,
        connection: ConnectionIndex,
        head: Option<BinaryHead>,
        form: Form,
    ) {
        let first_census = self.tally.census.next_number();
        self.add(Listing::new(connection, head, form, first_census));
    }

    /// Begins a scan for this client.
    pub(crate) fn begin_scan(&mut self, connection: ConnectionIndex, scan: Scanning) {
        // Each round has its own form.
        let form = Form::Scan { fields: ScanFields::default(), items_max: 0 };
        let listing = Listing::new(connection, None, form, 0);
        self.add(Listing { scan: Some(Box::new(scan)), ..listing });
    }

    fn add(&mut self, listing: Listing) {
        let connection = listing.connection;
        // A client that is gone may have left a listing, and its index may be this client's now.
        self.tally.forget(connection);
        self.listings.retain(|other| other.connection != connection);
        self.listings.push_back(listing);
    }

    /// Notes that another core has sent its piece, whose lines or notes are `text`. The listing
    /// goes on if its client is still there. Returns the lines to send.
    pub(crate) fn went_on<'t>(
        &mut self,
        context: &Context,
        (executor, client): (Executor, Option<ClientIndex>),
        text: &'t [u8],
        ended: Ended,
    ) -> &'t [u8] {
        let was_awaited = std::mem::take(self.awaited.of(executor));
        assert!(was_awaited, "I3");
        let connection = client.and_then(ClientIndex::connection);
        let mut listings = self.listings.iter();
        let waiting = |dump: &Listing| Some(dump.connection) == connection && dump.awaited;
        let Some(mut listing) =
            listings.position(waiting).and_then(|place| self.listings.remove(place))
        else {
            return b"";
        };
        listing.awaited = false;
        let lines = self.tally.go_on(&mut listing, context, executor, text, ended);
        self.put_back(listing);
        lines
    }

    /// Puts a listing behind the others after its turn. If it has just ended a census, its own
    /// lines come first, so that each census brings the listing that walked for it on.
    fn put_back(&mut self, listing: Listing) {
        debug_assert!(!listing.awaited, "it has its piece");
        if self.tally.part(&listing) == Part::Lines && listing.listed > 0 {
            self.listings.push_front(listing);
        } else {
            self.listings.push_back(listing);
        }
    }

    /// Bytes of memory that the listings of all clients share (I5).
    fn shared_bytes(&self) -> usize {
        let Self { lines, tally, .. } = self;
        let of_windows = 4 * tally.window.line_bytes() + tally.windows.memory_bytes();
        lines.capacity() + tally.census.memory_bytes() + of_windows
    }
}

/// The parts of a shard that a step of the listings uses.
pub(crate) struct Step<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) records: &'a mut Records<E>,
    /// The engines whose home is this core, and what waits with them.
    pub(crate) homes: &'a HomeEngines,
    /// Names a socket of this core.
    pub(crate) names: &'a mut dyn FnMut(SocketId) -> SocketName,
    /// The number of the last sweep.
    pub(crate) sweep: u32,
}

/// The result of checking a listing.
enum Check {
    /// It is complete, or its client is gone.
    Over,
    /// It waits for its client, for an answer or for another listing, so the listings behind it
    /// come first.
    Waits,
    /// It can have its turn.
    Next(Next),
    /// It needs a piece of an engine or of a core that cannot be asked now. It keeps its turn.
    MustAsk,
    /// It needs a census that nobody has begun. It keeps its turn.
    Leads,
}

/// The action of a listing in its turn.
#[derive(Clone, Copy)]
enum Next {
    /// It gets a piece of an engine that this core may take, or of this core.
    Piece(Executor),
    /// It sends lines of what was counted, or its end.
    Lines,
}

impl Listings {
    /// Whether a listing can continue now, so that the core must not sleep. A piece without a line
    /// sends nothing, so no event would wake the core after it. Cost: a load, if there is no
    /// listing.
    #[inline]
    pub(crate) fn may_go_on<E: Engine>(
        &self,
        context: &Context,
        engines: &Engines<E>,
        clients: &Clients<E::Pinned>,
    ) -> bool {
        !self.listings.is_empty() && self.may_some_go_on(context, engines, clients)
    }

    /// Has the engines that listings wait for wake this core. Returns whether one of them has
    /// completed an operation meanwhile. Cost: a load, if there is no listing.
    #[inline]
    pub(crate) fn await_engines<E: Engine>(&self, context: &Context, engines: &Engines<E>) -> bool {
        let late = self.listings.iter().filter_map(|listing| listing.late);
        late.fold(false, |has_come, (engine, seen)| {
            engines.await_advance(engine, context.core); // calls, K3
            has_come | (engines.completed(engine) != seen)
        })
    }

    #[cold]
    fn may_some_go_on<E: Engine>(
        &self,
        context: &Context,
        engines: &Engines<E>,
        clients: &Clients<E::Pinned>,
    ) -> bool {
        let may = |listing: &Listing| {
            let open = clients.connections.get(listing.connection);
            let Some(open) = open.filter(|open| open.is_listing()) else { return true };
            let is_held_up = open.is_full() && !self.tally.must_go_on(listing);
            if listing.has_failed {
                return !is_held_up;
            }
            if is_late(listing, engines) {
                return false;
            }
            let owes = listing.executor(context).is_some_and(|next| self.awaited.is_of(next));
            match self.tally.part(listing) {
                Part::Waits => false,
                Part::Lines => !is_held_up,
                Part::Walks | Part::Leads => !(listing.awaited || owes || is_held_up),
            }
        };
        self.listings.iter().any(may)
    }

    /// Continues the listings by one piece (I1), and asks other cores for pieces of theirs.
    pub(crate) fn step<E: Engine>(&mut self, mut step: Step<'_, E>) {
        if self.listings.is_empty() && !step.homes.is_left && !step.records.are_asked() {
            return;
        }
        self.step_some(&mut step);
        if !self.listings.iter().any(|listing| listing.form.counts()) {
            self.tally.census.drop_all();
        }
        assert!(self.shared_bytes() <= LISTING_BYTES_PER_CORE_MAX, "I5");
    }

    fn step_some<E: Engine>(&mut self, step: &mut Step<'_, E>) {
        let ours = self.check_all(step);
        step.context.counters.listings.set(self.listings.len() as u64);
        let theirs_first = self.was_ours || ours.is_none();
        if theirs_first && self.answer_asked(step) {
            self.was_ours = false;
            return;
        }
        let Some((place, next)) = ours else { return };
        self.was_ours = true;
        match next {
            Next::Piece(executor) => self.take_piece(step, place, executor),
            Next::Lines => self.send_lines(step, place),
        }
    }

    /// Answers the next piece that another core asks for. Returns `false` if none can be answered.
    fn answer_asked<E: Engine>(&mut self, step: &mut Step<'_, E>) -> bool {
        let core_first = !self.was_of_core;
        self.was_of_core = core_first && answer_asked_of_core(step);
        if self.was_of_core || answer_asked_of_engine(step, &mut self.last_engine) {
            return true;
        }
        self.was_of_core = !core_first && answer_asked_of_core(step);
        self.was_of_core
    }

    /// Continues the listing at `place` by a piece of this core, or of an engine if this core gets
    /// that.
    fn take_piece<E: Engine>(&mut self, step: &mut Step<'_, E>, place: usize, executor: Executor) {
        let Some(listing) = self.listings.get(place) else { return };
        let (form, cursor) = (listing.form, listing.cursor);
        self.lines.clear();
        let ended = match executor {
            Executor::Core(_) => {
                core_piece(step, form, (cursor, &listing.next_prefix), &mut self.lines)
            }
            Executor::Engine(engine) => {
                // While another core holds the engine, the piece waits.
                let Some(mut taken) = step.engines.take(engine, step.context) else { return };
                let completed = step.engines.completed(engine);
                let range = listing.scan.as_ref().map(|scan| scan.range());
                let from = (cursor, &range.unwrap_or_default()[..]);
                let ended = piece(step.context, &mut *taken, form, from, &mut self.lines);
                Ended { completed, ..ended }
            }
        };
        let Some(mut listing) = self.listings.remove(place) else { return };
        debug_assert!(!listing.awaited, "I3: it needs this piece only");
        let lines = self.tally.go_on(&mut listing, step.context, executor, &self.lines, ended);
        step.clients.text(listing.connection, lines);
        self.put_back(listing);
    }

    /// Sends the next lines of what was counted for the listing at `place`, or its end.
    fn send_lines<E: Engine>(&mut self, step: &mut Step<'_, E>, place: usize) {
        let Some(mut listing) = self.listings.remove(place) else { return };
        let connection = listing.connection;
        if self.is_sent(step, &mut listing) {
            // The requests after the listing can be served again.
            step.clients.with(connection, Connection::end_listing);
            step.clients.mark_dirty(connection);
            step.context.counters.listings.set(self.listings.len() as u64);
            debug_assert!(!self.tally.is_led_by(connection), "tally, T1: its walk is over");
        } else {
            self.listings.push_back(listing);
        }
    }

    /// Sends the next lines of a listing, at most a piece. Returns whether that was all.
    fn is_sent<E: Engine>(&mut self, step: &mut Step<'_, E>, listing: &mut Listing) -> bool {
        let Step { context, engines, clients, .. } = step;
        let &mut Listing { connection, head, form, next_group, .. } = listing;
        let mut answering = Answering { context, engines, clients, connection, head };
        if listing.has_failed {
            answering.reply(Reply::DiskError);
            return true;
        }
        let Tally { census, window, window_of, .. } = &mut self.tally;
        let next_group = match form {
            Form::Metadump { .. } | Form::Cachedump { .. } | Form::Connections => {
                answering.reply(Reply::End);
                None
            }
            Form::Mgdump { .. } => {
                answering.reply(Reply::En);
                None
            }
            Form::Prefixes => {
                let (prefixes, next) = window.take();
                *window_of = None; // Another listing may have its round now.
                answering.prefixes(prefixes, next.is_none());
                listing.listed = 0;
                let is_last = next.is_none();
                listing.next_prefix = next.unwrap_or_default();
                return is_last;
            }
            Form::Scan { .. } => {
                let scan = listing.scan.as_mut().expect("it is one");
                let end = scan.end_round(|text| clients.text(connection, text));
                if let Some(end) = &end {
                    clients.text(connection, end);
                }
                return end.is_some();
            }
            Form::Items => answering.items(census, next_group),
            Form::Slabs => answering.slabs(census, next_group),
            Form::Sizes => answering.sizes(census, next_group),
        };
        debug_assert!(next_group.is_none_or(|next| next > listing.next_group), "it goes on");
        listing.next_group = next_group.unwrap_or_default();
        next_group.is_none()
    }

    /// Checks the listings in turn. Returns the place of the first one that can have its turn, and
    /// what it does. Has a listing begin a census if no other listing can have lines of the last
    /// one.
    fn check_all<E: Engine>(&mut self, step: &mut Step<'_, E>) -> Option<(usize, Next)> {
        let (mut place, mut ours, mut leads, mut has_lines) = (0, None, None, false);
        for _ in 0..self.listings.len().min(LISTINGS_CHECKED_MAX) {
            let Some(mut listing) = self.listings.remove(place) else { break };
            match self.check(step, &mut listing) {
                Check::Over => {
                    self.tally.forget(listing.connection);
                    continue;
                }
                Check::Waits => {
                    self.listings.push_back(listing);
                    continue;
                }
                Check::Next(next) => {
                    has_lines |= matches!(next, Next::Lines);
                    ours = ours.or(Some((place, next)));
                }
                Check::Leads => leads = leads.or(Some(place)),
                Check::MustAsk => {}
            }
            self.listings.insert(place, listing);
            place += 1;
        }
        debug_assert!(ours.is_none_or(|(place, _)| place < self.listings.len()), "it is listed");
        if let Some(place) = leads.filter(|_| !has_lines) {
            self.tally.lead(&mut self.listings[place], step.context.engines());
        }
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
        listing.late = listing.late.filter(|_| is_late(listing, engines));
        if listing.awaited || (open.is_full() && !self.tally.must_go_on(listing)) {
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
        if listing.has_failed {
            return Check::Next(Next::Lines);
        }
        if listing.late.is_some() {
            return Check::Waits;
        }
        match self.tally.part(listing) {
            Part::Lines => return Check::Next(Next::Lines),
            Part::Waits => return Check::Waits,
            Part::Leads if listing.form.counts() => return Check::Leads,
            Part::Leads => self.tally.lead(listing, context.engines()),
            Part::Walks => {}
        }
        let Some(executor) = listing.executor(context) else {
            return Check::Next(Next::Lines);
        };
        let is_here = match executor {
            Executor::Core(core) => core == context.core,
            Executor::Engine(engine) => engines.may_take(engine, context),
        };
        if is_here {
            return Check::Next(Next::Piece(executor));
        }
        if self.awaited.is_of(executor) {
            return Check::MustAsk;
        }
        let ask = Ask::Piece { form: listing.form, cursor: listing.cursor };
        let range = listing.scan.as_ref().map(|scan| scan.range());
        let outgoing = Outgoing::without_key(ask, range.as_ref().unwrap_or(&listing.next_prefix));
        let Ok(work) = records.prepare(context, clients, connection.into(), executor, outgoing)
        else {
            return Check::MustAsk;
        };
        match executor {
            Executor::Core(core) => engines.mailboxes().ask(context, core, work),
            Executor::Engine(_) => drop(engines.park(work, context)),
        }
        *self.awaited.of(executor) = true;
        listing.awaited = true;
        Check::Waits
    }
}

/// Whether a listing waits for a disk (I6).
fn is_late<E: Engine>(listing: &Listing, engines: &Engines<E>) -> bool {
    listing.late.is_some_and(|(engine, seen)| engines.completed(engine) == seen)
}

/// Answers the next piece of the items of our engines that another core asks for. Returns `false`
/// if none is asked for, or if other cores hold the engines.
fn answer_asked_of_engine<E: Engine>(step: &mut Step<'_, E>, last: &mut EngineIndex) -> bool {
    let (context, engines, homes) = (step.context, step.engines, step.homes);
    let (before, all) = (*last, || homes.with_requests());
    let behind = all().filter(|index| *index > before);
    for index in behind.chain(all().filter(|index| *index <= before)) {
        let Some(mut engine) = engines.take(index, context) else { continue };
        let Some(work) = engine.backlog().next_piece() else { continue };
        let completed = engines.completed(index);
        answer(step, work, |_, form, cursor, range, lines| Ended {
            completed,
            ..piece(context, &mut *engine, form, (cursor, range), lines)
        });
        *last = index;
        return true;
    }
    false
}

/// Answers the next piece of what this core has that another core asks for. Returns `false` if none
/// is asked for.
fn answer_asked_of_core<E: Engine>(step: &mut Step<'_, E>) -> bool {
    let Some(work) = step.records.next_asked() else { return false };
    answer(step, work, |step, form, cursor, prefix, lines| {
        core_piece(step, form, (cursor, prefix), lines)
    });
    true
}

/// Has `list` write the lines of a piece, and hands them to the core that asks for it.
fn answer<'s, E: Engine>(
    step: &mut Step<'s, E>,
    mut work: Work<Parked<E>>,
    list: impl FnOnce(&mut Step<'s, E>, Form, Cursor, &[u8], &mut Vec<u8>) -> Ended,
) {
    let Ask::Piece { form, cursor } = work.ask else { unreachable!("it is a piece") };
    let mut lines = step.context.answer_buffer(ANSWER_BYTES_MAX); // parked, P4
    let capacity = lines.capacity();
    let ended = list(step, form, cursor, work.text(), &mut lines);
    assert!(lines.capacity() == capacity, "buffers, B2: a piece fits its buffer");
    work.answer.text = lines;
    work.brought = Brought::Ended(ended);
    let mut done = Chain::new();
    done.push(work);
    step.engines.mailboxes().answer(step.context, done);
}

/// Formats one piece of the items of an engine (I1), or takes notes of them. `range` is that of a
/// scan.
fn piece<E: Engine>(
    context: &Context,
    engine: &mut E,
    form: Form,
    (mut cursor, range): (Cursor, &[u8]),
    lines: &mut Vec<u8>,
) -> Ended {
    if let Form::Scan { fields, items_max } = form {
        return scan::piece(context, engine, (fields, items_max), (range, cursor), lines);
    }
    let (now, sizes) = (&context.now(), &context.sizes);
    let unix = |second| u64::try_from(now.unix(second)).unwrap_or(0);
    let expiry = |second: u32| (second != 0).then(|| unix(second));
    let mut lines_left = if let Form::Cachedump { lines_left, .. } = form { lines_left } else { 0 };
    let walked = engine.walk(&mut cursor, now, form.items_max(), |key, item| {
        let (value_bytes, client_flags) = (item.value_bytes(), item.client_flags());
        let key = ShownKey::of(key); // The key's bytes are not shown in any other way.
        let class_of = || sizes.of(key.byte_count(), value_bytes, client_flags);
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
                // As in memcached, a key that came in base64 is not shown.
                if class_of() == class && !item.protocol_mark() {
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
            Form::Prefixes | Form::Connections | Form::Scan { .. } => {
                unreachable!("no engine has them, or they were listed before")
            }
            Form::Sizes => {
                let bytes = sizes.nominal_bytes(key.byte_count(), value_bytes, client_flags);
                let step = bytes.div_ceil(SIZE_STEP_BYTES as usize).min(SIZE_STEPS_MAX);
                let step = u32::try_from(step).unwrap_or(u32::MAX);
                take_note(lines, step, item.memory_bytes(), item.last_access());
            }
        }
        lines.len() < PIECE_BYTES_MAX
    });
    assert!(walked.items <= form.items_max(), "I1");
    context.counters.listed_items.add(walked.items as u64);
    let examined = walked.items as u32;
    Ended { next: walked.next, cursor, examined, completed: 0 }
}

/// Formats one piece of what this core has: its connections from a cursor on, or its counts by
/// prefix from a prefix on.
fn core_piece<E: Engine>(
    step: &mut Step<'_, E>,
    form: Form,
    (cursor, prefix): (Cursor, &[u8]),
    lines: &mut Vec<u8>,
) -> Ended {
    let from = usize::try_from(cursor.to_u64()).unwrap_or(usize::MAX);
    let next = match form {
        // The next piece begins behind the window, wherever that ends.
        Form::Prefixes => {
            step.context.prefixes().write(prefix, lines).then_some(from.saturating_add(1))
        }
        Form::Connections => {
            let Step { context, clients, names, sweep, .. } = step;
            connections(context, &clients.connections, names, *sweep, from, lines)
        }
        _ => unreachable!("a core does not have {form:?}"),
    };
    debug_assert!(next.is_none_or(|next| next > from), "a piece goes on");
    let cursor = Cursor::from_u64(next.unwrap_or(0) as u64);
    let next = if next.is_some() { WalkNext::More } else { WalkNext::End };
    Ended { next, cursor, ..Ended::default() }
}
