//! Measures whether the time of a login tells which users there are: row A12 of the abuse cases.
//!
//! Upstream:   by hand: `cargo run --release -p kachel-net --example login_timing [SAMPLES]`
//! Downstream: prints Welch's t for pairs of logins; ends with 1 if any is 4.5 or more.
//!
//! Samples of two classes are taken in random order. The slowest are left out, at several limits,
//! because an interrupt is no signal; the greatest t of all limits counts.
//!
//! Source: Reparaz, Balasch and Verbauwhede, "Dude, is my code constant time?", DATE 2017.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use kachel_net::{Exchange, Mechanisms, SaslMessage, SaslStep, USERS_KEY_BYTES, Users};
use kachel_testkit::{scram_first, scram_proof};

const T_MAX: f64 = 4.5;
/// Shares of the samples that count, in percent.
const LIMITS: [usize; 5] = [50, 75, 90, 99, 100];

/// A login: a user and a password, or both messages of SCRAM.
type Login = [Vec<u8>; 2];
/// The kind of login that is timed.
type Check = fn(&Users, [&[u8]; 2]) -> bool;
/// Makes a login of a user and a password.
type Make = fn(&Users, [&str; 2]) -> Login;

fn main() -> ExitCode {
    let samples = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("a number"));
    let lines: Vec<String> = (0..100).map(|n| format!("user{n:02}:password{n:02}\n")).collect();
    let lines = lines.concat();
    let users = {
        let (text, key) = (lines.as_bytes(), [7; USERS_KEY_BYTES]);
        Users::read_for_sasl(text, key, Mechanisms::All, &|| false)
    };
    let users = users.expect("good lines");
    let kinds: [(&str, Check, Make); 2] = [
        (
            "-Y and PLAIN",
            |users, [user, password]| users.knows(user, password),
            |_, login| login.map(|text| text.as_bytes().to_vec()),
        ),
        ("SCRAM", is_proved, proof),
    ];
    let pairs: [(&str, [&str; 2], [&str; 2]); 4] = [
        ("the same login twice, as a control", ["user50", "wrong"], ["user50", "wrong"]),
        ("a known user and an unknown one", ["user50", "wrong"], ["user5x", "wrong"]),
        ("the first user and the last one", ["user00", "password00"], ["user99", "password99"]),
        (
            "a password that begins right, and one that does not",
            ["user50", "password5x"],
            ["user50", "xxxxxxxxxx"],
        ),
    ];
    let mut is_constant = true;
    for (kind, check, login) in kinds {
        for (what, first, second) in pairs {
            let logins = [first, second].map(|words| login(&users, words));
            let t = greatest_t(&users, check, &logins, samples);
            println!("{kind}: {what}: t = {t:.2} of {samples} samples");
            is_constant &= t < T_MAX;
        }
    }
    if is_constant { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn first(message: &[u8]) -> SaslMessage<'_> {
    SaslMessage::First { mechanism: b"SCRAM-SHA-256", message }
}

/// Both messages of a client, by the challenge with the number 0.
fn proof(users: &Users, [user, password]: [&str; 2]) -> Login {
    let begins = scram_first(user);
    match Exchange::default().answer(users, first(&begins), 0) {
        SaslStep::Continue(told) => {
            let proof = scram_proof(user, password, &told);
            [begins, proof]
        }
        step => panic!("no challenge: {step:?}"),
    }
}

/// Whether the messages of a client prove its password.
fn is_proved(users: &Users, [begins, proof]: [&[u8]; 2]) -> bool {
    let mut exchange = Exchange::default();
    exchange.answer(users, first(begins), 0);
    exchange.answer(users, SaslMessage::Next(proof), 0) != SaslStep::Unknown
}

/// The greatest t of two logins over all limits.
fn greatest_t(users: &Users, check: Check, logins: &[Login; 2], samples: usize) -> f64 {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut taken: Vec<(u64, usize)> = Vec::with_capacity(samples);
    let mut inputs = Vec::with_capacity(INPUTS);
    while taken.len() < samples {
        // The copy of an input depends on the class, so the timed part must not follow it.
        inputs.clear();
        inputs.extend((0..INPUTS).map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            Input::new(logins, (random >> 32) as usize & 1)
        }));
        for input in black_box(&inputs) {
            let words = [0, 1].map(|word| &input.words[word][..input.bytes[word]]);
            let begin = Instant::now();
            black_box(check(users, words));
            taken.push((begin.elapsed().as_nanos() as u64, input.class));
        }
    }
    taken.sort_unstable();
    let of_limit = |percent: usize| {
        // Both classes up to the same time, not to the same place: equal times are many.
        let limit = taken[taken.len() * percent / 100 - 1].0;
        welch_t(&taken[..taken.partition_point(|(ns, _)| *ns <= limit)])
    };
    LIMITS.map(of_limit).into_iter().fold(0.0, f64::max)
}

/// Inputs that are made before they are timed.
const INPUTS: usize = 1_000;

/// A login of one class, on cache lines of its own.
#[repr(align(128))]
struct Input {
    words: [[u8; 128]; 2],
    bytes: [usize; 2],
    class: usize,
}

impl Input {
    fn new(logins: &[Login; 2], class: usize) -> Self {
        let login = &logins[class];
        let bytes = [login[0].len(), login[1].len()];
        let mut input = Self { words: [[0; 128]; 2], bytes, class };
        for (word, text) in input.words.iter_mut().zip(login) {
            word[..text.len()].copy_from_slice(text);
        }
        input
    }
}

/// Welch's t of the two classes, without its sign.
fn welch_t(samples: &[(u64, usize)]) -> f64 {
    let of_class = |wanted: usize| {
        let times = samples.iter().filter(move |(_, class)| *class == wanted);
        let times: Vec<f64> = times.map(|(ns, _)| *ns as f64).collect();
        let count = times.len() as f64;
        let mean = times.iter().sum::<f64>() / count;
        let variance = times.iter().map(|ns| (ns - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    };
    let ((first, first_error), (second, second_error)) = (of_class(0), of_class(1));
    (first - second).abs() / (first_error + second_error).sqrt()
}
