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

use kachel_net::{USERS_KEY_BYTES, Users};

const T_MAX: f64 = 4.5;
/// Shares of the samples that count, in percent.
const LIMITS: [usize; 5] = [50, 75, 90, 99, 100];

/// A login: a user and a password.
type Login = (&'static [u8], &'static [u8]);

fn main() -> ExitCode {
    let samples = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("a number"));
    let lines: Vec<String> = (0..100).map(|n| format!("user{n:02}:password{n:02}\n")).collect();
    let users = Users::read(lines.concat().as_bytes(), [7; USERS_KEY_BYTES]).expect("good lines");
    let pairs: [(&str, Login, Login); 4] = [
        ("the same login twice, as a control", (b"user50", b"wrong"), (b"user50", b"wrong")),
        ("a known user and an unknown one", (b"user50", b"wrong"), (b"user5x", b"wrong")),
        ("the first user and the last one", (b"user00", b"password00"), (b"user99", b"password99")),
        (
            "a password that begins right, and one that does not",
            (b"user50", b"password5x"),
            (b"user50", b"xxxxxxxxxx"),
        ),
    ];
    let mut is_constant = true;
    for (what, first, second) in pairs {
        let t = greatest_t(&users, [first, second], samples);
        println!("{what}: t = {t:.2} of {samples} samples");
        is_constant &= t < T_MAX;
    }
    if is_constant { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The greatest t of two logins over all limits.
fn greatest_t(users: &Users, logins: [Login; 2], samples: usize) -> f64 {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut taken: Vec<(u64, usize)> = Vec::with_capacity(samples);
    let mut inputs = Vec::with_capacity(INPUTS);
    while taken.len() < samples {
        // What is timed must not follow the copy of an input, which depends on the class.
        inputs.clear();
        inputs.extend((0..INPUTS).map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            Input::new(logins, (random >> 32) as usize & 1)
        }));
        for input in black_box(&inputs) {
            let (user, password) = (&input.user[..input.bytes.0], &input.password[..input.bytes.1]);
            let begin = Instant::now();
            black_box(users.knows(user, password));
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
    user: [u8; 32],
    password: [u8; 32],
    bytes: (usize, usize),
    class: usize,
}

impl Input {
    fn new(logins: [Login; 2], class: usize) -> Self {
        let (user, password) = logins[class];
        let mut input =
            Self { user: [0; 32], password: [0; 32], bytes: (user.len(), password.len()), class };
        input.user[..user.len()].copy_from_slice(user);
        input.password[..password.len()].copy_from_slice(password);
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
