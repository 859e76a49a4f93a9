//! An operation: one client's request for one key, in the bytes of the protocol.
//!
//! Upstream:   request bytes, as a client sent them.
//! Downstream: `model` executes it; `violation` and the history file show it.
//!
//! Invariants:
//! - I1  The bytes are one whole request that `request` reads, with its data block.
//! - I2  A retrieval has one key. A multiget becomes one operation per key, because the protocol
//!   promises nothing about its keys together.

use std::fmt;
use std::sync::Arc;

use crate::Value;
use crate::request::{Request, line, parse, read, words};

/// One request for one key, or a flush, which affects many keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Operation {
    wire: Arc<[u8]>,
    line_bytes: usize,
    key: Arc<[u8]>,
    value: Option<Value>,
}

/// The operations of the request at the front of `input`, and the request's length in bytes,
/// including the data block. `None`: `input` does not begin with a complete request for a key or a
/// complete flush.
///
/// ```
/// let (operations, request_bytes) = kachel_check::operations(b"get a b\r\nget c\r\n").unwrap();
/// assert_eq!((operations.len(), request_bytes), (2, 9));
/// assert_eq!(operations[1].wire(), b"get b\r\n");
/// ```
pub fn operations(input: &[u8]) -> Option<(Vec<Operation>, usize)> {
    let (request, line_bytes) = parse(input)?;
    let value_bytes = request.value_bytes();
    let request_bytes = line_bytes + value_bytes.map_or(0, |bytes| bytes + 2);
    let wire = input.get(..request_bytes)?;
    let operations = match request {
        Request::Retrieve(retrieve) => {
            let verb_bytes = wire.iter().position(|byte| *byte == b' ')?;
            retrieve
                .keys
                .map(|key| {
                    // I2
                    let mut line = wire[..verb_bytes].to_vec();
                    if let Some(ttl) = retrieve.ttl {
                        line.extend_from_slice(format!(" {ttl}").as_bytes());
                    }
                    line.push(b' ');
                    line.extend_from_slice(key);
                    line.extend_from_slice(b"\r\n");
                    let line_bytes = line.len();
                    Operation { wire: line.into(), line_bytes, key: key.into(), value: None }
                })
                .collect()
        }
        other => {
            let value = value_bytes.map(|bytes| Value::new(&wire[line_bytes..line_bytes + bytes]));
            let key = other.key()[..].into();
            vec![Operation { wire: wire.into(), line_bytes, key, value }]
        }
    };
    Some((operations, request_bytes))
}

impl Operation {
    /// The operation that `wire` requests. `None`: `wire` requests no operation or several, or more
    /// bytes follow the request.
    pub fn new(wire: &[u8]) -> Option<Self> {
        let (mut operations, request_bytes) = operations(wire)?;
        let operation = operations.pop()?;
        (operations.is_empty() && request_bytes == wire.len()).then_some(operation)
    }

    /// A plain `get`.
    ///
    /// Panics: if a line cannot contain `key`.
    pub fn get(key: &[u8]) -> Self {
        let wire = [b"get ", key, b"\r\n"].concat();
        Self::new(&wire).expect("a key that can stand in a line")
    }

    /// The bytes of the request, including the data block.
    pub fn wire(&self) -> &[u8] {
        &self.wire
    }

    /// The key, decoded; empty for a flush.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value that came with the request.
    pub fn value(&self) -> Option<&Value> {
        self.value.as_ref()
    }

    /// Whether the operation affects many keys.
    pub fn is_flush(&self) -> bool {
        self.key.is_empty()
    }

    /// Whether the operation is a flush that affects `key`.
    pub fn flushes(&self, key: &[u8]) -> bool {
        match self.request() {
            Request::FlushAll { .. } => true,
            Request::FlushPrefix(prefix) => prefix.takes(key),
            _ => false,
        }
    }

    fn line(&self) -> &[u8] {
        line(&self.wire[..self.line_bytes]).expect("I1").0
    }

    /// The parsed request.
    pub(crate) fn request(&self) -> Request<'_> {
        read(self.line()).expect("I1")
    }

    /// Whether the request has the flag `q`, which withholds some replies.
    pub fn is_quiet(&self) -> bool {
        self.request().meta().is_some_and(|meta| meta.has(b'q'))
    }

    /// Whether the request contains `noreply`.
    pub fn is_noreply(&self) -> bool {
        let takes_it = match self.request() {
            Request::Retrieve(_) | Request::MetaDebug(_) => false,
            other => other.meta().is_none(),
        };
        takes_it && words(self.line()).last() == Some(b"noreply")
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", Value::new(&self.wire))
    }
}

#[cfg(test)]
mod tests {
    use super::{Operation, operations};

    #[test]
    fn a_multiget_is_as_many_operations_as_it_has_keys() {
        let (found, bytes) = operations(b"gats 60  a b\r\n").expect("a request");
        let wires: Vec<&[u8]> = found.iter().map(Operation::wire).collect();
        assert_eq!((wires, bytes), (vec![&b"gats 60 a\r\n"[..], b"gats 60 b\r\n"], 14));
    }

    #[test]
    fn an_operation_is_made_of_a_whole_request_and_of_nothing_else() {
        let set = Operation::new(b"set k 0 0 3\r\nabc\r\n").expect("a whole set");
        assert_eq!(
            (set.key(), set.value().map(|value| value.bytes())),
            (&b"k"[..], Some(&b"abc"[..]))
        );
        let meta = Operation::new(b"md a2V5 b q\r\n").expect("a whole md");
        assert_eq!(meta.key(), b"key");
        let flush = Operation::new(b"flush_all 0\r\n").expect("a flush");
        assert!(flush.is_flush() && flush.flushes(b"any"));
        for (wire, taken) in [
            (&b"flush_prefix a:1\r\n"[..], &[&b"a:1"[..], b"a:1:2"][..]),
            (b"flush_prefix a:1 noreply\r\n", &[b"a:1", b"a:1:2"]),
            (b"flush_prefix a: noreply\r\n", &[b"a:1", b"a:1:2", b"a:10"]),
            (b"flush_prefix a:1 bytes noreply\r\n", &[b"a:1", b"a:1:2", b"a:10"]),
        ] {
            let flush = Operation::new(wire).expect("a flush");
            let keys: [&[u8]; 5] = [b"a", b"a:1", b"a:1:2", b"a:10", b"b"];
            let found: Vec<&[u8]> = keys.into_iter().filter(|key| flush.flushes(key)).collect();
            assert_eq!((flush.is_flush(), &found[..]), (true, taken), "{flush:?}");
        }
        for wrong in [
            &b"set k 0 0 3\r\nab"[..],
            b"get a b\r\n",
            b"mn\r\n",
            b"flush_prefix\r\n",
            b"flush_prefix a x\r\n",
            b"get\r\n",
            b"get a\r\nget b\r\n",
        ] {
            assert_eq!(Operation::new(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
