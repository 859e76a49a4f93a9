//! Parses a request record, and applies it to the engine.
//!
//! Upstream:   `mail` with requests of other shards, `delayed` with those that the engine delayed.
//! Downstream: `apply`.

use kachel_engine::{Block, Engine, Key, Lookup, Ticket};
use kachel_wire::request::Request;
use kachel_wire::{Parsed, parse};

use super::record::{Head, Hop, ReplyTo};
use crate::apply::{Applied, Applier};
use crate::context::Context;
use crate::reply::AnswerText;

/// A parsed request record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<'r> {
    /// The whole record.
    pub(crate) record: &'r [u8],
    pub(crate) hop: Hop,
    pub(crate) reply: ReplyTo,
    /// The record without its head.
    pub(crate) text: &'r [u8],
    /// The request, and where its data block begins, if `text` is a line.
    pub(crate) request: Option<(Request<'r>, usize)>,
    /// The key of the request, if it has one.
    pub(crate) key: Option<Key<'r>>,
}

impl<'r> Taken<'r> {
    /// Parses a record. The terms of a line are parsed again; its key is neither parsed nor hashed
    /// again (`record`, I3).
    pub(crate) fn read(record: &'r [u8]) -> Self {
        let Head { hop, reply, key, text } = Head::parse(record);
        let request = match hop {
            Hop::Line | Hop::Upload => {
                let Parsed::Request { request, line_bytes } = parse(text, 0) else {
                    unreachable!("a hop is a request that was found well-formed");
                };
                Some((request, line_bytes))
            }
            _ => None,
        };
        Self { record, hop, reply, text, request, key }
    }

    /// What the request will look up, if it has a key.
    #[inline]
    pub(crate) fn lookup(&self) -> Option<Lookup> {
        // A record that has a key and is not a line is a key of a retrieval.
        let value = self.request.as_ref().is_none_or(|(request, _)| request.shows_value());
        self.key.map(|key| Lookup { secret_hash: key.secret_hash(), value })
    }
}

/// Applies a request record about a key, and formats its reply into `answer`. An upload that is not
/// stored stays in `upload`.
pub(crate) fn apply_taken<E: Engine>(
    context: &Context,
    engine: &mut E,
    taken: &Taken<'_>,
    upload: &mut Option<E::Upload>,
    ticket: Option<Ticket>,
    answer: &mut AnswerText,
) -> Applied<E::Pinned> {
    let applier = Applier { engine, context };
    let key = taken.key.expect("a hop about a key brings it");
    if let Hop::Key(terms) = taken.hop {
        return applier.key(key, terms, ticket, answer);
    }
    let (request, line_bytes) = taken.request.as_ref().expect("a line is parsed");
    let mut block = match upload.take() {
        Some(received) => Block::Upload(received),
        None => {
            let value_bytes = request.announced_bytes().unwrap_or(0) as usize;
            Block::Bytes(&taken.text[*line_bytes..line_bytes + value_bytes])
        }
    };
    let applied = applier.request(request, key, &mut block, ticket, answer);
    if let Block::Upload(refused) = block {
        *upload = Some(refused);
    }
    applied
}
