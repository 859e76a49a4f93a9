//! Tests of the order in which logins are checked, and of the number of wrong passwords that are
//! checked.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::*;
use crate::index::ConnectionIndex;
use crate::users::USERS_KEY_BYTES;

const SECOND_NS: u64 = 1_000_000_000;

fn users() -> Users {
    Users::read(b"alice:secret", [7; USERS_KEY_BYTES]).expect("a good file")
}

fn group_of(address: &str) -> AddressGroup {
    let address: SocketAddr = address.parse().expect("an address");
    AddressGroup::of(address.into(), &users()).expect("it has an address")
}

/// The attempts of a process with four cores and 4,000 connections.
fn attempts() -> Attempts {
    Attempts::new(4, 4_000)
}

/// A connection of a core.
fn at(core: u16, connection: u32) -> LoginWaiter {
    LoginWaiter { core: CoreIndex(core), connection: ConnectionIndex(connection) }
}

/// The logins that core 0 is called for.
fn called(attempts: &mut Attempts, now_ns: u64) -> Vec<(LoginTurn, LoginCall)> {
    std::iter::from_fn(|| attempts.call(CoreIndex(0), now_ns))
        .map(|one| (one.turn, one.call))
        .collect()
}

fn newcomer(group: AddressGroup) -> LoginAttempt {
    LoginAttempt { group, failures: 0, has_more: false, turn: None }
}

/// How many of `wanted` new logins with wrong passwords are checked at once. The others leave.
fn told(attempts: &mut Attempts, group: AddressGroup, now_ns: u64, wanted: u32) -> u64 {
    let checked = (0..wanted).filter(|_| match attempts.take(newcomer(group), at(0, 1), now_ns) {
        Ok(()) => true,
        Err(turn) => {
            attempts.leave(turn);
            false
        }
    });
    checked.count() as u64
}

/// The greatest number of `times` that lie in one minute.
fn most_in_a_minute(times: &[u64]) -> usize {
    let in_minute =
        |from: u64| times.iter().filter(|at| (from..from + MINUTE_NS).contains(at)).count();
    times.iter().map(|from| in_minute(*from)).max().unwrap_or(0)
}

#[test]
fn at_most_sixty_wrong_passwords_of_an_address_are_told_in_any_minute() {
    let mut attempts = attempts();
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

/// With 20,000 addresses that have all failed, a new address gets no more checks than its group
/// has, and all addresses together have a bound.
#[test]
fn more_addresses_than_groups_make_it_slower_for_each() {
    let (mut attempts, users) = (attempts(), users());
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
    assert!(AddressGroup::of(Peer::Unknown, &users()).is_some(), "it may be anybody, and guess");
}

#[test]
fn right_passwords_take_no_check_away() {
    let mut attempts = attempts();
    let group = group_of("10.0.0.7:1000");
    for _ in 0..1_000 {
        assert_eq!(attempts.take(newcomer(group), at(0, 1), 5), Ok(()));
        attempts.give_back(group);
    }
    assert_eq!(told(&mut attempts, group, 5, 100), CHECKS_AT_ONCE);
}

#[test]
fn the_fewest_failures_then_those_that_wait_for_the_reply_then_the_newest_are_next() {
    let mut attempts = attempts();
    let group = group_of("10.0.0.7:1000");
    assert_eq!(told(&mut attempts, group, 0, 9), CHECKS_AT_ONCE);
    let mut wait = |failures, has_more| {
        let attempt = LoginAttempt { failures, has_more, ..newcomer(group) };
        attempts.take(attempt, at(0, 1), 0).expect_err("none is free")
    };
    let kinds = [(1, false), (0, true), (0, false), (2, false), (0, false), (0, true), (1, true)];
    let turns = kinds.map(|(failures, has_more)| wait(failures, has_more));
    let mut order = Vec::new();
    for check in 1..=turns.len() as u64 {
        let now_ns = check * CHECK_NS;
        assert_eq!(called(&mut attempts, now_ns - 1), [], "it is called when its time has come");
        let [(next, LoginCall::Comes)] = called(&mut attempts, now_ns)[..] else {
            panic!("one at a time");
        };
        // The others are refused, however often they ask.
        let others = turns.iter().filter(|one| **one != next && !order.contains(*one));
        for turn in others {
            let again = LoginAttempt { turn: Some(*turn), ..newcomer(group) };
            assert_eq!(attempts.take(again, at(0, 1), now_ns), Err(*turn));
        }
        let attempt = LoginAttempt { turn: Some(next), ..newcomer(group) };
        assert_eq!(attempts.take(attempt, at(0, 1), now_ns), Ok(()));
        order.push(next);
    }
    assert_eq!(order, [4, 2, 5, 1, 0, 6, 3].map(|one| turns[one]));
    assert_eq!((attempts.lines.count(), attempts.next_ns(CoreIndex(0))), (0, None));
}

#[test]
fn too_many_that_wait_displace_the_last() {
    let mut attempts = attempts();
    let group = group_of("10.0.0.7:1000");
    told(&mut attempts, group, 0, 9);
    let mut wait = || attempts.take(newcomer(group), at(0, 1), 0).expect_err("none is free");
    let turns: Vec<LoginTurn> = (0..GROUP_WAITING_MAX + 10).map(|_| wait()).collect();
    let other = group_of("10.0.0.8:1000");
    assert_ne!(group, other);
    assert_eq!(told(&mut attempts, other, 0, 9), CHECKS_AT_ONCE, "another group");
    assert_eq!(attempts.lines.count(), GROUP_WAITING_MAX);
    assert_eq!((attempts.next_ns(CoreIndex(0)), attempts.next_ns(CoreIndex(1))), (Some(0), None));
    let displaced: BTreeSet<LoginTurn> = called(&mut attempts, 0)
        .into_iter()
        .map(|(turn, call)| {
            assert_eq!(call, LoginCall::Displaced);
            turn
        })
        .collect();
    assert_eq!(displaced, turns[..10].iter().copied().collect());
    turns.iter().for_each(|turn| attempts.leave(*turn));
    assert_eq!((attempts.lines.count(), attempts.next_ns(CoreIndex(0))), (0, None));
}

/// Eight groups fill all places, and the one login of a ninth group keeps its place.
#[test]
fn the_group_with_the_most_that_wait_gives_up_its_last() {
    const CONNECTIONS_MAX: u32 = 400;
    let mut attempts = Attempts::new(4, CONNECTIONS_MAX);
    let groups: Vec<AddressGroup> = (0..9).map(|n| group_of(&format!("10.0.0.{n}:1000"))).collect();
    assert_eq!(groups.iter().collect::<BTreeSet<_>>().len(), 9, "they differ");
    for group in &groups {
        told(&mut attempts, *group, 0, 9);
    }
    let wait = |attempts: &mut Attempts, group: AddressGroup| {
        attempts.take(newcomer(group), at(0, 1), 0).expect_err("none is free")
    };
    let of_one: Vec<LoginTurn> = (0..60).map(|_| wait(&mut attempts, groups[0])).collect();
    let ninth = wait(&mut attempts, groups[8]);
    for round in 0..100 {
        groups[1..8].iter().for_each(|group| _ = wait(&mut attempts, *group));
        let most = attempts.lines.longest().map(|(_, count)| count);
        assert!(most.is_some_and(|most| round < 20 || most <= 15), "{round}: {most:?}");
    }
    assert_eq!(attempts.lines.count(), CONNECTIONS_MAX as usize / WAITING_PART);
    let displaced = called(&mut attempts, 0);
    assert_eq!(displaced.len(), 60 + 1 + 700 - 100);
    assert!(displaced.iter().all(|(turn, call)| *call == LoginCall::Displaced && *turn != ninth));
    assert!(displaced.iter().any(|(turn, _)| *turn == of_one[0]), "its oldest ones went");
    // Groups with one login each: the one that has waited longest is displaced.
    let mut attempts = Attempts::new(4, 4);
    let turns = [0, 1].map(|one| {
        told(&mut attempts, groups[one], 0, 9);
        wait(&mut attempts, groups[one])
    });
    assert_eq!(called(&mut attempts, 0), [(turns[0], LoginCall::Displaced)]);
}

/// The core of the next login knows when a check is free, and is told if that time becomes earlier.
#[test]
fn the_core_of_the_next_login_knows_when_its_turn_comes() {
    let mut attempts = attempts();
    let group = group_of("10.0.0.7:1000");
    told(&mut attempts, group, 0, 9);
    let changed = |attempts: &mut Attempts| -> BTreeSet<u16> {
        std::iter::from_fn(|| attempts.take_changed()).map(|core| core.0).collect()
    };
    changed(&mut attempts);
    let mut wait = |core| attempts.take(newcomer(group), at(core, 7), 0).expect_err("none");
    let [last, next] = [1, 2].map(&mut wait);
    let times = |attempts: &Attempts| [1, 2].map(|core| attempts.next_ns(CoreIndex(core)));
    assert_eq!(times(&attempts), [None, Some(CHECK_NS)], "only the first is due");
    assert_eq!(changed(&mut attempts), [1, 2].into(), "the first was another before");
    assert_eq!(attempts.call(CoreIndex(2), CHECK_NS - 1), None);
    let connection = ConnectionIndex(7);
    let comes = |turn| Some(CalledLogin { connection, turn, call: LoginCall::Comes });
    assert_eq!(attempts.call(CoreIndex(2), CHECK_NS), comes(next));
    assert_eq!(
        (attempts.call(CoreIndex(2), CHECK_NS), times(&attempts)),
        (None, [None, None]),
        "W2"
    );
    let again = |turn| LoginAttempt { turn: Some(turn), ..newcomer(group) };
    assert_eq!(attempts.take(again(next), at(2, 7), CHECK_NS), Ok(()));
    assert_eq!(times(&attempts), [Some(2 * CHECK_NS), None], "its password may be wrong");
    assert_eq!(changed(&mut attempts), [1, 2].into());
    attempts.give_back(group);
    assert_eq!(times(&attempts), [Some(CHECK_NS), None], "it was right");
    assert_eq!(changed(&mut attempts), [1].into());
    assert_eq!(attempts.call(CoreIndex(1), CHECK_NS), comes(last));
    // A better one comes before the called one has asked, and takes the check.
    assert_eq!(attempts.take(newcomer(group), at(2, 8), CHECK_NS), Ok(()));
    assert_eq!(attempts.take(again(last), at(1, 7), CHECK_NS), Err(last));
    assert_eq!(times(&attempts), [Some(2 * CHECK_NS), None], "it is called again");
    attempts.leave(last);
    assert_eq!((times(&attempts), attempts.lines.count()), ([None, None], 0));
}
