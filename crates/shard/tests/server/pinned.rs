//! Clients that hold large values and read them slowly: which are closed, and when.

use kachel_io::FarEnd;

use kachel_testkit::{World, WorldOptions};

const VALUE_BYTES: usize = 900_000;
const MEMORY_BYTES: u64 = 30 << 20;
/// Readers of a value each that hold a quarter of memory: the ninth is too many, with the segments
/// in which the values' rests and heads lie.
const READERS_MAX: usize = 8;
/// For this number of seconds no client is closed. In the next second, clients that read nothing
/// are.
const GRACE_S: usize = 3;

fn world(shards: u16) -> World {
    World::new(WorldOptions { shards, memory_bytes: MEMORY_BYTES, ..WorldOptions::default() })
}

fn set(world: &mut World, client: &FarEnd, key: &str) -> Vec<u8> {
    let value = "v".repeat(VALUE_BYTES);
    world.ask(client, format!("set {key} 0 0 {VALUE_BYTES}\r\n{value}\r\n").as_bytes())
}

/// Clients that each request a value of their own, `times` times, and read nothing of it yet.
fn readers(world: &mut World, count: usize, times: usize) -> Vec<FarEnd> {
    let filler = world.connect();
    for reader in 0..count {
        assert_eq!(set(world, &filler, &format!("k{reader}")), b"STORED\r\n");
    }
    let readers: Vec<FarEnd> = (0..count).map(|_| world.connect()).collect();
    // They stay where they are taken to.
    readers.iter().for_each(|reader| assert_eq!(world.ask(reader, b"mn\r\n"), b"MN\r\n"));
    for (number, reader) in readers.iter().enumerate() {
        reader.stall();
        reader.write(format!("get{}\r\n", format!(" k{number}").repeat(times)).as_bytes());
    }
    world.settle();
    readers
}

/// A second goes by, in which reader `number` takes `bytes(number)`.
fn second(world: &mut World, readers: &[FarEnd], bytes: impl Fn(usize) -> usize) {
    for (number, reader) in readers.iter().enumerate() {
        reader.allow(bytes(number));
    }
    world.settle();
    world.clock.advance_s(1);
    // One is closed a tick.
    (0..=readers.len()).for_each(|_| world.turn());
    world.settle();
}

fn pinned_bytes(world: &mut World, client: &FarEnd) -> u64 {
    let stats = String::from_utf8(world.ask(client, b"stats kachel\r\n")).expect("text");
    let found = stats.lines().find_map(|line| line.strip_prefix("STAT kachel_pinned_bytes "));
    found.expect("it is told").parse().expect("a number")
}

fn closed(readers: &[FarEnd]) -> Vec<usize> {
    (0..readers.len()).filter(|&number| readers[number].is_closed()).collect()
}

#[test]
fn the_slowest_are_closed_until_what_is_pinned_is_a_quarter_of_memory() {
    for shards in [1, 3] {
        let mut world = world(shards);
        let readers = readers(&mut world, READERS_MAX + 3, 10);
        // The last is the slowest; in four seconds each takes a block of 16 pieces more than the
        // next.
        let pace = |number| (READERS_MAX + 3 - number) << 16;
        for passed in 0..GRACE_S {
            second(&mut world, &readers, pace);
            assert_eq!(closed(&readers), [0; 0], "{shards} shards, {passed} seconds");
        }
        for _ in 0..10 {
            second(&mut world, &readers, pace);
        }
        // Connections go to the shards in turn, and each shard closes the slowest of its own.
        let closed = closed(&readers);
        assert_eq!(closed.len(), 3, "{closed:?} of {shards} shards");
        for slower in closed.iter().map(|number| number + usize::from(shards)) {
            assert!(slower >= readers.len() || closed.contains(&slower), "{closed:?}");
        }
        assert_eq!(world.sum(|counters| &counters.pinned_closes), 3);
        // The others have lost nothing.
        for number in (0..readers.len()).filter(|number| !closed.contains(number)) {
            readers[number].allow_all();
            world.settle();
            let value = format!("VALUE k{number} 0 {VALUE_BYTES}\r\n").len() + VALUE_BYTES + 2;
            assert_eq!(readers[number].read().len(), 10 * value + "END\r\n".len());
        }
    }
}

#[test]
fn nobody_is_closed_while_a_quarter_of_memory_or_less_is_pinned() {
    let mut world = world(1);
    let readers = readers(&mut world, READERS_MAX, 1);
    for _ in 0..50 {
        second(&mut world, &readers, |_| 0);
    }
    assert_eq!(closed(&readers), [0; 0]);
}

#[test]
fn who_reads_at_a_fair_rate_is_never_closed_whatever_others_hold() {
    let mut world = world(2);
    let readers = readers(&mut world, 20, 100);
    for _ in 0..30 {
        second(&mut world, &readers, |number| if number < 15 { 1 << 20 } else { 0 });
        assert!(closed(&readers).iter().all(|&number| number >= 15), "{:?}", closed(&readers));
    }
    assert_eq!(closed(&readers), [15, 16, 17, 18, 19]);
    assert!(readers[..15].iter().all(|reader| reader.read().len() > 25 << 20));
}

#[test]
fn readers_who_pin_all_memory_stop_nobody_from_storing_for_long() {
    for shards in [1, 2] {
        let mut world = world(shards);
        let readers = readers(&mut world, 40, 3);
        let client = world.connect();
        let before = pinned_bytes(&mut world, &client);
        assert!(before > MEMORY_BYTES / 10 * 8, "{before} bytes are pinned");
        (0..=GRACE_S).for_each(|_| second(&mut world, &readers, |_| 0));
        let behind = pinned_bytes(&mut world, &client);
        assert!(
            (MEMORY_BYTES / 5..=MEMORY_BYTES / 4).contains(&behind),
            "{behind} bytes still are"
        );
        for number in 0..100 {
            assert_eq!(set(&mut world, &client, &format!("new{number}")), b"STORED\r\n");
        }
    }
}
