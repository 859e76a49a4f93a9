//! Servers in which some cores have the clients, and the others have the keys.

use kachel_testkit::{World, WorldOptions};

const NET: u16 = 2;

fn divided() -> World {
    World::new(WorldOptions {
        shards: NET + 2,
        crew: false,
        net_cores: Some(NET),
        memory_bytes: 8 << 20,
        ..WorldOptions::default()
    })
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
