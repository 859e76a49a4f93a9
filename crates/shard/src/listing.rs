//! Listings of all items: `lru_crawler metadump` and `mgdump`.
//!
//! Upstream:   `admin` begins a listing; `tick` continues all listings by one bounded step;
//!             `records` passes on the pieces that other cores have listed.
//! Downstream: the engine of each shard in turn, which walks its segments.
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
//!   together, those of its own clients and those of other cores. So other requests wait for at
//!   most one piece, for any number of listings.
//! - I2  While a listing runs, no other request of its connection is executed.
//! - I3  With `erew` a core asks each other core for one piece at a time, so at most one request of
//!   each other core waits here.
//! - I4  Each listing that can continue gets its turn: a core's own listings take turns with each
//!   other, and with the pieces that other cores ask for. A listing whose client does not read
//!   loses only its turns.

use std::collections::VecDeque;

use kachel_engine::{Cursor, Engine, ReadValue};
use kachel_net::{AnswerRoom, Connection, ConnectionIndex};
use kachel_stdx::Chain;
use kachel_wire::{Reply, format};

use crate::LISTED_ITEMS_PER_TICK_MAX;
use crate::backlog::Left;
use crate::clients::Clients;
use crate::context::Context;
use crate::engines::Engines;
use crate::parked::{ANSWER_BYTES_MAX, Ask};
use crate::records::{Outgoing, Records};

/// Listings that one step checks for whether they may continue.
const LISTINGS_CHECKED_MAX: usize = 64;
/// Bytes of the longest line of a listing: a key with each byte as `%XX`, and the item's facts.
const LINE_BYTES_MAX: usize = 1024;
/// Bytes of one piece, so that it fits an answer.
const PIECE_BYTES_MAX: usize = ANSWER_BYTES_MAX - LINE_BYTES_MAX;

/// A listing that a client waits for.
#[derive(Debug)]
struct Listing {
    connection: ConnectionIndex,
    keys_only: bool,
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

    /// Goes on after a piece. `None`: the piece was the last one of its shard.
    fn go_on(&mut self, cursor: Option<Cursor>) {
        debug_assert!(!self.awaited, "a listing goes on with the piece that it waited for");
        self.listed_shards += u16::from(cursor.is_none());
        self.cursor = cursor.unwrap_or_default();
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

    /// Begins a listing for this client.
    pub(crate) fn begin(&mut self, connection: ConnectionIndex, keys_only: bool) {
        self.listings.push_back(Listing {
            connection,
            keys_only,
            listed_shards: 0,
            cursor: Cursor::default(),
            awaited: false,
            begun: false,
        });
    }

    /// Notes that another core has sent its piece. The listing goes on if its client is still
    /// there.
    pub(crate) fn went_on(
        &mut self,
        shard: u16,
        connection: Option<ConnectionIndex>,
        cursor: Option<Cursor>,
    ) {
        let was_awaited = std::mem::take(&mut self.awaited[usize::from(shard)]);
        assert!(was_awaited, "I3");
        let mut listings = self.listings.iter_mut();
        let waiting = listings.find(|dump| Some(dump.connection) == connection && dump.awaited);
        if let Some(listing) = waiting {
            listing.awaited = false;
            listing.go_on(cursor);
        }
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
        let theirs_first = self.was_ours || ours.is_none();
        if theirs_first && step.left == Left::Requests && answer_asked(&step) {
            self.was_ours = false;
            return;
        }
        let Some((place, shard)) = ours else { return };
        self.was_ours = true;
        // While another core holds the engine, the piece waits.
        let Some(mut engine) = step.engines.take(shard, step.context) else { return };
        let Some(mut listing) = self.listings.remove(place) else { return };
        debug_assert!(!listing.awaited, "I3: it needs this piece only");
        self.lines.clear();
        let Listing { keys_only, cursor, .. } = listing;
        let next = piece(step.context, &mut *engine, keys_only, cursor, &mut self.lines);
        drop(engine);
        listing.go_on(next);
        step.clients.text(listing.connection, &self.lines);
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
            clients.text(connection, Reply::Ok.bytes());
        }
        let Some(shard) = listing.owner(context.id, context.shards()) else {
            let end = if listing.keys_only { Reply::En } else { Reply::End };
            clients.text(connection, end.bytes());
            // The requests after the listing can be served again.
            clients.with(connection, Connection::end_listing);
            clients.mark_dirty(connection);
            return Check::Over;
        };
        if engines.may_take(shard, context) {
            return Check::Wants(shard);
        }
        if self.awaited[usize::from(shard)] {
            return Check::MustAsk;
        }
        let ask = Ask::Piece { keys_only: listing.keys_only, cursor: Some(listing.cursor) };
        let outgoing =
            Outgoing { ask, text: b"", key: None, reads_value: false, room: AnswerRoom::default() };
        let Ok(work) = records.prepare(context, clients, connection, shard, outgoing) else {
            return Check::MustAsk;
        };
        let taken = engines.park(work, context);
        debug_assert!(taken.is_none(), "only the core of that shard takes its engine");
        self.awaited[usize::from(shard)] = true;
        listing.awaited = true;
        Check::Waits
    }
}

/// Answers the next piece that another core asks for. Returns `false` if none is asked for, or if
/// another core holds the engine.
fn answer_asked<E: Engine>(step: &Step<'_, E>) -> bool {
    let Step { context, engines, .. } = step;
    let Some(mut engine) = engines.take(context.id, context) else { return false };
    let Some(mut work) = engine.backlog().next_piece() else { return false };
    let Ask::Piece { keys_only, cursor } = work.ask else { unreachable!("it is a piece") };
    debug_assert!(work.answer.text.is_empty(), "parked, P1: it was not answered yet");
    let mut lines = std::mem::take(&mut work.answer.text);
    let next = piece(context, &mut *engine, keys_only, cursor.unwrap_or_default(), &mut lines);
    work.answer.text = lines;
    work.ask = Ask::Piece { keys_only, cursor: next };
    let mut done = Chain::new();
    done.push(work);
    engines.mailboxes().answer(context, done);
    true
}

/// Formats one piece of the items of an engine (I1). Returns the cursor from which the next piece
/// continues, or `None` if there is none.
fn piece<E: Engine>(
    context: &Context,
    engine: &mut E,
    keys_only: bool,
    mut cursor: Cursor,
    lines: &mut Vec<u8>,
) -> Option<Cursor> {
    let now = &context.now();
    let walked = engine.walk(&mut cursor, now, LISTED_ITEMS_PER_TICK_MAX, |key, item| {
        if keys_only {
            format::mgdump_line(lines, key, item.protocol_mark());
        } else {
            let unix = |second| u64::try_from(now.unix(second)).unwrap_or(0);
            let facts = format::DumpFacts {
                expiry_unix_s: (item.expiry() != 0).then(|| unix(item.expiry())),
                access_unix_s: unix(item.last_access()),
                cas: item.cas(),
                fetched: item.is_fetched(),
                item_bytes: item.memory_bytes(),
                client_flags: item.client_flags(),
            };
            format::metadump_line(lines, key, &facts);
        }
        lines.len() < PIECE_BYTES_MAX
    });
    assert!(walked.items <= LISTED_ITEMS_PER_TICK_MAX, "I1");
    context.counters.listed_items.add(walked.items as u64);
    walked.more.then_some(cursor)
}
