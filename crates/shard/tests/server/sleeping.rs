//! Shards whose clients are quiet: which of them sleep, and which have work.

use kachel_engine::{EngineIndex, Seeds};
use kachel_io::{FarEnd, Wait};
use kachel_net::ClientLimits;
use kachel_shard::PlainOptions;
use kachel_testkit::{World, WorldOptions, is_rest};

const SHARDS: u16 = 64;
const CLIENTS: usize = 1000;
/// The longest sleep of the timekeeper.
const NAP_NS: u64 = 100_000_000;

fn server(limits: ClientLimits) -> (World, Vec<FarEnd>) {
    let mut world = World::new(WorldOptions {
        shards: SHARDS,
        plain: PlainOptions { connections_max: 2000, ..PlainOptions::default() },
        memory_bytes: 256 << 20,
        seeds: Seeds { hash_keys: [5, 6] },
        limits,
        ..WorldOptions::default()
    });
    let clients: Vec<FarEnd> = (0..CLIENTS).map(|_| world.connect()).collect();
    world.settle(); // A client that says nothing at once is handed over.
    for (number, client) in clients.iter().enumerate() {
        client.write(format!("set k{number} 0 20 3\r\nabc\r\n").as_bytes());
    }
    world.settle();
    assert!(clients.iter().all(|client| client.read() == b"STORED\r\n"));
    (world, clients)
}

/// Lets seconds pass. Returns how often each shard ran.
fn pass(world: &mut World, seconds: u64) -> Vec<u64> {
    let mut ran = vec![0; usize::from(SHARDS)];
    for _ in 0..seconds * 1_000_000_000 / NAP_NS {
        world.clock.advance_ns(NAP_NS);
        for (shard, ran) in world.shards.iter_mut().zip(&mut ran) {
            let mut wait = shard.prepare_wait();
            while wait != Wait::Forever || shard.io_mut().stir() {
                shard.complete_tick(wait).expect("memory never fails");
                *ran += 1;
                wait = shard.prepare_wait();
                if wait != Wait::Now {
                    break;
                }
            }
        }
    }
    ran
}

#[test]
fn only_the_timekeeper_runs_while_all_clients_are_quiet() {
    let (mut world, _clients) = server(ClientLimits { idle_s: 0, ..ClientLimits::default() });
    pass(&mut world, 5);
    let ran = pass(&mut world, 10);
    assert!((100..=110).contains(&ran[0]), "{ran:?}");
    assert_eq!(ran[1..].iter().sum::<u64>(), 0, "{ran:?}");
}

#[test]
fn what_has_expired_is_given_back_although_its_shard_sleeps() {
    let (mut world, _clients) = server(ClientLimits { idle_s: 0, ..ClientLimits::default() });
    let items = |world: &World| world.sum_of_engines(|counters| &counters.items);
    assert_eq!(items(&world), CLIENTS as u64);
    pass(&mut world, 40);
    assert_eq!(items(&world), 0, "all had a TTL of 20 seconds");
}

#[test]
fn a_client_that_is_late_is_closed_by_a_shard_that_would_sleep() {
    let limits = ClientLimits { idle_s: 0, line_s: 3, ..ClientLimits::default() };
    let (mut world, clients) = server(limits);
    pass(&mut world, 5);
    clients[17].write(b"get half a li");
    let ran = pass(&mut world, 8);
    assert!(clients[17].is_closed(), "{ran:?}");
    assert!(ran[1..].iter().filter(|ran| **ran > 0).count() == 1, "one shard was needed: {ran:?}");
    let (mut world, clients) = server(ClientLimits { idle_s: 4, ..ClientLimits::default() });
    pass(&mut world, 8);
    assert!(clients.iter().all(FarEnd::is_closed), "they are idle");
}

#[test]
fn a_core_whose_upkeep_waits_for_a_held_engine_sleeps_until_its_release() {
    let options = WorldOptions { shards: 2, stays: true, ..WorldOptions::default() };
    let mut world = World::new(options);
    let client = world.connect();
    let engines = std::sync::Arc::clone(&world.engines);
    let mut woken = 0;
    for round in 0..400 {
        let sets = (0..64).map(|number| format!("set k{round}-{number} 0 0 1 noreply\r\nv\r\n"));
        client.write(sets.collect::<String>().as_bytes());
        world.turn_of(0);
        let held = engines.hold(EngineIndex(0)).expect("nobody holds it between ticks");
        world.turn_of(0);
        let shard = &mut world.shards[0];
        if is_rest(shard.prepare_wait()) {
            assert!(!shard.io_mut().stir(), "it sleeps while the engine is held");
            drop(held);
            woken += usize::from(shard.io_mut().stir());
        }
    }
    assert!(woken > 0, "no upkeep waited for the engine");
    world.settle();
}
