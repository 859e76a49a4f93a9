//! Keys that contain line ends: a listing or a line of the log that shows such a key remains one
//! line.

use kachel_io::FarEnd;
use kachel_testkit::{World, WorldOptions};
use kachel_wire::format::put_base64;

/// Each plants lines: an item, the end of a listing, a line of the log. The prefix of each is all
/// before its `:`.
const PLANTED: [&[u8]; 5] = [
    b"a\r\nITEM forged [1 b; 0 s]\r\nEND\r\n:k",
    b"b\nPREFIX forged get 9 hit 9 set 9 del 9\nEND\n:k",
    b"c\nkey=forged exp=-1 la=0 cas=0 fetch=no cls=1 size=1 flags=0\nEND\n:k",
    b"d\r\nmg forged\r\nEN\r\n:k",
    b"e\nts=1.000000 gid=1 type=item_get key=forged status=found clsid=1 cfd=1 size=1\n\x1b[2J\0:k",
];

/// Stores each planted key by a meta command, with its key in base64, or by the binary protocol.
fn plant(world: &mut World, is_binary: bool) {
    let client = world.connect();
    for key in PLANTED {
        let mut request = Vec::new();
        if is_binary {
            let head = [0x80, 0x01, 0, key.len() as u8, 8, 0, 0, 0];
            request.extend_from_slice(&head);
            request.extend_from_slice(&(key.len() as u32 + 8 + 1).to_be_bytes());
            request.extend_from_slice(&[0; 4 + 8 + 8]);
            request.extend_from_slice(key);
            request.push(b'x');
        } else {
            request.extend_from_slice(b"ms ");
            put_base64(&mut request, key);
            request.extend_from_slice(b" 1 b\r\nx\r\n");
        }
        let reply = world.ask(&client, &request);
        let expected: &[u8] = if is_binary { b"\x81\x01\0\0\0\0\0\0" } else { b"HD\r\n" };
        assert!(reply.starts_with(expected), "{}", reply.escape_ascii());
    }
}

/// The lines of a reply, without the last one, which is `end`.
fn lines(reply: &[u8], end: &str) -> Vec<String> {
    let text = std::str::from_utf8(reply).expect("keys of this test are shown in ASCII");
    let controls = text.chars().filter(|one| one.is_ascii_control() && !"\r\n".contains(*one));
    assert_eq!(controls.count(), 0, "{}", reply.escape_ascii());
    let mut lines: Vec<String> =
        text.split('\n').map(|line| line.trim_end_matches('\r').to_owned()).collect();
    assert_eq!(lines.pop().as_deref(), Some(""), "whole lines");
    assert_eq!(lines.pop().as_deref(), Some(end), "{lines:?}");
    lines
}

fn listed(world: &mut World, client: &FarEnd, request: &str, end: &str) -> Vec<String> {
    lines(&world.ask(client, format!("{request}\r\n").as_bytes()), end)
}

/// Checks that each line begins as a line of this listing does, and that there are as many as
/// expected.
fn check(lines: &[String], begins: &str, count: usize, about: &str) {
    for line in lines {
        assert!(line.starts_with(begins) && !line.contains(" forged"), "{about}: {lines:?}");
        assert!(!line.starts_with(&format!("{begins}forged")), "{about}: {lines:?}");
    }
    assert_eq!(lines.len(), count, "{about}: {lines:?}");
}

#[test]
fn no_key_of_a_client_ends_a_line_in_the_listing_of_another() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        for is_binary in [false, true] {
            let about = format!("{shards} shards, crew {crew}, binary {is_binary}");
            let options = WorldOptions { shards, crew, ..WorldOptions::default() };
            let mut world = World::new(options);
            let reader = world.connect();
            assert_eq!(world.ask(&reader, b"stats detail on\r\n"), b"OK\r\n");
            let watcher = world.connect();
            let streams = b"watch fetchers mutations evictions deletions\r\n";
            assert_eq!(world.ask(&watcher, streams), b"OK\r\n");
            plant(&mut world, is_binary);
            assert_eq!(world.ask(&reader, b"set plain:k 0 0 1\r\nx\r\n"), b"STORED\r\n");

            // A lookup and a store each.
            let mut logged = watcher.read();
            logged.extend_from_slice(b"end\n");
            check(&lines(&logged, "end"), "ts=", 2 * (PLANTED.len() + 1), &about);

            // As in memcached, `cachedump` does not show a key that came in base64.
            let shown = if is_binary { PLANTED.len() + 1 } else { 1 };
            let mut dumped = Vec::new();
            for class in 1..8 {
                let request = format!("stats cachedump {class} 0");
                dumped.extend(listed(&mut world, &reader, &request, "END"));
            }
            check(&dumped, "ITEM ", shown, &about);
            let text = dumped.join(" ");
            assert!(text.contains("ITEM plain:k [1 b; 0 s]"), "{text}");
            assert_eq!(text.contains("ITEM b%0APREFIX%20forged%20"), is_binary, "{text}");

            let all = PLANTED.len() + 1;
            let prefixes = listed(&mut world, &reader, "stats detail dump", "END");
            check(&prefixes, "PREFIX ", all, &about);
            let end = "%0AEND%0A get 0 hit 0 set 1 del 0";
            assert!(prefixes.iter().any(|line| line.ends_with(end)), "{prefixes:?}");

            let mut items = listed(&mut world, &reader, "lru_crawler metadump all", "END");
            assert_eq!(items.remove(0), "OK");
            check(&items, "key=", all, &about);
            let mut keys = listed(&mut world, &reader, "lru_crawler mgdump all", "EN");
            assert_eq!(keys.remove(0), "OK");
            check(&keys, "mg ", all, &about);
        }
    }
}

/// The limit of `cachedump` counts lines that are shown.
#[test]
fn keys_that_are_not_shown_do_not_count_to_the_limit_of_a_cachedump() {
    let mut world = World::new(WorldOptions { shards: 3, ..WorldOptions::default() });
    plant(&mut world, false);
    let reader = world.connect();
    for key in 0..20 {
        let set = format!("set plain-key-of-the-same-class-{key:030} 0 0 1\r\nx\r\n");
        assert_eq!(world.ask(&reader, set.as_bytes()), b"STORED\r\n");
    }
    let classes = (1..8).filter(|class| {
        listed(&mut world, &reader, &format!("stats cachedump {class} 7"), "END").len() == 7
    });
    assert_eq!(classes.count(), 1, "all 20 have one class");
}

/// The binary protocol shows prefixes as text within one statistic.
#[test]
fn prefixes_in_a_statistic_of_the_binary_protocol_end_no_line() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, b"stats detail on\r\n"), b"OK\r\n");
    plant(&mut world, true);
    let reader = world.connect();
    let mut request = vec![0x80, 0x10, 0, 11, 0, 0, 0, 0, 0, 0, 0, 11];
    request.extend_from_slice(&[0; 12]);
    request.extend_from_slice(b"detail dump");
    let reply = world.ask(&reader, &request);
    let name = b"detailed";
    let at = reply.windows(name.len()).position(|part| part == name).expect("the statistic");
    let value = &reply[at + name.len()..reply.len() - 24];
    check(&lines(value, "END"), "PREFIX ", PLANTED.len(), "binary");
}
