//! Serving the input of connections: parse each request, add it to the batch (*stage* it), and run
//! the batch.
//!
//! Upstream:   `tick`, with the connections that have input.
//! Downstream: `apply` for keys that this shard owns, `hop` for keys of other shards, `upload` for
//!             large values, `admin` for requests that have no key.
//!
//! A request is *carried out* when this shard executes it, or sends it to the shard that owns its
//! key.
//!
//! Invariants:
//! - I1  The requests of one connection are carried out in order. So the batch runs before a
//!   request that is not staged.
//! - I2  If a request cannot be carried out yet (the client does not read its replies, or a mailbox
//!   is full), the connection is rewound to this request. No later request of the connection is
//!   carried out before it.
//! - I3  When the batch runs, each staged request of an open connection is carried out, or is left
//!   in the input because the connection is rewound.

use kachel_engine::{Block, Common as _, Engine, INLINE_VALUE_BYTES_MAX, Key, Ticket};
use kachel_io::Io;
use kachel_net::{ConnectionIndex, Resume, Waiting};
use kachel_wire::request::{KEY_BYTES_MAX, Keys, LINE_BYTES_MAX, Request, Retrieve};
use kachel_wire::{Parsed, Reply, parse};

use crate::admin::{Administration, Awaits};
use crate::apply::{Applier, ReadTerms, room_for_answer, room_for_key};
use crate::arrive::Inputs;
use crate::batch::{Batch, KeyPlace, Line, Ready, Staged, Work};
use crate::beside::{Core, prefetch_index, prefetch_items};
use crate::clients::Clients;
use crate::context::Context;
use crate::delayed::Delayed;
use crate::engines::{Engines, HeldEngines};
use crate::hop::{Hop, Mail, MailboxFull, Outgoing};
use crate::listing::Listings;
use crate::memory::widen;
use crate::pause::pause_for;
use crate::upload::{Uploads, Values};

/// The parts of a shard that serving needs.
pub(crate) struct Serving<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) mail: &'a mut Mail<E>,
    pub(crate) delayed: &'a mut Delayed<E>,
    pub(crate) uploads: &'a mut Uploads<E::Upload>,
    pub(crate) listings: &'a mut Listings,
    pub(crate) core: &'a mut Core,
    /// The name of the I/O backend, for `stats`.
    pub(crate) io_kind: &'static str,
}

impl<E: Engine> Serving<'_, E> {
    /// Serves all ready connections. `decoded` lends its memory for keys that come in base64.
    pub(crate) fn serve_all<'b, I: Io>(
        &mut self,
        ready: &mut [Ready],
        inputs: &Inputs<'b, I>,
        decoded: &mut Vec<u8>,
    ) {
        let batch = Batch::new(std::mem::take(decoded));
        let mut turn = Turn { on: self, ready, batch };
        for index in 0..turn.ready.len() {
            let input = inputs.of(&turn.ready[index]);
            turn.connection(index, input);
        }
        turn.run();
        debug_assert!(turn.batch.is_empty(), "I3: all that was staged is carried out");
        *decoded = turn.batch.into_decoded();
        self.core.sleep(); // What others retire from here on does not wait for this core.
    }
}

/// The state of serving within one tick.
struct Turn<'a, 's, 'b, E: Engine> {
    on: &'a mut Serving<'s, E>,
    ready: &'a mut [Ready],
    batch: Batch<'b>,
}

impl<'b, E: Engine> Turn<'_, '_, 'b, E> {
    /// Serves one connection until its input is used up, its next request is incomplete, or the
    /// connection must wait.
    fn connection(&mut self, index: usize, input: &'b [u8]) {
        debug_assert!(self.ready[index].offset == 0, "a connection is served once a tick");
        self.ready[index].input_bytes = input.len();
        loop {
            if self.batch.is_full() {
                self.run();
            }
            let Ready { connection, offset, ended, .. } = self.ready[index];
            if ended || offset == input.len() {
                return;
            }
            let Some(open) = self.on.clients.connections.get_mut(connection) else { return };
            if open.is_draining() {
                self.ready[index].offset = input.len();
                return;
            }
            let rest = &input[offset..];
            if open.input().is_skipping() {
                let skipped = open.input_mut().note_skipped(rest.len());
                self.advance(index, skipped);
                continue;
            }
            let (uploading, listing) = (open.is_uploading(), open.is_listing());
            let kept_bytes = self.ready[index].kept_bytes(offset);
            let is_full = open.outbox().is_full(kept_bytes);
            if (uploading || listing || is_full) && !self.batch.is_empty() {
                self.run();
                continue;
            }
            if listing || is_full && !self.on.widen(connection, kept_bytes) {
                self.wait(index, if listing { Waiting::Listing } else { Waiting::Reader });
                return;
            }
            if uploading {
                let used = self.on.values().feed(connection, rest);
                self.advance(index, used);
                if self.on.clients.is_paused(connection) {
                    self.ready[index].ended = true;
                }
                continue;
            }
            let Some(open) = self.on.clients.connections.get_mut(connection) else { return };
            if let Some(resume) = open.input_mut().take_resume() {
                if !self.keys(index, rest, resume) {
                    return;
                }
                continue;
            }
            let scanned = if offset == 0 { open.input().scanned_bytes() } else { 0 };
            if !self.request(index, connection, rest, scanned) {
                return;
            }
        }
    }

    /// Parses one request, and stages, answers or begins to receive it. Returns `false` if the rest
    /// of the input must wait for a later tick. If it returns `true`, the caller goes on at the
    /// connection's offset. That is the same request again if the batch had to run before it (I1).
    fn request(
        &mut self,
        index: usize,
        connection: ConnectionIndex,
        rest: &'b [u8],
        scanned: usize,
    ) -> bool {
        debug_assert!(scanned <= rest.len(), "what was searched is still there");
        match parse(rest, scanned) {
            Parsed::NeedMore => {
                self.on.clients.with(connection, |open| open.input_mut().note_scanned(rest.len()));
                false
            }
            Parsed::Request { ref request, line_bytes } => match request {
                Request::Retrieve(retrieve) => {
                    if line_bytes > LINE_BYTES_MAX {
                        self.on.context.counters.long_lines.add(1);
                    }
                    let next_key = offset_in(rest, retrieve.keys.rest);
                    let keys_end = next_key + retrieve.keys.rest.len();
                    let Retrieve { with_cas, ttl, .. } = *retrieve;
                    self.keys(index, rest, Resume { next_key, keys_end, with_cas, ttl })
                }
                Request::Store(_) | Request::MetaSet { .. } => {
                    self.storage(index, connection, rest, request, line_bytes)
                }
                Request::MetaNoop | Request::Admin(_) => {
                    if self.settled() {
                        let done = self.on.administration(connection).carry_out(request);
                        if let Err(Awaits) = done {
                            self.wait(index, Waiting::Answers);
                            return false;
                        }
                        self.advance(index, line_bytes);
                    }
                    true
                }
                _ => {
                    let text = &rest[..line_bytes];
                    self.stage(index, request, text, b"");
                    true
                }
            },
            Parsed::Refused { refusal, line_bytes } => {
                if self.settled() {
                    self.advance(index, line_bytes);
                    self.on.clients.text(connection, refusal.reply.bytes());
                    self.skip(connection, refusal.skip_bytes);
                }
                true
            }
            Parsed::Close => {
                if self.settled() {
                    self.on.clients.drain(connection);
                }
                true
            }
        }
    }

    /// Returns whether the batch is empty, so that an unstaged request may be executed now (I1). If
    /// it is not empty, runs it. The caller must then begin again, because the run may have paused
    /// the connection.
    fn settled(&mut self) -> bool {
        let settled = self.batch.is_empty();
        if !settled {
            self.run();
        }
        settled
    }

    fn advance(&mut self, index: usize, bytes: usize) {
        self.ready[index].offset += bytes;
    }

    /// Pauses a connection. The rest of its input is served in a later tick.
    fn wait(&mut self, index: usize, waiting: Waiting) {
        self.ready[index].ended = true;
        self.on.clients.pause(self.on.context, self.ready[index].connection, waiting);
    }

    /// Pauses a connection until a mailbox has room.
    fn wait_for(&mut self, index: usize, full: MailboxFull) {
        self.ready[index].ended = true;
        self.on.pause_for(self.ready[index].connection, full);
    }

    /// Stages each remaining key of a retrieval as a request of its own. `line` is the input from
    /// the start of the retrieval on. Returns `false` if the connection must wait.
    fn keys(&mut self, index: usize, line: &'b [u8], resume: Resume) -> bool {
        let start = self.ready[index].offset;
        let end_bytes = if line[resume.keys_end] == b'\r' { 2 } else { 1 };
        self.advance(index, resume.keys_end + end_bytes);
        let mut keys = Keys { rest: &line[resume.next_key..resume.keys_end] };
        debug_assert!(resume.next_key <= resume.keys_end, "the keys end behind the next one");
        let mut next = keys.next();
        while let Some(key) = next {
            if self.batch.is_full() {
                self.run();
                if self.ready[index].ended {
                    return false;
                }
            }
            next = keys.next();
            let from_here = Resume { next_key: offset_in(line, key), ..resume };
            let work = Work::Key { from_here, last: next.is_none() };
            self.push(index, start, KeyPlace::Input(key), work);
        }
        true
    }

    /// Stages a storage request if its data block is complete, begins an upload if its value is
    /// large, or refuses the request. Returns `false` if the rest of the input must wait for a
    /// later tick.
    fn storage(
        &mut self,
        index: usize,
        connection: ConnectionIndex,
        rest: &'b [u8],
        request: &Request<'b>,
        line_bytes: usize,
    ) -> bool {
        let value_bytes =
            request.announced_bytes().expect("a storage request announces its block") as usize;
        if !self.fits(request, value_bytes) {
            if self.settled() {
                let refused = self.on.values().refuse(connection, request, Reply::TooLarge);
                if let Err(full) = refused {
                    self.wait_for(index, full);
                    return false;
                }
                self.advance(index, line_bytes);
                self.skip(connection, value_bytes as u64 + 2);
            }
            return true;
        }
        if value_bytes > INLINE_VALUE_BYTES_MAX {
            if self.settled() {
                self.advance(index, line_bytes);
                let line = &rest[..line_bytes];
                self.on.values().begin(connection, request, line, value_bytes);
            }
            return true;
        }
        let text_bytes = line_bytes + value_bytes + 2;
        if rest.len() < text_bytes {
            self.on.clients.with(connection, |open| open.input_mut().note_announced(value_bytes));
            return false;
        }
        let block = &rest[line_bytes..text_bytes];
        let Some(value) = block.strip_suffix(b"\r\n") else {
            if self.settled() {
                self.advance(index, text_bytes);
                if !request.is_noreply() {
                    self.on.clients.text(connection, Reply::BadDataChunk.bytes());
                }
            }
            return true;
        };
        self.stage(index, request, &rest[..text_bytes], value);
        true
    }

    /// Whether the item of a storage request is within the size limit (`-I`).
    fn fits(&self, request: &Request<'_>, value_bytes: usize) -> bool {
        let key_bytes = match request.key_text() {
            Some(key) => key.len(),
            None => request.key(&mut [0; KEY_BYTES_MAX]).map_or(0, <[u8]>::len),
        };
        self.on.engines.common().options().fits(key_bytes, value_bytes, request.client_flags())
    }

    fn stage(&mut self, index: usize, request: &Request<'b>, text: &'b [u8], block: &'b [u8]) {
        debug_assert!(!text.is_empty(), "a request that is staged is whole");
        let start = self.ready[index].offset;
        self.advance(index, text.len());
        let key = match request.key_text() {
            Some(key) => KeyPlace::Input(key),
            None => {
                let mut space = [0; KEY_BYTES_MAX];
                let key = request.key(&mut space).expect("a request of one key has one");
                self.batch.keep_decoded(key)
            }
        };
        let work = self.batch.add_line(Line { request: *request, text, block });
        self.push(index, start, key, work);
    }

    #[inline]
    fn push(&mut self, index: usize, start: usize, key: KeyPlace<'b>, work: Work) {
        let (reads_value, is_read) = match work {
            Work::Key { from_here, .. } => (true, from_here.ttl.is_none()),
            Work::Line(place) => {
                let request = &self.batch.line(place).request;
                (request.shows_value(), request.is_read())
            }
        };
        let hasher = &self.on.context.hasher;
        let hashes = hasher.key(self.batch.key_bytes(key)).hashes();
        self.batch.push(Staged {
            ready: u32::try_from(index).expect("few connections are ready at once"),
            start,
            owner: hasher.owner(hashes),
            hashes,
            key,
            work,
            reads_value,
            is_read,
        });
    }

    /// Skips the next `bytes` of input.
    fn skip(&mut self, connection: ConnectionIndex, bytes: u64) {
        self.on.clients.with(connection, |open| open.input_mut().skip(bytes));
    }

    /// Runs the batch: carries out the staged requests in order, and empties the batch.
    fn run(&mut self) {
        let on = &mut *self.on;
        if self.batch.is_empty() {
            return;
        }
        on.uploads.ticks_alone = 0;
        let (id, engines) = (on.context.id, on.engines);
        let mut held = HeldEngines::new(engines, on.context);
        let is_own = |staged: &&Staged<'_>| staged.owner == id;
        let own = self.batch.iter().any(|staged| is_own(&staged)).then(|| held.own()).flatten();
        // The shard whose engine prefetches; the readers do it for all others.
        let except = own.is_some().then_some(id);
        let readers = engines.readers();
        let beside =
            !readers.is_empty() && self.batch.iter().any(|staged| Some(staged.owner) != except);
        if beside {
            on.core.wake();
            prefetch_index(readers, &self.batch, except);
        }
        if let Some(engine) = own {
            engine.prefetch(self.batch.iter().filter(is_own).map(Staged::lookup));
        }
        if beside {
            prefetch_items(readers, &self.batch, except);
        }
        for staged in self.batch.iter() {
            let ready = &mut self.ready[staged.ready as usize];
            debug_assert!(
                ready.ended || staged.start <= ready.offset,
                "I2: rewound to the first request that waits"
            );
            if !ready.ended {
                on.carry_out(&mut held, ready, &self.batch, staged);
            }
        }
        if beside {
            on.core.end_round(); // beside, B1
        }
        drop(held);
        self.batch.clear();
    }
}

impl<E: Engine> Serving<'_, E> {
    /// The parts of a shard that receiving a large value needs.
    fn values(&mut self) -> Values<'_, E> {
        Values {
            context: self.context,
            engines: self.engines,
            clients: self.clients,
            mail: self.mail,
            delayed: self.delayed,
            uploads: self.uploads,
        }
    }

    /// The parts of a shard that an administrative request needs.
    fn administration(&mut self, connection: ConnectionIndex) -> Administration<'_, E> {
        Administration {
            context: self.context,
            engines: self.engines,
            clients: self.clients,
            listings: self.listings,
            connection,
            io_kind: self.io_kind,
        }
    }

    fn widen(&mut self, connection: ConnectionIndex, kept_bytes: usize) -> bool {
        let mut held = HeldEngines::new(self.engines, self.context);
        widen(self.context, &mut held, self.clients, connection, kept_bytes)
    }

    fn pause_for(&mut self, connection: ConnectionIndex, full: MailboxFull) {
        pause_for(self.context, self.clients, self.mail, self.delayed, connection, full);
    }

    /// Executes one staged request, or sends it to the shard that owns its key. If neither is
    /// possible now, rewinds the connection to it (I2, I3).
    fn carry_out(
        &mut self,
        held: &mut HeldEngines<'_, E>,
        ready: &mut Ready,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
    ) {
        let connection = ready.connection;
        let Some(open) = self.clients.connections.get_mut(connection) else { return };
        debug_assert!(!ready.ended, "I2: nothing behind a request that waits is carried out");
        let kept_bytes = ready.kept_bytes(staged.start);
        let awaits = open.outbox().awaits_answers();
        let is_full = open.outbox().is_full(kept_bytes)
            && !widen(self.context, held, self.clients, connection, kept_bytes);
        let done = if is_full {
            Ok(())
        } else if staged.owner == self.context.id {
            self.carry_out_own(held, connection, batch, staged, awaits)
        } else {
            self.carry_out_theirs(held, connection, batch, staged, awaits)
        };
        if is_full || done.is_err() {
            ready.ended = true;
            ready.offset = staged.start;
            match done {
                Ok(()) => self.clients.pause(self.context, connection, Waiting::Reader),
                Err(full) => self.pause_for(connection, full),
            }
            if let Work::Key { from_here, .. } = staged.work {
                self.clients.with(connection, |open| open.input_mut().set_resume(from_here));
            }
            return;
        }
        if let Work::Key { last: true, .. } = staged.work {
            self.clients.text(connection, Reply::End.bytes());
        }
    }

    /// Executes or parks a request whose key this shard owns.
    ///
    /// Errors: it must be parked, and the queue of delayed requests is full. Nothing was done.
    #[inline]
    fn carry_out_own(
        &mut self,
        held: &mut HeldEngines<'_, E>,
        connection: ConnectionIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
        awaits: bool,
    ) -> Result<(), MailboxFull> {
        let key = batch.key(staged);
        debug_assert!(self.context.owns(&key), "only the owner of a key parks a request about it");
        if !self.delayed.is_in_use()
            && let Some(engine) = held.own()
        {
            if let Err(ticket) = self.apply(engine, connection, batch, staged)
                && let Some(outgoing) = self.outgoing(connection, batch, staged, &key)
            {
                // There is space in the queue, because it was empty.
                let Self { context, clients, delayed, .. } = self;
                delayed.park_own(context, clients, connection, key, outgoing, None, ticket);
            }
            return Ok(());
        }
        let may_read = !awaits && held.own().is_none(); // beside, B2
        if may_read && self.read_beside(held, connection, batch, staged) {
            return Ok(());
        }
        self.apply_delaying(held.own(), connection, batch, staged)
    }

    /// Executes a request for a key of another shard: beside its owner, or in the place of its
    /// owner. If neither is possible, sends the request there.
    ///
    /// Errors: the mailbox has no room now, and nothing was done.
    #[inline]
    fn carry_out_theirs(
        &mut self,
        held: &mut HeldEngines<'_, E>,
        connection: ConnectionIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
        awaits: bool,
    ) -> Result<(), MailboxFull> {
        debug_assert!(staged.owner != self.context.id, "this shard is the owner");
        // Nothing overtakes an earlier request of the same connection.
        if !awaits {
            if self.read_beside(held, connection, batch, staged) {
                return Ok(()); // beside, B2
            }
            if self.engines.are_open_to_all()
                && let Some(engine) = held.get(staged.owner)
                && self.apply(engine, connection, batch, staged).is_ok()
            {
                self.context.counters.writes_beside.add(1);
                return Ok(());
            }
            // The room for an item is on its way: its owner stores it as soon as it is there.
        }
        self.hop(connection, batch, staged)
    }

    /// Applies a request to an engine that this core holds.
    ///
    /// Errors: room for the item is on its way, and nothing was done.
    #[inline]
    fn apply(
        &mut self,
        engine: &mut E,
        connection: ConnectionIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
    ) -> Result<(), Ticket> {
        let key = batch.key(staged);
        let Some(mut sink) = self.clients.sink(connection) else { return Ok(()) };
        let applier = Applier { engine, context: self.context };
        let applied = match &staged.work {
            Work::Key { from_here, .. } => applier.key(key, read_terms(from_here), None, &mut sink),
            Work::Line(place) => {
                let Line { request, block, .. } = batch.line(*place);
                applier.request(request, key, &mut Block::Bytes(block), None, &mut sink)
            }
        };
        if let Some(value) = applied.at_once()? {
            sink.value(value);
        }
        self.clients.mark_dirty(connection);
        Ok(())
    }

    /// Answers a read beside the owner of its key. Returns `false` if that is not possible.
    #[inline]
    fn read_beside(
        &mut self,
        held: &HeldEngines<'_, E>,
        connection: ConnectionIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
    ) -> bool {
        if !staged.is_read {
            return false;
        }
        let Self { context, clients, core, .. } = self;
        let Some(beside) = core.beside(held, context, staged.owner) else { return false };
        let Some(mut sink) = clients.sink(connection) else { return true };
        let key = batch.key(staged);
        let done = match &staged.work {
            Work::Key { from_here, .. } => beside.key(&key, read_terms(from_here), &mut sink),
            Work::Line(place) => beside.request(&batch.line(*place).request, key, &mut sink),
        };
        if done {
            clients.mark_dirty(connection);
        }
        done
    }

    /// Applies a request whose key this shard owns, if its engine may delay the request, or parks
    /// it if this core does not hold the engine.
    ///
    /// Errors: the queue of delayed requests is full, and nothing was done.
    fn apply_delaying(
        &mut self,
        engine: Option<&mut E>,
        connection: ConnectionIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
    ) -> Result<(), MailboxFull> {
        let key = batch.key(staged);
        let Some(outgoing) = self.outgoing(connection, batch, staged, &key) else { return Ok(()) };
        let Self { context, clients, mail, delayed, .. } = self;
        let applied =
            delayed.apply_own(context, engine, clients, mail, connection, key, outgoing, None);
        applied.map_err(|(full, _none)| full)
    }

    /// Sends a request to the shard that owns its key.
    ///
    /// Errors: the mailbox has no room now, and nothing was done.
    fn hop(
        &mut self,
        connection: ConnectionIndex,
        batch: &Batch<'_>,
        staged: &Staged<'_>,
    ) -> Result<(), MailboxFull> {
        let key = batch.key(staged);
        let Some(outgoing) = self.outgoing(connection, batch, staged, &key) else { return Ok(()) };
        self.mail.send_about(self.context, self.clients, connection, key, outgoing)
    }

    /// Returns a staged request in the form that is sent in a record, or `None` if its client is
    /// gone.
    fn outgoing<'s>(
        &self,
        connection: ConnectionIndex,
        batch: &'s Batch<'_>,
        staged: &Staged<'s>,
        key: &Key<'s>,
    ) -> Option<Outgoing<'s>> {
        let value_bytes = self.clients.connections.get(connection)?.outbox().value_room_bytes();
        Some(match &staged.work {
            Work::Key { from_here, .. } => {
                let (hop, text) = (Hop::Key(read_terms(from_here)), key.bytes());
                Outgoing { hop, text, room: room_for_key(text, value_bytes) }
            }
            Work::Line(place) => {
                let Line { request, text, .. } = batch.line(*place);
                let room = room_for_answer(request, value_bytes);
                Outgoing { hop: Hop::Line, text, room }
            }
        })
    }
}

/// The terms on which the rest of a retrieval is read.
#[inline]
const fn read_terms(resume: &Resume) -> ReadTerms {
    ReadTerms { with_cas: resume.with_cas, ttl: resume.ttl }
}

/// The offset in `whole` at which `part` begins. `part` must be a slice of `whole`.
fn offset_in(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - whole.as_ptr().addr()
}
