//! Decides whether received bytes are the expected reply, a prefix of it, or a wrong one.

/// How far a reply got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The expected reply, then this many bytes from the start of what was received.
    Whole(usize),
    /// So far right.
    Beginning,
    /// Wrong from this byte on.
    Differs(usize),
}

/// What a VERSION reply stands as in the fixture; a server names itself there.
const VERSION: &[u8] = b"VERSION UNKNOWN\r\n";
const VERSION_WORD: &[u8] = b"VERSION ";
/// The same reply of the binary protocol: its header up to the length of the body.
const BINARY_VERSION: &[u8] = b"\x81\x0b\0\0\0\0\0\0";
/// The rest of that header, and the name.
const BINARY_VERSION_REST: &[u8] = b"\0\0\0\x07\xde\xad\xbe\xef\0\0\0\0\0\0\0\0UNKNOWN";
const HEADER_BYTES: usize = 24;

/// The bytes of a binary reply that are CAS tokens, which count what a server has stored since its
/// start. A token 0 means that there is none.
fn tokens(expected: &[u8]) -> Vec<bool> {
    let mut are_tokens = vec![false; expected.len()];
    let mut at = 0;
    while let Some(header) = expected[at..].first_chunk::<HEADER_BYTES>()
        && header[0] == BINARY_VERSION[0]
    {
        are_tokens[at + 16..at + HEADER_BYTES].fill(header[16..] != [0; 8]);
        let body_bytes = usize::from(header[10]) * 256 + usize::from(header[11]);
        at = (at + HEADER_BYTES + body_bytes).min(expected.len());
    }
    are_tokens
}

/// Compares `received` with `expected`; VERSION replies up to their first word, and any line end;
/// binary replies without their CAS tokens.
pub(crate) fn compare(expected: &[u8], received: &[u8]) -> Match {
    let (mut wanted, mut got) = (0, 0);
    let is_token = tokens(expected);
    while wanted < expected.len() {
        let line_start = wanted == 0 || expected[wanted - 1] == b'\n';
        if line_start && expected[wanted..].starts_with(VERSION) {
            for &byte in VERSION_WORD {
                match received.get(got) {
                    None => return Match::Beginning,
                    Some(&other) if other != byte => return Match::Differs(got),
                    Some(_) => got += 1,
                }
            }
            let Some(end) = received[got..].windows(2).position(|pair| pair == b"\r\n") else {
                return Match::Beginning;
            };
            wanted += VERSION.len();
            got += end + 2;
            continue;
        }
        if expected[wanted..].starts_with(BINARY_VERSION)
            && expected[wanted + BINARY_VERSION.len()..].starts_with(BINARY_VERSION_REST)
            && received[got..].starts_with(BINARY_VERSION)
        {
            let Some(body) = received[got + BINARY_VERSION.len()..].first_chunk() else {
                return Match::Beginning;
            };
            wanted += BINARY_VERSION.len() + BINARY_VERSION_REST.len();
            got += HEADER_BYTES + u32::from_be_bytes(*body) as usize;
            if got > received.len() {
                return Match::Beginning;
            }
            continue;
        }
        match received.get(got) {
            None => return Match::Beginning,
            Some(&byte) if byte != expected[wanted] && !is_token[wanted] => {
                return Match::Differs(got);
            }
            Some(_) => (wanted, got) = (wanted + 1, got + 1),
        }
    }
    Match::Whole(got)
}

#[test]
fn replies_are_compared_up_to_the_name_in_version() {
    let rows: [(&str, &str, Match); 9] = [
        ("END\r\n", "END\r\n", Match::Whole(5)),
        ("END\r\n", "END\r\nX", Match::Whole(5)),
        ("END\r\n", "EN", Match::Beginning),
        ("END\r\n", "ERROR", Match::Differs(1)),
        ("", "", Match::Whole(0)),
        ("VERSION UNKNOWN\r\nEND\r\n", "VERSION 1.6.45 x\r\nEND\r\n", Match::Whole(23)),
        ("VERSION UNKNOWN\r\n", "VERSION 1.6", Match::Beginning),
        ("VERSION UNKNOWN\r\n", "VER", Match::Beginning),
        ("VERSION UNKNOWN\r\n", "VERS 1\r\n", Match::Differs(4)),
    ];
    for (expected, received, wanted) in rows {
        let found = compare(expected.as_bytes(), received.as_bytes());
        assert_eq!(found, wanted, "{expected:?} {received:?}");
    }
}
