//! Complete exchanges of SASL, and messages that are malformed or out of order.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kachel_testkit::{scram_first, scram_proof as proof, scram_proof_with};
use proptest::prelude::*;

use super::*;
use crate::users::{ScramKeys, USERS_KEY_BYTES};

/// Made once, because each of them takes thousands of hashes.
static USERS: LazyLock<Users> = LazyLock::new(|| {
    let text = b"user:pencil\nalice:secret\na,b=c:x\na:b";
    read(text)
});

fn read(text: &[u8]) -> Users {
    let users = Users::read_for_sasl(text, [5; USERS_KEY_BYTES], Mechanisms::All, &|| false);
    users.expect("a good file")
}

fn begin(exchange: &mut Exchange, mechanism: &str, message: &[u8]) -> SaslStep {
    let first = SaslMessage::First { mechanism: mechanism.as_bytes(), message };
    exchange.answer(&USERS, first, 9)
}

fn go_on(exchange: &mut Exchange, message: &[u8]) -> SaslStep {
    exchange.answer(&USERS, SaslMessage::Next(message), 10)
}

fn plain(message: &[u8]) -> SaslStep {
    begin(&mut Exchange::default(), "PLAIN", message)
}

fn challenge(exchange: &mut Exchange, user: &str) -> Vec<u8> {
    match begin(exchange, "SCRAM-SHA-256", &scram_first(user)) {
        SaslStep::Continue(message) => message,
        other => panic!("no challenge: {other:?}"),
    }
}

/// The example of RFC 7677, section 3.
#[test]
fn the_example_of_the_specification_is_proved() {
    let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64");
    let keys = ScramKeys::new(b"pencil", salt.try_into().expect("16 bytes"));
    let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let server_first = format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
    let client_first = "n=user,r=rOprNGfwEbeRWgbNEkqO";
    let challenge = Challenge::of_parts([client_first, "n,,", nonce, &server_first]);
    let message = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
    let expected = &b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="[..];
    let verified = challenge.verify(&[keys; 2], message.as_bytes());
    assert_eq!(verified.map(|(_, told)| told).as_deref(), Some(expected));
}

#[test]
fn plain_takes_a_user_and_a_password() {
    assert_eq!(plain(b"\0alice\0secret"), SaslStep::Known);
    assert_eq!(plain(b"alice\0alice\0secret"), SaslStep::Known);
    for message in [
        &b"\0alice\0wrong"[..],
        b"\0bob\0secret",
        b"bob\0alice\0secret",
        b"\0alice\0secret\0",
        b"\0\0secret",
        b"alice\0secret",
        b"\0alice",
        &[0; SASL_MESSAGE_BYTES_MAX + 1],
    ] {
        assert_eq!(plain(message), SaslStep::Unknown, "{}", message.escape_ascii());
    }
    for (name, expected) in [("plain", SaslStep::Known), ("GSSAPI", SaslStep::Unknown)] {
        let step = begin(&mut Exchange::default(), name, b"\0alice\0secret");
        assert_eq!(step, expected, "{name}");
    }
}

#[test]
fn a_proof_logs_in_and_a_wrong_one_does_not() {
    // The name as it is written in a message.
    for (user, password) in [("alice", "secret"), ("user", "pencil"), ("a=2Cb=3Dc", "x")] {
        let mut exchange = Exchange::default();
        let server_first = challenge(&mut exchange, user);
        let SaslStep::Continue(last) = go_on(&mut exchange, &proof(user, password, &server_first))
        else {
            panic!("{user} is not proved");
        };
        assert!(last.starts_with(b"v="), "the server proves that it knows the password, too");
        assert_eq!(go_on(&mut exchange, b""), SaslStep::Known);
        assert_eq!(go_on(&mut exchange, b""), SaslStep::Unknown, "the exchange is over");

        let mut exchange = Exchange::default();
        let server_first = challenge(&mut exchange, user);
        assert_eq!(go_on(&mut exchange, &proof(user, "wrong", &server_first)), SaslStep::Unknown);
        assert_eq!(go_on(&mut exchange, &proof(user, password, &server_first)), SaslStep::Unknown);
    }
}

/// As with PLAIN, and in memcached.
#[test]
fn a_user_with_two_lines_has_both_passwords() {
    let users = read(b"alice:old\nbob:x\nalice:new:more");
    for (password, is_right) in [("old", true), ("new", true), ("x", false), ("more", false)] {
        let mut exchange = Exchange::default();
        let first =
            SaslMessage::First { mechanism: b"SCRAM-SHA-256", message: &scram_first("alice") };
        let SaslStep::Continue(told) = exchange.answer(&users, first, 1) else {
            panic!("no challenge");
        };
        let proof = proof("alice", password, &told);
        let step = exchange.answer(&users, SaslMessage::Next(&proof), 2);
        assert_eq!(matches!(step, SaslStep::Continue(_)), is_right, "{password}");
        let plain = [b"\0alice\0", password.as_bytes()].concat();
        let first = SaslMessage::First { mechanism: b"PLAIN", message: &plain };
        let step = Exchange::default().answer(&users, first, 3);
        assert_eq!(step == SaslStep::Known, is_right, "{password}");
    }
}

/// I5: the file of users is replaced after the challenge, or after the proof.
#[test]
fn a_user_who_is_removed_during_a_login_is_not_let_in() {
    let files: [(&[u8], bool); 4] = [
        (b"alice:secret\nbob:x", true),
        (b"alice:changed\nalice:secret", true),
        (b"alice:changed", false),
        (b"bob:secret", false),
    ];
    for (file, is_let_in) in files {
        let users = read(file);
        for replaced_before in 1..=2 {
            let mut exchange = Exchange::default();
            let told = challenge(&mut exchange, "alice");
            let proof = proof("alice", "secret", &told);
            let of = |step| if step < replaced_before { &*USERS } else { &users };
            let proved = exchange.answer(of(1), SaslMessage::Next(&proof), 2);
            let is_proved = is_let_in || replaced_before == 2;
            assert_eq!(matches!(proved, SaslStep::Continue(_)), is_proved);
            let last = exchange.answer(of(2), SaslMessage::Next(b""), 3);
            assert_eq!(last == SaslStep::Known, is_let_in, "{}", file.escape_ascii());
        }
    }
}

/// The next message of an exchange that has not begun, or is over, is no login (CVE-2013-7239).
#[test]
fn a_step_needs_a_first_message() {
    let mut exchange = Exchange::default();
    assert_eq!(go_on(&mut exchange, b""), SaslStep::Unknown);
    assert_eq!(begin(&mut exchange, "PLAIN", b"\0alice\0wrong"), SaslStep::Unknown);
    assert_eq!(go_on(&mut exchange, b""), SaslStep::Unknown);
    assert_eq!(begin(&mut exchange, "PLAIN", b"\0alice\0secret"), SaslStep::Known);
    assert_eq!(go_on(&mut exchange, b""), SaslStep::Unknown);
    // A first message gives up the exchange before it.
    let server_first = challenge(&mut exchange, "alice");
    assert_eq!(begin(&mut exchange, "PLAIN", b"\0alice\0wrong"), SaslStep::Unknown);
    let proof = proof("alice", "secret", &server_first);
    assert_eq!(go_on(&mut exchange, &proof), SaslStep::Unknown);
}

/// The messages whose answers are delayed after failures, because they can be guesses.
#[test]
fn a_password_is_told_by_the_message_that_has_it() {
    let first = |mechanism: &'static str| SaslMessage::First {
        mechanism: mechanism.as_bytes(),
        message: b"",
    };
    let next = SaslMessage::Next(b"");
    let mut exchange = Exchange::default();
    assert!(exchange.tells_password(&first("PLAIN")));
    assert!(!exchange.tells_password(&first("SCRAM-SHA-256")));
    assert!(!exchange.tells_password(&first("GSSAPI")) && !exchange.tells_password(&next));
    let server_first = challenge(&mut exchange, "alice");
    assert!(exchange.tells_password(&next));
    go_on(&mut exchange, &proof("alice", "secret", &server_first));
    assert!(!exchange.tells_password(&next), "it has proved it");
    for (mechanism, tells) in [("PLAIN", true), ("SCRAM-SHA-256", false)] {
        begin(&mut exchange, mechanism, b"");
        assert_eq!(exchange.tells_password(&next), tells, "{mechanism}");
    }
}

/// As in RFC 4422: a client that sends no message with the mechanism is sent an empty one.
#[test]
fn a_client_may_name_the_mechanism_alone() {
    let none = SaslStep::Continue(Vec::new());
    for (password, expected) in [("secret", SaslStep::Known), ("wrong", SaslStep::Unknown)] {
        let mut exchange = Exchange::default();
        assert_eq!(begin(&mut exchange, "PLAIN", b""), none);
        let message = format!("\0alice\0{password}");
        assert_eq!(go_on(&mut exchange, message.as_bytes()), expected);
        assert_eq!(go_on(&mut exchange, message.as_bytes()), SaslStep::Unknown);
    }
    let mut exchange = Exchange::default();
    assert_eq!(begin(&mut exchange, "SCRAM-SHA-256", b""), none);
    let SaslStep::Continue(told) = go_on(&mut exchange, &scram_first("alice")) else {
        panic!("no challenge");
    };
    let step = go_on(&mut exchange, &proof("alice", "secret", &told));
    assert!(matches!(step, SaslStep::Continue(_)));
    assert_eq!(begin(&mut exchange, "GSSAPI", b""), SaslStep::Unknown);
    assert_eq!(begin(&mut exchange, "PLAIN", b""), none);
    assert_eq!(go_on(&mut exchange, b""), SaslStep::Unknown, "none is no message");
}

#[test]
fn a_mechanism_that_is_not_selected_lets_nobody_in() {
    for (mechanisms, may) in
        [(Mechanisms::Plain, [true, false]), (Mechanisms::ScramSha256, [false, true])]
    {
        let key = [5; USERS_KEY_BYTES];
        let users = Users::read_for_sasl(b"alice:secret", key, mechanisms, &|| false);
        let users = users.expect("a good file");
        let first = scram_first("alice");
        let told = [("PLAIN", &b"\0alice\0secret"[..]), ("SCRAM-SHA-256", &first)].map(
            |(mechanism, message)| {
                let first = SaslMessage::First { mechanism: mechanism.as_bytes(), message };
                Exchange::default().answer(&users, first, 1) != SaslStep::Unknown
            },
        );
        assert_eq!(told, may, "{mechanisms:?}");
    }
}

/// Without this, anybody could find out which users there are (I2).
#[test]
fn an_unknown_user_gets_a_challenge_that_no_password_meets() {
    let mut exchange = Exchange::default();
    let server_first = challenge(&mut exchange, "nobody");
    assert_eq!(server_first, challenge(&mut Exchange::default(), "nobody"), "the same salt");
    assert_ne!(server_first, challenge(&mut Exchange::default(), "somebody"));
    assert_eq!(server_first.len(), challenge(&mut Exchange::default(), "alice").len());
    for password in ["", "secret", "pencil"] {
        let server_first = challenge(&mut exchange, "nobody");
        assert_eq!(
            go_on(&mut exchange, &proof("nobody", password, &server_first)),
            SaslStep::Unknown
        );
    }
    // The keys of an unknown user are zero, which must not be a way in.
    let server_first = challenge(&mut exchange, "nobody");
    let text = String::from_utf8(server_first).expect("text");
    let nonce = text.split(',').next().expect("a nonce");
    let zero = format!("c=biws,{nonce},p={}", STANDARD.encode([0; 32]));
    assert_eq!(go_on(&mut exchange, zero.as_bytes()), SaslStep::Unknown);
}

#[test]
fn the_second_message_must_belong_to_the_first() {
    let good = {
        let server_first = challenge(&mut Exchange::default(), "alice");
        String::from_utf8(proof("alice", "secret", &server_first)).expect("text")
    };
    let wrong = [
        good.replace("c=biws", "c=eSws"),
        good.replace("r=abc", "r=abd"),
        good.replace(",p=", ",m=1,p="),
        good.replace(",p=", ",P="),
        format!("{good}A"),
        good[..good.len() - 1].to_string(),
        String::new(),
    ];
    for message in wrong {
        let mut exchange = Exchange::default();
        let _first = challenge(&mut exchange, "alice");
        assert_eq!(go_on(&mut exchange, message.as_bytes()), SaslStep::Unknown, "{message}");
    }
    let mut exchange = Exchange::default();
    let _first = challenge(&mut exchange, "alice");
    assert!(matches!(go_on(&mut exchange, good.as_bytes()), SaslStep::Continue(_)));
}

/// As Cyrus SASL sends it, and so libmemcached.
#[test]
fn a_client_may_name_the_user_twice() {
    for (header, name) in
        [("n,a=alice,", "alice"), ("y,,", "alice"), ("n,a=a=2Cb=3Dc,", "a=2Cb=3Dc")]
    {
        let password = if name == "alice" { "secret" } else { "x" };
        let mut exchange = Exchange::default();
        let first = format!("{header}n={name},r=abc");
        let SaslStep::Continue(told) = begin(&mut exchange, "SCRAM-SHA-256", first.as_bytes())
        else {
            panic!("{first} is refused");
        };
        // The header is signed, too.
        let proof = scram_proof_with(header, name, password, &told);
        assert!(matches!(go_on(&mut exchange, &proof), SaslStep::Continue(_)), "{first}");
    }
}

#[test]
fn a_first_message_that_asks_for_more_is_refused() {
    for message in [
        &b"p=tls-unique,,n=alice,r=abc"[..],
        b"n,a=bob,n=alice,r=abc",
        b"n,a=,n=alice,r=abc",
        b"n,b=alice,n=alice,r=abc",
        b"nn,,n=alice,r=abc",
        b",,n=alice,r=abc",
        b"n,",
        b"n,,m=1,n=alice,r=abc",
        b"n,,n=alice",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a c",
        b"n,,n=ali=2Dce,r=abc",
        b"n,,n=alice=,r=abc",
        b"n,,",
    ] {
        let step = begin(&mut Exchange::default(), "SCRAM-SHA-256", message);
        assert_eq!(step, SaslStep::Unknown, "{}", message.escape_ascii());
    }
}

proptest! {
    #[test]
    fn no_message_is_taken_for_a_login(
        first in prop::collection::vec(any::<u8>(), 0..60),
        second in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        for mechanism in ["PLAIN", "SCRAM-SHA-256"] {
            for header in [&b""[..], b"n,,n=a,r=", b"\0a\0"] {
                let mut exchange = Exchange::default();
                let message = [header, &first].concat();
                let is_password = message == b"\0a\0b" || message == b"a\0a\0b";
                let mechanism = mechanism.as_bytes();
                let begins = SaslMessage::First { mechanism, message: &message };
                let step = exchange.answer(&USERS, begins, 0);
                prop_assert!(is_password || step != SaslStep::Known);
                let step = exchange.answer(&USERS, SaslMessage::Next(&second), 1);
                prop_assert_eq!(step, SaslStep::Unknown);
            }
        }
    }
}
