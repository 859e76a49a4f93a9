//! Checks of the commands of clients that must log in, of the messages of SASL, and of the file of
//! users.
//!
//! Upstream:   the text and the binary target, with each of their inputs.
//! Downstream: `kachel_wire::parse_login` and `parse_sasl`, `kachel_net::Users` and `Exchange`.

use std::sync::LazyLock;

use kachel_net::{BadUsers, Exchange, Mechanisms, SaslMessage, SaslStep, USERS_KEY_BYTES, Users};
use kachel_testkit::{scram_first, scram_proof};
use kachel_wire::request::LINE_BYTES_MAX;
use kachel_wire::{
    Login, MECHANISM_BYTES_MAX, SASL_MESSAGE_BYTES_MAX, SaslParsed, SaslRequest, TOKEN_BYTES_MAX,
    parse_login, parse_sasl,
};

use crate::client::cuts;

/// The most bytes of a command that is not whole yet.
const PENDING_BYTES_MAX: usize = LINE_BYTES_MAX + TOKEN_BYTES_MAX + 2;
/// The most commands of one input that are checked.
const COMMANDS_MAX: usize = 8;
/// Bytes of the header of the binary protocol.
const HEADER_BYTES: usize = 24;
/// The user of [`exchange`]. It is made once, because that takes thousands of hashes; nothing
/// changes it.
static USERS: LazyLock<Users> = LazyLock::new(|| {
    let users = Users::read_for_sasl(b"u:p", [1; USERS_KEY_BYTES], Mechanisms::All, &|| false);
    users.expect("a good file")
});
/// The messages that prove the password in the challenge with the number 0.
static PROOF: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let first = scram_first("u");
    let mut exchange = Exchange::default();
    let SaslStep::Continue(told) = exchange.answer(&USERS, scram(&first), 0) else {
        panic!("no challenge");
    };
    [scram_proof("u", "p", &told), first]
});

fn scram(message: &[u8]) -> SaslMessage<'_> {
    SaslMessage::First { mechanism: b"SCRAM-SHA-256", message }
}

/// Checks that each command is consumed whole or refused, that no prefix of a login is one, and
/// that the input is bounded while a command is not whole.
pub(crate) fn login(input: &[u8]) {
    let mut rest = input;
    for _ in 0..COMMANDS_MAX {
        let bytes = match parse_login(rest) {
            Login::NeedMore { block_bytes } => {
                assert!(rest.len() < PENDING_BYTES_MAX, "a command that never ends is closed");
                assert!(block_bytes.is_none_or(|bytes| bytes <= TOKEN_BYTES_MAX));
                return;
            }
            Login::Close => return,
            Login::Refused { bytes, skip_bytes, .. } => {
                assert!(skip_bytes == 0 || skip_bytes > TOKEN_BYTES_MAX, "a block is here or long");
                bytes
            }
            Login::Attempt { user, password, bytes } => {
                assert!(!user.contains(&b' ') && user.len() + password.len() < TOKEN_BYTES_MAX);
                let cut = parse_login(&rest[..bytes - 1]);
                assert!(matches!(cut, Login::NeedMore { .. }), "{cut:?} without the last byte");
                bytes
            }
        };
        assert!(bytes > 0, "a command has bytes");
        rest = &rest[bytes..];
    }
}

/// Checks that a file of users is read to its end or refused with a line that it has, and that each
/// user in it is known.
pub(crate) fn users(text: &[u8]) {
    let behind_mark = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lines = || behind_mark.split(|byte| *byte == b'\n');
    match Users::read(text, [1; USERS_KEY_BYTES]) {
        Err(BadUsers::Empty) => {}
        Err(BadUsers::Line(line)) => {
            let bad = lines().nth(line - 1).expect("a line of the file");
            assert!(!bad.contains(&b':'), "it has no colon");
        }
        Err(BadUsers::NoName(line)) => {
            assert_eq!(lines().nth(line - 1).and_then(|line| line.first()), Some(&b':'));
        }
        Err(error) => panic!("{error}: only a file for SASL has this mistake"),
        Ok(users) => {
            for line in lines().take(COMMANDS_MAX) {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if let Some(colon) = line.iter().position(|byte| *byte == b':') {
                    assert!(users.knows(&line[..colon], &line[colon + 1..]));
                }
            }
        }
    }
}

/// Checks that each request of a client that logs in by SASL is consumed whole or refused, that its
/// cuts change nothing, and that the input is bounded while a request is not whole.
pub(crate) fn sasl(input: &[u8]) {
    let mut rest = input;
    for _ in 0..COMMANDS_MAX {
        let parsed = parse_sasl(rest);
        let (bytes, skip_bytes) = match parsed {
            SaslParsed::NeedMore => {
                let most = HEADER_BYTES + MECHANISM_BYTES_MAX + SASL_MESSAGE_BYTES_MAX;
                return assert!(rest.len() < most, "no more is awaited");
            }
            SaslParsed::Close => return assert_ne!(rest.first(), Some(&0x80)),
            SaslParsed::Refused { refusal, .. } if refusal.closes => {
                return assert_eq!(refusal.skip_bytes, 0);
            }
            SaslParsed::Refused { refusal, bytes } => (bytes, refusal.skip_bytes),
            SaslParsed::Request { request, bytes, skip_bytes, .. } => {
                if let SaslRequest::Begin { mechanism, message } = request {
                    assert!((1..=MECHANISM_BYTES_MAX).contains(&mechanism.len()));
                    assert!(message.len() <= SASL_MESSAGE_BYTES_MAX);
                }
                assert!(skip_bytes == 0 || request == SaslRequest::TooLong);
                (bytes, skip_bytes)
            }
        };
        for cut in cuts(&rest[..bytes]) {
            assert_eq!(parse_sasl(&rest[..cut]), SaslParsed::NeedMore, "cut at {cut}");
        }
        assert_eq!(parse_sasl(&rest[..bytes]), parsed, "with nothing behind it");
        let body_bytes = u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]);
        let next = bytes as u64 + skip_bytes;
        assert_eq!(next, HEADER_BYTES as u64 + u64::from(body_bytes));
        let Some(behind) = rest.get(usize::try_from(next).expect("64 bits")..) else { return };
        rest = behind;
    }
}

/// Checks that no messages log a client in except those with the right password or a proof of it.
pub(crate) fn exchange(data: &[u8]) {
    let plain = SaslMessage::First { mechanism: b"PLAIN", message: data };
    let is_right = matches!(data, b"\0u\0p" | b"u\0u\0p");
    let mut exchange = Exchange::default();
    let step = exchange.answer(&USERS, plain, 0);
    assert_eq!(step == SaslStep::Known, is_right);
    assert_eq!(matches!(step, SaslStep::Continue(_)), data.is_empty());
    assert_eq!(exchange.answer(&USERS, SaslMessage::Next(data), 1), SaslStep::Unknown);

    let challenged = exchange.answer(&USERS, scram(data), 2) != SaslStep::Unknown;
    assert_eq!(challenged, exchange.is_begun());
    let step = exchange.answer(&USERS, SaslMessage::Next(data), 3);
    assert_eq!(step, SaslStep::Unknown, "one message is not both");
    let [proof, first] = &*PROOF;
    let begun = exchange.answer(&USERS, scram(first), 0);
    assert!(matches!(begun, SaslStep::Continue(_)));
    let step = exchange.answer(&USERS, SaslMessage::Next(data), 4);
    assert_eq!(step != SaslStep::Unknown, data == proof);
}
