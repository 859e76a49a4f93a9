//! After the warm-up, the server takes no memory from the allocator for any request.
//!
//! The test counts allocations of each shard's tick, except those of the I/O backend in memory and
//! of its network, which belong to the test. Memory is full after the warm-up, so that eviction and
//! compaction are counted, too.

use kachel_io::FarEnd;
use kachel_stdx::{CountingAllocator, counted};

use kachel_testkit::{World, WorldOptions};
use kachel_wire::Frame;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Rounds of storing new keys before anything is counted: they store twice the memory.
const FILL_ROUNDS: u64 = 60;
/// Rounds of each conversation in a warm-up, and how often all of them are warmed up. A shard keeps
/// memory of one conversation for the next, so a later warm-up finds it in another order.
const WARM_ROUNDS: u64 = 8;
const WARM_UPS: usize = 3;
/// Rounds of each conversation that are counted. Each has its request in 960 places.
const COUNTED_ROUNDS: u64 = 8;
/// Connections that say the same thing at once.
const CLIENTS: usize = 6;
/// Requests of each connection in a round.
const REQUESTS: u64 = 20;

/// One thing that clients say, again and again.
struct Conversation {
    name: &'static str,
    /// What a client says in its `n`th request; the number is never used again.
    request: fn(n: u64) -> Vec<u8>,
    /// What stands in the reply once a request.
    reply: &'static str,
}

/// A value of `bytes` bytes, for a request that ends in its length.
fn with_value(line: &str, bytes: usize) -> Vec<u8> {
    [format!("{line} {bytes}\r\n").as_bytes(), &vec![b'v'; bytes], b"\r\n"].concat()
}

const CONVERSATIONS: [Conversation; 15] = [
    Conversation {
        name: "set: new keys of many sizes, so that others are evicted",
        request: |n| with_value(&format!("set new{n} {} 0", n % 3), (n * 977 % 9000) as usize),
        reply: "STORED\r\n",
    },
    Conversation {
        name: "set: over the same keys, with a time to live",
        request: |n| with_value(&format!("set key{} 0 {}", n % 500, 1000 + n % 7), 100),
        reply: "STORED\r\n",
    },
    Conversation {
        name: "get: hits",
        request: |n| format!("get key{}\r\n", n % 500).into_bytes(),
        reply: "END\r\n",
    },
    Conversation {
        name: "get: misses",
        request: |n| format!("get none{n}\r\n").into_bytes(),
        reply: "END\r\n",
    },
    Conversation {
        name: "gets: 100 keys",
        request: |n| {
            let keys: String = (0..100).map(|key| format!(" key{}", (n + key) % 600)).collect();
            format!("gets{keys}\r\n").into_bytes()
        },
        reply: "END\r\n",
    },
    Conversation {
        name: "incr, the number made first",
        request: |n| format!("set c{0} 0 0 2\r\n98\r\nincr c{0} 1\r\n", n % 90).into_bytes(),
        reply: "STORED\r\n99\r\n",
    },
    Conversation {
        name: "append, prepend, cas",
        request: |n| {
            let key = n % 90;
            format!(
                "set a{key} 0 0 1\r\nx\r\nappend a{key} 0 0 1\r\ny\r\nprepend a{key} 0 0 1\r\nw\r\n\
                 cas a{key} 0 0 1 1\r\nz\r\n"
            )
            .into_bytes()
        },
        reply: "STORED\r\nSTORED\r\nSTORED\r\nEXISTS\r\n",
    },
    Conversation {
        name: "delete",
        request: |n| format!("set d{0} 0 0 1\r\nx\r\ndelete d{0}\r\n", n % 90).into_bytes(),
        reply: "STORED\r\nDELETED\r\n",
    },
    Conversation {
        name: "touch, gat",
        request: |n| {
            let key = n % 90;
            format!("set t{key} 0 50 1\r\nx\r\ntouch t{key} {}\r\ngat 9 t{key}\r\n", n % 99 + 1)
                .into_bytes()
        },
        reply: "STORED\r\nTOUCHED\r\nVALUE",
    },
    Conversation {
        name: "ms, mg, md, mn",
        request: |n| {
            let key = n % 90;
            format!("ms m{key} 1 T90\r\nx\r\nmg m{key} v t h l k O{n}\r\nmd m{key} q\r\nmn\r\n")
                .into_bytes()
        },
        reply: "MN\r\n",
    },
    Conversation {
        name: "ma, mg with N and R, me",
        request: |n| {
            let key = n % 90;
            format!(
                "ma n{key} N90 J7 v\r\nmg n{key} s v R30 N9\r\nme n{key}\r\nmd n{key}\r\nmn\r\n"
            )
            .into_bytes()
        },
        reply: "MN\r\n",
    },
    Conversation {
        name: "what is refused",
        request: |n| {
            format!("get {}\r\nbogus\r\nincr key1 x\r\n", "k".repeat(251 + n as usize % 9))
                .into_bytes()
        },
        reply: "ERROR\r\n",
    },
    Conversation {
        name: "set: large values",
        request: |n| with_value(&format!("set large{} 0 0", n % 20), 17_000 + n as usize % 30_000),
        reply: "STORED\r\n",
    },
    Conversation {
        name: "get: large values",
        request: |n| format!("get large{}\r\n", n % 20).into_bytes(),
        reply: "END\r\n",
    },
    Conversation {
        name: "version, verbosity",
        request: |_| b"version\r\nverbosity 1\r\n".to_vec(),
        reply: "VERSION 1.6.45\r\nOK\r\n",
    },
];

/// Has all clients say it in one piece, or cut into pieces; allocations on the way.
fn round(world: &mut World, clients: &[FarEnd], talk: &Conversation, round: u64, cut: bool) -> u64 {
    for (client, from) in clients.iter().zip((round * CLIENTS as u64..).map(|n| n * REQUESTS)) {
        let said = (from..from + REQUESTS).map(talk.request).collect::<Vec<_>>().concat();
        let piece_bytes = if cut { 1009 } else { said.len() };
        client.write_cut(&said, piece_bytes);
    }
    let allocations = counted(|| world.settle()).1;
    for client in clients {
        let reply = client.read();
        let reply = String::from_utf8(reply).expect("text");
        assert_eq!(reply.matches(talk.reply).count() as u64, REQUESTS, "{}: {reply}", talk.name);
    }
    world.clock.advance_ns(20_000_000);
    allocations
}

fn requests_are_served_without_allocation(shards: u16, crew: bool) {
    let options = WorldOptions { shards, crew, memory_bytes: 16 << 20, ..WorldOptions::default() };
    let mut world = World::new(options);
    let clients: Vec<_> = (0..CLIENTS).map(|_| world.connect()).collect();
    assert!(counted(|| world.settle()).1 > 0, "the counter does not count");
    let mut next = 0..;
    let mut say = |world: &mut World, talk: &Conversation, rounds: u64, cut: bool| -> u64 {
        next.by_ref().take(rounds as usize).map(|n| round(world, &clients, talk, n, cut)).sum()
    };
    say(&mut world, &CONVERSATIONS[0], FILL_ROUNDS, false);
    let evictions = world.shared.totals.engines.iter().map(|counters| counters.evictions.value());
    assert!(evictions.sum::<u64>() > 0, "memory is full");
    let mut found = Vec::new();
    for cut in [false, true].repeat(WARM_UPS) {
        for talk in &CONVERSATIONS {
            say(&mut world, talk, WARM_ROUNDS, cut);
        }
    }
    for cut in [false, true] {
        for talk in &CONVERSATIONS {
            let allocations = say(&mut world, talk, COUNTED_ROUNDS, cut);
            if allocations > 0 {
                found.push((talk.name, allocations));
            }
        }
    }
    assert_eq!(found, [], "allocations of {shards} shards, crew: {crew}");
}

#[test]
fn one_shard_serves_requests_without_allocation() {
    requests_are_served_without_allocation(1, false);
}

#[test]
fn three_shards_serve_requests_without_allocation() {
    requests_are_served_without_allocation(3, false);
}

#[test]
fn three_shards_that_read_each_others_items_serve_requests_without_allocation() {
    requests_are_served_without_allocation(3, true);
}

#[test]
fn datagrams_are_served_without_allocation() {
    const DATAGRAMS: u16 = 50;
    for (shards, crew) in [(1, false), (3, false), (3, true)] {
        let options = WorldOptions { shards, crew, udp: Some(2), ..WorldOptions::default() };
        let mut world = World::new(options);
        let mut round = |round: u16| {
            for number in 0..DATAGRAMS {
                let key = (round * 7 + number) % 200;
                let request = match number % 4 {
                    0 => with_value(&format!("set k{key} 0 0"), usize::from(key) * 9),
                    1 => format!("get k{key}\r\nincr none 1\r\n").into_bytes(),
                    2 => format!("mg k{key} v\r\nmn\r\n").into_bytes(),
                    _ => format!("set k{key} 0 0 5\r\nab").into_bytes(),
                };
                let frame = Frame { request_id: number, sequence: 0, total: 1 };
                let from = ([10, 0, 0, 7], 30_000 + number).into();
                world.send_datagram(0, from, &[&frame.bytes()[..], &request].concat());
            }
            let allocations = counted(|| world.settle()).1;
            assert!(world.take_datagrams(0).len() >= usize::from(DATAGRAMS));
            allocations
        };
        assert!(round(0) > 0, "the counter does not count");
        // The keys repeat after 200 rounds.
        for number in 1..210 {
            round(number);
        }
        let allocations: u64 = (210..240).map(round).sum();
        assert_eq!(allocations, 0, "{shards} shards, crew: {crew}");
    }
}
