//! `--roles`: threads with clients and threads with keys, as real threads.

use std::path::Path;

use kachel_testkit::Launch;

#[test]
fn clients_of_a_divided_server_store_and_read_values_of_all_sizes() {
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let server = Launch::memcached(program, &["--roles=net=1,shard=2", "-m", "64"]).start();
    let mut clients = [server.connect(), server.connect()];
    for number in 0..60 {
        let key = format!("key{number}");
        let value = vec![b'v'; 1 + number * 1_500];
        clients[number % 2].set(&key, &value);
        assert_eq!(clients[1 - number % 2].get(&key).as_ref(), Some(&value), "{key}");
    }
    let stats = clients[0].stats();
    assert_eq!(stats["threads"], "3");
    let parked: u64 = stats["kachel_parked"].parse().expect("a number");
    assert!(parked >= 120, "a thread with clients executes no request: {parked}");
    assert_eq!((&*stats["kachel_reads_beside"], &*stats["kachel_writes_beside"]), ("0", "0"));
}
