//! Servers in which some cores have the clients, and the others have the keys.

use kachel_io::FarEnd;
use kachel_shard::PlainOptions;
use kachel_testkit::{World, WorldOptions};

const NET: u16 = 2;

fn divided_options() -> WorldOptions {
    WorldOptions {
        shards: NET + 2,
        crew: false,
        plain: PlainOptions { net_cores: Some(NET), ..PlainOptions::default() },
        memory_bytes: 8 << 20,
        ..WorldOptions::default()
    }
}

fn divided() -> World {
    World::new(divided_options())
}

#[test]
fn cores_of_shards_serve_no_client_and_net_cores_own_no_key() {
    let mut world = divided();
    let clients: Vec<_> = (0..6).map(|_| world.connect()).collect();
    let value = "v".repeat(2_000);
    for number in 0..8_000 {
        let client = &clients[number % clients.len()];
        let set = format!("set key{number} 0 0 2000\r\n{value}\r\n");
        assert_eq!(world.ask(client, set.as_bytes()), b"STORED\r\n");
        if number % 10 == 0 {
            let get = format!("get key{number}\r\n");
            let wanted = format!("VALUE key{number} 0 2000\r\n{value}\r\nEND\r\n");
            assert!(world.ask(client, get.as_bytes()) == wanted.as_bytes());
        }
    }
    let held: Vec<_> = world.holdings().collect();
    let (net, shards) = held.split_at(usize::from(NET));
    assert!(net.iter().all(|core| core.connections == 3 && core.items == 0), "{net:?}");
    assert!(shards.iter().all(|core| core.connections == 0 && core.evictions > 0), "{shards:?}");
    assert_eq!(world.parked(), 8_000 + 800, "a net core only parks");
    world.audit();
}

#[test]
fn a_net_core_receives_large_values_and_long_lines_while_memory_is_full() {
    let mut world = divided();
    let client = world.connect();
    let value = "v".repeat(1_000);
    for number in 0..8_000 {
        let set = format!("set key{number} 0 0 1000 noreply\r\n{value}\r\n");
        client.write(set.as_bytes());
    }
    world.settle();
    let large = "l".repeat(700_000);
    for number in 0..20 {
        let set = format!("set large{number} 0 0 {}\r\n{large}\r\n", large.len());
        assert_eq!(world.ask(&client, set.as_bytes()), b"STORED\r\n", "{number}");
    }
    // Its input is charged to the memory of the items, which this core cannot evict.
    let keys = " no-such-key-of-this-name".repeat(3_000);
    client.write(format!("get{keys}").as_bytes());
    world.settle();
    client.write(b"\r\nmn\r\n");
    world.settle();
    assert_eq!(client.read(), b"END\r\nMN\r\n");
    world.audit();
}

/// A net core cannot make room for long lines. A store could not either.
#[test]
fn long_lines_at_a_net_core_take_a_bounded_share_beyond_full_memory() {
    const LINE_BYTES: usize = 1 << 20;
    const OVERDRAFT_BYTES_PER_CORE: u64 = 1 << 20;
    for evict in [false, true] {
        let mut world = World::new(WorldOptions { evict, ..divided_options() });
        let filler = world.connect();
        let value = "v".repeat(1_000);
        for number in 0..10_000 {
            let set = format!("set key{number} 0 0 1000 noreply\r\n{value}\r\n");
            filler.write(set.as_bytes());
        }
        world.settle();
        let items = world.holdings().map(|core| core.items).sum::<u64>();
        assert!(items > 4_000, "memory is full: {items}");
        let clients: Vec<FarEnd> = (0..100).map(|_| world.connect()).collect();
        let line = format!("get{}", " no-such-key".repeat(LINE_BYTES / 12));
        for client in &clients {
            client.write(line.as_bytes());
            world.settle();
        }
        let overdrawn_bytes = world.shared.budget.overdrawn_bytes();
        assert!(
            overdrawn_bytes <= u64::from(NET + 2) * OVERDRAFT_BYTES_PER_CORE,
            "{overdrawn_bytes}"
        );
        let refused: Vec<_> = clients.iter().filter(|client| client.is_closed()).collect();
        assert!((50..100).contains(&refused.len()), "{} of 100", refused.len());
        let reply = b"SERVER_ERROR out of memory reading request\r\n";
        assert!(refused.iter().all(|client| client.read() == reply));
        clients.iter().for_each(FarEnd::reset);
        world.settle();
        assert_eq!(world.shared.budget.overdrawn_bytes(), 0, "all is refunded");
        world.audit();
    }
}
