//! Serving the input of connections: parse each request, add it to the batch (*stage* it), and run
//! the batch.
//!
//! Upstream:   `tick`, with the connections that have input.
//! Downstream: `carry_out` for staged requests, `upload` for large values, `control` for requests
//!             that have no key, `login` for clients that must log in first.
//!
//! A request is *carried out* when this core executes it, or parks it with the engine that owns its
//! key.
//!
//! Invariants:
//! - I1  The requests of one connection are carried out in order. So the batch runs before a
//!   request that is not staged.
//! - I2  If a request cannot be carried out yet (the client does not read its replies, or there is
//!   no record), the connection is rewound to this request. No later request of the connection is
//!   carried out before it.
//! - I3  When the batch runs, each staged request of an open connection is carried out, or is left
//!   in the input because the connection is rewound.
//! - I4  While a request of a connection is parked, its later requests for the same engine are
//!   executed after it; if the engine delays it, only those for the same key are. Requests for
//!   other engines may be executed before it.

use kachel_engine::{Engine, INLINE_VALUE_BYTES_MAX};
use kachel_net::{
    ClientIndex, ClientProtocol, CloseReason, Connection, ConnectionIndex, ExchangeIndex, Resume,
    Users, Waiting,
};
use kachel_wire::request::{
    BinaryRequest, BinaryVerb, KEY_BYTES_MAX, Keys, LINE_BYTES_MAX, Request, Retrieve,
};
use kachel_wire::{Parsed, Reply, parse_binary, parse_text};

use crate::clients::Clients;
use crate::connections::datagrams::refuse_incomplete;
use crate::connections::memory::widen;
use crate::context::Context;
use crate::control::commands::{Administration, Awaits, work_bytes};
use crate::cores::run_queue::Join;
use crate::cores::work::{REQUEST_BYTES, TickWork};
use crate::large::upload::{Uploads, Values, fits};
use crate::listings::listing::Listings;
use crate::request::batch::{Batch, KeyPlace, Line, Ready, Staged, Work, offset_in};
use crate::serve::beside::{Core, prefetch};
use crate::serve::carry_out::CarryingOut;
use crate::serve::copying::copy_hot;
use crate::serve::login::LoggingIn;
use crate::waiting::engines::Engines;
use crate::waiting::held::HeldEngines;
use crate::waiting::records::{NoRecord, Records};

/// The parts of a shard that serving needs.
pub(crate) struct Serving<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engines: &'a Engines<E>,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) records: &'a mut Records<E>,
    pub(crate) uploads: &'a mut Uploads<E::Upload>,
    pub(crate) listings: &'a mut Listings,
    pub(crate) core: &'a mut Core,
    /// The name of the I/O backend, for `stats`.
    pub(crate) io_kind: &'static str,
    /// The number of the last sweep.
    pub(crate) sweep: u32,
}

/// The state of serving within one tick.
pub(super) struct Turn<'a, 's, 'b, E: Engine> {
    pub(super) on: &'a mut Serving<'s, E>,
    pub(super) ready: &'a mut [Ready],
    pub(super) batch: Batch<'b>,
    /// Whether nothing except staging requests was done since the connection was prepared. Then
    /// the connection need not be prepared again for its next request.
    pub(super) has_only_staged: bool,
    /// The protocol of the connection. Valid once the connection was prepared.
    pub(super) protocol: ClientProtocol,
    /// The most requests of one connection in one tick (`-R`). With this limit, a connection is
    /// prepared for each of its requests, because `prepare` counts them.
    pub(super) turn_requests: Option<u32>,
    /// The work of this tick (`work`, W1).
    pub(super) tick: TickWork,
    /// The requests of the connection that were begun. Counted only with `turn_requests`.
    pub(super) begun: Begun,
}

/// The requests of one connection that were begun in this tick.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    pub(super) count: u32,
    /// Where the last of these requests starts in the input. A request that had to wait for the
    /// batch is begun a second time at the same place, and counts once.
    pub(super) last_start: usize,
}

impl Begun {
    pub(super) const NONE: Self = Self { count: 0, last_start: usize::MAX };
}

/// The next step of serving a connection.
enum Next {
    /// Its next request is parsed. `scanned_bytes` of it were searched for the end of a line.
    Request { scanned_bytes: usize },
    /// Something else was done, so the connection must be prepared again.
    Again,
    /// Nothing more of the connection is served in this tick.
    Later,
}

impl<'b, E: Engine> Turn<'_, '_, 'b, E> {
    /// Serves one connection until its input is used up, its next request is incomplete, or the
    /// connection must wait. With `is_turn` the connection has a turn even if the budget of the
    /// tick is used up.
    pub(super) fn connection(&mut self, index: usize, input: &'b [u8], mut is_turn: bool) {
        debug_assert!(self.ready[index].offset == 0, "a connection is served once a tick");
        self.ready[index].input_bytes = input.len();
        self.ready[index].has_begun = true;
        self.has_only_staged = false;
        self.begun = Begun::NONE;
        let Ready { client: connection, is_gone, .. } = self.ready[index];
        if is_gone {
            return; // arrive, I3
        }
        if input.is_empty()
            && connection.connection().is_some_and(|owner| self.on.uploads.is_whole(owner))
        {
            self.run();
            debug_assert!(self.batch.is_empty(), "I1");
            self.prepare(index, connection, input); // upload, I4
            return;
        }
        loop {
            if self.batch.is_full() {
                self.run();
            }
            let Ready { offset, ended, .. } = self.ready[index];
            if ended || offset == input.len() {
                return;
            }
            let rest = &input[offset..];
            let mut scanned = 0;
            if !self.has_only_staged {
                match self.prepare(index, connection, rest) {
                    Next::Request { .. }
                        if self.ready[index].is_worked_out()
                            || !is_turn && self.tick.is_spent() =>
                    {
                        if self.settled() {
                            return self.queue(index, Join::Back); // work, W1
                        }
                        continue;
                    }
                    Next::Request { scanned_bytes } => (is_turn, scanned) = (true, scanned_bytes),
                    Next::Again => continue,
                    Next::Later => return,
                }
                self.has_only_staged = self.turn_requests.is_none();
            }
            if !self.request(index, connection, rest, scanned) {
                return;
            }
        }
    }

    /// Prepares a connection for its next request: skips input, receives a large value, serves a
    /// login, continues a retrieval, or pauses the connection. `rest` is the input that is not
    /// served yet.
    fn prepare(&mut self, index: usize, connection: ClientIndex, rest: &'b [u8]) -> Next {
        let Ready { offset, .. } = self.ready[index];
        let Some(open) = self.on.clients.connections.get_mut(connection) else {
            return Next::Later;
        };
        if !open.is_reading() && !open.is_replying() {
            self.advance(index, rest.len());
            return Next::Later;
        }
        if open.input().is_skipping() {
            let skipped = open.input_mut().note_skipped(rest.len());
            self.advance(index, skipped);
            return Next::Again;
        }
        let (uploading, listing) = (open.is_uploading(), open.is_listing());
        let kept_bytes = self.ready[index].kept_bytes(offset);
        let is_full = open.outbox().is_full(kept_bytes);
        if (uploading || listing || is_full) && !self.batch.is_empty() {
            self.run();
            return Next::Again;
        }
        if listing || is_full && !self.on.widen(connection, kept_bytes) {
            self.wait(index, if listing { Waiting::Listing } else { Waiting::Reader });
            return Next::Later;
        }
        if uploading {
            let used = self.on.values().feed(connection_of(connection), rest);
            self.advance(index, used);
            if self.on.clients.is_paused(connection) {
                self.ready[index].ended = true;
            }
            return Next::Again;
        }
        let Some(open) = self.on.clients.connections.get_mut(connection) else {
            return Next::Later;
        };
        if open.login().is_some() {
            if !(self.ready[index].is_worked_out() || self.tick.left_bytes() == 0) {
                self.count_unstaged(index, self.on.login_bytes());
                return self.log_in(index, connection_of(connection), rest);
            }
            if !self.settled() {
                return Next::Again;
            }
            self.queue(index, Join::Back); // work, W1
            return Next::Later;
        }
        if let Some(resume) = open.input_mut().take_resume() {
            return if self.keys(index, rest, resume) { Next::Again } else { Next::Later };
        }
        self.protocol = open.settle_protocol(rest[0]);
        let scanned_bytes = if offset == 0 { open.input().scanned_bytes() } else { 0 };
        if let Some(turn_requests) = self.turn_requests
            && !self.begin(offset, turn_requests)
        {
            self.ready[index].has_had_turn = true;
            return Next::Later;
        }
        Next::Request { scanned_bytes }
    }

    /// Serves one command of a client that logs in.
    #[cold]
    fn log_in(&mut self, index: usize, connection: ConnectionIndex, rest: &[u8]) -> Next {
        debug_assert!(self.ready[index].offset + rest.len() == self.ready[index].input_bytes);
        let Serving { context, clients, sweep, .. } = &mut *self.on;
        let protocol = clients.connections.get(connection).map(Connection::protocol);
        let logging_in = LoggingIn { context, clients, connection, sweep: *sweep };
        let served = match protocol {
            Some(ClientProtocol::Binary) => logging_in.serve_sasl(rest),
            _ => logging_in.serve(rest),
        };
        let Some(served) = served else {
            self.ready[index].ended = self.on.clients.is_paused(connection);
            return Next::Later;
        };
        self.advance(index, served);
        Next::Again
    }

    /// Parses one request, and stages, answers or begins to receive it. Returns `false` if the rest
    /// of the input must wait for a later tick. If it returns `true`, the caller goes on at the
    /// connection's offset. That is the same request again if the batch had to run before it (I1).
    // A call for each request costs 2 % of a pipelined get (`tests/instructions`).
    #[inline(always)]
    fn request(
        &mut self,
        index: usize,
        connection: ClientIndex,
        rest: &'b [u8],
        scanned: usize,
    ) -> bool {
        debug_assert!(scanned <= rest.len(), "what was searched is still there");
        let parsed = match self.protocol {
            ClientProtocol::Binary => parse_binary(rest),
            ClientProtocol::Text | ClientProtocol::Negotiated => parse_text(rest, scanned),
        };
        match parsed {
            Parsed::NeedMore => {
                if let Some(exchange) = connection.exchange() {
                    self.refuse_incomplete(index, exchange, None, rest.len());
                } else {
                    let scanned = |open: &mut Connection| open.input_mut().note_scanned(rest.len());
                    self.on.clients.with(connection, scanned);
                }
                false
            }
            Parsed::Request { ref request, line_bytes } => match request {
                Request::Retrieve(retrieve) => {
                    if line_bytes > LINE_BYTES_MAX {
                        self.on.context.counters.long_lines.add(1);
                    }
                    let next_key = offset_in(rest, retrieve.keys.rest);
                    let keys_end = next_key + retrieve.keys.rest.len();
                    let Retrieve { form, ttl, .. } = *retrieve;
                    let resume = Resume { next_key, keys_end, form, ttl };
                    if !retrieve.is_one {
                        return self.keys(index, rest, resume);
                    }
                    let start = self.ready[index].offset;
                    self.advance(index, line_bytes);
                    let work = Work::Key { from_here: resume, last: true };
                    self.push(index, start, KeyPlace::Input(retrieve.keys.rest), work);
                    true
                }
                Request::Store(_)
                | Request::MetaSet { .. }
                | Request::Binary(BinaryRequest { verb: BinaryVerb::Store { .. }, .. }) => {
                    self.storage(index, connection, rest, request, line_bytes)
                }
                Request::MetaNoop | Request::Admin(_) | Request::BinaryAdmin { .. } => {
                    if self.settled() {
                        let done = self.on.administration(connection).carry_out(request);
                        if let Err(Awaits) = done {
                            self.wait(index, Waiting::Answers);
                            return false;
                        }
                        self.advance_unstaged(index, line_bytes, work_bytes::<E::Common>(request));
                    }
                    true
                }
                _ => {
                    let text = &rest[..line_bytes];
                    self.stage(index, request, text, b"");
                    true
                }
            },
            refused => {
                if self.settled() {
                    return self.refuse(index, connection, rest, &refused);
                }
                true
            }
        }
    }

    /// Drops the rest of an exchange's input. The last request of the exchange is incomplete, and
    /// an exchange gets no more input.
    #[cold]
    fn refuse_incomplete(
        &mut self,
        index: usize,
        exchange: ExchangeIndex,
        request: Option<&Request<'_>>,
        rest_bytes: usize,
    ) {
        let Serving { context, clients, .. } = &mut *self.on;
        refuse_incomplete(context, clients, exchange, request);
        self.advance(index, rest_bytes);
    }

    /// Answers input that is not a request and skips its data, or closes the connection. Serves a
    /// login of a client that has logged in before. Returns `false` if the connection must wait.
    #[inline(never)]
    fn refuse(
        &mut self,
        index: usize,
        connection: ClientIndex,
        rest: &[u8],
        refused: &Parsed<'_>,
    ) -> bool {
        debug_assert!(self.batch.is_empty(), "I1");
        self.count_unstaged(index, REQUEST_BYTES);
        match refused {
            Parsed::Refused { refusal, line_bytes } => {
                self.advance(index, *line_bytes);
                self.on.clients.text(connection, refusal.reply.bytes());
                self.skip(connection, refusal.skip_bytes);
            }
            Parsed::RefusedBinary { refusal, line_bytes } => {
                let open = self.on.clients.connections.get(connection);
                if refusal.is_login() && open.and_then(Connection::logs_in).is_some() {
                    let connection = connection_of(connection);
                    return matches!(self.log_in(index, connection, rest), Next::Again);
                }
                self.advance(index, *line_bytes);
                self.on.clients.refuse_binary(connection, refusal);
                self.skip(connection, refusal.skip_bytes);
            }
            Parsed::Close => self.on.clients.drain(connection, CloseReason::Error),
            Parsed::NeedMore | Parsed::Request { .. } => unreachable!("nothing is wrong with it"),
        }
        true
    }

    /// Returns whether the batch is empty, so that an unstaged request may be executed now (I1). If
    /// the batch is not empty, runs it and returns `false`. The caller must then begin again,
    /// because the run may have paused the connection.
    fn settled(&mut self) -> bool {
        let settled = self.batch.is_empty();
        if !settled {
            self.run();
        }
        self.has_only_staged = false;
        settled
    }

    fn advance(&mut self, index: usize, bytes: usize) {
        self.ready[index].offset += bytes;
    }

    /// Advances past a request that was executed without being staged, and counts its work.
    fn advance_unstaged(&mut self, index: usize, bytes: usize, work_bytes: u64) {
        self.advance(index, bytes);
        self.count_unstaged(index, work_bytes);
    }

    /// Counts the work of a request that is not staged.
    fn count_unstaged(&mut self, index: usize, bytes: u64) {
        self.ready[index].work_bytes += bytes;
        self.tick.count(bytes);
    }

    /// Pauses a connection. The rest of its input is served in a later tick.
    fn wait(&mut self, index: usize, waiting: Waiting) {
        self.ready[index].ended = true;
        self.on.clients.pause(self.on.context, self.ready[index].client, waiting);
    }

    /// Pauses a connection until there is a record for its next request.
    fn wait_for_record(&mut self, index: usize, none: NoRecord) {
        self.ready[index].ended = true;
        let Serving { context, clients, records, .. } = &mut *self.on;
        clients.pause_for_record(context, records, self.ready[index].client, none);
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
        connection: ClientIndex,
        rest: &'b [u8],
        request: &Request<'b>,
        line_bytes: usize,
    ) -> bool {
        let value_bytes =
            request.announced_bytes().expect("a storage request announces its block") as usize;
        if let Some(exchange) = connection.exchange()
            && rest.len() < line_bytes + value_bytes + request.value_end().len()
        {
            if self.settled() {
                self.refuse_incomplete(index, exchange, Some(request), rest.len());
            }
            return true;
        }
        if !fits(self.on.engines, request, value_bytes) {
            if self.settled() {
                let refused = self.on.values().refuse(connection, request, Reply::TooLarge);
                if let Err(none) = refused {
                    self.wait_for_record(index, none);
                    return false;
                }
                self.advance_unstaged(index, line_bytes, REQUEST_BYTES);
                self.skip(connection, (value_bytes + request.value_end().len()) as u64);
            }
            return true;
        }
        if value_bytes > INLINE_VALUE_BYTES_MAX {
            if self.settled() {
                self.advance_unstaged(index, line_bytes, REQUEST_BYTES);
                let line = &rest[..line_bytes];
                self.on.values().begin(connection_of(connection), request, line, value_bytes);
            }
            return true;
        }
        let end = request.value_end();
        let text_bytes = line_bytes + value_bytes + end.len();
        if rest.len() < text_bytes {
            self.on.clients.with(connection, |open| open.input_mut().note_announced(value_bytes));
            return false;
        }
        let block = &rest[line_bytes..text_bytes];
        if !(end.is_empty() || block.ends_with(b"\r\n")) {
            if self.settled() {
                self.advance_unstaged(index, text_bytes, REQUEST_BYTES);
                if !request.is_noreply() {
                    self.on.clients.text(connection, Reply::BadDataChunk.bytes());
                }
            }
            return true;
        }
        self.stage(index, request, &rest[..text_bytes], &block[..value_bytes]);
        true
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
    fn skip(&mut self, connection: ClientIndex, bytes: u64) {
        self.on.clients.with(connection, |open| open.input_mut().skip(bytes));
    }

    /// Runs the batch: carries out the staged requests in order, and empties the batch.
    pub(super) fn run(&mut self) {
        let on = &mut *self.on;
        if self.batch.is_empty() {
            return;
        }
        self.has_only_staged = false;
        on.uploads.ticks_alone = 0;
        let engines = on.engines;
        let mut held = HeldEngines::new(engines, on.context);
        let guesses = prefetch(on.context, on.core, &mut held, &self.batch);
        let Serving { context, clients, records, core, .. } = on;
        let left_bytes = self.tick.left_bytes();
        let mut carrying_out = CarryingOut { context, clients, records, core, left_bytes };
        for (place, staged) in self.batch.iter().enumerate() {
            let ready = &mut self.ready[staged.ready as usize];
            debug_assert!(
                ready.ended || staged.start <= ready.offset,
                "I2: rewound to the first request that waits"
            );
            if !ready.ended {
                carrying_out.carry_out(&mut held, ready, &self.batch, staged, guesses.at(place));
            }
        }
        let engine_bytes = left_bytes - carrying_out.left_bytes;
        self.tick.count(engine_bytes + self.batch.len() as u64 * REQUEST_BYTES);
        if !engines.readers().is_empty() {
            self.on.core.end_round(engines, self.on.context); // beside, B1
        }
        if self.on.context.shared.options.copies.is_some() {
            copy_hot(self.on.context, &mut held, self.ready, &self.batch);
        }
        // `held` is dropped in place, at the end: dropping it by value would copy 3 KB.
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
            records: self.records,
            uploads: self.uploads,
        }
    }

    /// The parts of a shard that an administrative request needs.
    fn administration(&mut self, client: ClientIndex) -> Administration<'_, E> {
        Administration {
            context: self.context,
            engines: self.engines,
            clients: self.clients,
            listings: self.listings,
            client,
            head: None,
            io_kind: self.io_kind,
        }
    }

    /// The work that a command of a client that logs in counts as. A password may be compared with
    /// each line of the file of users.
    #[cold]
    fn login_bytes(&self) -> u64 {
        let compared = self.context.shared.with_users(Users::compared_bytes).unwrap_or(0);
        REQUEST_BYTES + compared as u64
    }

    fn widen(&mut self, connection: ClientIndex, kept_bytes: usize) -> bool {
        let mut held = HeldEngines::new(self.engines, self.context);
        widen(self.context, &mut held, self.clients, connection, kept_bytes)
    }
}

/// The connection of a client that logs in, or whose large value is received.
///
/// Panics: if `client` is an exchange, which neither logs in nor sends a large value. A server that
/// asks for logins has no UDP, and a datagram is too short for a large value (`datagrams`).
fn connection_of(client: ClientIndex) -> ConnectionIndex {
    client.connection().expect("an exchange neither logs in nor sends a large value")
}
