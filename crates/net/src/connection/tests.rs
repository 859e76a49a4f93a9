//! A connection: what it waits for, when it is at rest, and when it may move.

use super::*;
use crate::mechanism::Mechanisms;
use crate::sasl::{SaslMessage, SaslStep};
use crate::{AnswerRoom, BlockPool, ConnectionIndex, Fence, Resume, Slots, USERS_KEY_BYTES, Users};

const NOW: u32 = 5;

fn fresh() -> Connection {
    Connection::new(SocketId::new(0, 1), EndpointIndex(0), NOW)
}

#[test]
fn each_wait_ends_with_its_own_cause() {
    let mut open = fresh();
    assert!(!open.is_paused() && !open.may_resume(), "nothing is waited for");

    assert!(open.pause(Waiting::Reader));
    assert!(!open.pause(Waiting::Reader), "it waited before");
    assert!(open.may_resume(), "nothing is owed any more");
    open.resume(NOW);
    assert_eq!(open.waiting(), Waiting::Nothing);

    open.begin_listing();
    open.pause(Waiting::Listing);
    assert!(!open.may_resume());
    open.end_listing();
    assert!(open.may_resume());
    open.resume(NOW);

    let mut slots = Slots::<()>::new();
    let answers = (1, AnswerRoom::default());
    let slot = open.outbox.await_answers(answers, ConnectionIndex(0).into(), &mut slots);
    open.pause(Waiting::Answers);
    assert!(!open.may_resume());
    open.outbox.answered(slot, 0, &mut slots);
    assert!(open.may_resume());
    open.resume(NOW);

    assert!(open.pause(Waiting::Turn));
    assert!(open.awaits_turn() && !open.may_resume(), "only its turn wakes it");
    assert!(open.take_turn(NOW) && !open.is_paused());

    assert!(open.pause(Waiting::Record));
    assert!(open.awaits_record() && !open.may_resume(), "only a record wakes it");
    assert!(open.note_record());
    assert!(!open.note_record(), "it waits for none");
    assert!(open.is_paused() && open.may_resume());
}

#[test]
fn a_connection_that_waits_for_its_turn_receives_until_it_keeps_much() {
    let mut open = fresh();
    open.pause(Waiting::Turn);
    open.input.append(&[b'x'; WAITING_INPUT_BYTES_MAX / 2], Vec::new);
    assert_eq!(open.set_receiving(), None, "it keeps little");
    open.input.append(&[b'x'; WAITING_INPUT_BYTES_MAX / 2], Vec::new);
    assert_eq!(open.set_receiving(), Some(true));
    assert_eq!(open.set_receiving(), None, "it has stopped");
    assert!(open.take_turn(NOW));
    assert_eq!(open.set_receiving(), Some(false));
    open.pause(Waiting::Reader);
    open.input.clear();
    assert_eq!(open.set_receiving(), Some(true), "it waits for its client");
}

#[test]
#[should_panic(expected = "I2: nothing is served")]
fn a_connection_that_waits_for_a_record_is_not_paused_again() {
    let mut open = fresh();
    open.pause(Waiting::Record);
    open.pause(Waiting::Reader);
}

#[test]
#[should_panic(expected = "I1: what it waited for")]
fn a_connection_is_not_resumed_before_its_time() {
    let mut open = fresh();
    open.begin_listing();
    open.pause(Waiting::Listing);
    open.resume(NOW);
}

#[test]
#[should_panic(expected = "I3: it is served once a tick")]
fn a_connection_is_ready_once() {
    let mut open = fresh();
    open.set_ready(0);
    open.set_ready(1);
}

#[test]
fn receiving_stops_while_it_is_paused() {
    let mut open = fresh();
    assert_eq!(open.set_receiving(), None);
    open.pause(Waiting::Reader);
    assert_eq!(open.set_receiving(), Some(true));
    assert!(open.set_receiving().is_none() && !open.begin_receiving());
    open.resume(NOW);
    assert!(open.begin_receiving());
    assert!(!open.begin_receiving() && open.set_receiving().is_none());
}

/// While a login waits, the end of its client is noticed, and ends the wait.
#[test]
fn receiving_goes_on_for_a_while_where_a_login_waits() {
    let mut open = fresh();
    open.ask_login(LoginOwed::new(NOW, Peer::Local));
    open.input.append(&[b'x'; 100], Vec::new);
    assert!(open.wait_with_login(None, NOW));
    assert_eq!((open.set_receiving(), open.is_receiving()), (None, true));
    open.input.append(&[b'x'; WAITING_INPUT_BYTES_MAX - 101], Vec::new);
    assert_eq!(open.set_receiving(), None);
    open.input.append(b"x", Vec::new);
    assert_eq!((open.set_receiving(), open.is_receiving()), (Some(true), false));
    assert!(!open.begin_receiving() && !open.is_served());
    open.finish();
    assert!(open.is_served(), "the login is given up");
    open.note_login_turn();
    assert!(!open.is_served(), "it is served now");
    open.resume(NOW);
    assert_eq!(open.set_receiving(), Some(false));
}

#[test]
fn a_landing_is_lent_only_where_nothing_is_unread() {
    let mut open = fresh();
    assert!(!open.may_land(), "no value comes");
    open.begin_upload(100_000);
    assert!(open.may_land() && open.is_in_block());
    open.input.append(b"x", Vec::new);
    assert!(!open.may_land(), "a byte is unread");
    open.input.clear();
    open.pause(Waiting::Answers);
    assert!(!open.may_land(), "it is paused");
    open.resume(NOW);
    open.finish();
    assert!(!open.may_land(), "its peer has ended its side");
    open.end_upload();
    assert!(!open.is_in_block() && open.is_served());
}

#[test]
fn it_leaves_with_input_of_which_nothing_was_carried_out() {
    let mut open = fresh();
    open.input.keep(b"get k\r\n".to_vec());
    assert!(open.may_leave() && !open.is_at_rest());
    let form = kachel_wire::request::RetrieveForm::Value;
    open.input.set_resume(Resume { next_key: 4, keys_end: 9, form, ttl: None });
    assert!(!open.may_leave(), "a key is answered");
    open.input.take_resume();
    open.input.clear();
    assert!(open.is_at_rest());
    open.input.skip(3);
    assert!(!open.may_leave());
}

#[test]
fn a_client_that_begins_another_login_owes_one_again() {
    let mut open = fresh();
    assert!(open.login().is_none() && open.logs_in().is_none());
    let login = LoginOwed::new(NOW, Peer::Local);
    open.ask_login(login);
    open.log_out(NOW + 3);
    assert_eq!((open.login(), open.logs_in()), (Some(&login), Some(Peer::Local)));
    open.log_in();
    assert_eq!((open.login(), open.logs_in()), (None, Some(Peer::Local)));
    open.log_out(NOW + 7);
    assert_eq!(open.login(), Some(&LoginOwed::new(NOW + 7, Peer::Local)));
}

#[test]
fn it_stays_while_an_exchange_is_under_way() {
    let key = [1; USERS_KEY_BYTES];
    let users = Users::read_for_sasl(b"a:b", key, Mechanisms::All, &|| false);
    let users = users.expect("a good file");
    let mut open = fresh();
    open.ask_login(LoginOwed::new(NOW, Peer::Local));
    assert!(open.is_at_rest());
    let mechanism = b"SCRAM-SHA-256";
    let first = SaslMessage::First { mechanism, message: b"n,,n=a,r=b" };
    let step = open.exchange_mut().answer(&users, first, 1);
    assert!(matches!(step, SaslStep::Continue(_)) && !open.may_leave());
    let step = open.exchange_mut().answer(&users, SaslMessage::Next(b""), 2);
    assert!(step == SaslStep::Unknown && open.is_at_rest());
}

#[test]
#[should_panic(expected = "I6")]
fn a_client_that_has_logged_in_has_no_exchange() {
    let _none = fresh().exchange_mut();
}

#[test]
fn while_a_reply_is_owed_only_reading_is_a_sign_of_life() {
    let mut open = fresh();
    open.note_received(NOW + 3);
    assert_eq!(open.idle_sweeps(NOW + 3), 0);
    let (mut blocks, mut slots) = (BlockPool::new(), Slots::<()>::new());
    open.outbox.text(b"END\r\n", ConnectionIndex(0).into(), &mut blocks, &mut slots);
    open.note_received(NOW + 9);
    assert_eq!(open.idle_sweeps(NOW + 9), 6);
    open.note_active(NOW + 9);
    assert_eq!(open.idle_sweeps(NOW + 9), 0);
}

#[test]
fn marks_say_whether_it_was_listed_before() {
    let mut open = fresh();
    assert!(open.mark_dirty() && !open.mark_dirty());
    assert!(open.clear_dirty() && !open.clear_dirty());
    assert!(open.mark_dirty());
    assert!(open.mark_resumable() && !open.mark_resumable());
    open.clear_resumable();
    assert!(open.mark_resumable());
}

#[test]
fn nothing_is_sent_behind_a_fence_until_it_is_reached() {
    let (mut outbox, mut pool, mut slots) = (Outbox::new(), BlockPool::new(), Slots::<()>::new());
    let client = || ConnectionIndex(0).into();
    let fence = |engine, sequence| Fence { engine, sequence };
    let mut put = |outbox: &mut Outbox, slots: &mut Slots<()>, text: &[u8]| {
        outbox.text(text, client(), &mut pool, slots);
    };
    put(&mut outbox, &mut slots, b"hit ");
    assert!(outbox.fence(fence(1, 5), client(), &mut slots));
    put(&mut outbox, &mut slots, b"set ");
    assert!(!outbox.fence(fence(1, 5), client(), &mut slots), "one commit has one fence");
    put(&mut outbox, &mut slots, b"set hit ");
    let room = AnswerRoom { line_bytes: 100, value_bytes: 0 };
    let parked = outbox.await_answers((1, room), client(), &mut slots);
    assert!(outbox.fence(fence(2, 5), client(), &mut slots));
    put(&mut outbox, &mut slots, b"other ");
    outbox.text_into(parked, b"parked ", &mut slots);
    slots.hold_back(parked, fence(1, 6));
    outbox.answered(parked, 0, &mut slots);
    assert!(!outbox.awaits_answers() && !outbox.is_empty());
    let mut sent = |engine: u16, sequence: u64| {
        let is_reached = |fence: Fence| fence.engine == engine && fence.sequence <= sequence;
        outbox.settle(&mut pool, &mut slots, is_reached);
        String::from_utf8(outbox.pieces().collect::<Vec<_>>().concat()).expect("text")
    };
    assert_eq!(sent(2, 9), "hit ", "it is a fence of another engine");
    assert_eq!(sent(1, 4), "hit ");
    assert_eq!(sent(1, 5), "hit set set hit ");
    assert_eq!(sent(2, 9), "hit set set hit ");
    assert_eq!(sent(1, 6), "hit set set hit parked ");
    assert_eq!(sent(2, 5), "hit set set hit parked other ");
    assert_eq!(outbox.slots_in_use(), 0);
}
