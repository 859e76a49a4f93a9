//! A full store, against the real process: a replacement of an item still fits, and a deletion
//! makes room.

use std::path::Path;

use kachel_testkit::{Client, Launch, Random};

/// Requests sent together.
const TOGETHER: usize = 200;
/// Of each kind of replacement.
const REPLACEMENTS: usize = 2_000;
/// Numbers that are counted with.
const COUNTERS: usize = 300;
/// Times that a client offers the values that it deleted, at most. On a busy machine the shards
/// do little upkeep between two attempts, so four attempts were too few.
const ATTEMPTS: usize = 100;
const STORED: &str = "STORED\r\n";
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object\r\n";

/// The length of the value of key `number`.
type Size = fn(usize) -> usize;

const SIZES: [Size; 3] = [|_| 16, |_| 1_000, mixed];

fn mixed(number: usize) -> usize {
    [30, 4_000, 100, 700, 9, 12_000][number % 6]
}

/// A client, and its choices of keys.
struct Asker {
    client: Client,
    random: Random,
}

impl Asker {
    /// Sends requests that are answered by a line each; their replies.
    fn ask(&mut self, requests: &[String]) -> Vec<String> {
        let mut replies = Vec::new();
        for together in requests.chunks(TOGETHER) {
            self.client.send(together.concat());
            let lines = self.client.read_lines(together.len());
            let lines = String::from_utf8(lines).expect("text");
            replies.extend(lines.split_inclusive('\n').map(str::to_owned));
        }
        replies
    }

    /// Asks `REPLACEMENTS` times, each time about one of `keys`; every reply must begin with one
    /// of `beginnings`.
    fn replace(&mut self, keys: &[usize], beginnings: &[&str], request: impl Fn(usize) -> String) {
        let requests: Vec<String> =
            (0..REPLACEMENTS).map(|_| request(self.random.pick(keys))).collect();
        let replies = self.ask(&requests);
        let is_refused =
            |reply: &&String| !beginnings.iter().any(|beginning| reply.starts_with(beginning));
        let refused: Vec<&String> = replies.iter().filter(is_refused).collect();
        let (count, what) = (refused.len(), requests[0].lines().next());
        assert!(refused.is_empty(), "{count} like {what:?} are answered {:?}", refused[0]);
    }
}

fn set(number: usize, size: Size) -> String {
    let bytes = size(number);
    format!("set k{number:07} 0 0 {bytes}\r\n{}\r\n", "v".repeat(bytes))
}

/// Fills the server; the numbers of the keys that it holds.
fn fill(client: &mut Asker, size: Size) -> Vec<usize> {
    let counters: Vec<String> =
        (0..COUNTERS).map(|number| format!("set n{number} 0 0 4\r\n5000\r\n")).collect();
    assert!(client.ask(&counters).iter().all(|reply| reply == STORED));
    let (mut held, mut refused) = (Vec::new(), 0);
    for first in (0..).step_by(TOGETHER) {
        let numbers: Vec<usize> = (first..first + TOGETHER).collect();
        let requests: Vec<String> = numbers.iter().map(|number| set(*number, size)).collect();
        for (number, reply) in numbers.into_iter().zip(client.ask(&requests)) {
            match reply.as_str() {
                STORED => held.push(number),
                OUT_OF_MEMORY => refused += 1,
                other => panic!("a set is answered {other}"),
            }
        }
        // Every shard is full, for every size.
        if refused > 3 * TOGETHER {
            return held;
        }
    }
    unreachable!("memory has an end")
}

/// `back_percent` of what is deleted must find room again.
fn check(
    (called_as, options): (&str, &[&str]),
    [megabytes, threads]: [&str; 2],
    size: Size,
    back_percent: usize,
) {
    let options = [options, &["-m", megabytes, "-t", threads]].concat();
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let server = Launch { called_as, ..Launch::memcached(program, &options) }.start();
    let mut client = Asker { client: server.connect(), random: Random::new(1) };
    let mut held = fill(&mut client, size);
    let counters: Vec<usize> = (0..COUNTERS).collect();
    client.replace(&counters, &["4", "5"], |number| format!("incr n{number} 1\r\n"));
    client.replace(&counters, &["4", "5"], |number| format!("decr n{number} 1\r\n"));
    client.replace(&counters, &["HD"], |number| format!("ma n{number}\r\n"));
    client.replace(&held, &[STORED], |number| set(number, size));
    client.replace(&held, &["TOUCHED"], |number| format!("touch k{number:07} 0\r\n"));
    client.replace(&held, &["HD"], |number| format!("mg k{number:07} T0\r\n"));
    client.replace(&held, &["HD"], |number| format!("md k{number:07} I T0\r\n"));

    let deleted: Vec<usize> =
        (0..held.len() / 20).map(|_| held.swap_remove(client.random.index(held.len()))).collect();
    let requests: Vec<String> =
        deleted.iter().map(|number| format!("delete k{number:07}\r\n")).collect();
    assert!(client.ask(&requests).iter().all(|reply| reply == "DELETED\r\n"));
    // The same keys, so that each shard gets as many stores as deletes. With other keys, one shard
    // would get more, and how many more depends on the secret hash.
    let mut wanted: Vec<String> = deleted.iter().map(|number| set(*number, size)).collect();
    // One request compacts a bounded number of segments: a client that is refused asks again.
    for _ in 0..ATTEMPTS {
        let replies = client.ask(&wanted);
        let mut stored = replies.iter().map(|reply| reply == STORED);
        wanted.retain(|_| !stored.next().expect("a reply for each request"));
        if wanted.len() * 100 <= deleted.len() * (100 - back_percent) {
            break;
        }
    }
    let stored = deleted.len() - wanted.len();
    println!("{stored} stored for {}", deleted.len());
    assert!(stored * 100 >= deleted.len() * back_percent, "{stored} stored for {}", deleted.len());

    client.replace(&held, &["HD"], |number| format!("md k{number:07} x\r\n"));
    let found = client.ask(&held.iter().map(|n| format!("mg k{n:07}\r\n")).collect::<Vec<_>>());
    assert!(found.iter().all(|reply| reply.starts_with("HD")), "nothing is lost");
}

#[test]
fn a_full_store_takes_what_is_no_larger_than_what_it_replaces() {
    // Each of four shards is as small as in the next test. Of the mixed values, 74 of 95 found room
    // again once, because one shard lacked a segment. In other runs 81 to 97 of 97 did.
    let cases = SIZES.map(|size| ("1", size, 80)).into_iter().chain([
        ("4", SIZES[0], 80),
        ("4", SIZES[1], 80),
        ("4", SIZES[2], 60),
    ]);
    for (threads, size, back_percent) in cases {
        let memory = ["6", threads];
        check(("memcached", &["-M"]), memory, size, back_percent);
        check(("kachel", &["serve", "--engine", "store"]), memory, size, back_percent);
    }
}

#[test]
fn so_does_a_small_one() {
    for size in SIZES {
        // A shard has a dozen segments here, and one of the values deleted is a tenth of them all.
        check(("memcached", &["-M"]), ["3", "2"], size, 60);
    }
}
