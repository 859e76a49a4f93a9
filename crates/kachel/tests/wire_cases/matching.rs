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

/// Compares `received` with `expected`; VERSION replies up to their first word, and any line end.
pub(crate) fn compare(expected: &[u8], received: &[u8]) -> Match {
    let (mut wanted, mut got) = (0, 0);
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
        match received.get(got) {
            None => return Match::Beginning,
            Some(&byte) if byte != expected[wanted] => return Match::Differs(got),
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
