//! What becomes of questions to an origin that is away, where those who wait for the answers go on to wait.

use super::claims::Script;
use super::command::encode;
use super::shop;
use crate::engine::{FetchJob, Io};
use crate::origins::OriginError;
use crate::settings::OnAway;
use destage_core::{ClientId, Fault, Span};

/// Longer than until a question is asked again.
const LATER: Span = Span::from_millis(200);

fn script() -> Script {
    let mut script = Script::serving(|schema| schema.tables[shop::ITEM].generated_key = Some(0));
    script.engine.config.on_away = OnAway::Wait;
    script
}

fn pass(script: &mut Script, span: Span) {
    script.now = script.now + span;
    script.turn();
}

fn away() -> OriginError {
    OriginError::new(Fault::Unavailable, "connection refused")
}

/// Others that send one command each.
fn others(script: &mut Script, commands: &[&str]) -> Vec<ClientId> {
    let first = script.client;
    let clients = commands.iter().map(|command| {
        script.client = script.engine.connect().unwrap();
        script.send(command);
        script.client
    });
    let clients = clients.collect();
    script.client = first;
    clients
}

fn received_by(script: &mut Script, client: ClientId) -> String {
    let (ready, _) = script.engine.outgoing(client).unwrap();
    String::from_utf8(std::mem::take(ready)).unwrap()
}

/// The origin is away for the rows that are asked for; how many these were.
fn fail(script: &mut Script) -> usize {
    let jobs: Vec<FetchJob> = script.engine.take_fetches(100);
    let count = jobs.len();
    script.engine.fetch_failed(script.now, jobs, &away());
    script.turn();
    count
}

#[test]
fn a_row_is_asked_for_again_while_a_client_waits_for_it() {
    let mut script = script();
    script.send("HGET item:1 n\nHINCRBY item:1 n 5\nHGET item:1 n");
    for _ in 0..20 {
        assert_eq!(fail(&mut script), 1);
        assert_eq!(script.received().0, "");
        assert!(!script.engine.has_fetches(), "not at once");
        assert!(script.engine.next_timeout().is_some_and(|due| due <= script.now + LATER));
        pass(&mut script, LATER);
    }
    script.fetch(0);
    script.sync();
    assert_eq!(script.received().0, "$1\r\n0\r\n:5\r\n$1\r\n5\r\n");
    assert!(script.engine.jobs.put_off().next_timeout().is_none());
}

/// One of them finds out whether it is back. Then all are asked, rows many at a time.
#[test]
fn those_who_wait_do_not_all_ask_before_the_origin_is_back() {
    let mut script = script();
    let clients = others(&mut script, &["HGET item:0 n", "HGET item:1 n", "HGET item:2 n"]);
    assert_eq!(fail(&mut script), 3);
    for _ in 0..5 {
        pass(&mut script, LATER);
        assert_eq!(fail(&mut script), 1);
    }
    pass(&mut script, LATER);
    script.fetch(0);
    pass(&mut script, LATER);
    let jobs = script.engine.take_fetches(100);
    assert_eq!(jobs.len(), 2);
    script.engine.fetch_failed(script.now, jobs, &away());
    script.turn();
    pass(&mut script, LATER);
    script.fetch(0);
    pass(&mut script, LATER);
    script.fetch(0);
    for client in clients {
        let told = received_by(&mut script, client);
        assert!(told.starts_with('$'), "{told}");
    }
}

#[test]
fn what_nobody_waits_for_any_more_is_not_asked_again() {
    let mut script = script();
    let [gone] = others(&mut script, &["HGET item:1 n"])[..] else { panic!("one") };
    script.send("HINCRBY item:0 n 1");
    assert_eq!(fail(&mut script), 2);
    script.engine.disconnect(script.now, gone);
    script.turn();
    pass(&mut script, LATER);
    assert_eq!(fail(&mut script), 1, "that of the other client");
    pass(&mut script, Span::from_secs(10));
    let told = script.received().0;
    assert!(told.starts_with("-UNAVAILABLE model has not answered within 10 s"), "{told}");
    assert!(told.contains("nothing was done"), "{told}");
    // What was asked meanwhile comes too late.
    script.fetch(0);
    pass(&mut script, LATER);
    assert!(!script.engine.has_fetches() && script.engine.jobs.put_off().next_timeout().is_none());
    script.send("HGET item:0 n");
    script.fetch(0);
    assert_eq!(script.received().0, "$2\r\n10\r\n");
}

#[test]
fn other_questions_are_asked_again_as_well() {
    for command in ["SCAN 0 MATCH item:*", "DESTAGE NEXTID item"] {
        let mut script = script();
        let clients = others(&mut script, &[command, command]);
        let ask = |script: &mut Script| {
            let asked = std::mem::take(&mut script.ios);
            for io in &asked {
                match *io {
                    Io::Scan { request, .. } => {
                        script.engine.scanned(script.now, request, Err(away()));
                    }
                    Io::NextKeys { request, .. } => {
                        script.engine.keys_reserved(script.now, request, Err(away()));
                    }
                    ref other => panic!("{other:?}"),
                }
            }
            script.turn();
            asked.len()
        };
        assert_eq!(ask(&mut script), 2, "{command}");
        pass(&mut script, LATER);
        assert_eq!(ask(&mut script), 1, "{command}");
        assert_eq!(received_by(&mut script, clients[0]), "");
        script.engine.disconnect(script.now, clients[0]);
        pass(&mut script, LATER);
        assert_eq!(ask(&mut script), 1, "{command}");
        script.engine.disconnect(script.now, clients[1]);
        pass(&mut script, LATER);
        assert_eq!(ask(&mut script), 0, "{command}");
        assert!(script.engine.jobs.put_off().next_timeout().is_none());
    }
}

#[test]
fn what_the_origin_refuses_is_told_at_once() {
    let mut script = script();
    script.send("HGET item:1 n");
    let jobs = script.engine.take_fetches(1);
    let denied = OriginError::new(Fault::Denied, "no right");
    script.engine.fetch_failed(script.now, jobs, &denied);
    script.turn();
    assert!(script.received().0.starts_with("-DENIED"));
}

/// What was only read ahead is no reason to ask again.
#[test]
fn rows_that_no_client_waits_for_yet_are_not_asked_for_again() {
    let mut script = script();
    let reads: Vec<u8> = (0..3)
        .flat_map(|id| encode(&["HGET".to_owned(), format!("item:{id}"), "n".to_owned()]))
        .collect();
    script.engine.receive(script.now, script.client, &reads);
    script.turn();
    assert_eq!(fail(&mut script), 3, "the first one, and two ahead");
    pass(&mut script, LATER);
    assert_eq!(fail(&mut script), 1);
}
