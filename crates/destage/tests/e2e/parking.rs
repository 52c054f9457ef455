//! What tests of rejected and parked writes have in common.

use crate::harness::{Client, Reply};

/// Something that is not refused.
#[track_caller]
pub(crate) fn ok(client: &mut Client, command: &str) -> Reply {
    let reply = client.run(command);
    assert!(!reply.is_error(), "{command}: {reply:?}");
    reply
}

/// A write that the origin takes.
#[track_caller]
pub(crate) fn arrives(client: &mut Client, command: &str) {
    ok(client, command);
    assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1, "{command}");
}

/// A write that the origin rejects; its number.
#[track_caller]
pub(crate) fn is_parked(client: &mut Client, command: &str) -> String {
    ok(client, command);
    assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"), "{command}");
    let list = client.run("DESTAGE PARKED LIST");
    named(list.array().last().expect("it is listed"), "id").text()
}

/// A named value of an answer.
#[track_caller]
pub(crate) fn named<'r>(answer: &'r Reply, name: &str) -> &'r Reply {
    let found = answer.array().chunks(2).find(|pair| pair[0].text() == name);
    &found.unwrap_or_else(|| panic!("{name} is not in {answer:?}"))[1]
}

/// A decision, and what must be in its answer.
#[track_caller]
pub(crate) fn decided(client: &mut Client, words: &[&str], expected: &[(&str, &str)]) {
    let words: Vec<&str> = ["DESTAGE", "PARKED"].iter().chain(words).copied().collect();
    let reply = client.call(&words);
    assert!(!reply.is_error(), "{words:?}: {reply:?}");
    let pairs = reply.pairs();
    for (name, value) in expected {
        let found = pairs.iter().find(|(known, _)| known == name);
        assert_eq!(found.map(|(_, value)| value.as_str()), Some(*value), "{words:?}: {pairs:?}");
    }
}
