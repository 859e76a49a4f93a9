//! Which login is checked next, and how many wrong passwords are told.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::*;
use crate::users::USERS_KEY_BYTES;

const SECOND_NS: u64 = 1_000_000_000;

fn users() -> Users {
    Users::read(b"alice:secret", [7; USERS_KEY_BYTES]).expect("a good file")
}

fn group_of(address: &str) -> AddressGroup {
    let address: SocketAddr = address.parse().expect("an address");
    AddressGroup::of(address.into(), &users()).expect("it has an address")
}

fn newcomer(group: AddressGroup) -> LoginAttempt {
    LoginAttempt { group, failures: 0, has_more: false, turn: None }
}

/// How many of `wanted` new logins with wrong passwords are checked at once. The others leave.
fn told(attempts: &mut Attempts, group: AddressGroup, now_ns: u64, wanted: u32) -> u64 {
    let checked = (0..wanted).filter(|_| match attempts.take(newcomer(group), now_ns) {
        Ok(()) => true,
        Err(turn) => {
            attempts.leave(turn);
            false
        }
    });
    checked.count() as u64
}

/// The most that are told in 60 s, of those told at `times`.
fn most_in_a_minute(times: &[u64]) -> usize {
    let in_minute =
        |from: u64| times.iter().filter(|at| (from..from + MINUTE_NS).contains(at)).count();
    times.iter().map(|from| in_minute(*from)).max().unwrap_or(0)
}

#[test]
fn at_most_sixty_wrong_passwords_of_an_address_are_told_in_any_minute() {
    let mut attempts = Attempts::default();
    let group = group_of("10.0.0.7:1000");
    let mut times = Vec::new();
    // It comes back after a pause, to have the checks at once again.
    for tenth in (0..3_000).filter(|tenth| !(1_000..1_100).contains(tenth)) {
        let now_ns = tenth * SECOND_NS / 10;
        times.extend((0..told(&mut attempts, group, now_ns, 100)).map(|_| now_ns));
    }
    assert!(times.len() > 250, "{}", times.len());
    assert_eq!(most_in_a_minute(&times) as u64, WRONG_PER_MINUTE_MAX);
}

/// As before, for 20,000 addresses which have all failed: a fresh one has no more than its part,
/// and all of them together have a bound.
#[test]
fn more_addresses_than_groups_make_it_slower_for_each() {
    let (mut attempts, users) = (Attempts::default(), users());
    let group_of = |number: u32| {
        let address = SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + number), 1));
        AddressGroup::of(address.into(), &users).expect("it has an address")
    };
    let groups: Vec<AddressGroup> = (0..20_000).map(group_of).collect();
    let mut sum = 0;
    for second in 0..3 {
        let now_ns = second * SECOND_NS;
        sum += groups.iter().map(|one| told(&mut attempts, *one, now_ns, 9)).sum::<u64>();
    }
    assert!(sum <= GROUPS as u64 * (CHECKS_AT_ONCE + 2), "{sum}");
    let mut times = Vec::new();
    for tenth in 30..700 {
        let now_ns = tenth * SECOND_NS / 10;
        times.extend((0..told(&mut attempts, group_of(50_000), now_ns, 9)).map(|_| now_ns));
    }
    assert!(most_in_a_minute(&times) <= 60, "{}", times.len());
}

#[test]
fn ports_and_the_second_half_of_an_address_do_not_count() {
    assert_eq!(group_of("10.0.0.7:1000"), group_of("10.0.0.7:2000"));
    assert_eq!(group_of("10.0.0.7:1000"), group_of("[::ffff:10.0.0.7]:2000"));
    assert_eq!(group_of("[2001:db8:1:2::3]:1"), group_of("[2001:db8:1:2:ff::4]:2"));
    let networks: BTreeSet<AddressGroup> = (0..100)
        .map(|n| Ipv6Addr::new(0x2001, 0xdb8, 1, n, 0, 0, 0, 1))
        .map(|address| AddressGroup::of(SocketAddr::from((address, 1)).into(), &users()))
        .map(|group| group.expect("it has an address"))
        .collect();
    assert!(networks.len() > 90, "{}", networks.len());
    assert_eq!(AddressGroup::of(Peer::Local, &users()), None);
}

#[test]
fn right_passwords_take_no_check_away() {
    let mut attempts = Attempts::default();
    let group = group_of("10.0.0.7:1000");
    for _ in 0..1_000 {
        assert_eq!(attempts.take(newcomer(group), 5), Ok(()));
        attempts.give_back(group);
    }
    assert_eq!(told(&mut attempts, group, 5, 100), CHECKS_AT_ONCE);
}

#[test]
fn the_fewest_failures_then_those_that_wait_for_the_reply_then_the_newest_are_next() {
    let mut attempts = Attempts::default();
    let group = group_of("10.0.0.7:1000");
    assert_eq!(told(&mut attempts, group, 0, 9), CHECKS_AT_ONCE);
    let mut wait = |failures, has_more| {
        let attempt = LoginAttempt { failures, has_more, ..newcomer(group) };
        attempts.take(attempt, 0).expect_err("none is free")
    };
    let kinds = [(1, false), (0, true), (0, false), (2, false), (0, false), (0, true), (1, true)];
    let turns = kinds.map(|(failures, has_more)| wait(failures, has_more));
    let mut order = Vec::new();
    for check in 1..=turns.len() as u64 {
        let now_ns = check * CHECK_NS;
        let comes = |turn: &LoginTurn| attempts.state(*turn, now_ns) == TurnState::Comes;
        let next: Vec<usize> = (0..turns.len()).filter(|one| comes(&turns[*one])).collect();
        assert_eq!(next.len(), 1, "one at a time: {next:?}");
        // The others are refused, however often they ask.
        let others = (0..turns.len()).filter(|one| *one != next[0] && !order.contains(one));
        for turn in others.map(|one| turns[one]) {
            let again = LoginAttempt { turn: Some(turn), ..newcomer(group) };
            assert_eq!(attempts.take(again, now_ns), Err(turn));
        }
        let attempt = LoginAttempt { turn: Some(turns[next[0]]), ..newcomer(group) };
        assert_eq!(attempts.take(attempt, now_ns), Ok(()));
        order.push(next[0]);
    }
    assert_eq!(order, [4, 2, 5, 1, 0, 6, 3]);
    assert!(attempts.waiting.is_empty());
}

#[test]
fn too_many_that_wait_displace_the_last() {
    let mut attempts = Attempts::default();
    let group = group_of("10.0.0.7:1000");
    told(&mut attempts, group, 0, 9);
    let mut wait = || attempts.take(newcomer(group), 0).expect_err("none is free");
    let turns: Vec<LoginTurn> = (0..WAITING_MAX + 10).map(|_| wait()).collect();
    let other = group_of("10.0.0.8:1000");
    assert_ne!(group, other);
    assert_eq!(told(&mut attempts, other, 0, 9), CHECKS_AT_ONCE, "another group");
    assert_eq!(attempts.waiting.len(), WAITING_MAX);
    for (number, turn) in turns.iter().enumerate() {
        let expected = if number < 10 { TurnState::Displaced } else { TurnState::Waits };
        assert_eq!(attempts.state(*turn, 0), expected, "{number}");
    }
    turns.iter().for_each(|turn| attempts.leave(*turn));
    assert!(attempts.waiting.is_empty());
}
