//! Uploads: large values that are received piece by piece into the memory where they will be
//! stored.
//!
//! Upstream:   `serve` begins an upload when a storage request announces a value of more than
//!             `INLINE_VALUE_BYTES_MAX` bytes.
//! Downstream: the engine of the key stores the whole value; `landing` lets the I/O backend receive
//!             into the upload.
//!
//! Invariants:
//! - I1  Memory is taken as bytes arrive, not when the value is announced. The memory lent for the
//!   next bytes is at most as large as the bytes received so far, plus a block or two. A connection
//!   that closes gives all of it back.
//! - I2  This core frees memory for the value in the engine whose items take most memory, then in
//!   the other engines in turn. If the room is on its way, or only engines are left that other
//!   cores hold, it leaves a request for the room with such an engine (`backlog`), and tries again
//!   when that is answered. The value is refused only if no engine has anything left to evict.
//!   Where a core takes only its home engines (`engines`, E3), the engine that will own the value
//!   frees memory for it, then the other engines do in turn. The connection waits meanwhile.
//! - I3  If there is no memory for a value, it is read to its end and then refused, so that the
//!   next request is found.
//! - I4  A value that is whole is stored in the same tick, unless there is no record to park its
//!   request. A value without an end of its own may be whole without further input.

use kachel_engine::{
    Block, Common as _, Engine, EngineIndex, Key, KeyHashes, ReceiveValue as _, Room, Ticket, Verb,
};
use kachel_net::{ClientIndex, Connection, ConnectionIndex, Waiting};
use kachel_observe::Counters;
use kachel_stdx::Landing;
use kachel_wire::request::{KEY_BYTES_MAX, LINE_BYTES_MAX, Request};
use kachel_wire::{Parsed, Reply, parse};

use crate::clients::Clients;
use crate::context::Context;
use crate::request::apply::{Applier, room_for_answer};
use crate::request::reply::ReplySink as _;
use crate::waiting::engines::Engines;
use crate::waiting::entered::Entered;
use crate::waiting::parked::{Ask, Brought, Executor};
use crate::waiting::records::{NoRecord, Outgoing, Records};

/// A large value that is being received.
#[derive(Debug)]
pub(crate) struct Uploading<U> {
    /// The command line. It is parsed again when the value is whole.
    line: Vec<u8>,
    /// Where the bytes are written. `None` if there is no memory for them (I3).
    pub(crate) upload: Option<U>,
    pub(crate) value_bytes_left: usize,
    /// The received bytes of the end of the data block: CR LF, or nothing.
    trailer: [u8; 2],
    /// The number of bytes received into `trailer`.
    trailer_bytes: usize,
    /// The number of bytes that the end of the data block has.
    trailer_bytes_max: usize,
    /// The hashes of its key.
    hashes: KeyHashes,
    /// The engine that will own the value.
    pub(crate) owner: EngineIndex,
    /// How often an engine had nothing to evict since bytes were last stored, whether this core has
    /// asked it or its holder has.
    pub(crate) refused: u32,
    /// The engine in which room is made next (I2). The first one is the engine whose items take
    /// most. If this core may take only its home engines, the first one is the owner.
    asked_next: EngineIndex,
}

/// Lines kept for later uploads, so that later uploads allocate nothing.
const SPARE_LINES_MAX: usize = 64;
/// Landings kept for later uploads.
const SPARE_LANDINGS_MAX: usize = 64;

/// All uploads of a shard.
#[derive(Debug)]
pub(crate) struct Uploads<U> {
    /// The uploads, by the index of their connection.
    places: Vec<Option<Uploading<U>>>,
    spare_lines: Vec<Vec<u8>>,
    /// Landings that are not in use, for later uploads.
    pub(crate) spare_landings: Vec<Landing>,
    /// Ticks since the shard last had a small request or mail.
    pub(crate) ticks_alone: u32,
}

impl<U> Uploads<U> {
    /// Makes an empty list of uploads.
    pub(crate) const fn new() -> Self {
        Self {
            places: Vec::new(),
            spare_lines: Vec::new(),
            spare_landings: Vec::new(),
            ticks_alone: 0,
        }
    }

    /// Returns a copy of `line`. Cost: an allocation only when more uploads run at once than ever
    /// before.
    fn keep_line(&mut self, line: &[u8]) -> Vec<u8> {
        let spare = self.spare_lines.pop();
        let mut kept = spare.unwrap_or_else(|| Vec::with_capacity(LINE_BYTES_MAX));
        kept.clear();
        kept.extend_from_slice(line);
        kept
    }

    fn reuse_line(&mut self, line: Vec<u8>) {
        debug_assert!(line.capacity() >= LINE_BYTES_MAX, "a spare line has room for any");
        if self.spare_lines.len() < SPARE_LINES_MAX {
            self.spare_lines.push(line);
        }
    }

    pub(crate) fn reuse_landing(&mut self, landing: Landing) {
        if self.spare_landings.len() < SPARE_LANDINGS_MAX {
            self.spare_landings.push(landing);
        }
    }

    fn insert(&mut self, connection: ConnectionIndex, uploading: Uploading<U>) {
        let index = connection.0 as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        assert!(self.places[index].is_none(), "one value a connection is received at a time");
        self.places[index] = Some(uploading);
    }

    pub(crate) fn get_mut(&mut self, connection: ConnectionIndex) -> Option<&mut Uploading<U>> {
        self.places.get_mut(connection.0 as usize)?.as_mut()
    }

    fn remove(&mut self, connection: ConnectionIndex) -> Option<Uploading<U>> {
        self.places.get_mut(connection.0 as usize)?.take()
    }

    /// Whether the value of a connection was received whole and is not stored yet. That is so for a
    /// value without an end of its own, which landed, or which waits for a record.
    pub(crate) fn is_whole(&self, connection: ConnectionIndex) -> bool {
        let uploading = self.places.get(connection.0 as usize).and_then(Option::as_ref);
        uploading.is_some_and(Uploading::is_whole)
    }

    /// The number of uploads. Cost: a read of each place.
    pub(crate) fn count(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Counts a tick. `came` says whether this core did anything for other cores in it, or got an
    /// answer.
    pub(crate) const fn note_mail(&mut self, came: bool) {
        self.ticks_alone = if came { 0 } else { self.ticks_alone.saturating_add(1) };
    }

    /// Notes that an engine that was asked to make room for the upload of a client had nothing to
    /// evict.
    pub(crate) fn room_was_refused(&mut self, client: ClientIndex) {
        let uploading = client.connection().and_then(|connection| self.get_mut(connection));
        uploading.into_iter().for_each(|uploading| uploading.refused += 1);
    }

    /// Frees the upload of a connection that has closed (I1).
    pub(crate) fn forget(&mut self, connection: ConnectionIndex) {
        if let Some(uploading) = self.remove(connection) {
            self.reuse_line(uploading.line);
        }
    }
}

/// The result of making room for an upload.
enum MadeRoom {
    /// There is room.
    Made,
    /// The room is on its way in this engine, or another core holds the engine.
    Await(EngineIndex),
    /// The engines that were asked have nothing left to evict.
    Refused,
}

/// How often engines must have nothing to evict before a value is refused; twice each if there are
/// many engines. Once is not enough: for a moment, all memory may be in other uploads.
const REFUSED_MAX: u32 = 32;
/// The most engines that an upload asks for room in one tick.
const ASKED_PER_TICK_MAX: u16 = 8;

impl<U> Uploading<U> {
    const fn is_whole(&self) -> bool {
        self.value_bytes_left == 0 && self.trailer_bytes == self.trailer_bytes_max
    }

    /// Frees memory for the next `bytes` bytes (I2).
    fn make_room<E: Engine>(
        &mut self,
        context: &Context,
        engines: &Engines<E>,
        bytes: usize,
    ) -> MadeRoom {
        let count = context.engines();
        let mut asks = 1;
        if engines.are_open_to_all() {
            asks = count.min(ASKED_PER_TICK_MAX);
            if self.refused == 0 {
                self.asked_next = engines.fullest(context).unwrap_or(self.asked_next);
            }
        }
        let first = self.asked_next;
        debug_assert!(first.0 < count && bytes > 0, "an engine of this process makes room");
        let mut held = None;
        for asked in (0..asks).map(|ask| EngineIndex((first.0 + ask) % count)) {
            let Some(mut engine) = engines.take(asked, context) else {
                held = held.or(Some(asked));
                continue;
            };
            match engine.make_upload_room(bytes, &context.now()) {
                Room::Made => return MadeRoom::Made,
                // Nothing more is evicted until the room has come.
                Room::OnTheWay => return MadeRoom::Await(asked),
                // The first engine that another core holds is the next one.
                Room::Refused if held.is_some() => {}
                Room::Refused => {
                    self.refused += 1;
                    self.go_on_behind(asked, count);
                }
            }
        }
        held.map_or(MadeRoom::Refused, MadeRoom::Await)
    }

    /// Has the engine behind this one make room next.
    fn go_on_behind(&mut self, asked: EngineIndex, engines: u16) {
        self.asked_next = EngineIndex((asked.0 + 1) % engines);
    }
}

/// The parts of a shard that receiving a large value uses.
pub(crate) struct Values<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) records: &'a mut Records<E>,
    pub(crate) uploads: &'a mut Uploads<E::Upload>,
}

impl<'a, E: Engine> Values<'a, E> {
    /// Begins to receive a value of `value_bytes` for the request in `line`.
    pub(crate) fn begin(
        &mut self,
        connection: ConnectionIndex,
        request: &Request<'_>,
        line: &[u8],
        value_bytes: usize,
    ) {
        let mut space = [0; KEY_BYTES_MAX];
        let hashes = self.context.hasher.key(key_of(request, &mut space)).hashes();
        let uploading = Uploading {
            line: self.uploads.keep_line(line),
            upload: self.engines.common().begin_upload(value_bytes, self.context.place),
            value_bytes_left: value_bytes,
            trailer: [0; 2],
            trailer_bytes: 0,
            trailer_bytes_max: request.value_end().len(),
            hashes,
            owner: self.context.hasher.owner(hashes),
            refused: 0,
            asked_next: self.context.hasher.owner(hashes),
        };
        self.uploads.insert(connection, uploading);
        self.clients.with(connection, |open| open.begin_upload(value_bytes));
    }

    /// Adds received bytes to the value, and stores the value when it is whole. Returns the number
    /// of bytes used.
    pub(crate) fn feed(&mut self, connection: ConnectionIndex, input: &[u8]) -> usize {
        let uploading = self.uploads.get_mut(connection).expect("the connection is uploading");
        let value = &input[..input.len().min(uploading.value_bytes_left)];
        if !value.is_empty() && !self.write(connection, value) {
            return 0;
        }
        let uploading = self.uploads.get_mut(connection).expect("the connection is uploading");
        debug_assert!(value.len() <= uploading.value_bytes_left, "no byte behind the value");
        uploading.value_bytes_left -= value.len();
        let trailer = &input[value.len()..];
        let missing = &mut uploading.trailer[uploading.trailer_bytes..uploading.trailer_bytes_max];
        let come = trailer.len().min(missing.len());
        missing[..come].copy_from_slice(&trailer[..come]);
        uploading.trailer_bytes += come;
        let used = value.len() + come;
        if uploading.is_whole()
            && let Err(none) = self.complete(connection)
        {
            // It is completed again when the connection is resumed.
            let Self { context, clients, records, .. } = self;
            clients.pause_for_record(context, records, connection.into(), none);
        }
        used
    }

    /// Writes received bytes to the upload. If memory is full, makes room for them first (I2), or
    /// gives the upload up (I3). Returns `false` if the bytes are not written yet: the connection
    /// then waits for an engine, for a record, or for the next tick. Each engine that was asked and
    /// had nothing to evict is counted, which bounds how often it waits. If another core has taken
    /// the room that was made, it asks again.
    fn write(&mut self, connection: ConnectionIndex, value: &[u8]) -> bool {
        let Self { context, engines, uploads, .. } = self;
        let uploading = uploads.get_mut(connection).expect("the connection is uploading");
        let refused_max = REFUSED_MAX.max(2 * u32::from(context.engines()));
        let Some(upload) = &mut uploading.upload else { return true };
        let mut is_written = upload.write(value).is_ok();
        if !is_written {
            if uploading.refused >= refused_max {
                uploading.upload = None;
                return true;
            }
            let asked = uploading.asked_next;
            if !engines.may_take(asked, context) {
                self.ask_for_room(connection, asked, value.len());
                return false;
            }
            match uploading.make_room(context, engines, value.len()) {
                // Another core may have taken what was freed. Then the connection asks again.
                MadeRoom::Made => {
                    let upload = uploading.upload.as_mut();
                    is_written = upload.is_some_and(|upload| upload.write(value).is_ok());
                }
                MadeRoom::Await(engine) => {
                    self.ask_for_room(connection, engine, value.len());
                    return false;
                }
                MadeRoom::Refused => {}
            }
        }
        if is_written {
            uploading.refused = 0;
        } else {
            self.clients.pause(context, connection, Waiting::Answers);
        }
        is_written
    }

    /// Leaves a request with an engine to make room, because this core may not take the engine,
    /// another core holds it, or the room is on its way.
    fn ask_for_room(&mut self, connection: ConnectionIndex, asked: EngineIndex, bytes: usize) {
        let Self { context, engines, clients, records, uploads, .. } = self;
        let outgoing = Outgoing::without_key(Ask::MakeRoom { bytes }, b"");
        let work = match records.prepare(
            context,
            clients,
            connection.into(),
            Executor::Engine(asked),
            outgoing,
        ) {
            Ok(work) => work,
            Err(none) => {
                return clients.pause_for_record(context, records, connection.into(), none);
            }
        };
        drop(engines.park(work, context));
        // The answer tells whether there was nothing to evict (`room_was_refused`).
        let uploading = uploads.get_mut(connection).expect("the connection is uploading");
        uploading.go_on_behind(asked, context.engines());
        clients.pause(context, connection, Waiting::Answers);
    }

    /// Stores the whole value, or replies why it cannot be stored.
    ///
    /// Errors: there is no record to park it. The caller must try again later.
    fn complete(&mut self, connection: ConnectionIndex) -> Result<(), NoRecord> {
        let mut uploading = self.uploads.remove(connection).expect("the connection is uploading");
        let Parsed::Request { request, .. } = parse(&uploading.line, 0) else {
            unreachable!("the line was parsed before");
        };
        let done = match uploading.upload.take() {
            _ if uploading.trailer[..uploading.trailer_bytes] != *request.value_end() => {
                if !request.is_noreply() {
                    self.clients.text(connection, Reply::BadDataChunk.bytes());
                }
                Ok(())
            }
            None => self.refuse(connection.into(), &request, Reply::OutOfMemoryStoring),
            Some(upload) => {
                let mut space = [0; KEY_BYTES_MAX];
                let key = Key::hashed(key_of(&request, &mut space), uploading.hashes);
                let whole = Whole { request: &request, line: &uploading.line, key };
                self.commit(connection, &whole, upload).map_err(|(none, upload)| {
                    uploading.upload = Some(upload);
                    none
                })
            }
        };
        if done.is_err() {
            self.uploads.insert(connection, uploading);
            return done;
        }
        self.uploads.reuse_line(uploading.line);
        self.clients.with(connection, Connection::end_upload);
        done
    }

    /// Stores the value in the engine that owns its key, or parks the request. Errors: there is no
    /// record to park it, and the value is returned.
    fn commit(
        &mut self,
        connection: ConnectionIndex,
        whole: &Whole<'_>,
        mut upload: E::Upload,
    ) -> Result<(), (NoRecord, E::Upload)> {
        let Whole { request, line, key } = *whole;
        debug_assert!(request.announced_bytes().is_some(), "only a store has a value to commit");
        let context = self.context;
        let owner = context.hasher.owner(key.hashes());
        let mut engine = self.take(connection.into(), owner, key);
        let mut ticket = None;
        if let Some(engine) = &mut engine {
            let mut block = Block::Upload(upload);
            let Some(mut sink) = self.clients.answering(connection) else { return Ok(()) };
            let applier = Applier { engine: &mut **engine, index: owner, context };
            let applied = applier.request(request, key, &mut block, None, &mut sink);
            match applied {
                Ok(value) => {
                    assert!(value.is_none(), "the reply to a store shows no value");
                    return Ok(());
                }
                Err(given) => {
                    let Block::Upload(refused) = block else {
                        unreachable!("a request that was not executed leaves its upload")
                    };
                    (upload, ticket) = (refused, Some(given));
                }
            }
        }
        let room = room_for_answer(request, 0);
        let (ask, key) = (Ask::Line, Some(key));
        let outgoing = Outgoing { ask, text: line, key, reads_value: false, is_read: false, room };
        let Self { engines, clients, records, .. } = self;
        let mut work = match records.prepare(
            context,
            clients,
            connection.into(),
            Executor::Engine(owner),
            outgoing,
        ) {
            Ok(work) => work,
            Err(none) => {
                forget(engine.as_deref_mut(), ticket);
                return Err((none, upload));
            }
        };
        (work.brought, work.ticket) = (Brought::Upload(upload), ticket);
        match &mut engine {
            Some(engine) => engine.push(work),
            None => drop(engines.park(work, context)),
        }
        Ok(())
    }

    /// Takes an engine for a request of this connection. `None` if this core may not take it,
    /// another core holds it, or the request would overtake an earlier one.
    fn take(
        &self,
        connection: ClientIndex,
        owner: EngineIndex,
        key: Key<'_>,
    ) -> Option<Entered<'a, E>> {
        let Self { context, engines, .. } = *self;
        debug_assert!(owner.0 < context.engines(), "an engine of this process");
        if !engines.may_take(owner, context) {
            return None;
        }
        let mut engine = engines.take(owner, context)?;
        let open = self.clients.connections.get(connection);
        let awaits = open.is_none_or(|open| open.outbox().awaits_answers());
        (!awaits || engine.may_pass(key.secret_hash())).then_some(engine) // serving, I4
    }

    /// Refuses a storage request whose value is not stored. If its old value must not stay
    /// (`Request::removes_when_refused`), removes it.
    ///
    /// Errors: there is no record to park the removal, and nothing was done.
    pub(crate) fn refuse(
        &mut self,
        connection: ClientIndex,
        request: &Request<'_>,
        reply: Reply,
    ) -> Result<(), NoRecord> {
        debug_assert!(
            matches!(reply, Reply::TooLarge | Reply::OutOfMemoryStoring),
            "a value is refused for its size or for want of memory"
        );
        let is_too_large = reply == Reply::TooLarge;
        if request.removes_when_refused(is_too_large) {
            self.remove_stale(connection, request)?;
        }
        self.context.sample_refused(key_of(request, &mut [0; KEY_BYTES_MAX]));
        if self.context.log.is_on() {
            self.log_refused(connection, request, is_too_large);
        }
        let Counters { store_too_large, store_no_memory, .. } = &*self.context.counters;
        if is_too_large {
            store_too_large.add(1)
        } else {
            store_no_memory.add(1)
        }
        if let Some(mut sink) = self.clients.answering(connection) {
            request.answer_refusal(&mut sink, reply);
        }
        Ok(())
    }

    #[cold]
    fn log_refused(&self, connection: ClientIndex, request: &Request<'_>, is_too_large: bool) {
        let mut space = [0; KEY_BYTES_MAX];
        let key = self.context.hasher.key(key_of(request, &mut space));
        debug_assert!(request.announced_bytes().is_some(), "only a store is refused so");
        if let Verb::Store(terms) = request.operation(key, 0).verb {
            self.context.log_refused(key.bytes(), &terms, is_too_large, connection);
        }
    }

    fn remove_stale(
        &mut self,
        connection: ClientIndex,
        request: &Request<'_>,
    ) -> Result<(), NoRecord> {
        let mut space = [0; KEY_BYTES_MAX];
        let (context, is_meta) = (self.context, request.is_meta());
        let key = context.hasher.key(key_of(request, &mut space));
        let owner = context.hasher.owner(key.hashes());
        let mut engine = self.take(connection, owner, key);
        let mut ticket = None;
        if let Some(engine) = &mut engine {
            let descriptor =
                if context.log.is_on() { context.log.descriptor(connection) } else { 0 };
            let applier = Applier { engine: &mut **engine, index: owner, context };
            match applier.removal(key, is_meta, None, descriptor) {
                Ok(durability) => {
                    // The refusal is a later reply, so it waits for the removal.
                    let sink = self.clients.answering(connection);
                    sink.into_iter().for_each(|mut sink| sink.depends_on(owner, durability));
                    return Ok(());
                }
                Err(given) => ticket = Some(given),
            }
        }
        let Self { engines, clients, records, .. } = self;
        let ask = Ask::Removal { is_meta };
        let outgoing = Outgoing { key: Some(key), ..Outgoing::without_key(ask, key.bytes()) };
        // The refusal is a later reply, so it is sent after the answer to this request.
        let executor = Executor::Engine(owner);
        let mut work = match records.prepare(context, clients, connection, executor, outgoing) {
            Ok(work) => work,
            Err(none) => {
                forget(engine.as_deref_mut(), ticket);
                return Err(none);
            }
        };
        work.ticket = ticket;
        match &mut engine {
            Some(engine) => engine.push(work),
            None => drop(engines.park(work, context)),
        }
        Ok(())
    }
}

/// Gives a ticket back to the engine that gave it.
#[cold]
fn forget<E: Engine>(engine: Option<&mut E>, ticket: Option<Ticket>) {
    if let (Some(engine), Some(ticket)) = (engine, ticket) {
        engine.forget(ticket);
    }
}

/// A value that was received whole, and the request that stores it.
#[derive(Clone, Copy)]
struct Whole<'w> {
    request: &'w Request<'w>,
    line: &'w [u8],
    key: Key<'w>,
}

/// Whether the item of a storage request is within the size limit (`-I`).
pub(crate) fn fits<E: Engine>(
    engines: &Engines<E>,
    request: &Request<'_>,
    value_bytes: usize,
) -> bool {
    let key_bytes = match request.key_text() {
        Some(key) => key.len(),
        None => request.key(&mut [0; KEY_BYTES_MAX]).map_or(0, <[u8]>::len),
    };
    engines.common().options().fits(key_bytes, value_bytes, request.client_flags())
}

/// The key of a storage request.
fn key_of<'k>(request: &Request<'k>, space: &'k mut [u8; KEY_BYTES_MAX]) -> &'k [u8] {
    request.key(space).expect("a storage request has a key")
}
