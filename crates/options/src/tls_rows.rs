//! The rows of TLS: the words of `-o` that begin with `ssl_`. `-Z` is in `table.rs`.
//!
//! Upstream:   nothing; it is data.
//! Downstream: as for `suboptions.rs`.

use crate::partial::{Given, PartialOptions, set};
use crate::row::Takes::{Integer, Nothing, Text};
use crate::row::{Class, Effect, SuboptionRow, Takes};
use crate::{EXIT_USAGE, OptionsError};

/// The most kilobytes of `ssl_wbuf_size`, so that its bytes fit 32 bits.
const WBUF_KILOBYTES_MAX: i64 = (u32::MAX >> 10) as i64;

const fn row(
    name: &'static str,
    takes: Takes,
    default: &'static str,
    help: &'static str,
    effect: Effect,
) -> SuboptionRow {
    SuboptionRow { name, takes, default, class: Class::NeedsTls, help, effect }
}

/// The options of `-o` for TLS.
pub(crate) const SUBOPTIONS: [SuboptionRow; 9] = [
    row(
        "ssl_chain_cert",
        Text("file"),
        "",
        "the certificate of the server and those that certify it, in PEM",
        |partial, given| set(&mut partial.serve.tls.chain_certificate, text(given)),
    ),
    row(
        "ssl_key",
        Text("file"),
        "the file of ssl_chain_cert",
        "the private key of the certificate",
        |partial, given| set(&mut partial.serve.tls.key, text(given)),
    ),
    row(
        "ssl_keyformat",
        Integer("num", 1, 2),
        "1",
        "format of the private key; 1: PEM, 2: DER",
        |partial, given| set(&mut partial.serve.tls.key_format, given.integer()),
    ),
    row(
        "ssl_ca_cert",
        Text("file"),
        "",
        "the certificates of the authorities that certify clients, in PEM",
        |partial, given| set(&mut partial.serve.tls.authorities, text(given)),
    ),
    row(
        "ssl_verify_mode",
        Integer("num", 0, 3),
        "0",
        "certificates of clients; 0: not asked for, 1: checked if there is one, 2 and 3: required",
        |partial, given| set(&mut partial.serve.tls.verify_mode, given.integer()),
    ),
    row(
        "ssl_ciphers",
        Text("list"),
        "",
        "cipher suites to offer, by OpenSSL's names, between colons; without it, all",
        |partial, given| set(&mut partial.serve.tls.ciphers, text(given)),
    ),
    row(
        "ssl_min_version",
        Integer("num", 0, 3),
        "2",
        "oldest version of TLS; 2: TLS 1.2, 3: TLS 1.3; 0 and 1 are refused: older ones are not offered",
        min_version,
    ),
    row(
        "ssl_session_cache",
        Nothing,
        "off",
        "let clients resume their sessions, with a shorter handshake",
        |partial, _| set(&mut partial.serve.tls.session_cache, true),
    ),
    row(
        "ssl_wbuf_size",
        Integer("kilobytes", 1, WBUF_KILOBYTES_MAX),
        "16",
        "accepted and shown by \"stats settings\"; replies are encrypted in blocks of 16 KiB",
        |partial, given| set(&mut partial.serve.tls.wbuf_bytes, given.integer::<u32>() << 10),
    ),
];

#[expect(clippy::unnecessary_wraps, reason = "the type of the field")]
fn text(given: Given<'_>) -> Option<String> {
    Some(given.text().to_string())
}

fn min_version(partial: &mut PartialOptions, given: Given<'_>) -> Result<(), OptionsError> {
    match given.integer::<u8>() {
        version @ 2.. => set(&mut partial.serve.tls.min_version, version),
        version => Err(OptionsError::new(
            EXIT_USAGE,
            format!("-o ssl_min_version={version}: TLS 1.0 and 1.1 are not offered; use 2 or 3."),
        )),
    }
}
