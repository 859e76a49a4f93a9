//! A server that is told to end.

use std::net::{Ipv4Addr, SocketAddr};

use kachel_engine::EngineIndex;
use kachel_io::{FarEnd, Wait};
use kachel_shard::{AfterTick, PlainOptions};
use kachel_wire::{Frame, Reply};

use kachel_testkit::{World, WorldOptions};

/// More than any of it takes.
const TURNS_MAX: usize = 100;

/// The longest time that clients should miss a server because a shard sleeps.
const SOON_NS: u64 = 10_000_000;

/// One tick of a shard, unless it has ended.
fn tick(world: &mut World, shard: usize, turns: &mut [AfterTick]) {
    if turns[shard] == AfterTick::Again {
        turns[shard] = world.shards[shard].tick().expect("memory never fails");
    }
}

#[test]
fn a_client_that_comes_while_others_have_stopped_is_let_go() {
    let mut world = World::new(WorldOptions { shards: 3, ..WorldOptions::default() });
    let mut turns = [AfterTick::Again; 3];
    world.shared.stop();
    for shard in [1, 2, 1, 2] {
        tick(&mut world, shard, &mut turns);
    }
    // The first shard does not know yet, and deals them out.
    let clients: Vec<FarEnd> = (0..6).map(|_| world.connect()).collect();
    for turn in 0..3 * TURNS_MAX {
        tick(&mut world, turn % 3, &mut turns);
    }
    assert_eq!(turns, [AfterTick::Finished; 3]);
    assert!(clients.iter().all(FarEnd::is_finished));
}

#[test]
fn a_shard_that_waits_for_the_last_client_of_another_looks_again_soon() {
    let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
    let mut turns = [AfterTick::Again; 2];
    world.shared.stop();
    // The other shard has not stopped, so it may still have clients.
    for _ in 0..TURNS_MAX {
        tick(&mut world, 0, &mut turns);
    }
    assert_eq!(turns[0], AfterTick::Again);
    let Wait::AtMostNs(ns) = world.shards[0].prepare_wait() else { panic!("it has nothing to do") };
    assert!(ns <= SOON_NS, "{ns}");
    for _ in 0..TURNS_MAX {
        tick(&mut world, 1, &mut turns);
        tick(&mut world, 0, &mut turns);
    }
    assert_eq!(turns, [AfterTick::Finished; 2]);
}

#[test]
fn a_reply_that_was_begun_is_finished() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    let value = vec![b'v'; 10_000];
    let keys: Vec<String> = (0..1_000).map(|key| format!("k{key}")).collect();
    for key in &keys {
        let set = [format!("set {key} 0 0 10000\r\n").as_bytes(), &value, b"\r\n"].concat();
        assert_eq!(world.ask(&client, &set), b"STORED\r\n");
    }
    // The client reads so little that the line waits for it in the middle.
    client.stall();
    client.allow(10);
    client.write(format!("get {}\r\n", keys.join(" ")).as_bytes());
    (0..TURNS_MAX).for_each(|_| world.turn());
    world.shared.stop();
    client.allow_all();
    let mut turns = [AfterTick::Again];
    for _ in 0..TURNS_MAX * TURNS_MAX {
        tick(&mut world, 0, &mut turns);
    }
    let reply = client.read();
    assert_eq!(turns, [AfterTick::Finished]);
    assert!(reply.len() > 1_000 * 10_000 && reply.ends_with(b"END\r\n"), "{} bytes", reply.len());
}

/// A client beyond the limit gets a line, and has as long to take it as others for their replies.
#[test]
fn the_end_waits_for_a_rejected_client_until_clients_are_given_up() {
    for takes_it in [true, false] {
        let options = WorldOptions {
            plain: PlainOptions { connections_max: 1, ..PlainOptions::default() },
            ..WorldOptions::default()
        };
        let mut world = World::new(options);
        let served = world.connect();
        world.settle();
        let rejected = world.connect();
        rejected.stall();
        (0..TURNS_MAX).for_each(|_| world.turn());
        world.shared.stop();
        let mut turns = [AfterTick::Again];
        (0..TURNS_MAX).for_each(|_| tick(&mut world, 0, &mut turns));
        assert!(served.is_closed() && !rejected.is_closed() && turns == [AfterTick::Again]);
        if takes_it {
            rejected.allow_all();
        } else {
            world.shared.give_up_clients();
        }
        (0..TURNS_MAX).for_each(|_| tick(&mut world, 0, &mut turns));
        let line = if takes_it { Reply::TooManyConnections.bytes() } else { b"" };
        assert_eq!(rejected.read(), line);
        assert!(rejected.is_closed() && turns == [AfterTick::Finished]);
    }
}

/// A client that is given up leaves requests with another shard. They are executed, and its own
/// shard waits for the answers.
#[test]
fn requests_of_a_client_that_is_given_up_are_executed_before_the_end() {
    let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
    let client = world.connect();
    assert_eq!(world.ask(&client, b"set first 0 0 1\r\nx\r\n"), b"STORED\r\n");
    let engines = std::sync::Arc::clone(&world.engines);
    let held = [0, 1].map(|shard| engines.hold(EngineIndex(shard)).expect("no core holds it"));
    (0..8).for_each(|key| client.write(format!("set k{key} 0 0 1\r\nx\r\n").as_bytes()));
    (0..TURNS_MAX).for_each(|_| world.turn());
    assert!(world.parked() > 0 && client.read().is_empty(), "the requests wait");
    world.shared.stop();
    let mut turns = [AfterTick::Again; 2];
    (0..TURNS_MAX).for_each(|turn| tick(&mut world, turn % 2, &mut turns));
    world.shared.give_up_clients();
    (0..TURNS_MAX).for_each(|turn| tick(&mut world, turn % 2, &mut turns));
    assert_eq!(turns, [AfterTick::Again; 2], "the requests are not executed yet");
    drop(held);
    (0..TURNS_MAX).for_each(|turn| tick(&mut world, turn % 2, &mut turns));
    assert_eq!(turns, [AfterTick::Finished; 2]);
    assert!(world.holdings().all(|held| held.reply_slots == 0), "nothing of the client is left");
    assert_eq!(world.holdings().map(|held| held.items).sum::<u64>(), 9);
}

/// An exchange of one shard still has requests for the other shard, which has no client itself.
#[test]
fn no_shard_ends_before_an_exchange_that_needs_it() {
    const KEYS: usize = 300; // More than the reply slots of an exchange.
    let udp = Some(16);
    let mut world = World::new(WorldOptions { shards: 2, crew: false, udp, ..Default::default() });
    let client = world.connect();
    let is_of_first = |world: &World| world.holdings().next().is_some_and(|first| first.items > 0);
    let keys: Vec<String> = (0..64).map(|key| format!("k{key}")).collect();
    let key = keys.iter().find(|key| {
        let set = format!("set {key} 0 0 1\r\nx\r\n");
        assert_eq!(world.ask(&client, set.as_bytes()), b"STORED\r\n");
        is_of_first(&world)
    });
    let key = key.expect("the first shard owns some keys");
    let frame = Frame { request_id: 7, sequence: 0, total: 1 };
    let get = format!("get {}\r\n", [key.as_str()].repeat(KEYS).join(" "));
    let peer = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 30_000));
    world.send_datagram(1, peer, &[&frame.bytes()[..], get.as_bytes()].concat());
    world.shared.stop();
    let mut turns = [AfterTick::Again; 2];
    tick(&mut world, 1, &mut turns);
    (0..TURNS_MAX).for_each(|_| tick(&mut world, 0, &mut turns));
    (0..TURNS_MAX).for_each(|turn| tick(&mut world, turn % 2, &mut turns));
    assert_eq!(turns, [AfterTick::Finished; 2]);
    let replies = world.take_datagrams(1);
    let reply: Vec<u8> = replies.iter().flat_map(|(_, datagram)| &datagram[8..]).copied().collect();
    let wanted = [format!("VALUE {key} 0 1\r\nx\r\n").repeat(KEYS), "END\r\n".into()].concat();
    assert!(reply == wanted.as_bytes(), "{} bytes of {}", reply.len(), wanted.len());
}
