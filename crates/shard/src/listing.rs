//! Listings of all items: `lru_crawler metadump` and `mgdump`.
//!
//! Upstream:   `admin` begins a listing; `tick` continues all listings by one bounded step; `mail`
//!             passes on the pieces that other shards ask for or send.
//! Downstream: each shard in turn walks its segments.
//!
//! ```text
//! our listings, in turn --(our items)------------------+
//!         |                                            +--> one piece a tick, shard by shard
//!         +--(another shard's)--> one hop a shard      |
//! other shards' hops, one each ------------------------+
//! ```
//!
//! Invariants:
//! - I1  In one tick a shard examines at most `LISTED_ITEMS_PER_TICK_MAX` items for all listings
//!   together, those of its own clients and those of other shards. So other requests wait for at
//!   most one piece, for any number of listings.
//! - I2  While a listing runs, no other request of its connection is executed.
//! - I3  A shard asks each other shard for one piece at a time, so at most one request of each
//!   other shard waits here.
//! - I4  Each listing that can continue gets its turn: shards take turns, and the listings of one
//!   shard take turns. A listing whose client does not read loses only its turns.

use std::collections::VecDeque;

use kachel_engine::{Cursor, Engine, ReadValue};
use kachel_net::{AnswerRoom, Connection, ConnectionIndex, SlotIndex};
use kachel_wire::{Reply, Sink, format};

use crate::LISTED_ITEMS_PER_TICK_MAX;
use crate::clients::Clients;
use crate::context::Context;
use crate::engines::Engines;
use crate::hop::{ANSWER_BYTES_MAX, ANSWER_HEAD_BYTES, Hop, Mail, Outgoing};

/// The cursor that says that a shard has listed everything.
const CURSOR_END: u64 = u64::MAX;
/// Listings that one step checks for whether they may continue.
const LISTINGS_CHECKED_MAX: usize = 64;
/// Bytes of the longest line of a listing: a key with each byte as `%XX`, and the item's facts.
const LINE_BYTES_MAX: usize = 1024;
/// Bytes of one piece, so that it fits an answer (I1).
const PIECE_BYTES_MAX: usize = ANSWER_BYTES_MAX - ANSWER_HEAD_BYTES - LINE_BYTES_MAX;

/// A listing that a client waits for.
#[derive(Debug)]
struct Listing {
    connection: ConnectionIndex,
    keys_only: bool,
    /// The number of shards whose items are all listed. A listing begins with the shard of its
    /// client, so that many listings do not all need the same shard.
    listed_shards: u16,
    cursor: Cursor,
    /// Whether another shard was asked for a piece and has not answered yet.
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

    fn go_on(&mut self, cursor: u64) {
        debug_assert!(!self.awaited, "a listing goes on with the piece that it waited for");
        if cursor == CURSOR_END {
            self.listed_shards += 1;
            self.cursor = Cursor::default();
        } else {
            self.cursor = Cursor::from_u64(cursor);
        }
    }
}

/// A piece that another shard asks for, for a listing of its own client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) slot: SlotIndex,
    pub(crate) keys_only: bool,
    pub(crate) cursor: Cursor,
}

/// The listings of a shard's clients, and the pieces that other shards ask for.
#[derive(Debug)]
pub(crate) struct Listings {
    /// The listings of this shard's clients, the next in turn first (I4).
    listings: VecDeque<Listing>,
    /// For each other shard, the piece that it asked for (I3).
    asked: Vec<Option<Asked>>,
    /// For each other shard, whether it owes this shard a piece (I3).
    awaited: Vec<bool>,
    /// The shard whose turn it is (I4).
    turn: u16,
}

impl Listings {
    /// No listings, in a process of `shards` shards.
    pub(crate) fn new(shards: u16) -> Self {
        let shards = usize::from(shards);
        let (asked, awaited) = (vec![None; shards], vec![false; shards]);
        Self { listings: VecDeque::new(), asked, awaited, turn: 0 }
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

    /// Notes that another shard asks for a piece. `step` answers when its turn comes.
    pub(crate) fn ask(&mut self, peer: u16, asked: Asked) {
        let before = self.asked[usize::from(peer)].replace(asked);
        assert!(before.is_none(), "I3");
    }

    /// Notes that another shard has sent its piece. The listing goes on if its client is still
    /// there.
    pub(crate) fn went_on(&mut self, peer: u16, connection: Option<ConnectionIndex>, cursor: u64) {
        let was_awaited = std::mem::take(&mut self.awaited[usize::from(peer)]);
        assert!(was_awaited, "I3");
        let mut listings = self.listings.iter_mut();
        let waiting = listings.find(|dump| Some(dump.connection) == connection && dump.awaited);
        if let Some(listing) = waiting {
            listing.awaited = false;
            listing.go_on(cursor);
        }
    }

    fn is_idle(&self) -> bool {
        self.listings.is_empty() && self.asked.iter().all(Option::is_none)
    }
}

/// The parts of a shard that a step of the listings uses.
pub(crate) struct Step<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) mail: &'a mut Mail<E>,
}

/// The result of checking a listing.
enum Check {
    /// It is complete, or its client is gone.
    Over,
    /// It waits for its client or for an answer, so the listings behind it come first.
    Waits,
    /// It needs a piece of this shard's items.
    WantsOurs,
    /// It needs a piece of a shard that cannot be asked now. It keeps its turn.
    WantsTheirs,
}

impl Listings {
    /// Whether a listing can continue now, so that the shard must not sleep. A piece without a line
    /// sends nothing, so no event would wake the shard after it.
    pub(crate) fn may_go_on<P: ReadValue>(&self, context: &Context, clients: &Clients<P>) -> bool {
        let may = |listing: &Listing| {
            let open = clients.connections.get(listing.connection);
            let owner = listing.owner(context.id, context.shards());
            let owes = owner.is_some_and(|owner| self.awaited[usize::from(owner)]);
            open.is_none_or(|open| {
                !open.is_listing() || !(listing.awaited || owes || open.is_full())
            })
        };
        self.asked.iter().any(Option::is_some) || self.listings.iter().any(may)
    }

    /// Continues the listings by one piece of this shard's items, and asks other shards for pieces
    /// of theirs.
    pub(crate) fn step<E: Engine>(&mut self, mut step: Step<'_, E>) {
        if self.is_idle() {
            return;
        }
        let own = self.check_all(&mut step);
        if own.is_none() && self.asked.iter().all(Option::is_none) {
            return;
        }
        debug_assert!(own.is_some() || !self.is_idle(), "a piece is wanted");
        // While another core holds the engine, all pieces wait.
        let Some(mut engine) = step.engines.take(step.context.id, step.context) else { return };
        let (id, shards) = (step.context.id, step.context.shards());
        for _ in 0..shards {
            let shard = self.turn;
            self.turn = (shard + 1) % shards;
            let done = match own {
                Some(place) if shard == id => self.own_piece(&mut step, &mut *engine, place),
                _ => self.answer_asked(&mut step, &mut *engine, shard),
            };
            if done {
                return;
            }
        }
    }

    /// Checks the listings in turn. Returns the place of the first one that needs a piece of this
    /// shard's items.
    fn check_all<E: Engine>(&mut self, step: &mut Step<'_, E>) -> Option<usize> {
        debug_assert!(self.turn < step.context.shards(), "I4: a turn is some shard's");
        let (mut place, mut own) = (0, None);
        for _ in 0..self.listings.len().min(LISTINGS_CHECKED_MAX) {
            let Some(mut listing) = self.listings.remove(place) else { break };
            match self.check(step, &mut listing) {
                Check::Over => {}
                Check::Waits => self.listings.push_back(listing),
                checked => {
                    if matches!(checked, Check::WantsOurs) && own.is_none() {
                        own = Some(place);
                    }
                    self.listings.insert(place, listing);
                    place += 1;
                }
            }
        }
        own
    }

    /// Continues one listing as far as it needs no items of this shard.
    fn check<E: Engine>(&mut self, step: &mut Step<'_, E>, listing: &mut Listing) -> Check {
        let Step { context, clients, mail, .. } = step;
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
        let Some(owner) = listing.owner(context.id, context.shards()) else {
            let end = if listing.keys_only { Reply::En } else { Reply::End };
            clients.text(connection, end.bytes());
            // The requests after the listing can be served again.
            clients.with(connection, Connection::end_listing);
            clients.mark_dirty(connection);
            return Check::Over;
        };
        if owner == context.id {
            return Check::WantsOurs;
        }
        let hop = Hop::Dump { keys_only: listing.keys_only };
        let cursor = listing.cursor.to_u64().to_le_bytes();
        let asked = Outgoing { hop, text: &cursor, room: AnswerRoom::default() };
        if self.awaited[usize::from(owner)]
            || mail.send(context, clients, connection, owner, asked).is_err()
        {
            return Check::WantsTheirs;
        }
        debug_assert!(!listing.awaited, "I3: one piece at a time");
        self.awaited[usize::from(owner)] = true;
        listing.awaited = true;
        Check::Waits
    }

    /// Sends a piece of this shard's items to a client of this shard. Returns whether it did.
    fn own_piece<E: Engine>(
        &mut self,
        step: &mut Step<'_, E>,
        engine: &mut E,
        place: usize,
    ) -> bool {
        let Some(mut listing) = self.listings.remove(place) else { return false };
        piece(step, engine, listing.keys_only, listing.cursor);
        let text = &step.mail.answer.text;
        let (cursor, lines) = text.split_first_chunk().expect("a piece has its cursor");
        listing.go_on(u64::from_le_bytes(*cursor));
        step.clients.text(listing.connection, lines);
        self.listings.push_back(listing);
        true
    }

    /// Sends the piece that another shard asked for. Returns `false` if no piece is asked for, or
    /// if there is no room for the answer yet.
    fn answer_asked<E: Engine>(
        &mut self,
        step: &mut Step<'_, E>,
        engine: &mut E,
        peer: u16,
    ) -> bool {
        if self.asked[usize::from(peer)].is_none() || !step.mail.has_room_for_answer(peer) {
            return false;
        }
        let Some(asked) = self.asked[usize::from(peer)].take() else { return false };
        piece(step, engine, asked.keys_only, asked.cursor);
        debug_assert!(step.mail.answer.text.len() >= 8, "a piece begins with its cursor");
        step.mail.send_piece(peer, asked.slot);
        true
    }
}

/// Formats one piece of this shard's items into the mail's answer: the cursor from which the next
/// piece continues, then the lines (I1).
fn piece<E: Engine>(step: &mut Step<'_, E>, engine: &mut E, keys_only: bool, mut cursor: Cursor) {
    let now = &step.context.now();
    step.mail.answer.begin(0);
    let out = &mut step.mail.answer.text;
    out.put(&[0; 8]);
    let walked = engine.walk(&mut cursor, now, LISTED_ITEMS_PER_TICK_MAX, |key, item| {
        if keys_only {
            format::mgdump_line(out, key, item.protocol_mark());
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
            format::metadump_line(out, key, &facts);
        }
        out.len() < PIECE_BYTES_MAX
    });
    assert!(walked.items <= LISTED_ITEMS_PER_TICK_MAX, "I1");
    step.context.counters.listed_items.add(walked.items as u64);
    let next = if walked.more { cursor.to_u64() } else { CURSOR_END };
    out[..8].copy_from_slice(&next.to_le_bytes());
}
