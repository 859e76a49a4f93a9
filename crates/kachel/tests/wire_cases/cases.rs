//! The fixture: the cases as they were measured at memcached.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

const FIXTURE: &str = include_str!("../fixtures/wire_cases.json");

/// SHA-256 of the fixture: it is data, and changes only by measuring again.
const FIXTURE_SHA256: &str = "a07cd1eb7d32ba417e9bc74776a9e8bb968a323799596ce5bb72367e161cd72a";

/// One input and what is answered.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) input: Vec<u8>,
    /// The whole reply; `None` is not compared.
    pub(crate) reply: Option<Vec<u8>>,
    /// The whole reply of memcached 1.6.18; `None` was not measured.
    pub(crate) reply_1_6_18: Option<Vec<u8>>,
    /// Whether the server keeps the connection open.
    pub(crate) stays_open: bool,
    /// Whether the server answers a request that follows the input.
    pub(crate) answers_more: bool,
    /// Why the reply is not memcached's.
    pub(crate) differs: Option<String>,
}

/// Cases after which 1.6.18 does not close the connection. The fixture says what 1.6.45 does.
const OPEN_AT_1_6_18: [&str; 3] = ["W150", "W155", "W156"];
/// Cases after which 1.6.18 waits for the rest of a request, or sends its log.
const ANSWERS_NO_MORE_AT_1_6_18: [&str; 3] = ["W111", "W150", "W156"];
/// A value of a negative length, which 1.6.18 mostly closes at. Once in some dozens of runs it did
/// neither answer nor close for half a minute.
const UNCERTAIN_AT_1_6_18: [&str; 2] = ["W160", "W177"];

impl Case {
    /// A case of our own, after which the connection stays open.
    pub(crate) fn new(input: &str, reply: &str) -> Self {
        Self {
            id: "-".to_owned(),
            name: input.trim().to_owned(),
            input: input.as_bytes().to_vec(),
            reply: Some(reply.as_bytes().to_vec()),
            reply_1_6_18: None,
            stays_open: true,
            answers_more: answers_more(input.as_bytes(), reply.is_empty()),
            differs: None,
        }
    }

    /// The same input with the reply of memcached 1.6.18, if that was measured and is certain.
    pub(crate) fn at_1_6_18(&self) -> Option<Self> {
        let is_certain = !UNCERTAIN_AT_1_6_18.contains(&&self.id[..]);
        let reply = Some(self.reply_1_6_18.clone().filter(|_| is_certain)?);
        let is_one_of = |ids: [&str; 3]| ids.contains(&&self.id[..]);
        Some(Self {
            reply,
            stays_open: self.stays_open || is_one_of(OPEN_AT_1_6_18),
            answers_more: self.answers_more && !is_one_of(ANSWERS_NO_MORE_AT_1_6_18),
            ..self.clone()
        })
    }

    /// Whether the case is in the binary protocol, or its first byte is that of its replies.
    fn is_binary(&self) -> bool {
        self.input.first().is_some_and(|&byte| byte == 0x80 || byte == 0x81)
    }
}

/// All cases, in the order of their ids, and what is stored before them.
#[derive(Debug)]
pub(crate) struct Cases {
    pub(crate) setup: Vec<u8>,
    cases: Vec<Case>,
}

impl Cases {
    pub(crate) fn read() -> Self {
        let sum: String = Sha256::digest(FIXTURE).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(sum, FIXTURE_SHA256, "the fixture is not the file that was measured");
        let fixture: Value = serde_json::from_str(FIXTURE).unwrap();
        let setup = fixture["setup_text"].as_str().unwrap();
        let setup = setup.replace("<100000 bytes of x>", &"x".repeat(100_000));
        let cases = fixture["cases"].as_array().unwrap().iter().map(case).collect();
        Self { setup: setup.into_bytes(), cases }
    }

    /// All cases, in the order of their ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter()
    }

    /// Cases that begin as those of the binary protocol do, and one whose first byte is that of its
    /// replies.
    pub(crate) fn binary(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| case.is_binary())
    }
}

/// After half a line, the next bytes are its other half and not another request.
fn answers_more(input: &[u8], is_unanswered: bool) -> bool {
    !is_unanswered || input.ends_with(b"\n")
}

/// Our replies to cases for which the fixture has none, but says in words where we depart from
/// memcached.
const OURS: [(&str, &[u8]); 2] = [
    ("W164", b"\x81\0\0\0\0\0\0\x04\0\0\0\x11\xde\xad\xbe\xef\0\0\0\0\0\0\0\0Invalid arguments"),
    (
        "W166",
        b"\x81\xff\0\0\0\0\0\x81\0\0\0\x0f\xde\xad\xbe\xef\0\0\0\0\0\0\0\0Unknown command\
          \x81\x0b\0\0\0\0\0\0\0\0\0\x07\xde\xad\xbe\xef\0\0\0\0\0\0\0\0UNKNOWN",
    ),
];

fn case(value: &Value) -> Case {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let id = text("id").unwrap();
    let ours = OURS.iter().find(|(case, _)| *case == id).map(|(_, reply)| reply.to_vec());
    let input = bytes(&value["input"]).unwrap();
    let measured = bytes(&value["reply"]);
    let reply_1_6_18 = match value["reply_1_6_18"].as_str() {
        Some("same") => measured.clone(),
        _ => bytes(&value["reply_1_6_18"]),
    };
    let reply = measured.or(ours);
    Case {
        id,
        name: text("name").unwrap(),
        answers_more: answers_more(&input, reply.as_ref().is_none_or(Vec::is_empty)),
        input,
        reply_1_6_18,
        reply,
        stays_open: match value["then"].as_str().unwrap() {
            "open" => true,
            "closed" => false,
            other => panic!("neither open nor closed: {other}"),
        },
        differs: text("differs"),
    }
}

/// A list of `[hex bytes, repeat count]`; `None` when there is no list.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for run in value.as_array()? {
        let hex = run[0].as_str().unwrap();
        let once: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        let count = usize::try_from(run[1].as_u64().unwrap()).unwrap();
        bytes.extend(once.repeat(count));
    }
    Some(bytes)
}
