//! Clients that read slowly, behind a kernel that buffers many bytes for them: which stay
//! connected, and which count as stopped.

use kachel_io::FarEnd;
use kachel_net::STALLED_READER_SECONDS_MAX;

use kachel_testkit::{World, WorldOptions};

const VALUE_BYTES: usize = 900_000;
/// Buffers of a connection, as TCP grows them on a fast network.
const BUFFER_BYTES: usize = 4 << 20;
/// Far less than frees a third of them in the minute that a client has.
const SLOW_BYTES: usize = 10_000;

/// A client that is owed more than the buffers hold, which are full.
fn owed(world: &mut World) -> FarEnd {
    let client = world.connect();
    let value = "v".repeat(VALUE_BYTES);
    world.ask(&client, format!("set k 0 0 {VALUE_BYTES}\r\n{value}\r\n").as_bytes());
    client.put_buffer(BUFFER_BYTES);
    client.write("get k\r\n".repeat(20).as_bytes());
    world.settle();
    client
}

/// A second goes by, in which the client takes `bytes`.
fn second(world: &mut World, client: &FarEnd, bytes: usize) {
    client.drain(bytes);
    world.clock.advance_s(1);
    world.settle();
}

#[test]
fn a_client_that_reads_slowly_and_without_pause_lives_on() {
    for shards in [1, 2] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let client = owed(&mut world);
        let mut read = 0;
        for passed in 0..900 {
            second(&mut world, &client, SLOW_BYTES);
            read += client.read().len();
            assert!(!client.is_closed(), "after {passed} s, {shards} shards");
        }
        assert_eq!(read, 900 * SLOW_BYTES, "it gets what it reads");
    }
}

#[test]
fn a_client_whose_reading_shows_only_now_and_then_lives_on() {
    /// Seconds from one announcement of room by the client's kernel to the next.
    const GAP_S: usize = 52;
    let mut world = World::new(WorldOptions::default());
    let client = owed(&mut world);
    for passed in 0..20 * GAP_S {
        let shown = if passed % GAP_S == GAP_S - 1 { GAP_S * SLOW_BYTES } else { 0 };
        second(&mut world, &client, shown);
        assert!(!client.is_closed(), "after {passed} s");
    }
}

#[test]
fn a_client_that_reads_slowly_and_stops_is_closed() {
    for reads_s in [0, 2, 7, 100] {
        let mut world = World::new(WorldOptions::default());
        let client = owed(&mut world);
        (0..reads_s).for_each(|_| second(&mut world, &client, SLOW_BYTES));
        for passed in 0..STALLED_READER_SECONDS_MAX {
            second(&mut world, &client, 0);
            assert!(!client.is_closed(), "after {passed} s without reading");
        }
        // Its last bytes were seen to go by a quarter of that time later.
        let seen_s = if reads_s == 0 { 0 } else { STALLED_READER_SECONDS_MAX / 4 };
        (0..=seen_s).for_each(|_| second(&mut world, &client, 0));
        assert!(client.is_closed(), "it has read for {reads_s} s");
    }
}
