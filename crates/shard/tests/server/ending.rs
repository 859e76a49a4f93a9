//! A server that is told to end.

use kachel_io::FarEnd;
use kachel_shard::Turn;

use kachel_testkit::{World, WorldOptions};

/// More than any of it takes.
const TURNS_MAX: usize = 100;

/// One tick of a shard, unless it has ended.
fn tick(world: &mut World, shard: usize, turns: &mut [Turn]) {
    if turns[shard] == Turn::Again {
        turns[shard] = world.shards[shard].tick().expect("memory never fails");
    }
}

#[test]
fn a_client_that_comes_while_others_have_stopped_is_let_go() {
    let mut world = World::new(WorldOptions { shards: 3, ..WorldOptions::default() });
    let mut turns = [Turn::Again; 3];
    world.shared.stop();
    for shard in [1, 2, 1, 2] {
        tick(&mut world, shard, &mut turns);
    }
    // The first shard does not know yet, and deals them out.
    let clients: Vec<FarEnd> = (0..6).map(|_| world.connect()).collect();
    for turn in 0..3 * TURNS_MAX {
        tick(&mut world, turn % 3, &mut turns);
    }
    assert_eq!(turns, [Turn::Finished; 3]);
    assert!(clients.iter().all(FarEnd::is_finished));
}
