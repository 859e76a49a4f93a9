//! Large values on their way in: received piece by piece into memory that they will stay in.
//!
//! Upstream:   `serve` begins one when a storage request announces more than fits a segment's item.
//! Downstream: the whole value is stored as any other, by its owner; `landing` has the door receive
//!             into it.
//!
//! Invariants:
//! - I1  Memory is taken as bytes arrive, never as announced: at most as much again as has come (a
//!   block or two aside) is lent for what comes next. A connection that goes gives it all back.
//! - I2  Room is made by the shard that will own the value, so that no shard lives at another's
//!   cost; meanwhile the connection waits.
//! - I3  A value that cannot be kept is swallowed to its end and then answered, so the stream stays
//!   in step.

use kachel_cache::Upload;
use kachel_engine::{Block, Key, KeyHashes, Operation, apply};
use kachel_net::{AnswerRoom, ConnectionIndex};
use kachel_stdx::Landing;
use kachel_wire::request::{KEY_BYTES_MAX, LINE_BYTES_MAX, Request};
use kachel_wire::{Parsed, Reply, parse};

use crate::apply::room_for_answer;
use crate::core::Core;
use crate::hop::Hop;
use crate::hop::{MailboxFull, Parcel};

/// A value of which not all has come yet.
#[derive(Debug)]
pub(crate) struct Uploading {
    /// The command line, to be parsed again when the value is whole.
    line: Vec<u8>,
    /// Where the bytes go; none when there is no memory for them (I3).
    pub(crate) upload: Option<Upload>,
    pub(crate) value_bytes_left: usize,
    /// What of the closing CR LF has come, and how much of it.
    trailer: [u8; 2],
    trailer_bytes: usize,
    /// What the hashes of its key say.
    hashes: KeyHashes,
    /// The shard that will own the value.
    pub(crate) owner: u16,
    /// Times that room was asked for since the last piece was kept.
    pub(crate) asked: u32,
}

/// Lines kept for later uploads, so that those allocate nothing.
const SPARE_LINES_MAX: usize = 64;
/// Likewise landings.
const SPARE_LANDINGS_MAX: usize = 64;

/// All uploads of a shard.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    /// By the connection that sends it.
    places: Vec<Option<Uploading>>,
    spare_lines: Vec<Vec<u8>>,
    /// Landings that are with nobody, for later uploads.
    pub(crate) spare_landings: Vec<Landing>,
    /// Ticks in which nobody else asked for anything.
    pub(crate) ticks_alone: u32,
}

impl Uploads {
    /// A copy of `line`. Cost: no allocation but for more uploads at once than ever before.
    fn keep_line(&mut self, line: &[u8]) -> Vec<u8> {
        let spare = self.spare_lines.pop();
        let mut kept = spare.unwrap_or_else(|| Vec::with_capacity(LINE_BYTES_MAX));
        kept.clear();
        kept.extend_from_slice(line);
        kept
    }

    fn reuse_line(&mut self, line: Vec<u8>) {
        if self.spare_lines.len() < SPARE_LINES_MAX {
            self.spare_lines.push(line);
        }
    }

    pub(crate) fn reuse_landing(&mut self, landing: Landing) {
        if self.spare_landings.len() < SPARE_LANDINGS_MAX {
            self.spare_landings.push(landing);
        }
    }

    fn insert(&mut self, connection: ConnectionIndex, uploading: Uploading) {
        let index = connection.0 as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        self.places[index] = Some(uploading);
    }

    pub(crate) fn get_mut(&mut self, connection: ConnectionIndex) -> Option<&mut Uploading> {
        self.places.get_mut(connection.0 as usize)?.as_mut()
    }

    fn remove(&mut self, connection: ConnectionIndex) -> Option<Uploading> {
        self.places.get_mut(connection.0 as usize)?.take()
    }

    /// How many run. Cost: a look at each place.
    pub(crate) fn count(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Gives back what has come for a connection that is gone (I1).
    pub(crate) fn forget(&mut self, connection: ConnectionIndex) {
        if let Some(uploading) = self.remove(connection) {
            self.reuse_line(uploading.line);
        }
    }
}

/// Times that room is asked for before a value is given up: others may take what was made.
const ASKS_MAX: u32 = 32;

/// Begins to receive a value of `value_bytes` for the request in `line`.
pub(crate) fn begin(
    core: &mut Core,
    connection: ConnectionIndex,
    (request, line): (&Request<'_>, &[u8]),
    value_bytes: usize,
) {
    let hashes = hash_key(core, request);
    let upload = core.cache.begin_upload(value_bytes);
    let uploading = Uploading {
        line: core.uploads.keep_line(line),
        upload,
        value_bytes_left: value_bytes,
        trailer: [0; 2],
        trailer_bytes: 0,
        hashes,
        owner: core.hasher.owner(hashes),
        asked: 0,
    };
    core.uploads.insert(connection, uploading);
    core.note_announced(connection, value_bytes);
    if let Some(open) = core.connections.get_mut(connection) {
        open.uploading = true;
        // A new request: its time begins when this tick ends.
        open.input.waiting_since = 0;
    }
}

/// Takes what has come of the value; stores it when it is whole. Returns the bytes used.
pub(crate) fn feed(core: &mut Core, connection: ConnectionIndex, input: &[u8]) -> usize {
    let uploading = core.uploads.get_mut(connection).expect("the connection is uploading");
    let value = &input[..input.len().min(uploading.value_bytes_left)];
    if let Some(upload) = &mut uploading.upload {
        if value.is_empty() || upload.write(value).is_ok() {
            uploading.asked = 0;
        } else if uploading.asked < ASKS_MAX {
            if ask_for_room(core, connection, value.len())
                && let Some(uploading) = core.uploads.get_mut(connection)
            {
                uploading.asked += 1;
            }
            return 0;
        } else {
            uploading.upload = None;
        }
    }
    uploading.value_bytes_left -= value.len();
    let trailer = &input[value.len()..];
    let missing = &mut uploading.trailer[uploading.trailer_bytes..];
    let come = trailer.len().min(missing.len());
    missing[..come].copy_from_slice(&trailer[..come]);
    uploading.trailer_bytes += come;
    let used = value.len() + come;
    if uploading.trailer_bytes == 2
        && let Err(full) = complete(core, connection)
    {
        // No room in the owner's mailbox: give one byte of the trailer back and come again.
        let uploading = core.uploads.get_mut(connection).expect("still uploading");
        uploading.trailer_bytes -= 1;
        core.stall_for(connection, full);
        return used - 1;
    }
    used
}

/// Has the value's owner free memory, and lets the connection wait for it (I2).
/// `false`: it could not be asked now.
fn ask_for_room(core: &mut Core, connection: ConnectionIndex, bytes: usize) -> bool {
    let owner = core.uploads.get_mut(connection).map_or(core.id, |uploading| uploading.owner);
    if owner == core.id {
        let _made = core.cache.make_upload_room(bytes, &core.now);
        return true;
    }
    let text = (bytes as u64).to_le_bytes();
    let room = AnswerRoom::default();
    if let Err(full) = core.send_hop(connection, owner, Hop::MakeRoom, &text, room) {
        core.stall_for(connection, full);
        return false;
    }
    if let Some(open) = core.connections.get_mut(connection) {
        open.awaits_answers = true;
    }
    core.stall(connection);
    true
}

/// Stores the whole value, or answers why not.
///
/// Errors: the owner's mailbox has no room now; to be tried again.
fn complete(core: &mut Core, connection: ConnectionIndex) -> Result<(), MailboxFull> {
    let mut uploading = core.uploads.remove(connection).expect("the connection is uploading");
    let Parsed::Request { request, .. } = parse(&uploading.line, 0) else {
        unreachable!("the line was parsed before");
    };
    let done = match uploading.upload.take() {
        _ if uploading.trailer != *b"\r\n" => {
            if !request.is_noreply() {
                core.text(connection, Reply::BadDataChunk.bytes());
            }
            Ok(())
        }
        None => refuse(core, connection, &request, Reply::OutOfMemoryStoring),
        Some(upload) => {
            let mut space = [0; KEY_BYTES_MAX];
            let key = Key::hashed(key_of(&request, &mut space), uploading.hashes);
            commit(core, connection, (&request, key), &uploading.line, upload).map_err(
                |(upload, full)| {
                    uploading.upload = Some(upload);
                    full
                },
            )
        }
    };
    if done.is_err() {
        core.uploads.insert(connection, uploading);
        return done;
    }
    core.uploads.reuse_line(uploading.line);
    if let Some(open) = core.connections.get_mut(connection) {
        open.uploading = false;
        open.input.announced_bytes = 0;
        open.input.waiting_since = 0;
    }
    done
}

/// Hands the value to its owner. Gives it back when the owner's mailbox has no room now.
fn commit(
    core: &mut Core,
    connection: ConnectionIndex,
    (request, key): (&Request<'_>, Key<'_>),
    line: &[u8],
    upload: Upload,
) -> Result<(), (Upload, MailboxFull)> {
    let owner = core.hasher.owner(key.hashes());
    if owner != core.id {
        if let Err(full) = core.has_room(owner, line.len() + KEY_BYTES_MAX) {
            return Err((upload, full));
        }
        core.mail.to(owner).parcels_out.lay(Parcel::Upload(upload));
        let room = room_for_answer(request, 0);
        let sent = core.send_key_hop(connection, key, Hop::Upload, line, room);
        assert!(sent.is_ok(), "room was asked for");
        return Ok(());
    }
    let Some((applier, mut sink)) = core.client(connection) else { return Ok(()) };
    let pinned = applier.request(request, key, Block::Upload(upload), &mut sink);
    if let Some(pinned) = pinned {
        sink.value(pinned);
    }
    core.mark_dirty(connection);
    Ok(())
}

/// Answers a storage request that cannot be kept, and sees to it that no stale value stays behind:
/// for `set`, and for `ms` without a token to compare; where the value is too large, for `ms` in
/// every mode, as in memcached.
///
/// Errors: the mailbox of the stale value's owner has no room now, and nothing is done.
pub(crate) fn refuse(
    core: &mut Core,
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
        // For its memory: nothing is worded now.
        let mut text = std::mem::take(&mut core.answer.text);
        text.clear();
        removal.iter().for_each(|piece| text.extend_from_slice(piece));
        let removed = remove_stale(core, connection, request, &text);
        core.answer.text = text;
        removed?;
    }
    let counters = &core.counters;
    let counter = if reply == Reply::TooLarge {
        &counters.store_too_large
    } else {
        &counters.store_no_memory
    };
    counter.add(1);
    if !request.is_noreply() {
        core.text(connection, reply.bytes());
    }
    Ok(())
}

fn remove_stale(
    core: &mut Core,
    connection: ConnectionIndex,
    request: &Request<'_>,
    removal: &[u8],
) -> Result<(), MailboxFull> {
    let mut space = [0; KEY_BYTES_MAX];
    let key = core.hasher.key(key_of(request, &mut space));
    if core.hasher.owner(key.hashes()) != core.id {
        // The refusal, a later reply, waits for it.
        return core.send_key_hop(connection, key, Hop::Line, removal, AnswerRoom::default());
    }
    apply(&mut core.cache, &Operation::delete(key), Block::None, &core.now);
    Ok(())
}

/// The key of a storage request.
fn key_of<'k>(request: &Request<'k>, space: &'k mut [u8; KEY_BYTES_MAX]) -> &'k [u8] {
    request.key(space).expect("a storage request has a key")
}

/// What the hashes of a storage request's key say.
fn hash_key(core: &Core, request: &Request<'_>) -> KeyHashes {
    core.hasher.key(key_of(request, &mut [0; KEY_BYTES_MAX])).hashes()
}
