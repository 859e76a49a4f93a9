//! Input that the server keeps: how much of `-m` it takes, and for how long.

use kachel_testkit::{World, WorldOptions};

/// A line with many long keys, about `bytes` long.
fn long_line(bytes: usize) -> Vec<u8> {
    const KEY: &[u8] = &[b'k'; 99];
    [&b"get"[..], &[b" ", KEY].concat().repeat(bytes / 100), b"\r\n"].concat()
}

#[test]
fn a_long_line_leaves_no_memory_with_a_client_that_goes_on_bit_by_bit() {
    /// What a tail may hold beyond what is in it.
    const TAIL_BYTES_MAX: u64 = 64 * 1024;
    const CLIENTS: u64 = 20;
    for shards in [1, 2] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let clients: Vec<_> = (0..CLIENTS).map(|_| world.connect()).collect();
        world.settle();
        let before = world.shared.budget.spent_bytes();
        for client in &clients {
            let line = long_line(2_000_000);
            assert_eq!(world.ask(client, &[&line[..], b"g"].concat()), b"END\r\n");
            assert_eq!(world.ask(client, b"et k\r\ng"), b"END\r\n");
        }
        let more = world.shared.budget.spent_bytes() - before;
        assert!(more <= CLIENTS * TAIL_BYTES_MAX, "{more} bytes for a letter of each client");
    }
}

#[test]
fn half_a_request_is_not_refused_for_memory_that_another_one_needed() {
    let options = WorldOptions { memory_bytes: 16 << 20, evict: false, ..WorldOptions::default() };
    let mut world = World::new(options);
    let (first, second) = (world.connect(), world.connect());
    // The line comes in several pieces. Their memory is then free for the next connection.
    assert_eq!(world.ask(&first, &long_line(50_000)), b"END\r\n");
    let budget = &world.shared.budget;
    budget.set_limit_bytes(budget.spent_bytes());
    assert_eq!(world.ask(&second, b"set k 0 0 100\r\nhalf of it"), b"");
    assert!(!second.is_closed(), "it asks for nothing that is not there");
    let rest = [b'r'; 90];
    let reply = world.ask(&second, &[&rest[..], b"\r\n"].concat());
    assert!(reply == b"STORED\r\n" || reply == b"SERVER_ERROR out of memory storing object\r\n");
    assert!(!second.is_closed());
}
