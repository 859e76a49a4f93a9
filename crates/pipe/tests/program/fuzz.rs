//! Random packets: the program answers only if the whole server, in memory, gives the same reply to
//! the same datagram; it changes nothing else.
//!
//! Upstream:   `cargo test`; `KACHEL_PIPE_PACKETS` says how many packets.
//! Downstream: the program; `kachel_testkit::World` as the judge.

use kachel_engine::{CopiedItem, Copies as _};
use kachel_pipe::Trial;
use kachel_testkit::{Random, World, WorldOptions};

use crate::bench::{Bench, now_ns};
use crate::packet::Packet;

/// The packets of a usual run. More take a third of a millisecond each.
const PACKETS: u64 = 6_000;
const KEYS: u64 = 24;

fn key(number: u64) -> Vec<u8> {
    let bytes = [1, 2, 5, 8, 12, 16, 33, 120][number as usize % 8];
    (0..bytes).map(|at| b'a' + ((number / 8 * 7 + at * 3) % 26) as u8).collect()
}

/// The server's answer to a datagram.
fn judge(world: &mut World, packet: &Packet) -> Option<Vec<u8>> {
    world.send_datagram(0, packet.from, &packet.payload);
    world.settle();
    let mut replies = world.take_datagrams(0);
    assert!(replies.len() <= 1, "one datagram is one reply here");
    replies.pop().map(|(_, payload)| payload)
}

/// Stores an item for each key in the server, and copies it.
fn fill(bench: &Bench, world: &mut World, dice: &mut Random) {
    for number in 0..KEYS {
        let key = key(number);
        let value: Vec<u8> = (0..dice.below(60)).map(|_| dice.below(256) as u8).collect();
        let client_flags = [0, 7, 4_294_967_295][number as usize % 3];
        let name = String::from_utf8(key.clone()).expect("letters");
        let mut set = format!("set {name} {client_flags} 0 {}\r\n", value.len()).into_bytes();
        set.extend([&value[..], b"\r\n"].concat());
        assert!(
            judge(world, &Packet::request(1, &set))
                .is_some_and(|reply| reply.ends_with(b"STORED\r\n"))
        );
        let shown = judge(world, &Packet::request(1, format!("mg {name} c\r\n").as_bytes()));
        let shown = String::from_utf8(shown.expect("a reply")[8..].to_vec()).expect("text");
        let cas = shown.trim().strip_prefix("HD c").expect("a token").parse().expect("a number");
        let key = bench.hasher.key(&key);
        let item = CopiedItem { key, value: &value, client_flags, cas, expiry: 0 };
        bench.pipe.publish(bench.pipe.stamp().expect("no flush"), &item);
    }
}

/// A request that is often one that the program knows.
fn text(dice: &mut Random) -> Vec<u8> {
    let name = key(dice.below(KEYS + 2));
    let verb: &[u8] =
        dice.pick(&[&b"get "[..], b"get ", b"gets ", b"mg ", b"mg ", b"gat ", b"delete_ "]);
    if dice.percent(30) {
        let opcode = dice.pick(&[0_u8, 0, 9, 0x0c, 0x0d, 0x0a, 0x1d, 0x04]);
        let mut request = vec![0x80, opcode, 0, name.len() as u8, 0, 0, 0, 0];
        request.extend((name.len() as u32).to_be_bytes());
        request.extend((dice.bits() as u32).to_be_bytes());
        request.extend([0; 8]);
        request.extend(name);
        return request;
    }
    let mut line = [verb, &name].concat();
    if verb == b"mg " {
        for _ in 0..dice.below(7) {
            line.push(b' ');
            line.push(dice.pick(b"vvvvffsckkqthlOb"));
        }
    }
    let further = match verb {
        b"get " | b"gets " if dice.percent(40) => 1 + dice.below(4),
        _ => u64::from(dice.percent(5)),
    };
    for _ in 0..further {
        line.extend([b" ", &key(dice.below(KEYS))[..]].concat());
    }
    line.extend(dice.pick(&[
        &b"\r\n"[..],
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\n",
        b" \r\n",
        b"\r\n\r\n",
    ]));
    line
}

/// Changes some bytes of a request.
fn damage(payload: &mut Vec<u8>, dice: &mut Random) {
    for _ in 0..dice.below(3) {
        let at = dice.index(payload.len());
        match dice.below(4) {
            0 => payload[at] = dice.bits() as u8,
            1 => payload[at] ^= 1 << dice.below(8),
            2 => payload.insert(at, dice.pick(b" \r\nvkgx\0\x80")),
            _ => drop(payload.remove(at)),
        }
    }
}

#[test]
fn what_the_pipe_answers_is_what_the_server_answers() {
    let Some(mut bench) = Bench::new() else { return };
    let packets = kachel_testkit::setting("KACHEL_PIPE_PACKETS", PACKETS);
    let seed = kachel_testkit::setting("KACHEL_SEED", 18);
    let mut dice = Random::new(seed);
    let mut world = World::new(WorldOptions { udp: Some(1), ..WorldOptions::default() });
    fill(&bench, &mut world, &mut dice);
    let (mut answered, mut plain_answered, mut changed_answered) = (0, 0, 0);
    let mut answered_with = [0_u64; 8];
    for number in 0..packets {
        if number % 1_000 == 0 {
            bench.pipe.tick(2, now_ns()); // A server that is silent for 4 seconds is not answered for.
        }
        let request = if dice.percent(70) { Packet::request } else { Packet::request6 };
        let mut packet = request(dice.bits() as u16, &text(&mut dice));
        let is_damaged = dice.percent(40);
        if is_damaged {
            damage(&mut packet.payload, &mut dice);
        }
        let bytes = packet.bytes();
        match bench.run(&bytes) {
            Trial::Answered(reply) => {
                let reply = Packet::read(&reply);
                assert_eq!((reply.from, reply.to), (packet.to, packet.from));
                let items = reply.payload.windows(6).filter(|six| six == b"VALUE ").count();
                let judged = judge(&mut world, &packet);
                assert_eq!(
                    judged,
                    Some(reply.payload),
                    "packet {number} of seed {seed}: {packet:?}"
                );
                answered_with[items.min(7)] += 1;
                answered += 1;
                plain_answered += u64::from(!is_damaged);
                changed_answered += u64::from(is_damaged);
            }
            other => assert_eq!(other, Trial::Passed(bytes), "packet {number} of seed {seed}"),
        }
    }
    println!("{packets} packets, {answered} answered: {:?}", bench.pipe.counts());
    println!("answered by the number of items: {answered_with:?}");
    assert!(answered_with[2..5].iter().all(|count| *count >= packets / 2_000), "several keys");
    assert!(plain_answered > packets / 20 && changed_answered > packets / 100, "some of each kind");
}
