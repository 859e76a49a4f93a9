//! Large values on their way in: received piece by piece into memory that they will stay in.
//!
//! Upstream:   `serve` begins one when a storage request announces more than fits a segment's item.
//! Downstream: the owner stores the whole value as any other; `landing` has the I/O backend receive
//!             into it.
//!
//! Invariants:
//! - I1  Memory is taken as bytes arrive, never as announced: at most as much again as has come (a
//!   block or two aside) is lent for what comes next. A connection that goes gives it all back.
//! - I2  Room is made by the shard that will own the value, so that no shard lives at another's
//!   cost; where that shard has nothing left to evict, the others are asked in turn. Meanwhile the
//!   connection waits.
//! - I3  A value that finds no memory is read to its end and then refused, so the stream stays in
//!   step.

use kachel_engine::{Answer, Block, Engine, Key, KeyHashes, Operation, ReceiveValue as _};
use kachel_net::{AnswerRoom, Connection, ConnectionIndex, Waiting};
use kachel_stdx::Landing;
use kachel_wire::request::{KEY_BYTES_MAX, LINE_BYTES_MAX, Request};
use kachel_wire::{Parsed, Reply, parse};

use crate::apply::{Applier, room_for_answer};
use crate::clients::Clients;
use crate::context::Context;
use crate::delayed::Delayed;
use crate::hop::{Hop, Mail, MailboxFull, Outgoing, Parcel};
use crate::pause::pause_for;

/// A value of which not all has come yet.
#[derive(Debug)]
pub(crate) struct Uploading<U> {
    /// The command line, to be parsed again when the value is whole.
    line: Vec<u8>,
    /// Where the bytes go; none when there is no memory for them (I3).
    pub(crate) upload: Option<U>,
    pub(crate) value_bytes_left: usize,
    /// What of the closing CR LF has come, and how much of it.
    trailer: [u8; 2],
    trailer_bytes: usize,
    /// The hashes of its key.
    hashes: KeyHashes,
    /// The shard that will own the value.
    pub(crate) owner: u16,
    /// How often this shard asked for room since the last piece was kept.
    pub(crate) asked: u32,
    /// The shard that is asked next (I2).
    asked_next: u16,
}

/// Lines kept for later uploads, so that those allocate nothing.
const SPARE_LINES_MAX: usize = 64;
/// Landings kept for later uploads.
const SPARE_LANDINGS_MAX: usize = 64;

/// All uploads of a shard.
#[derive(Debug)]
pub(crate) struct Uploads<U> {
    /// By the connection that sends it.
    places: Vec<Option<Uploading<U>>>,
    spare_lines: Vec<Vec<u8>>,
    /// Landings that are not in use, for later uploads.
    pub(crate) spare_landings: Vec<Landing>,
    /// Ticks without a request beside the uploads.
    pub(crate) ticks_alone: u32,
}

impl<U> Uploads<U> {
    /// None runs.
    pub(crate) const fn new() -> Self {
        Self {
            places: Vec::new(),
            spare_lines: Vec::new(),
            spare_landings: Vec::new(),
            ticks_alone: 0,
        }
    }

    /// A copy of `line`. Cost: an allocation only when more uploads run at once than ever before.
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

    /// How many run. Cost: a read of each place.
    pub(crate) fn count(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Counts the ticks in which other shards ask for nothing.
    pub(crate) const fn note_mail(&mut self, came: bool) {
        self.ticks_alone = if came { 0 } else { self.ticks_alone.saturating_add(1) };
    }

    /// Gives back what has come for a connection that is gone (I1).
    pub(crate) fn forget(&mut self, connection: ConnectionIndex) {
        if let Some(uploading) = self.remove(connection) {
            self.reuse_line(uploading.line);
        }
    }
}

/// How often this shard asks for room before it gives a value up: other clients may take the room
/// that was made. It asks each shard twice, for any number of shards.
const ASKS_MAX: u32 = 32;

/// What a large value that is received works on.
pub(crate) struct Values<'a, E: Engine> {
    pub(crate) context: &'a Context,
    pub(crate) engine: &'a mut E,
    pub(crate) clients: &'a mut Clients<E::Pinned>,
    pub(crate) mail: &'a mut Mail<E>,
    pub(crate) delayed: &'a mut Delayed<E>,
    pub(crate) uploads: &'a mut Uploads<E::Upload>,
}

impl<E: Engine> Values<'_, E> {
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
            upload: self.engine.begin_upload(value_bytes),
            value_bytes_left: value_bytes,
            trailer: [0; 2],
            trailer_bytes: 0,
            hashes,
            owner: self.context.hasher.owner(hashes),
            asked: 0,
            asked_next: self.context.hasher.owner(hashes),
        };
        self.uploads.insert(connection, uploading);
        self.clients.with(connection, |open| open.begin_upload(value_bytes));
    }

    /// Takes what has come of the value; stores it when it is whole. Returns the bytes used.
    pub(crate) fn feed(&mut self, connection: ConnectionIndex, input: &[u8]) -> usize {
        let uploading = self.uploads.get_mut(connection).expect("the connection is uploading");
        let value = &input[..input.len().min(uploading.value_bytes_left)];
        if let Some(upload) = &mut uploading.upload {
            if value.is_empty() || upload.write(value).is_ok() {
                uploading.asked = 0;
            } else if uploading.asked < ASKS_MAX.max(2 * u32::from(self.context.shards())) {
                if uploading.asked > 0 {
                    uploading.asked_next = (uploading.asked_next + 1) % self.context.shards();
                }
                if self.ask_for_room(connection, value.len())
                    && let Some(uploading) = self.uploads.get_mut(connection)
                {
                    uploading.asked += 1;
                }
                return 0;
            } else {
                uploading.upload = None;
            }
        }
        debug_assert!(value.len() <= uploading.value_bytes_left, "no byte behind the value");
        uploading.value_bytes_left -= value.len();
        let trailer = &input[value.len()..];
        let missing = &mut uploading.trailer[uploading.trailer_bytes..];
        let come = trailer.len().min(missing.len());
        missing[..come].copy_from_slice(&trailer[..come]);
        uploading.trailer_bytes += come;
        let used = value.len() + come;
        if uploading.trailer_bytes == 2
            && let Err(full) = self.complete(connection)
        {
            // No room in the owner's mailbox: give one byte of the trailer back and come again.
            let uploading = self.uploads.get_mut(connection).expect("still uploading");
            uploading.trailer_bytes -= 1;
            self.pause_for(connection, full);
            return used - 1;
        }
        used
    }

    fn pause_for(&mut self, connection: ConnectionIndex, full: MailboxFull) {
        pause_for(self.context, self.clients, self.mail, self.delayed, connection, full);
    }

    /// Has a shard free memory, and lets the connection wait for it (I2). `false`: it could not be
    /// asked now.
    fn ask_for_room(&mut self, connection: ConnectionIndex, bytes: usize) -> bool {
        let Self { context, engine, clients, mail, uploads, .. } = self;
        let asked = uploads.get_mut(connection).map_or(context.id, |upload| upload.asked_next);
        debug_assert!(asked < context.shards() && bytes > 0, "a shard of ours is asked for bytes");
        if asked == context.id {
            let _made = engine.make_upload_room(bytes, &context.now);
            return true;
        }
        let text = (bytes as u64).to_le_bytes();
        let outgoing = Outgoing { hop: Hop::MakeRoom, text: &text, room: AnswerRoom::default() };
        if let Err(full) = mail.send(context, clients, connection, asked, outgoing) {
            self.pause_for(connection, full);
            return false;
        }
        clients.pause(context, connection, Waiting::Answers);
        true
    }

    /// Stores the whole value, or answers why not.
    ///
    /// Errors: the owner's mailbox has no room now; to be tried again.
    fn complete(&mut self, connection: ConnectionIndex) -> Result<(), MailboxFull> {
        let mut uploading = self.uploads.remove(connection).expect("the connection is uploading");
        let Parsed::Request { request, .. } = parse(&uploading.line, 0) else {
            unreachable!("the line was parsed before");
        };
        let done = match uploading.upload.take() {
            _ if uploading.trailer != *b"\r\n" => {
                if !request.is_noreply() {
                    self.clients.text(connection, Reply::BadDataChunk.bytes());
                }
                Ok(())
            }
            None => self.refuse(connection, &request, Reply::OutOfMemoryStoring),
            Some(upload) => {
                let mut space = [0; KEY_BYTES_MAX];
                let key = Key::hashed(key_of(&request, &mut space), uploading.hashes);
                let whole = Whole { request: &request, line: &uploading.line, key };
                self.commit(connection, &whole, upload).map_err(|(full, upload)| {
                    uploading.upload = upload;
                    full
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

    /// Hands the value to its owner. Gives it back when the owner's mailbox has no room now.
    fn commit(
        &mut self,
        connection: ConnectionIndex,
        whole: &Whole<'_>,
        upload: E::Upload,
    ) -> Result<(), (MailboxFull, Option<E::Upload>)> {
        let Self { context, engine, clients, mail, delayed, .. } = self;
        let Whole { request, line, key } = *whole;
        let room = room_for_answer(request, 0);
        let outgoing = Outgoing { hop: Hop::Upload, text: line, room };
        if !context.owns(&key) {
            let owner = context.hasher.owner(key.hashes());
            if let Err(full) = mail.has_room(owner, line.len() + KEY_BYTES_MAX) {
                return Err((full, Some(upload)));
            }
            mail.boxes.to(owner).parcels_out.push(Parcel::Upload(upload));
            let sent = mail.send_about(context, clients, connection, key, outgoing);
            assert!(sent.is_ok(), "there was room");
            return Ok(());
        }
        if E::DELAYS {
            let upload = Some(upload);
            return delayed
                .apply_own(context, *engine, clients, mail, connection, key, outgoing, upload);
        }
        let Some(mut sink) = clients.sink(connection) else { return Ok(()) };
        let applier = Applier { engine: *engine, context };
        let applied = applier.request(request, key, &mut Block::Upload(upload), None, &mut sink);
        let value = applied.at_once();
        assert!(value.is_none(), "the reply to a store shows no value");
        clients.mark_dirty(connection);
        Ok(())
    }

    /// Refuses a storage request whose value is not kept, and removes the stale value that it would
    /// leave behind: for `set`, and for `ms` without a token to compare; where the value is too
    /// large, for `ms` in every mode, as in memcached.
    ///
    /// Errors: the mailbox of the stale value's owner has no room now, and nothing is done.
    pub(crate) fn refuse(
        &mut self,
        connection: ConnectionIndex,
        request: &Request<'_>,
        reply: Reply,
    ) -> Result<(), MailboxFull> {
        let removes = request.store_terms().is_some_and(|terms| terms.removes_when_refused());
        let removal: Option<[&[u8]; 3]> = match request {
            Request::Store(store) if removes => Some([b"delete ", store.key, b" noreply\r\n"]),
            Request::MetaSet { meta, .. } if removes || reply == Reply::TooLarge => {
                let end: &[u8] = if meta.key.base64 { b" b q\r\n" } else { b" q\r\n" };
                Some([b"md ", meta.key.text, end])
            }
            _ => None,
        };
        if let Some(removal) = removal {
            let mut line = self.uploads.keep_line(b"");
            removal.iter().for_each(|piece| line.extend_from_slice(piece));
            let removed = self.remove_stale(connection, request, &line);
            self.uploads.reuse_line(line);
            removed?;
        }
        debug_assert!(
            matches!(reply, Reply::TooLarge | Reply::OutOfMemoryStoring),
            "a value is refused for its size or for want of memory"
        );
        let counters = &self.context.counters;
        let counter = if reply == Reply::TooLarge {
            &counters.store_too_large
        } else {
            &counters.store_no_memory
        };
        counter.add(1);
        if !request.is_noreply() {
            self.clients.text(connection, reply.bytes());
        }
        Ok(())
    }

    fn remove_stale(
        &mut self,
        connection: ConnectionIndex,
        request: &Request<'_>,
        removal: &[u8],
    ) -> Result<(), MailboxFull> {
        let Self { context, engine, clients, mail, delayed, .. } = self;
        let mut space = [0; KEY_BYTES_MAX];
        let key = context.hasher.key(key_of(request, &mut space));
        let outgoing = Outgoing { hop: Hop::Line, text: removal, room: AnswerRoom::default() };
        if !context.owns(&key) {
            // The refusal, a later reply, waits for it.
            return mail.send_about(context, clients, connection, key, outgoing);
        }
        if E::DELAYS {
            let done =
                delayed.apply_own(context, *engine, clients, mail, connection, key, outgoing, None);
            return done.map_err(|(full, _none)| full);
        }
        let delete = Operation::delete(key);
        let answer = engine.execute(&delete, &mut Block::None, None, &context.now);
        assert!(matches!(answer, Answer::Done(..)), "this engine never delays");
        Ok(())
    }
}

/// A value that was received whole, and the request that stores it.
#[derive(Clone, Copy)]
struct Whole<'w> {
    request: &'w Request<'w>,
    line: &'w [u8],
    key: Key<'w>,
}

/// The key of a storage request.
fn key_of<'k>(request: &Request<'k>, space: &'k mut [u8; KEY_BYTES_MAX]) -> &'k [u8] {
    request.key(space).expect("a storage request has a key")
}
