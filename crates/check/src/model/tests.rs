//! Scripts for one key. Every reply except the last is correct; the last is correct or wrong.

use super::{Mode, Model, Rules, State};
use crate::{Operation, Outcome, Window};

/// The states after a script. Its lines are `SECOND REQUEST > REPLY`. `|` stands for a line end in
/// the request or the reply, and an empty reply is one that the server withheld.
#[track_caller]
fn states(rules: Rules, script: &str) -> Vec<State> {
    let model = Model::new(rules);
    let mut states = vec![State::default()];
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        assert!(!states.is_empty(), "impossible before: {line}");
        let (second, rest) = line.split_once(' ').expect("a second");
        let (request, reply) = rest.split_once('>').expect("a reply");
        let bytes = |text: &str| format!("{}\r\n", text.trim().replace('|', "\r\n")).into_bytes();
        let operation = Operation::new(&bytes(request)).unwrap_or_else(|| panic!("{request}"));
        let outcome = match reply.trim() {
            "" => Outcome::Silent,
            "?" => Outcome::Unknown,
            _ => {
                let reply = bytes(reply);
                let (outcome, read) = Outcome::read(&reply).unwrap_or_else(|| panic!("{line}"));
                assert_eq!(read, reply.len(), "{line}");
                outcome
            }
        };
        let (earliest, latest) = second.split_once('-').unwrap_or((second, second));
        let number = |text: &str| text.parse().expect("a second");
        let window = Window { earliest_s: number(earliest), latest_s: number(latest) };
        let steps = states.iter().map(|state| model.step(state, &operation, &outcome, window));
        states = steps.collect::<Vec<_>>().concat();
    }
    states
}

#[track_caller]
fn right(script: &str) {
    let script = script.trim();
    assert!(!states(Rules::new(Mode::Store), script).is_empty(), "impossible: {script}");
    assert!(!states(Rules::new(Mode::Cache), script).is_empty(), "impossible: {script}");
}

#[track_caller]
fn wrong(script: &str) {
    let script = script.trim();
    let left = states(Rules::new(Mode::Store), script);
    assert!(left.is_empty(), "accepted: {script}\n{left:?}");
}

/// Asserts that the script is right with each last line of `rights`, and wrong with each of
/// `wrongs`.
#[track_caller]
fn ends(script: &str, rights: &[&str], wrongs: &[&str]) {
    for last in rights {
        right(&format!("{script}\n{last}"));
    }
    for last in wrongs {
        wrong(&format!("{script}\n{last}"));
    }
}

#[test]
fn a_value_is_what_was_stored_last() {
    let script = "5 set k 7 0 1|a > STORED\n5 set k 8 0 1|b > STORED";
    ends(
        script,
        &["5 get k > VALUE k 8 1|b|END", "5 gets k > VALUE k 8 1 4|b|END", "6 mg k > HD"],
        &[
            "5 get k > VALUE k 7 1|a|END",
            "5 get k > VALUE k 7 1|b|END",
            "5 get k > VALUE k 8 1 4|b|END",
            "5 gets k > VALUE k 8 1|b|END",
            "5 get k > END",
            "5 get k > STORED",
            "6 mg k > EN",
        ],
    );
    let evicting = Rules::new(Mode::Cache);
    assert!(!states(evicting, &format!("{script}\n5 get k > END")).is_empty());
    let gone = format!("{script}\n5 get k > END\n5 get k > VALUE k 8 1|b|END");
    assert!(states(evicting, &gone).is_empty(), "an evicted item stays away");
}

#[test]
fn each_mode_of_storing_has_its_condition() {
    ends(
        "",
        &["5 add k 0 0 1|a > STORED", "5 replace k 0 0 1|a > NOT_STORED"],
        &[
            "5 add k 0 0 1|a > NOT_STORED",
            "5 replace k 0 0 1|a > STORED",
            "5 append k 0 0 1|a > STORED",
            "5 prepend k 0 0 1|a > STORED",
            "5 cas k 0 0 1 1|a > STORED",
            "5 cas k 0 0 1 1|a > EXISTS",
            "5 delete k > DELETED",
            "5 incr k 1 > 1",
            "5 touch k 0 > TOUCHED",
        ],
    );
    ends(
        "5 set k 7 0 1|m > STORED\n5 append k 9 1 1|z > STORED\n5 prepend k 9 1 1|a > STORED",
        &["9 get k > VALUE k 7 3|amz|END", "9 add k 0 0 1|a > NOT_STORED", "5 delete k > DELETED"],
        &[
            "9 get k > VALUE k 7 3|zma|END",
            "9 get k > VALUE k 9 3|amz|END",
            "9 add k 0 0 1|a > STORED",
            "9 append k 0 0 1|a > NOT_STORED",
            "5 delete k > NOT_FOUND",
        ],
    );
}

#[test]
fn a_token_matches_its_own_item_only() {
    let script = "5 set k 0 0 1|a > STORED\n5 gets k > VALUE k 0 1 10|a|END";
    ends(
        script,
        &[
            "5 cas k 0 0 1 10|b > STORED",
            "5 cas k 0 0 1 9|b > EXISTS",
            "5 gets k > VALUE k 0 1 10|a|END",
        ],
        &[
            "5 cas k 0 0 1 10|b > EXISTS",
            "5 cas k 0 0 1 11|b > STORED",
            "5 cas k 0 0 1 10|b > NOT_FOUND",
            "5 gets k > VALUE k 0 1 11|a|END",
        ],
    );
    ends(
        &format!("{script}\n5 touch k 100 > TOUCHED"),
        &["5 cas k 0 0 1 10|b > STORED"],
        &["5 gets k > VALUE k 0 1 11|a|END"],
    );
    ends(
        &format!("{script}\n5 set k 0 0 1|a > STORED"),
        &["5 gets k > VALUE k 0 1 12|a|END", "5 cas k 0 0 1 10|b > EXISTS"],
        &["5 gets k > VALUE k 0 1 10|a|END", "5 cas k 0 0 1 10|b > STORED"],
    );
    let without = Rules { cas: false, ..Rules::new(Mode::Store) };
    let shown = |token| format!("5 set k 0 0 1|a > STORED\n5 gets k > VALUE k 0 1 {token}|a|END");
    assert!(!states(without, &shown(0)).is_empty() && states(without, &shown(1)).is_empty());
}

#[test]
fn numbers_are_counted_as_memcached_counts() {
    ends(
        "5 set k 0 0 2|10 > STORED\n5 decr k 1 > 9",
        &[
            "5 get k > VALUE k 0 2|9 |END",
            "5 get k > VALUE k 0 1|9|END",
            "5 incr k 1 > 10",
            "5 incr k 18446744073709551615 > 8",
        ],
        &["5 get k > VALUE k 0 3|9  |END", "5 incr k 1 > 9", "5 decr k 10 > 18446744073709551615"],
    );
    let refusal = "CLIENT_ERROR cannot increment or decrement non-numeric value";
    ends(
        "5 set k 0 0 2|1a > STORED",
        &[&format!("5 incr k 1 > {refusal}"), &format!("5 ma k > {refusal}")],
        &["5 incr k 1 > 2", "5 incr k 1 > NOT_FOUND"],
    );
    wrong(&format!("5 set k 0 0 1|1 > STORED\n5 incr k 1 > {refusal}"));
}

#[test]
fn what_expires_is_gone_from_its_second_on_and_not_before() {
    ends(
        "5 set k 0 10 1|a > STORED",
        &["14 get k > VALUE k 0 1|a|END", "15 get k > END", "5 mg k t > HD t10"],
        &["14 get k > END", "15 get k > VALUE k 0 1|a|END", "5 mg k t > HD t11"],
    );
    ends(
        "5-6 set k 0 10 1|a > STORED",
        &["15 get k > VALUE k 0 1|a|END", "15 get k > END"],
        &["14 get k > END", "16 get k > VALUE k 0 1|a|END"],
    );
    ends("5 set k 0 -1 1|a > STORED", &["5 get k > END"], &["5 get k > VALUE k 0 1|a|END"]);
    ends(
        "5 set k 0 10 1|a > STORED\n6 gat 0 k > VALUE k 0 1|a|END",
        &["99 get k > VALUE k 0 1|a|END", "99 mg k t > HD t-1"],
        &["99 get k > END"],
    );
    let unix = Rules { unix_s: Some(1_700_000_000), ..Rules::new(Mode::Store) };
    let set = "5 set k 0 1700000009 1|a > STORED";
    assert!(!states(unix, &format!("{set}\n9 get k > END")).is_empty());
    assert!(states(unix, &format!("{set}\n8 get k > END")).is_empty());
}

#[test]
fn a_flush_takes_what_was_stored_before_it() {
    let script = "5 set k 0 0 1|a > STORED\n5 flush_all > OK";
    ends(script, &["5 get k > END"], &["5 get k > VALUE k 0 1|a|END"]);
    ends(
        &format!("{script}\n5 set k 0 0 1|b > STORED"),
        &["5 get k > VALUE k 0 1|b|END"],
        &["5 get k > END"],
    );
    ends(
        "5 set k 0 0 1|a > STORED\n5 flush_all 10 > OK",
        &["13 get k > VALUE k 0 1|a|END", "14 get k > END", "15 get k > END"],
        &["13 get k > END", "15 get k > VALUE k 0 1|a|END"],
    );
    ends(
        "5 set k 0 0 1|a > STORED\n5 flush_all 10 > OK\n6 flush_all 20 > OK",
        &["20 get k > VALUE k 0 1|a|END", "26 get k > END"],
        &["20 get k > END"],
    );
}

#[test]
fn meta_flags_are_returned_in_the_order_of_the_request() {
    let script = "5 ms k 2 T10 F3 c|ab > HD c7";
    ends(
        script,
        &[
            "6 mg k v s f t c k O1 > VA 2 s2 f3 t9 c7 kk O1|ab",
            "6 mg k h l > HD h0 l1",
            "6 ms k 1 MA s|c > HD s3",
            "6 me k > ME k exp=9 la=1 cas=7 fetch=no cls=1 size=60",
            "6 ms k 1 ME q|c > NS",
            "6 ms k 1 q|c >",
            "6 md k q >",
            "6 mg k v C7 > HD",
            "6 mg k v C8 > VA 2|ab",
        ],
        &[
            "6 mg k v s f > VA 2 f3 s2|ab",
            "6 mg k v s f > VA 2 s2|ab",
            "6 mg k c > HD c8",
            "6 mg k h > HD h1",
            "6 mg k l > HD l2",
            "6 mg k k > HD",
            "6 mg k > HD W",
            "6 mg k q >",
            "6 ms k 1 q|c > HD",
            "6 ms k 1 ME q|c >",
            "6 me k > ME k exp=9 la=1 cas=8 fetch=no cls=1 size=60",
            "6 me k > EN",
            "6 mg k v C7 > VA 2|ab",
        ],
    );
    ends("", &["5 mg k q >", "5 mg k k O9 > EN kk O9", "5 me k > EN"], &["5 mg k > HD"]);
    ends(
        "5 set k 0 0 1|a > STORED\n5 get k > VALUE k 0 1|a|END",
        &["5 mg k h > HD h1"],
        &["5 mg k h > HD h0"],
    );
}

#[test]
fn a_key_is_shown_as_the_storing_request_worded_it() {
    let (marked, plain) = (
        ["5 mg a2V5 b k > HD ka2V5 b", "5 mg key k > HD ka2V5 b", "5 mg #a2!V5# k b > HD ka2V5 b"],
        ["5 mg a2V5 b k > HD kkey", "5 mg key k > HD kkey", "5 mg #a2!V5# k b > HD kkey"],
    );
    let never = ["5 mg a2V5 b k > HD ka2V5", "5 mg a2V5 b k > HD ka2V4 b"];
    let me = |key| format!("5 me key > ME {key} exp=-1 la=0 cas=9 fetch=no cls=1 size=60");
    let in_base64 = "5 ms a2V5 2 b|98 > HD";
    ends(in_base64, &[&me("a2V5")], &[&me("key"), never[0], never[1]]);
    ends("5 set key 0 0 1|a > STORED", &[&me("key")], &[&me("a2V5"), never[0], never[1]]);
    for keeps in ["touch key 0 > TOUCHED", "md key I > HD", "mg key T0 > HD", "ma key > HD"] {
        let marks = if keeps.starts_with("md") { " X W" } else { "" };
        let shown = marked.map(|line| format!("{line}{marks}"));
        let others = plain.map(|line| format!("{line}{marks}"));
        let script = format!("{in_base64}\n5 {keeps}");
        right(&format!("{script}\n{}", shown[0]));
        if !keeps.starts_with("ma") {
            wrong(&format!("{script}\n{}", others[0])); // The model's I2.
        }
    }
    for loses in [
        "set key 0 0 1|a > STORED",
        "ms a2V5 1 b MA|a > HD",
        "append key 0 0 1|a > STORED",
        "md key x > HD",
        "incr key 2 > 100",
        "ms key 1|a > HD",
    ] {
        ends(&format!("{in_base64}\n5 {loses}"), &plain, &marked);
    }
    ends("5 ms a2V5 1 b MA N0|a > HD", &marked, &plain);
    ends("5 ma a2V5 b N0 k > HD ka2V5 b", &plain, &marked);
    let (won, hidden) = ("5 mg a2V5 b k N0 > HD kkey W", "5 mg a2V5 b k N0 > HD ka2V5 b W");
    ends("", &[won, "5 mg a2V5 b k > EN ka2V5 b"], &[hidden, "5 mg a2V5 b k > EN kkey"]);
    ends("5 mg YSBi b k N0 > HD kYSBi b W", &["5 mg YSBi b k > HD kYSBi b Z"], &[]);
    // A carriage return in a key that came as text is part of the key and is shown as it came. A
    // key with a carriage return that came in base64 is shown in base64.
    let came = "5 mg a\rb k N0 > HD ka\rb W";
    let (text, base64) = ("5 mg a\rb k > HD ka\rb Z", "5 mg YQ1i b k > HD kYQ1i b Z");
    ends(came, &[text, base64], &["5 mg a\rb k > HD kYQ1i b Z", "5 mg YQ1i b k > HD ka\rb Z"]);
}

#[test]
fn one_reader_of_a_stale_item_wins() {
    let script = "5 ms k 1 c|a > HD c7\n5 md k I T30 > HD";
    ends(
        script,
        &["5 mg k v c > VA 1 c8 X W|a", "5 ms k 1 C7 I|b > HD", "5 ms k 1 C7|b > EX"],
        &[
            "5 mg k v c > VA 1 c7 X W|a",
            "5 mg k v > VA 1|a",
            "5 mg k v > VA 1 X|a",
            "36 mg k > HD X W",
        ],
    );
    let won = format!("{script}\n5 mg k c > HD c9 W X");
    ends(&won, &["5 mg k > HD Z X", "5 ms k 1 C9|b > HD"], &["5 mg k > HD X W", "5 mg k > HD X"]);
    ends(&format!("{won}\n5 ms k 1 C9|b > HD"), &["5 mg k v > VA 1|b"], &["5 mg k v > VA 1 X Z|b"]);
    ends(
        &format!("{won}\n5 ms k 1 C7 I|b > HD"),
        &["5 mg k v > VA 1 X Z|b"],
        &["5 mg k v > VA 1|b"],
    );
}

#[test]
fn one_that_missed_or_came_late_in_life_wins() {
    ends(
        "5 mg k N30 t > HD t30 W",
        &["5 mg k v > VA 0 Z|", "5 ms k 1|a > HD", "5 add k 0 0 1|a > NOT_STORED"],
        &["5 mg k v > VA 0 W|", "5 mg k > EN"],
    );
    ends(
        "5 ms k 1 T30|a > HD\n20 mg k R10 > HD",
        &["26 mg k R10 > HD W"],
        &["26 mg k R10 > HD", "25 mg k R10 > HD W"],
    );
    right("5 ms k 1 T30|a > HD\n26 mg k R10 > HD W\n26 mg k R10 > HD Z");
}

#[test]
fn meta_deletes_and_numbers_do_as_their_flags_ask() {
    ends(
        "5 ms k 1 F5 c|a > HD c7\n5 md k x > HD",
        &["5 mg k v f c > VA 0 f0 c7|"],
        &["5 mg k v > EN", "5 mg k v > VA 1|a"],
    );
    ends(
        "5 ms k 1 c|a > HD c7",
        &["5 md k C8 > EX", "5 md k C7 q >", "5 md k C0 > EX"],
        &["5 md k C8 > HD", "5 md k C7 > EX", "5 md k > NF"],
    );
    ends(
        "5 ma k N0 J13 v > VA 2|13\n5 ma k v > VA 2|14",
        &["5 ma k MD D5 v > VA 1|9", "5 ma k t c > HD t-1 c4", "5 get k > VALUE k 0 2|14|END"],
        &["5 ma k v > VA 2|14", "5 ma k MD D5 v > VA 2|09", "5 ma k > NF"],
    );
    ends("", &["5 ma k > NF", "5 ma k q > NF"], &["5 ma k q >", "5 ma k v > VA 1|0"]);
}

#[test]
fn a_token_that_a_client_chose_is_the_item_s() {
    ends(
        "5 ms k 1 E100 c|a > HD c100\n5 ms k 1 c|b > HD c8",
        &["5 mg k c > HD c8", "5 ms k 1 C8|c > HD", "5 ms k 1 C100|c > EX"],
        &["5 mg k c > HD c100"],
    );
}

#[test]
fn what_is_withheld_or_not_known_happened_or_may_have() {
    let script = "5 set k 0 0 1|a > STORED\n5 set k 0 0 1|b > ?";
    ends(
        script,
        &["5 get k > VALUE k 0 1|a|END", "5 get k > VALUE k 0 1|b|END"],
        &["5 get k > VALUE k 0 1|c|END", "5 get k > END"],
    );
    ends(
        "5 set k 0 0 1 noreply|b > ",
        &["5 get k > VALUE k 0 1|b|END", "5 delete k noreply >"],
        &["5 get k > END", "5 delete k noreply > DELETED", "5 delete k >"],
    );
}

#[test]
fn a_refusal_changes_nothing_unless_room_was_short() {
    let short = "SERVER_ERROR out of memory storing object";
    let script = format!("5 set k 0 0 1|a > STORED\n5 set k 0 0 1|b > {short}");
    ends(
        &script,
        &["5 get k > END", "5 get k > VALUE k 0 1|a|END"],
        &["5 get k > VALUE k 0 1|b|END"],
    );
    wrong("5 set k 0 0 1|a > STORED\n5 touch k 0 > CLIENT_ERROR bad\n5 get k > END");
    // Only a plain set removes the item that it would have replaced.
    for request in ["append k 0 0 1|b", "replace k 0 0 1|b", "ms k 1 MA|b", "ms k 1 MR|b"] {
        let script = format!("5 set k 0 0 1|a > STORED\n5 {request} > {short}");
        ends(&script, &["5 get k > VALUE k 0 1|a|END"], &["5 get k > END"]);
    }
    ends(
        &format!("5 set k 0 0 1|a > STORED\n5 ms k 1|b > {short}"),
        &["5 get k > END", "5 get k > VALUE k 0 1|a|END"],
        &["5 get k > VALUE k 0 1|b|END"],
    );
}

#[test]
fn an_append_may_find_no_room_where_memory_may_be_short() {
    let rules = Rules { memory_may_be_short: true, ..Rules::new(Mode::Store) };
    let model = Model::new(rules);
    let operation = |wire: &[u8]| Operation::new(wire).expect("an operation");
    let at = Window::at(5);
    let set = operation(b"set k 0 0 1\r\na\r\n");
    let [before] = &model.step(&State::default(), &set, &Outcome::Stored, at)[..] else {
        panic!("one way to store");
    };
    for (wire, reply) in [
        (&b"append k 0 0 1\r\nb\r\n"[..], &b"NOT_STORED\r\n"[..]),
        (b"prepend k 0 0 1\r\nb\r\n", b"NOT_STORED\r\n"),
        (b"ms k 1 MA\r\nb\r\n", b"NS\r\n"),
        (b"ms k 1 MP\r\nb\r\n", b"NS\r\n"),
    ] {
        let (outcome, _) = Outcome::read(reply).expect("a reply");
        let after = model.step(before, &operation(wire), &outcome, at);
        assert_eq!(after, std::slice::from_ref(before), "{}", wire.escape_ascii());
        let strict = Model::new(Rules::new(Mode::Store));
        assert!(strict.step(before, &operation(wire), &outcome, at).is_empty());
    }
    let silent = operation(b"append k 0 0 1 noreply\r\nb\r\n");
    for (rules, may_refuse) in [
        (rules, true),
        (Rules { mode: Mode::Cache, ..rules }, true),
        (Rules::new(Mode::Store), false),
    ] {
        let after = Model::new(rules).step(before, &silent, &Outcome::Silent, at);
        assert_eq!(after.contains(before), may_refuse, "the refusal was not seen");
        assert!(after.iter().any(|state| state != before), "or it was executed");
    }
    let replace = operation(b"replace k 0 0 1\r\nb\r\n");
    assert!(model.step(before, &replace, &Outcome::NotStored, at).is_empty());
}

#[test]
fn a_value_over_the_limit_is_refused_and_a_set_of_it_leaves_nothing() {
    // 48 bytes for the header, 8 for the token, 2 for the key and NUL, 2 for CR LF. A value of 2
    // bytes fits, a value of 3 bytes does not.
    let small = Rules { item_bytes_max: 62, ..Rules::new(Mode::Store) };
    let large = "SERVER_ERROR object too large for cache";
    let before = "5 set k 0 0 2|aa > STORED";
    let (kept, gone) = ("5 get k > VALUE k 0 2|aa|END", "5 get k > END");
    for (refused, left, not) in [
        (format!("set k 0 0 3|bbb > {large}"), gone, kept),
        ("set k 0 0 3 noreply|bbb >".to_owned(), gone, kept),
        (format!("ms k 3 ME q|bbb > {large}"), gone, kept),
        (format!("set k 1 0 2|bb > {large}"), gone, kept),
        (format!("add k 0 0 3|bbb > {large}"), kept, gone),
        (format!("cas k 0 0 3 9|bbb > {large}"), kept, gone),
        ("append k 0 0 3 noreply|bbb >".to_owned(), kept, gone),
    ] {
        let script = format!("{before}\n5 {refused}");
        assert!(!states(small, &format!("{script}\n{left}")).is_empty(), "impossible: {script}");
        assert!(states(small, &format!("{script}\n{not}")).is_empty(), "accepted: {script}");
    }
    for impossible in [
        format!("set k 0 0 2|bb > {large}"),
        format!("touch k 0 > {large}"),
        "set k 0 0 3|bbb > STORED".to_owned(),
        "ms k 3 q|bbb >".to_owned(),
    ] {
        let script = format!("{before}\n5 {impossible}");
        assert!(states(small, &script).is_empty(), "accepted: {script}");
    }
}
