//! Clients that must log in by SASL: which replies they get, and that they get nothing else before.
//! The replies are those that the source of 1.6.45 sends.

use std::net::{Ipv4Addr, SocketAddr};

use kachel_io::{FarEnd, Peer};
use kachel_net::{ClientLimits, ClientProtocol, Endpoint, Mechanisms, USERS_KEY_BYTES, Users};
use kachel_testkit::{World, WorldOptions, scram_first, scram_proof};
use kachel_wire::{MECHANISM_BYTES_MAX, SASL_MESSAGE_BYTES_MAX};

const LIST: u8 = 0x20;
const AUTH: u8 = 0x21;
const STEP: u8 = 0x22;
const SCRAM: &[u8] = b"SCRAM-SHA-256";

/// A request, or with the magic of a reply a reply.
fn packet([magic, opcode]: [u8; 2], status: u16, key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len();
    let mut packet = vec![magic, opcode];
    packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(&status.to_be_bytes());
    packet.extend_from_slice(&(body as u32).to_be_bytes());
    packet.extend_from_slice(b"opaq");
    packet.extend_from_slice(&[0; 8]);
    [&packet, key, value].concat()
}

fn request(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    packet([0x80, opcode], 0, key, value)
}

fn reply(opcode: u8, status: u16, body: &[u8]) -> Vec<u8> {
    packet([0x81, opcode], status, b"", body)
}

fn plain(message: &[u8]) -> Vec<u8> {
    request(AUTH, b"PLAIN", message)
}

/// A login with the right password.
fn login() -> Vec<u8> {
    plain(b"\0alice\0secret")
}

/// A login with a wrong password.
fn guess() -> Vec<u8> {
    plain(b"\0alice\0guess")
}

fn known(opcode: u8) -> Vec<u8> {
    reply(opcode, 0, b"Authenticated")
}

fn failed(opcode: u8) -> Vec<u8> {
    reply(opcode, 0x20, b"Auth failure.")
}

fn invalid(opcode: u8) -> Vec<u8> {
    reply(opcode, 0x04, b"Invalid arguments")
}

fn version() -> Vec<u8> {
    request(0x0b, b"", b"")
}

fn get() -> Vec<u8> {
    request(0x00, b"a", b"")
}

fn miss() -> Vec<u8> {
    reply(0x00, 1, b"Not found")
}

fn users(text: &[u8]) -> Users {
    let users = Users::read_for_sasl(text, [3; USERS_KEY_BYTES], Mechanisms::All, &|| false);
    users.expect("a good file")
}

fn world(options: WorldOptions) -> World {
    let protocol = ClientProtocol::Binary;
    let world = World::new(WorldOptions { asks_login: true, protocol, ..options });
    world.shared.set_users(users(b"alice:secret\nbob:pw:more\n"));
    world
}

/// Sends each row's request from one client, and checks that it gets the row's reply.
#[track_caller]
fn converse(world: &mut World, client: &FarEnd, rows: &[(Vec<u8>, Vec<u8>)]) {
    for (row, (asked, expected)) in rows.iter().enumerate() {
        let got = world.ask(client, asked);
        assert_eq!(got.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{row}");
    }
}

/// The body of the only reply, which has the client go on.
#[track_caller]
fn challenge(got: &[u8], opcode: u8) -> Vec<u8> {
    let body = got.get(24..).expect("a reply").to_vec();
    assert_eq!(got, reply(opcode, 0x21, &body));
    body
}

/// Sends both messages of SCRAM. Returns the reply to the second one.
fn prove(world: &mut World, client: &FarEnd, user: &str, password: &str) -> Vec<u8> {
    let told = world.ask(client, &request(AUTH, SCRAM, &scram_first(user)));
    let proof = scram_proof(user, password, &challenge(&told, AUTH));
    world.ask(client, &request(STEP, SCRAM, &proof))
}

#[test]
fn the_version_and_the_mechanisms_are_told_before_the_login_and_all_after_it() {
    let mut world = world(WorldOptions::default());
    let client = world.connect();
    let rows = [
        (version(), reply(0x0b, 0, b"1.6.45")),
        (request(LIST, b"", b""), reply(LIST, 0, b"PLAIN SCRAM-SHA-256")),
        (login(), known(AUTH)),
        (get(), miss()),
        (version(), reply(0x0b, 0, b"1.6.45")),
        (request(LIST, b"", b""), reply(LIST, 0, b"PLAIN SCRAM-SHA-256")),
        (get(), miss()),
        (request(0x07, b"", b""), reply(0x07, 0, b"")),
    ];
    converse(&mut world, &client, &rows);
    assert!(client.is_closed());
    assert_eq!(world.sum(|counters| &counters.auth_cmds), 1);
    assert_eq!(world.sum(|counters| &counters.auth_errors), 0);
}

/// Also with opcodes that nobody knows, quiet ones, and lengths that are wrong.
#[test]
fn every_other_request_before_the_login_is_refused_and_closes() {
    let mut world = world(WorldOptions::default());
    for opcode in (0..=u8::MAX).filter(|opcode| !matches!(opcode, 0x0b | LIST..=STEP)) {
        for (key, value) in [(&b""[..], &b""[..]), (b"a", b"value"), (&[b'k'; 251], b"")] {
            let client = world.connect();
            let said = [request(opcode, key, value), login(), get()].concat();
            assert_eq!(world.ask(&client, &said), failed(opcode), "{opcode:#x}");
            assert!(client.is_closed(), "{opcode:#x}");
        }
    }
    assert_eq!(world.sum(|counters| &counters.sets), 0);
    assert_eq!(world.sum(|counters| &counters.auth_cmds), 0, "no login was tried");
}

#[test]
fn text_is_closed_without_a_reply() {
    let mut world = world(WorldOptions::default());
    for said in [&b"get a\r\n"[..], b"set x 0 0 12\r\nalice secret\r\n", b"\x81", b"\n"] {
        let client = world.connect();
        assert_eq!(world.ask(&client, said), b"");
        assert!(client.is_closed());
    }
}

#[test]
fn lengths_that_are_wrong_close() {
    let mut world = world(WorldOptions::default());
    let lying = |opcode, at: usize, byte: u8| {
        let mut request = request(opcode, b"PLAIN", b"\0alice\0secret");
        request[at] = byte;
        request
    };
    let rows = [
        (lying(AUTH, 2, 0xff), reply(AUTH, 0x81, b"Unknown command")),
        (lying(AUTH, 3, 19), reply(AUTH, 0x81, b"Unknown command")),
        (lying(STEP, 4, 255), reply(STEP, 0x81, b"Unknown command")),
        (lying(AUTH, 4, 1), invalid(AUTH)),
        (lying(AUTH, 3, 0), invalid(AUTH)),
        (lying(STEP, 3, 0), invalid(STEP)),
        (lying(AUTH, 8, 0x80), invalid(AUTH)),
        (request(LIST, b"k", b""), invalid(LIST)),
        (request(LIST, b"", b"v"), invalid(LIST)),
        (request(0x0b, b"", b"v"), invalid(0x0b)),
        (request(AUTH, &[b'm'; 251], b""), invalid(AUTH)),
    ];
    for logged_in in [false, true] {
        for (row, (said, expected)) in rows.iter().enumerate() {
            let client = world.connect();
            if logged_in {
                assert_eq!(world.ask(&client, &login()), known(AUTH));
            }
            assert_eq!(&world.ask(&client, said), expected, "{row}");
            assert!(client.is_closed(), "{row}");
        }
    }
}

#[test]
fn a_login_that_fails_may_be_tried_again() {
    let rows = [
        (guess(), failed(AUTH)),
        (plain(b"\0mallory\0secret"), failed(AUTH)),
        (plain(b"bob\0alice\0secret"), failed(AUTH)),
        (plain(b"\0alice\0secret\0"), failed(AUTH)),
        (plain(b"alice secret"), failed(AUTH)),
        (request(AUTH, b"GSSAPI", b"\0alice\0secret"), failed(AUTH)),
        (request(AUTH, b"PLAIN", &[0; SASL_MESSAGE_BYTES_MAX]), failed(AUTH)),
        (request(AUTH, b"PLAIN", &[b'x'; SASL_MESSAGE_BYTES_MAX + 1]), failed(AUTH)),
        (request(STEP, b"PLAIN", &[b'x'; 1_000_000]), failed(STEP)),
        (request(AUTH, SCRAM, b"n,,n=alice"), failed(AUTH)),
        (request(STEP, b"PLAIN", b"\0alice\0secret"), failed(STEP)),
        (request(STEP, SCRAM, b""), failed(STEP)),
    ];
    for (said, expected) in &rows {
        let mut world = world(WorldOptions::default());
        let client = world.connect();
        converse(&mut world, &client, &[(said.clone(), expected.clone()), (login(), known(AUTH))]);
        converse(&mut world, &client, &[(get(), miss())]);
        assert_eq!(world.sum(|counters| &counters.auth_cmds), 2);
        assert_eq!(world.sum(|counters| &counters.auth_errors), 1);
    }
}

/// As memcached, which does not count such a request as a login.
#[test]
fn a_name_of_a_mechanism_that_is_too_long_is_skipped() {
    let name = [b'm'; MECHANISM_BYTES_MAX + 1];
    for value in [&b""[..], b"\0alice\0secret", &[b'x'; 1_000_000]] {
        let mut world = world(WorldOptions::default());
        let client = world.connect();
        let rows = [
            (request(AUTH, &name, value), invalid(AUTH)),
            (request(STEP, &name, value), invalid(STEP)),
            (login(), known(AUTH)),
            (request(AUTH, &name, value), invalid(AUTH)),
            (get(), miss()),
        ];
        converse(&mut world, &client, &rows);
        assert_eq!(world.sum(|counters| &counters.auth_cmds), 1);
    }
}

#[test]
fn scram_takes_three_messages_and_the_server_proves_itself() {
    let mut world = world(WorldOptions::default());
    for (user, password) in [("alice", "secret"), ("bob", "pw")] {
        let client = world.connect();
        let told = prove(&mut world, &client, user, password);
        assert!(challenge(&told, STEP).starts_with(b"v="));
        let rows = [(request(STEP, SCRAM, b""), known(STEP)), (get(), miss())];
        converse(&mut world, &client, &rows);
    }
    assert_eq!(world.sum(|counters| &counters.auth_cmds), 2);
    assert_eq!(world.sum(|counters| &counters.auth_errors), 0);
    // A client may name a mechanism, and send its message next.
    for (message, expected) in [(&b"\0alice\0secret"[..], known(STEP)), (b"", failed(STEP))] {
        let client = world.connect();
        let rows =
            [(plain(b""), reply(AUTH, 0x21, b"")), (request(STEP, b"PLAIN", message), expected)];
        converse(&mut world, &client, &rows);
    }
    // Before its last message the client is not logged in.
    for ending in [get(), request(0x0a, b"", b"")] {
        let client = world.connect();
        prove(&mut world, &client, "alice", "secret");
        assert_eq!(world.ask(&client, &ending), failed(ending[1]));
        assert!(client.is_closed());
    }
}

#[test]
fn a_wrong_proof_ends_the_exchange() {
    let mut world = world(WorldOptions::default());
    for (user, password) in [("alice", "wrong"), ("mallory", "secret"), ("bob", "pw:more")] {
        let client = world.connect();
        assert_eq!(prove(&mut world, &client, user, password), failed(STEP));
        let rows = [(request(STEP, SCRAM, b""), failed(STEP)), (get(), failed(0x00))];
        converse(&mut world, &client, &rows);
        assert!(client.is_closed());
    }
    assert_eq!(world.sum(|counters| &counters.auth_errors), 6);
}

/// A proof is good for one challenge.
#[test]
fn a_recorded_login_is_worth_nothing() {
    let mut world = world(WorldOptions::default());
    let client = world.connect();
    let first = request(AUTH, SCRAM, &scram_first("alice"));
    let told = world.ask(&client, &first);
    let proof = scram_proof("alice", "secret", &challenge(&told, AUTH));
    let second = request(STEP, SCRAM, &proof);
    challenge(&world.ask(&client, &second), STEP);
    let thief = world.connect();
    assert_ne!(world.ask(&thief, &first), told);
    assert_eq!(world.ask(&thief, &second), failed(STEP));
}

/// Requests that change nothing in an exchange that has begun, and one that gives it up.
#[test]
fn an_exchange_survives_what_is_no_message_of_it() {
    let mut world = world(WorldOptions::default());
    for (between, survives) in [
        (version(), true),
        (request(LIST, b"", b""), true),
        (request(STEP, &[b'm'; MECHANISM_BYTES_MAX + 1], b""), true),
        (guess(), false),
        (request(AUTH, b"GSSAPI", b""), false),
        (request(STEP, SCRAM, &[b'x'; SASL_MESSAGE_BYTES_MAX + 1]), false),
    ] {
        let client = world.connect();
        let told = world.ask(&client, &request(AUTH, SCRAM, &scram_first("alice")));
        let proof = scram_proof("alice", "secret", &challenge(&told, AUTH));
        let _reply = world.ask(&client, &between);
        let told = world.ask(&client, &request(STEP, SCRAM, &proof));
        assert_eq!(told != failed(STEP), survives, "{}", between.escape_ascii());
    }
}

/// memcached overwrites replies that are pipelined with a login by `-Y`; here each has its reply.
#[test]
fn each_pipelined_request_has_its_reply_wherever_it_is_cut() {
    let list = request(LIST, b"", b"");
    let long = request(STEP, b"PLAIN", &[b'x'; SASL_MESSAGE_BYTES_MAX + 1]);
    let again = request(AUTH, b"plain", b"bob\0bob\0pw:more");
    let said = [list.clone(), guess(), login(), get(), long, again, get(), guess(), get()];
    let expected = [
        reply(LIST, 0, b"PLAIN SCRAM-SHA-256"),
        failed(AUTH),
        known(AUTH),
        miss(),
        failed(STEP),
        known(AUTH),
        miss(),
        failed(AUTH),
        failed(0x00),
    ];
    let said = said.concat();
    let expected = expected.concat();
    let mut world = world(WorldOptions::default());
    for cut in (0..said.len()).filter(|cut| !(400..1300).contains(cut) || cut % 97 == 0) {
        let client = world.connect();
        let got = [world.ask(&client, &said[..cut]), world.ask(&client, &said[cut..])].concat();
        assert_eq!(got.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{cut}");
        assert!(client.is_closed(), "the last login failed");
    }
}

#[test]
fn a_login_byte_by_byte_is_one_login() {
    let mut world = world(WorldOptions::default());
    let client = world.connect();
    for again in 0..2 {
        let login = login();
        let (last, most) = login.split_last().expect("bytes");
        for byte in most {
            assert_eq!(world.ask(&client, &[*byte]), b"", "{again}");
        }
        assert_eq!(world.ask(&client, &[*last]), known(AUTH), "{again}");
        assert_eq!(world.ask(&client, &get()), miss(), "{again}");
    }
}

/// As in memcached: a message of another login ends the one before.
#[test]
fn a_client_may_log_in_again_and_is_logged_out_if_that_fails() {
    for shards in [1, 3] {
        let mut world = world(WorldOptions { shards, ..WorldOptions::default() });
        let client = world.connect();
        let other = plain(b"\0bob\0pw");
        let rows = [(login(), known(AUTH)), (other, known(AUTH)), (get(), miss())];
        converse(&mut world, &client, &rows);
        for (ending, opcode) in
            [(guess(), AUTH), (request(STEP, SCRAM, b""), STEP), (plain(b"x"), AUTH)]
        {
            let client = world.connect();
            let rows = [
                (login(), known(AUTH)),
                (ending.clone(), failed(opcode)),
                (login(), known(AUTH)),
                (get(), miss()),
                (ending, failed(opcode)),
                (get(), failed(0x00)),
            ];
            converse(&mut world, &client, &rows);
            assert!(client.is_closed());
        }
        let client = world.connect();
        converse(&mut world, &client, &[(login(), known(AUTH))]);
        challenge(&world.ask(&client, &request(AUTH, SCRAM, &scram_first("alice"))), AUTH);
        converse(&mut world, &client, &[(get(), failed(0x00))]);
        assert!(client.is_closed(), "a login is under way");
    }
}

#[test]
fn clients_of_every_shard_must_log_in() {
    for crew in [true, false] {
        let mut world = world(WorldOptions { shards: 3, crew, ..WorldOptions::default() });
        let clients: Vec<FarEnd> = (0..9).map(|_| world.connect()).collect();
        world.settle();
        for client in &clients {
            let rows = [(login(), known(AUTH)), (get(), miss())];
            converse(&mut world, client, &rows);
        }
        let clients: Vec<FarEnd> = (0..9).map(|_| world.connect()).collect();
        for client in &clients {
            assert_eq!(world.ask(client, &get()), failed(0x00));
        }
        assert_eq!(world.sum(|counters| &counters.auth_cmds), 9);
    }
}

#[test]
fn new_users_replace_the_old_ones_for_later_logins() {
    let mut world = world(WorldOptions::default());
    let (early, late) = (world.connect(), world.connect());
    assert_eq!(world.ask(&early, &login()), known(AUTH));
    world.shared.set_users(users(b"alice:changed\n"));
    let rows = [(get(), miss()), (login(), failed(AUTH))];
    converse(&mut world, &early, &rows);
    let rows = [(login(), failed(AUTH)), (plain(b"\0alice\0changed"), known(AUTH))];
    converse(&mut world, &late, &rows);
}

#[test]
fn nobody_logs_in_where_there_are_no_users() {
    let protocol = ClientProtocol::Binary;
    let options = WorldOptions { asks_login: true, protocol, ..WorldOptions::default() };
    let mut world = World::new(options);
    let client = world.connect();
    let rows = [
        (request(LIST, b"", b""), reply(LIST, 0, b"")),
        (login(), failed(AUTH)),
        (plain(b"\0\0"), failed(AUTH)),
        (request(AUTH, SCRAM, &scram_first("alice")), failed(AUTH)),
        (get(), failed(0x00)),
    ];
    converse(&mut world, &client, &rows);
}

/// Without `-S`, as in 1.6.45.
#[test]
fn without_sasl_its_requests_are_unknown() {
    assert!(!Endpoint::default().asks_login);
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    let unknown = |opcode| reply(opcode, 0x81, b"Unknown command");
    let rows = [
        (request(LIST, b"", b""), unknown(LIST)),
        (login(), unknown(AUTH)),
        (request(STEP, b"PLAIN", &[b'x'; 5000]), unknown(STEP)),
        (get(), miss()),
    ];
    converse(&mut world, &client, &rows);
}

/// After how many seconds a client is closed that says `each_s` every second, after `first`.
fn closed_after_s(login_s: u32, first: &[Vec<u8>], each_s: &[u8]) -> Option<u32> {
    let limits = ClientLimits { login_s, ..ClientLimits::default() };
    let mut world = world(WorldOptions { limits, ..WorldOptions::default() });
    let client = world.connect();
    world.settle();
    for said in first {
        let _reply = world.ask(&client, said);
    }
    (1..=100).find(|_| {
        client.write(each_s);
        world.settle();
        drop(client.read());
        world.clock.advance_s(1);
        world.settle();
        client.is_closed()
    })
}

#[test]
fn a_client_that_does_not_log_in_is_closed_in_time() {
    let begins = request(AUTH, SCRAM, &scram_first("alice"));
    for said in [&b""[..], &version(), &guess(), &begins, &request(LIST, b"", b"")] {
        for (login_s, expected) in [(10, Some(11)), (3, Some(4)), (0, None)] {
            assert_eq!(closed_after_s(login_s, &[], said), expected, "{}", said.escape_ascii());
        }
    }
    assert_eq!(closed_after_s(10, &[login()], b""), None);
    assert_eq!(closed_after_s(10, &[login()], &get()), None);
    // A login that follows another one has the same time.
    assert_eq!(closed_after_s(10, &[login(), guess()], b""), Some(11));
    assert_eq!(closed_after_s(10, &[login(), begins], &version()), Some(11));
}

/// Guesses by both mechanisms count together, and a challenge costs no guess. `guessing` has the
/// rest.
#[test]
fn an_address_that_fails_often_must_wait() {
    let address = |last, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), port));
    for shards in [1, 3] {
        let mut world = world(WorldOptions { shards, ..WorldOptions::default() });
        let guessers: Vec<FarEnd> =
            (0..30).map(|n| world.connect_from(Peer::from(address(7, 1_000 + n)))).collect();
        let logged_in = world.connect_from(Peer::from(address(7, 900)));
        assert_eq!(world.ask(&logged_in, &login()), known(AUTH));
        for (number, guesser) in guessers.iter().enumerate() {
            if number % 2 == 0 {
                guesser.write(&guess().repeat(2));
            } else {
                let begins = request(AUTH, SCRAM, &scram_first("alice"));
                challenge(&world.ask(guesser, &begins), AUTH);
                guesser.write(&request(STEP, SCRAM, b"c=biws,r=x,p=AAAA"));
            }
        }
        world.settle();
        let failed_logins = |world: &World| world.sum(|counters| &counters.auth_errors);
        assert_eq!(failed_logins(&world), 5);
        // Another address does not wait, and neither does a client that has logged in.
        let other = world.connect_from(Peer::from(address(8, 1_000)));
        assert_eq!(world.ask(&other, &login()), known(AUTH));
        assert_eq!(world.ask(&logged_in, &get()), miss());
        // A client that has logged in before is no way around.
        logged_in.write(&guess());
        logged_in.write(&get());
        for second in 1..=5 {
            world.clock.advance_s(1);
            world.settle();
            assert!(failed_logins(&world) <= 5 + second);
        }
        assert!(failed_logins(&world) >= 5 + 4);
    }
}

#[test]
fn a_login_that_had_to_wait_is_answered_in_its_order() {
    let peer = Peer::from(SocketAddr::from((Ipv4Addr::new(10, 0, 0, 7), 1)));
    let mut world = world(WorldOptions::default());
    let client = world.connect_from(peer);
    let said = [&guess()[..], &version(), &login(), &get()].concat();
    let first = [failed(AUTH), reply(0x0b, 0, b"1.6.45")].concat();
    assert_eq!(world.ask(&client, &said), first);
    world.clock.advance_s(1);
    world.settle();
    assert_eq!(client.read(), [known(AUTH), miss()].concat());
}

/// The fault: these requests counted no work, also those of a client that has logged in.
#[test]
fn requests_of_logins_end_a_turn() {
    for (asked, expected) in [(version(), None), (login(), Some(known(AUTH)))] {
        let mut world = world(WorldOptions::default());
        let client = world.connect();
        let reply = world.ask(&client, &asked);
        assert!(expected.is_none_or(|expected| expected == reply));
        let before = world.sum(|counters| &counters.conn_yields);
        assert_eq!(world.ask(&client, &asked.repeat(300)), reply.repeat(300));
        assert!(world.sum(|counters| &counters.conn_yields) - before >= 2);
    }
}
