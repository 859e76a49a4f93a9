//! Checks of the commands of clients that must log in, and of the file of users.
//!
//! Upstream:   the text target, with each of its inputs.
//! Downstream: `kachel_wire::parse_login`, `kachel_net::Users`.

use kachel_net::{BadUsers, USERS_KEY_BYTES, Users};
use kachel_wire::request::LINE_BYTES_MAX;
use kachel_wire::{Login, TOKEN_BYTES_MAX, parse_login};

/// The most bytes of a command that is not whole yet.
const PENDING_BYTES_MAX: usize = LINE_BYTES_MAX + TOKEN_BYTES_MAX + 2;
/// The most commands of one input that are checked.
const COMMANDS_MAX: usize = 8;

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
    let lines = || text.split(|byte| *byte == b'\n');
    match Users::read(text, [1; USERS_KEY_BYTES]) {
        Err(BadUsers::Empty) => {}
        Err(BadUsers::Line(line)) => {
            let bad = lines().nth(line - 1).expect("a line of the file");
            assert!(!bad.contains(&b':'), "it has no colon");
        }
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
