use super::*;
use crate::nbd::wire::command;

const SIZE: u64 = 1 << 30;

fn talk(limits: Limits) -> Talk {
    Talk::opened(Export::new("vol", SIZE), Replies::Simple, limits)
}

fn cookies(events: &[Event]) -> Vec<Cookie> {
    let cookie = |event: &Event| match event {
        Event::Request(cookie, _) => Some(*cookie),
        _ => None,
    };
    events.iter().filter_map(cookie).collect()
}

#[test]
fn requests_beyond_the_limit_wait_for_replies() {
    let mut talk = talk(Limits { requests_max: 2, bytes_max: 1 << 20 });
    let taken = cookies(&talk.says(&request(command::FLUSH, 0, 0, 0).encode().repeat(3)));
    assert_eq!(taken.len(), 2);
    assert!(!talk.session.wants_input());
    assert_eq!(talk.session.requests_under_way(), 2);
    talk.session.reply(taken[1], Reply::Done);
    assert_eq!(cookies(&talk.session.next_event().into_iter().collect::<Vec<_>>()).len(), 1);
    assert!(!talk.session.wants_input());
}

#[test]
fn what_a_client_does_not_take_is_not_piled_up() {
    let mut talk = talk(Limits { requests_max: 100, bytes_max: 10_000 });
    let header = request(command::READ, 0, 0, 4096);
    let mut taken = cookies(&talk.says(&header.encode().repeat(4)));
    assert_eq!(taken.len(), 2, "a third does not fit");
    for cookie in taken.drain(..) {
        talk.session.reply(cookie, Reply::Data(vec![7; 4096]));
    }
    assert_eq!(talk.session.next_event(), None, "answered, but not sent");
    assert!(talk.session.bytes_held() <= 10_000);
    assert_eq!(talk.heard().len(), 2 * (16 + 4096));
    let events: Vec<Event> = std::iter::from_fn(|| talk.session.next_event()).collect();
    assert_eq!(cookies(&events).len(), 2);
}

#[test]
fn errors_that_a_client_does_not_take_are_not_piled_up_either() {
    let mut talk = talk(Limits { requests_max: 100, bytes_max: 1000 });
    let refused = request(command::READ, 0, SIZE, 1).encode();
    talk.says(&refused.repeat(100_000));
    assert!(!talk.session.wants_input());
    assert!(talk.session.bytes_held() <= 1016);
}

#[test]
fn one_request_larger_than_the_limit_is_taken_alone() {
    let mut talk = talk(Limits { requests_max: 100, bytes_max: 1000 });
    let write = [&request(command::WRITE, 0, 0, 4096).encode(), [7; 4096].as_slice()].concat();
    let taken = cookies(&talk.says(&write.repeat(2)));
    assert_eq!(taken.len(), 1);
    assert_eq!(talk.session.bytes_held(), 4096);
    talk.session.reply(taken[0], Reply::Done);
    talk.heard();
    let events: Vec<Event> = std::iter::from_fn(|| talk.session.next_event()).collect();
    assert_eq!(cookies(&events).len(), 1);
    assert_eq!(talk.session.bytes_held(), 4096);
}

#[test]
fn a_request_beyond_a_share_of_the_memory_waits_until_it_is_let_in() {
    let mut talk = talk(Limits::default());
    talk.session.set_memory(1000, false);
    let read = request(command::READ, 0, 0, 4096).encode();
    assert!(cookies(&talk.says(&read)).is_empty());
    assert!(talk.session.is_short_of_memory());
    talk.session.set_memory(1000, true);
    let events: Vec<Event> = std::iter::from_fn(|| talk.session.next_event()).collect();
    assert_eq!(cookies(&events).len(), 1);
    assert!(!talk.session.is_short_of_memory());
    talk.session.set_memory(1000, false);
    assert!(cookies(&talk.says(&request(command::READ, 0, 0, 512).encode())).is_empty());
    assert!(!talk.session.is_short_of_memory(), "it waits for its own reply");
}

#[test]
fn the_bytes_of_a_long_write_are_received_in_place() {
    let mut talk = talk(Limits::default());
    let len = 1 << 20;
    talk.says(&request(command::WRITE, 0, 0, len).encode());
    let space = talk.session.space();
    assert_eq!(space.len(), len as usize);
    let place = space.as_ptr();
    space.fill(7);
    talk.session.filled(len as usize);
    let Some(Event::Request(_, Request::Write { data, .. })) = talk.session.next_event() else {
        panic!("no write");
    };
    assert_eq!((data.as_ptr(), data.len()), (place, len as usize));
    assert!(data.iter().all(|&byte| byte == 7));
}
