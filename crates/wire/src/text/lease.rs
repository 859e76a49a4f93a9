//! `lease-get` and `lease-set`: parses the rest of their lines.
//!
//! Upstream:   `line` picks the verb and passes the rest of the line, without its end.
//! Downstream: requests that own nothing.
//!
//! Source: the ASCII form of Facebook's memcached, as mcrouter reads and writes it.

use super::{NOREPLY, StoreFields, checked_keys};
use crate::number::read_u64;
use crate::refusal::Outcome;
use crate::reply::Reply;
use crate::request::{Request, Retrieve, RetrieveForm, Store, StoreMode};
use crate::words::Words;

/// `lease-get`: `rest` holds the keys.
pub(crate) fn get(rest: &[u8]) -> Outcome<'_> {
    let (keys, is_one) = checked_keys(rest)?;
    let mut others = keys;
    let has_others = others.next().is_some() && others.next().is_some();
    let form = if has_others { RetrieveForm::LeaseOfMany } else { RetrieveForm::LeaseOfOne };
    Ok(Request::Retrieve(Retrieve { form, ttl: None, keys, is_one }))
}

/// `lease-set`: as `set`, with the token of the lease before the client flags.
pub(crate) fn set(rest: &[u8]) -> Outcome<'_> {
    let mut words = Words::new(rest);
    let key = words.next().ok_or(Reply::BadLine)?;
    let token = words.next().ok_or(Reply::BadLine)?;
    let (words, fields) = StoreFields::read_after(key, words)?;
    let noreply = words.last_of_line(6) == Some(NOREPLY);
    let Some(token) = read_u64(token) else { return Err(fields.refused(noreply)) };
    let store = fields.check(StoreMode::Lease, noreply)?;
    Ok(Request::Store(Store { compare_cas: Some(token), ..store }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Keys, Ttl};
    use crate::{ParseError, Parsed, parse};

    #[test]
    fn a_lease_line_has_its_keys_or_a_token_before_the_client_flags() {
        let get = |form, rest: &'static [u8]| {
            let (ttl, is_one) = (None, !rest.contains(&b' '));
            Request::Retrieve(Retrieve { form, ttl, keys: Keys { rest }, is_one })
        };
        let set = |token, client_flags, ttl, value_bytes, noreply| {
            let (mode, compare_cas, ttl) = (StoreMode::Lease, Some(token), Ttl(ttl));
            let key = b"k";
            Request::Store(Store {
                mode,
                key,
                client_flags,
                ttl,
                value_bytes,
                compare_cas,
                noreply,
            })
        };
        for (line, request) in [
            (&b"lease-get a\r\n"[..], get(RetrieveForm::LeaseOfOne, b"a")),
            (b"lease-get  a  \n", get(RetrieveForm::LeaseOfOne, b"a  ")),
            (b"lease-get a b c\r\n", get(RetrieveForm::LeaseOfMany, b"a b c")),
            (b"lease-set k 5 7 60 3\r\n", set(5, 7, 60, 3, false)),
            (b"lease-set k 18446744073709551615 0 -1 0 noreply\r\n", set(u64::MAX, 0, -1, 0, true)),
        ] {
            let parsed = Parsed::Request { request, line_bytes: line.len() };
            assert_eq!(parse(line, 0), parsed, "{}", line.escape_ascii());
        }
        let long = [b'k'; 251];
        let line = |parts: [&[u8]; 3]| parts.concat();
        for (line, reply, skip_bytes) in [
            (&b"lease-get\r\n"[..], Reply::BadLine, 0),
            (b"lease-get  \r\n", Reply::BadLine, 0),
            (&line([b"lease-get a ", &long, b"\r\n"]), Reply::BadLine, 0),
            (b"lease-set\r\n", Reply::BadLine, 0),
            (b"lease-set k\r\n", Reply::BadLine, 0),
            (b"lease-set k 5 0 0\r\n", Reply::BadLine, 0),
            (b"lease-set k x 0 0 3\r\n", Reply::BadLine, 5),
            (b"lease-set k -1 0 0 3\r\n", Reply::BadLine, 5),
            (b"lease-set k 5 x 0 3\r\n", Reply::BadLine, 5),
            (b"lease-set k 5 x 0 3 noreply\r\n", Reply::Nothing, 5),
            (&line([b"lease-set ", &long, b" 5 0 0 3\r\n"]), Reply::BadLine, 5),
            (b"lease-gets a\r\n", Reply::Error, 0),
            (b"lease-ge\r\n", Reply::Error, 0),
            (b"lease-put k\r\n", Reply::Error, 0),
        ] {
            let refusal = ParseError { reply, skip_bytes };
            let parsed = Parsed::Refused { refusal, line_bytes: line.len() };
            assert_eq!(parse(line, 0), parsed, "{}", line.escape_ascii());
        }
    }
}
