//! Large values, received directly into their final memory: complete at any cut of the input, in
//! few ticks, and without a cost for others when their client leaves.

use kachel_io::FarEnd;

use kachel_engine::{EngineIndex, KeyHasher};
use kachel_testkit::{World, WorldOptions};

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 31 + place / 251) as u8).collect()
}

fn set(value: &[u8]) -> Vec<u8> {
    [format!("set k 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn got(value: &[u8]) -> Vec<u8> {
    [format!("VALUE k 0 {}\r\n", value.len()).as_bytes(), value, b"\r\nEND\r\n"].concat()
}

#[test]
fn a_large_value_that_is_there_is_received_in_few_ticks() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    let value = pattern(900_000);
    client.write(&set(&value));
    let mut ticks = 0;
    let reply = loop {
        world.turn();
        ticks += 1;
        let reply = client.read();
        if !reply.is_empty() || ticks == 100 {
            break reply;
        }
    };
    assert_eq!(reply, b"STORED\r\n");
    // At first 16 KiB each, then up to 256 KiB, because there are no other clients. It was 56 lent
    // buffers.
    assert!(ticks <= 24, "{ticks} ticks");
    assert!(world.ask(&client, b"get k\r\n") == got(&value));
}

#[test]
fn a_large_value_is_whole_wherever_it_is_cut_and_so_is_what_follows() {
    for (shards, bytes) in [1, 2].into_iter().flat_map(|s| [16_384, 70_000].map(|b| (s, b))) {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let client = world.connect();
        let value = pattern(bytes);
        let said = [&set(&value)[..], b"mn\r\n", &set(&value), b"get k\r\nmn\r\n"].concat();
        let one = set(&value).len();
        let ends = (one - 5..one + 30).chain(said.len() - 12..said.len());
        for cut in (1..said.len()).step_by(977).chain(ends) {
            client.write(&said[..cut]);
            for _ in 0..cut % 5 {
                world.turn();
            }
            let reply = world.ask(&client, &said[cut..]);
            let wanted = [&b"STORED\r\nMN\r\nSTORED\r\n"[..], &got(&value), b"MN\r\n"].concat();
            assert!(reply == wanted, "{shards} shards, {bytes} bytes cut at {cut}");
        }
    }
}

#[test]
fn a_block_without_its_line_end_is_refused_wherever_it_landed() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    for bytes in [32_768, 70_000] {
        let line = format!("set k 0 0 {bytes}\r\n");
        let reply = world.ask(&client, &[line.as_bytes(), &vec![b'x'; bytes], b"yz"].concat());
        assert_eq!(reply, b"CLIENT_ERROR bad data chunk\r\n");
        assert_eq!(world.ask(&client, b"mn\r\n"), b"MN\r\n");
    }
}

/// Ends the client's connection in one of three ways.
fn leave(client: &FarEnd, how: usize) {
    match how {
        0 => client.reset(),
        1 => client.finish(),
        _ => {} // It stays, and is closed for being late.
    }
}

#[test]
fn a_client_that_goes_while_its_value_comes_leaves_nothing_behind() {
    for shards in [1, 3] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let other = world.connect();
        assert_eq!(world.ask(&other, b"mn\r\n"), b"MN\r\n");
        world.settle();
        let before = world.pool().books();
        let value = pattern(300_000);
        let said = set(&value);
        for (round, cut) in (20..said.len()).step_by(7_001).enumerate() {
            let client = world.connect();
            client.write_cut(&said[..cut], 1 + round * 7_919 % 80_000);
            for _ in 0..round % 12 {
                world.turn();
            }
            leave(&client, round % 3);
            world.settle();
            // What stays half said is late, by 10 s and 5 for its bytes.
            for _ in 0..=16 {
                world.clock.advance_s(1);
                world.turn();
            }
            world.settle();
            assert!(client.is_closed(), "{cut}");
            let uploads: u64 = world.shards.iter().map(|shard| shard.holdings().uploads).sum();
            assert_eq!(uploads, 0);
            let books = world.pool().books();
            assert_eq!(books.free_blocks, 0, "{shards} shards, cut at {cut}");
            let used =
                |books: kachel_cache::PoolBooks| books.charged_segments - books.idle_segments;
            assert_eq!(used(books), used(before), "{shards} shards, cut at {cut}");
        }
    }
}

#[test]
fn a_large_value_has_ten_seconds_and_its_size_at_64_kib_a_second() {
    for (wait_s, is_closed) in [(22, false), (26, true)] {
        let mut world = World::new(WorldOptions::default());
        let client = world.connect();
        let value = pattern(900_000); // 13 seconds.
        let said = set(&value);
        client.write(&said[..400_000]);
        world.settle();
        for _ in 0..wait_s {
            world.clock.advance_s(1);
            world.settle();
        }
        assert_eq!(client.is_closed(), is_closed, "after {wait_s} s");
        if !is_closed {
            client.write(&said[400_000..]);
            world.settle();
            assert_eq!(client.read(), b"STORED\r\n");
        }
    }
}

#[test]
fn a_shard_that_holds_nothing_finds_room_with_shards_that_sleep() {
    // Only shards with something to do tick here; the others sleep.
    let options = WorldOptions { shards: 3, memory_bytes: 8 << 20, ..WorldOptions::default() };
    let hasher = KeyHasher::new(options.seeds, options.shards);
    let mut world = World::new(options);
    let client = world.connect();
    let value = pattern(500_000);
    let names = || (0..).map(|number| format!("k{number}"));
    let of_others =
        names().filter(|name| hasher.owner(hasher.key(name.as_bytes()).hashes()) != EngineIndex(0));
    let of_shard_0 =
        names().filter(|name| hasher.owner(hasher.key(name.as_bytes()).hashes()) == EngineIndex(0));
    for name in of_others.take(40).chain(of_shard_0.take(40)) {
        let line = format!("set {name} 0 0 {}\r\n", value.len());
        client.write(&[line.as_bytes(), &value, b"\r\n"].concat());
        world.rest();
        assert_eq!(client.read(), b"STORED\r\n", "{name}: all of memory is evictable");
    }
    assert!(world.sum_of_engines(|counters| &counters.evictions) > 40, "memory is full");
}

#[test]
fn large_values_find_their_room_in_full_memory() {
    for shards in [1, 3] {
        let options = WorldOptions { shards, memory_bytes: 8 << 20, ..WorldOptions::default() };
        let mut world = World::new(options);
        let clients: Vec<_> = (0..4).map(|_| world.connect()).collect();
        let value = pattern(300_000);
        for round in 0..30 {
            for (number, client) in clients.iter().enumerate() {
                let line = format!("set k{round}-{number} 0 0 {}\r\n", value.len());
                client.write(&[line.as_bytes(), &value, b"\r\n"].concat());
            }
            world.settle();
            for client in &clients {
                assert_eq!(client.read(), b"STORED\r\n", "round {round}");
            }
        }
        world.clock.advance_s(1);
        world.settle();
        assert!(world.sum_of_engines(|counters| &counters.evictions) > 0, "memory is full");
    }
}
