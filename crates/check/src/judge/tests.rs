//! Histories of a few operations, written as lines: the judge accepts or rejects their orders.

use super::{check_history, check_within};
use crate::{Entry, History, Mode, NEVER, Operation, Outcome, Rules, Violation, Window};

/// A history of lines `CLIENT INVOKED-RETURNED REQUEST > REPLY`; `|` stands for a line end, `?` for
/// a reply that the client never received.
fn history(lines: &str) -> History {
    let mut history = History::default();
    for line in lines.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().expect("three parts");
        let client = word().parse().expect("a client");
        let (invoked, returned) = word().split_once('-').expect("two times");
        let (request, reply) = word().split_once(" > ").expect("a reply");
        let bytes = |text: &str| format!("{}\r\n", text.replace('|', "\r\n")).into_bytes();
        let operation = Operation::new(&bytes(request)).expect("an operation");
        let invoked = invoked.parse().expect("a time");
        if reply.is_empty() {
            let outcome = Outcome::Silent;
            let (returned, window) = (NEVER, Window::ANY);
            history.push(Entry { client, operation, outcome, invoked, returned, window });
            continue;
        }
        if reply == "?" {
            history.push(Entry::unknown(client, operation, invoked, 1));
            continue;
        }
        let (outcome, _) = Outcome::read(&bytes(reply)).expect("a reply");
        let returned = returned.parse().expect("a time");
        let window = Window::at(1);
        history.push(Entry { client, operation, outcome, invoked, returned, window });
    }
    history
}

#[track_caller]
fn right(lines: &str) {
    let history = history(lines);
    if let Err(violation) = check_history(&history, &Rules::new(Mode::Store)) {
        panic!("{violation}");
    }
}

#[track_caller]
fn wrong(lines: &str) -> String {
    let history = history(lines);
    match check_history(&history, &Rules::new(Mode::Store)) {
        Err(violation @ Violation::Contradiction(_)) => violation.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn operations_that_overlap_may_come_in_either_order() {
    for seen in ["a", "b"] {
        right(&format!(
            "1 10-20 set k 0 0 1|a > STORED
             2 15-25 set k 0 0 1|b > STORED
             3 30-31 get k > VALUE k 0 1|{seen}|END"
        ));
    }
    wrong(
        "1 10-20 set k 0 0 1|a > STORED
         2 21-25 set k 0 0 1|b > STORED
         3 30-31 get k > VALUE k 0 1|a|END",
    );
}

#[test]
fn what_one_reader_saw_the_next_one_sees() {
    let script = "1 10-90 set k 0 0 1|a > STORED\n2 20-30 get k > VALUE k 0 1|a|END";
    right(&format!("{script}\n3 25-40 get k > END"));
    wrong(&format!("{script}\n3 31-40 get k > END"));
}

#[test]
fn what_one_client_pipelines_is_carried_out_in_its_order() {
    let script = "1 10-90 set k 0 0 1|a > STORED\n1 11-90 set k 0 0 1|b > STORED";
    right(&format!("{script}\n1 12-91 get k > VALUE k 0 1|b|END"));
    wrong(&format!("{script}\n1 12-91 get k > VALUE k 0 1|a|END"));
    right(&format!("{script}\n2 12-91 get k > VALUE k 0 1|a|END"));
    wrong(&format!("{script}\n1 92-93 get k > VALUE k 0 1|a|END"));
    right(
        "1 10-90 delete k > NOT_FOUND\n1 10-90 set k 0 0 1|a > STORED\n1 95-96 get k > END\n2 9-97 delete k > DELETED",
    );
}

#[test]
fn an_unknown_outcome_may_take_place_late_or_never_but_once() {
    let script = "1 10-11 set k 0 0 1|1 > STORED\n2 20-0 incr k 1 > ?";
    right(&format!("{script}\n3 90-91 get k > VALUE k 0 1|1|END"));
    right(&format!(
        "{script}\n3 30-31 get k > VALUE k 0 1|1|END\n3 90-91 get k > VALUE k 0 1|2|END"
    ));
    wrong(&format!("{script}\n3 90-91 get k > VALUE k 0 1|3|END"));
    wrong(&format!(
        "{script}\n3 30-31 get k > VALUE k 0 1|2|END\n3 90-91 get k > VALUE k 0 1|1|END"
    ));
}

#[test]
fn a_flush_is_an_operation_of_every_key() {
    let script = "1 10-11 set a 0 0 1|1 > STORED
                  1 12-13 set b 0 0 1|1 > STORED
                  2 20-30 flush_all > OK";
    right(&format!("{script}\n3 21-22 get a > END\n3 23-24 get b > VALUE b 0 1|1|END"));
    wrong(&format!("{script}\n3 31-32 get b > VALUE b 0 1|1|END"));
}

#[test]
fn a_violation_names_the_key_and_the_shortest_beginning() {
    let mut lines = String::from("9 1-2 set other 0 0 1|x > STORED\n");
    for at in 0..50 {
        let (begin, end) = (at * 10 + 10, at * 10 + 15);
        lines.push_str(&format!("1 {begin}-{end} set k 0 0 2|{:02} > STORED\n", at % 100));
    }
    lines.push_str("2 600-601 get k > VALUE k 0 2|07|END\n");
    lines.push_str("3 700-701 set k 0 0 2|zz > STORED\n");
    let text = wrong(&lines);
    assert!(text.starts_with("key k: no order of these 51 operations"), "{text}");
    assert!(text.contains("- ") && text.contains("get k") && text.contains("\"49\""), "{text}");
    assert!(!text.contains("zz") && text.lines().count() < 60, "{text}");
}

#[test]
fn many_that_overlap_are_judged_in_few_steps() {
    let mut lines = String::new();
    for at in 0..2_000 {
        let client = at % 8;
        let begin = at * 10;
        lines.push_str(&format!("{client} {begin}-{} set k 0 0 4|{at:04} > STORED\n", begin + 75));
        lines.push_str(&format!("9 {begin}-{} get k > VALUE k 0 4|{at:04}|END\n", begin + 79));
    }
    let stats = check_history(&history(&lines), &Rules::new(Mode::Store)).expect("it is right");
    assert_eq!((stats.operations, stats.keys, stats.unknown), (4_000, 1, 0));
    assert!(stats.overlapping > 3_000 && stats.steps < 400_000, "{stats:?}");
}

#[test]
fn many_unknown_stores_are_judged_in_few_steps() {
    let mut lines = String::from("1 10-11 set k 0 0 2|10 > STORED\n");
    for at in 11..31 {
        lines.push_str(&format!("{at} {at}-0 set k 0 0 2|{at} > ?\n"));
    }
    for at in [12, 30, 17, 99] {
        lines.push_str(&format!("3 {0}-{0} get k > VALUE k 0 2|{at}|END\n", 100 + at));
    }
    // No order explains the last one, so the search tries all that it must.
    let rules = Rules::new(Mode::Store);
    let violation = check_within(&history(&lines), &rules, 10_000).expect_err("99 was not stored");
    assert!(matches!(violation, Violation::Contradiction(_)), "{violation:?}");
}

#[test]
fn what_cannot_be_decided_is_said_to_be_too_large() {
    // The `incr`s have unknown outcomes and different deltas: every subset gives another number.
    let mut lines = String::from("1 10-11 set k 0 0 1|0 > STORED\n");
    for bit in 0..22 {
        lines.push_str(&format!("2 {}-0 incr k {} > ?\n", 20 + bit, 1u64 << bit));
    }
    lines.push_str("3 90-91 get k > VALUE k 0 9|999999999|END\n");
    lines.push_str("4 92-93 get z > END\n");
    let violation = check_within(&history(&lines), &Rules::new(Mode::Store), 100_000);
    let Err(Violation::TooLarge { key, stats }) = violation else { panic!("{violation:?}") };
    let judged = (stats.keys, stats.keys_given_up, stats.operations, stats.operations_given_up);
    assert_eq!((key.as_slice(), judged), (&b"k"[..], (2, 1, 25, 24)));
    // The judge still finds a contradiction in a key that it judges later.
    lines.push_str("4 94-95 set z 0 0 1|a > STORED\n4 96-97 get z > END\n");
    let violation = check_within(&history(&lines), &Rules::new(Mode::Store), 100_000);
    assert!(matches!(violation, Err(Violation::Contradiction(_))), "{violation:?}");
}

#[test]
fn the_search_never_loses_an_order_that_there_is() {
    // Random histories of a few operations; the expected verdict comes from trying every order.
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let (mut accepted, mut rejected) = (0, 0);
    for _ in 0..3_000 {
        let mut history = History::default();
        for _ in 0..6 {
            let client = below(4) as u32;
            let value = below(3);
            let (request, replies): (String, Vec<String>) = match below(6) {
                0 => (format!("set k 0 0 1|{value}"), vec!["STORED".into()]),
                1 => (format!("add k 0 0 1|{value}"), vec!["STORED".into(), "NOT_STORED".into()]),
                2 => ("delete k".into(), vec!["DELETED".into(), "NOT_FOUND".into()]),
                3 => ("incr k 1".into(), vec!["1".into(), "2".into(), "NOT_FOUND".into()]),
                4 => (format!("cas k 0 0 1 5|{value}"), vec!["STORED".into(), "EXISTS".into()]),
                _ => (
                    "gets k".into(),
                    vec!["END".into(), format!("VALUE k 0 1 {}|{value}|END", 5 + below(2))],
                ),
            };
            let bytes = |text: &str| format!("{}\r\n", text.replace('|', "\r\n")).into_bytes();
            let operation = Operation::new(&bytes(&request)).expect("an operation");
            let invoked = below(10);
            if below(8) == 0 {
                history.push(Entry::unknown(client, operation, invoked, 1));
                continue;
            }
            let reply = &replies[below(replies.len() as u64) as usize];
            let (outcome, _) = Outcome::read(&bytes(reply)).expect("a reply");
            let returned = invoked + below(6);
            let window = Window::at(1);
            history.push(Entry { client, operation, outcome, invoked, returned, window });
        }
        let rules = Rules::new(Mode::Store);
        let found = check_history(&history, &rules).is_ok();
        let model = crate::Model::new(rules);
        let expected = any_order(&model, &history.entries, &mut Vec::new(), &[Default::default()]);
        assert_eq!(found, expected, "{history:#?}");
        if found { accepted += 1 } else { rejected += 1 }
    }
    assert!(accepted > 300 && rejected > 300, "{accepted} accepted, {rejected} rejected");
}

/// Whether some order of the entries that are not in `placed` explains their outcomes, starting in
/// `states`. Tries every order.
fn any_order(
    model: &crate::Model,
    entries: &[Entry],
    placed: &mut Vec<usize>,
    states: &[crate::State],
) -> bool {
    let left: Vec<usize> = (0..entries.len()).filter(|at| !placed.contains(at)).collect();
    if left.iter().all(|at| entries[*at].returned == NEVER) {
        return true;
    }
    left.iter().any(|&at| {
        let entry = &entries[at];
        let stands_before = |other: &Entry| {
            let known = other.outcome != Outcome::Unknown;
            let same = other.client == entry.client && known;
            other.returned < entry.invoked || same && other.invoked < entry.invoked
        };
        if left.iter().any(|other| stands_before(&entries[*other])) {
            return false;
        }
        let mut next = Vec::new();
        for state in states {
            next.extend(model.step(state, &entry.operation, &entry.outcome, entry.window));
        }
        if next.is_empty() {
            return false;
        }
        placed.push(at);
        let found = any_order(model, entries, placed, &next);
        placed.pop();
        found
    })
}
