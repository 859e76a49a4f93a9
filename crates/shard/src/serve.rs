//! Serving a connection's input: parse, stage, and run the batch.
//!
//! Upstream:   `shard::tick` with the connections that have input.
//! Downstream: `apply` for keys of ours, `hop` for keys of other shards, `admin` for the rest.
//!
//! Invariants:
//! - I1  Requests of one connection are carried out in order: whatever is not a plain request of
//!   one key first lets the batch run.
//! - I2  A request that cannot be carried out yet (the client owes us its reading, a mailbox is
//!   full) is rewound to: nothing of that connection behind it is carried out either.
//! - I3  Each staged request of an open connection is carried out, hopped, or rewound to.

use kachel_cache::INLINE_VALUE_BYTES_MAX;
use kachel_engine::{Block, Key, Primitives as _};
use kachel_io::Io;
use kachel_net::{ConnectionIndex, Phase, Resume};
use kachel_wire::request::{KEY_BYTES_MAX, Keys, LINE_BYTES_MAX, Request, Retrieve};
use kachel_wire::{Parsed, Reply, parse};

use crate::admin::{self, NotYet};
use crate::core::Core;
use crate::hop::{MailboxFull, hop};
use crate::stage::{Batch, KeyPlace, Ready, Staged, Work};
use crate::upload;

/// Serves all ready connections.
pub(crate) fn serve<I: Io>(io: &I, core: &mut Core, ready: &mut [Ready], taken: &[Vec<u8>]) {
    let batch = Batch::new(std::mem::take(&mut core.decoded_keys));
    let mut serving = Serving { core, ready, batch };
    for index in 0..serving.ready.len() {
        let input = input_of(io, &serving.ready[index], taken);
        serving.connection(index, input);
    }
    serving.run();
    serving.core.decoded_keys = serving.batch.into_decoded();
}

/// The bytes that a ready connection has to serve.
pub(crate) fn input_of<'b, I: Io>(io: &'b I, ready: &Ready, taken: &'b [Vec<u8>]) -> &'b [u8] {
    match (ready.tail, ready.lent) {
        (Some(tail), _) => &taken[tail as usize],
        (None, Some(lent)) => io.lent(lent),
        (None, None) => &[],
    }
}

struct Serving<'a, 'b> {
    core: &'a mut Core,
    ready: &'a mut [Ready],
    batch: Batch<'b>,
}

impl<'b> Serving<'_, 'b> {
    /// Serves one connection until its input is used up, incomplete, or has to wait.
    fn connection(&mut self, index: usize, input: &'b [u8]) {
        self.ready[index].input_bytes = input.len();
        loop {
            if self.batch.is_full() {
                self.run();
            }
            let Ready { connection, offset, ended, .. } = self.ready[index];
            if ended || offset == input.len() {
                return;
            }
            let Some(open) = self.core.connections.get_mut(connection) else { return };
            if open.phase == Phase::Draining {
                self.ready[index].offset = input.len();
                return;
            }
            let rest = &input[offset..];
            if open.input.skip_bytes > 0 {
                let skipped = (rest.len() as u64).min(open.input.skip_bytes);
                open.input.skip_bytes -= skipped;
                self.advance(index, usize::try_from(skipped).expect("at most the input"));
                continue;
            }
            let (uploading, dumping) = (open.uploading, open.dumping);
            let kept_bytes = self.ready[index].kept_bytes(offset);
            let is_full = open.outbox.is_full(kept_bytes);
            if (uploading || dumping || is_full) && !self.batch.is_empty() {
                self.run();
                continue;
            }
            if dumping || is_full && !self.core.widen(connection, kept_bytes) {
                self.wait(index);
                return;
            }
            if uploading {
                let used = upload::feed(self.core, connection, rest);
                self.advance(index, used);
                if self.core.is_stalled(connection) {
                    self.ready[index].ended = true;
                }
                continue;
            }
            let Some(open) = self.core.connections.get_mut(connection) else { return };
            if let Some(resume) = open.input.resume.take() {
                if !self.keys(index, rest, resume) {
                    return;
                }
                continue;
            }
            let scanned = if offset == 0 { open.input.scanned_bytes } else { 0 };
            if !self.request(index, connection, rest, scanned) {
                return;
            }
        }
    }

    /// Parses and stages (or answers) one request. `false`: nothing more of this input this tick.
    fn request(
        &mut self,
        index: usize,
        connection: ConnectionIndex,
        rest: &'b [u8],
        scanned: usize,
    ) -> bool {
        match parse(rest, scanned) {
            Parsed::NeedMore => {
                self.core.note_scanned(connection, rest.len());
                false
            }
            Parsed::Request { request, line_bytes } => match request {
                Request::Retrieve(retrieve) => {
                    if line_bytes > LINE_BYTES_MAX {
                        self.core.counters.long_lines.add(1);
                    }
                    let next_key = offset_in(rest, retrieve.keys.rest);
                    let keys_end = next_key + retrieve.keys.rest.len();
                    let Retrieve { with_cas, ttl, .. } = retrieve;
                    self.keys(index, rest, Resume { next_key, keys_end, with_cas, ttl })
                }
                Request::Store(_) | Request::MetaSet { .. } => {
                    self.storage(index, connection, rest, request, line_bytes)
                }
                Request::MetaNoop | Request::Admin(_) => {
                    if self.settled() {
                        if let Err(not_yet) = admin::admin(self.core, connection, &request) {
                            match not_yet {
                                NotYet::Full(full) => self.wait_for(index, full),
                                NotYet::Awaits => self.wait_for_answers(index),
                            }
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
                    self.core.text(connection, refusal.reply.bytes());
                    self.core.skip(connection, refusal.skip_bytes);
                }
                true
            }
            Parsed::Close => {
                if self.settled() {
                    self.core.drain(connection);
                }
                true
            }
        }
    }

    /// Whether nothing is staged; if something is, runs it, and the caller looks again (I1).
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

    /// Leaves the rest of a connection's input for a later tick.
    fn wait(&mut self, index: usize) {
        self.ready[index].ended = true;
        self.core.stall(self.ready[index].connection);
    }

    /// As `wait`, until a mailbox has room.
    fn wait_for(&mut self, index: usize, full: MailboxFull) {
        self.ready[index].ended = true;
        self.core.stall_for(self.ready[index].connection, full);
    }

    /// As `wait`, until other shards have answered all that the connection asked of them.
    fn wait_for_answers(&mut self, index: usize) {
        let open = self.core.connections.get_mut(self.ready[index].connection);
        if let Some(open) = open {
            open.awaits_answers = true;
        }
        self.wait(index);
    }

    /// Stages the keys of a retrieval, each a request of its own. `line` begins with its line.
    fn keys(&mut self, index: usize, line: &'b [u8], resume: Resume) -> bool {
        let start = self.ready[index].offset;
        let end_bytes = if line[resume.keys_end] == b'\r' { 2 } else { 1 };
        self.advance(index, resume.keys_end + end_bytes);
        let mut keys = Keys { rest: &line[resume.next_key..resume.keys_end] };
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

    /// Stages a storage request whose data block is whole, or begins to receive a large one.
    fn storage(
        &mut self,
        index: usize,
        connection: ConnectionIndex,
        rest: &'b [u8],
        request: Request<'b>,
        line_bytes: usize,
    ) -> bool {
        let value_bytes =
            request.announced_bytes().expect("a storage request announces its block") as usize;
        if !self.fits(&request, value_bytes) {
            if self.settled() {
                let refused = upload::refuse(self.core, connection, &request, Reply::TooLarge);
                if let Err(full) = refused {
                    self.wait_for(index, full);
                    return false;
                }
                self.advance(index, line_bytes);
                self.core.skip(connection, value_bytes as u64 + 2);
            }
            return true;
        }
        if value_bytes > INLINE_VALUE_BYTES_MAX {
            if self.settled() {
                self.advance(index, line_bytes);
                let line = &rest[..line_bytes];
                upload::begin(self.core, connection, (&request, line), value_bytes);
            }
            return true;
        }
        let text_bytes = line_bytes + value_bytes + 2;
        if rest.len() < text_bytes {
            self.core.note_announced(connection, value_bytes);
            return false;
        }
        let block = &rest[line_bytes..text_bytes];
        let Some(value) = block.strip_suffix(b"\r\n") else {
            if self.settled() {
                self.advance(index, text_bytes);
                if !request.is_noreply() {
                    self.core.text(connection, Reply::BadDataChunk.bytes());
                }
            }
            return true;
        };
        self.stage(index, request, &rest[..text_bytes], value);
        true
    }

    /// Whether the item that a storage request would make may be stored at all.
    fn fits(&self, request: &Request<'_>, value_bytes: usize) -> bool {
        let key_bytes = match request.key_text() {
            Some(key) => key.len(),
            None => request.key(&mut [0; KEY_BYTES_MAX]).map_or(0, <[u8]>::len),
        };
        self.core.cache.options().fits(key_bytes, value_bytes, request.client_flags())
    }

    fn stage(&mut self, index: usize, request: Request<'b>, text: &'b [u8], block: &'b [u8]) {
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
        self.push(index, start, key, Work::Line { request, text, block });
    }

    fn push(&mut self, index: usize, start: usize, key: KeyPlace<'b>, work: Work<'b>) {
        let hasher = &self.core.hasher;
        let hashes = hasher.key(self.batch.key_bytes(key)).hashes();
        self.batch.push(Staged {
            ready: u32::try_from(index).expect("few connections are ready at once"),
            start,
            owner: hasher.owner(hashes),
            hashes,
            key,
            work,
        });
    }

    /// Carries out all that is staged.
    fn run(&mut self) {
        let core = &mut *self.core;
        if !self.batch.is_empty() {
            core.uploads.ticks_alone = 0;
        }
        let ours = self.batch.iter().filter(|staged| staged.owner == core.id);
        core.cache.prefetch(ours.map(Staged::lookup));
        for staged in self.batch.iter() {
            let ready = &mut self.ready[staged.ready as usize];
            if !ready.ended {
                carry_out(core, ready, staged, self.batch.key(staged));
            }
        }
        self.batch.clear();
    }
}

/// Where `part`, which is a part of `whole`, begins in it.
fn offset_in(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - whole.as_ptr().addr()
}

/// Carries out one staged request, sends it on, or rewinds to it (I2, I3).
fn carry_out(core: &mut Core, ready: &mut Ready, staged: &Staged<'_>, key: Key<'_>) {
    let connection = ready.connection;
    let Some(open) = core.connections.get_mut(connection) else { return };
    let kept_bytes = ready.kept_bytes(staged.start);
    let is_full = open.outbox.is_full(kept_bytes) && !core.widen(connection, kept_bytes);
    let is_ours = staged.owner == core.id;
    let hopped = if is_full || is_ours { Ok(()) } else { hop(core, connection, staged, key) };
    if is_full || hopped.is_err() {
        ready.ended = true;
        ready.offset = staged.start;
        match hopped {
            Ok(()) => core.stall(connection),
            Err(full) => core.stall_for(connection, full),
        }
        if let (Work::Key { from_here, .. }, Some(open)) =
            (staged.work, core.connections.get_mut(connection))
        {
            open.input.resume = Some(from_here);
        }
        return;
    }
    if is_ours {
        ours(core, connection, staged, key);
    }
    if let Work::Key { last: true, .. } = staged.work {
        core.text(connection, Reply::End.bytes());
    }
}

/// Applies a request whose key is ours.
fn ours(core: &mut Core, connection: ConnectionIndex, staged: &Staged<'_>, key: Key<'_>) {
    let Some((applier, mut sink)) = core.client(connection) else { return };
    let pinned = match &staged.work {
        Work::Key { from_here: Resume { with_cas, ttl, .. }, .. } => {
            applier.key(key, (*with_cas, *ttl), &mut sink)
        }
        Work::Line { request, block, .. } => {
            applier.request(request, key, Block::Bytes(block), &mut sink)
        }
    };
    if let Some(pinned) = pinned {
        sink.value(pinned);
    }
    core.mark_dirty(connection);
}
