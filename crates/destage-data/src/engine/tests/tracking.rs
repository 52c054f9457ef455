//! Clients that hold copies of what they have read: none of these is ever old once what they are told has come.

use super::claims::Script;
use super::derived::queries;
use super::options::Rng;
use super::shop;
use crate::engine::{DOMAIN, Io, ParkedCommand};
use crate::origins::Snapshot;
use crate::resp::each_reply;
use crate::schema::TableId;
use crate::settings::TableSettings;
use crate::ttl::TtlSettings;
use destage_core::{ClientId, Lsn, Span, Time};
use destage_engine::Drive;
use destage_testkit::origin::{Place, Row};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What an origin holds that others write to as well.
type Origin = BTreeMap<Place, Row>;

/// A client with a cache of its own.
struct Holder {
    client: ClientId,
    mode: &'static str,
    /// Replies by the command and its key.
    held: BTreeMap<String, (String, Vec<u8>)>,
    /// What is asked and not answered yet: what is to be held, if anything.
    asked: VecDeque<Option<(String, String)>>,
}

/// What the clients may ask: one command each, whose second word is the key.
fn read(random: &mut Rng) -> String {
    let (item, parent, plain) = (random.below(8), random.below(4), random.below(3));
    match random.below(7) {
        0 => format!("HGETALL item:{item}"),
        1 => format!("HGET item:0{item} n"),
        2 => format!("HMGET item:{item} tag note"),
        3 => format!("HGETALL parent:{parent}"),
        4 => format!("EXISTS item:{item}"),
        5 => format!("GET p:{plain}"),
        _ => format!("HGET child:{parent} qty"),
    }
}

fn write(random: &mut Rng) -> String {
    let (item, parent, plain) = (random.below(8), random.below(4), random.below(3));
    let value = random.below(100);
    match random.below(9) {
        0 => format!("HSET item:{item} n {value}"),
        // As long as what is there, often.
        1 => format!("HSET item:{item} tag v{}", value % 10),
        2 => format!("HINCRBY item:{item} n 1"),
        3 => format!("DEL item:{item}"),
        4 => format!("MULTI\nHSET item:{item} note x{value}\nHINCRBY parent:1 total 1\nEXEC"),
        5 => format!("SET p:{plain} {value}"),
        6 => format!("SET p:{plain} {value} PX {}", value + 1),
        7 => format!("HSET parent:{parent} tag v{value}"),
        _ => format!("DESTAGE INVALIDATE item:{item}"),
    }
}

struct World {
    script: Script,
    origin: Origin,
    holders: Vec<Holder>,
    auditor: ClientId,
    random: Rng,
    /// One message in so many is lost on purpose.
    loses: Option<u64>,
    seen: u64,
    told: u64,
    audited: u64,
}

impl World {
    fn new(seed: u64, loses: Option<u64>) -> Self {
        let mut script = Script::serving(|schema| schema.serve_plain_keys(&[]).unwrap());
        let mut random = Rng::new(seed, 77);
        let mut policy = script.engine.policy().clone();
        policy.limits.cache_bytes_max = 300 + random.below(1_000);
        script.engine.set_policy(script.now, &policy).unwrap();
        let modes = ["", " OPTIN", " OPTOUT", " BCAST PREFIX item: PREFIX p:", " NOLOOP"];
        let connect = |script: &mut Script, command: &str| {
            script.client = script.engine.connect().unwrap();
            script.told(command);
            script.client
        };
        let holders = modes.map(|mode| Holder {
            client: connect(&mut script, &format!("HELLO 3\nCLIENT TRACKING ON{mode}")),
            mode,
            held: BTreeMap::new(),
            asked: VecDeque::new(),
        });
        let auditor = connect(&mut script, "HELLO 3");
        let (holders, origin) = (holders.into(), shop::initial().into_iter().collect());
        Self { script, origin, holders, auditor, random, loses, seen: 0, told: 0, audited: 0 }
    }

    fn fetch(&mut self) {
        while self.script.engine.has_fetches() {
            let jobs = self.script.engine.take_fetches(100);
            let row = |place: Place| self.origin.get(&place).map(shop::row_cells);
            let rows =
                jobs.iter().map(|job| row((usize::from(job.table.0), shop::key_of(&job.key))));
            let rows = rows.collect();
            let snapshot = Snapshot { rows, watermarks: vec![(DOMAIN, Lsn(0))], seen: Vec::new() };
            self.script.engine.fetched(self.script.now, jobs, snapshot);
            self.script.turn();
        }
    }

    fn settle(&mut self) {
        self.fetch();
        while self.script.ios.iter().any(|io| matches!(io, Io::Sync { .. })) {
            self.script.sync();
            self.fetch();
        }
    }

    /// What the clients have received, in its order.
    fn hear(&mut self) {
        for holder in &mut self.holders {
            self.script.client = holder.client;
            let (text, _) = self.script.received();
            each_reply(text.as_bytes(), |one| {
                if one.first() == Some(&b'>') {
                    self.seen += 1;
                    if self.loses.is_some_and(|each| self.seen.is_multiple_of(each)) {
                        return;
                    }
                    let text = String::from_utf8_lossy(one);
                    let names: Vec<&str> = text.split("\r\n").skip(4).collect();
                    self.told += names.len() as u64 / 2;
                    holder.held.retain(|_, (key, _)| !names.contains(&key.as_str()));
                    return;
                }
                let asked = holder.asked.pop_front().expect("a reply to what was asked");
                if let Some((command, key)) = asked.filter(|_| one[0] != b'-') {
                    holder.held.insert(command, (key, one.to_vec()));
                }
            });
        }
    }

    fn ask(&mut self, index: usize, commands: &str, to_hold: bool) {
        let holder = &mut self.holders[index];
        for line in commands.lines() {
            let key = line.split(' ').nth(1).unwrap_or_default().to_owned();
            holder.asked.push_back(to_hold.then(|| (line.to_owned(), key)));
        }
        self.script.client = holder.client;
        self.script.send(commands);
    }

    fn step(&mut self) {
        let index = self.random.below(self.holders.len() as u64) as usize;
        match self.random.below(12) {
            0..=4 => {
                let command = read(&mut self.random);
                let mode = self.holders[index].mode;
                let is_said = self.random.below(2) == 0;
                let is_meant = match mode {
                    " OPTIN" => is_said,
                    " OPTOUT" => !is_said,
                    // What it is told of is all that it may hold.
                    mode if mode.contains("BCAST") => {
                        command.contains(" item:") || command.contains(" p:")
                    }
                    _ => true,
                };
                if is_said && mode.contains("OPT") {
                    let word = if mode == " OPTIN" { "YES" } else { "NO" };
                    self.ask(index, &format!("CLIENT CACHING {word}"), false);
                }
                self.ask(index, &command, is_meant);
            }
            5..=7 => {
                let command = write(&mut self.random);
                if self.holders[index].mode == " NOLOOP" {
                    // It knows of its own writes.
                    let words: Vec<&str> = command.split_whitespace().collect();
                    let is_own = |key: &str| words.iter().any(|word| same_row(word, key));
                    self.settle();
                    self.hear();
                    self.holders[index].held.retain(|_, (key, _)| !is_own(key));
                }
                self.ask(index, &command, false);
            }
            8 => {
                // Another program writes at the origin, and says so.
                let key = self.random.below(8) as i64;
                let n = self.random.below(1_000).to_string();
                let place = (shop::ITEM, key);
                let row = self
                    .origin
                    .entry(place)
                    .or_insert_with(|| vec![Some(key.to_string()), None, None, None, None]);
                row[1] = Some(n);
                let keys = [shop::key_cells(key).into()];
                self.script.engine.changed_at_origin(TableId(shop::ITEM as u16), Some(&keys));
                self.script.turn();
            }
            9 => {
                self.script.now = self.script.now + Span::from_millis(self.random.below(60));
                self.script.turn();
            }
            10 => self.fetch(),
            _ => self.settle(),
        }
    }

    /// Everything that is held is what a client would read that holds nothing.
    fn audit(&mut self) {
        self.settle();
        self.script.turn();
        self.settle();
        self.hear();
        for index in 0..self.holders.len() {
            let commands: Vec<String> = self.holders[index].held.keys().cloned().collect();
            for command in commands {
                self.script.client = self.auditor;
                self.script.send(&command);
                self.settle();
                self.script.client = self.auditor;
                let now = self.script.received().0;
                // What the look has made leave the cache is told, too.
                self.hear();
                let holder = &self.holders[index];
                if let Some((_, held)) = holder.held.get(&command) {
                    let held = String::from_utf8_lossy(held);
                    assert_eq!(held, now, "{command} as held by a client of mode{:?}", holder.mode);
                    self.audited += 1;
                }
            }
        }
    }
}

/// Whether two spellings name one row.
fn same_row(one: &str, two: &str) -> bool {
    let plain = |text: &str| text.replace(":0", ":");
    one == two || one.contains(':') && plain(one) == plain(two)
}

fn run(seed: u64, loses: Option<u64>) -> (u64, u64) {
    let mut world = World::new(seed, loses);
    for step in 0..300 {
        world.step();
        if step % 20 == 19 {
            world.audit();
        }
    }
    (world.told, world.audited)
}

#[test]
fn no_copy_that_a_client_holds_is_old_once_it_was_told_everything() {
    let (mut told, mut audited) = (0, 0);
    for seed in 0..40 {
        let result = catch_unwind(AssertUnwindSafe(|| run(seed, None)));
        let counts = result.unwrap_or_else(|_| panic!("seed {seed}"));
        (told, audited) = (told + counts.0, audited + counts.1);
    }
    assert!(told > 1_000 && audited > 1_000, "{told} told, {audited} looked at");
}

#[test]
fn a_message_that_is_lost_is_found() {
    let caught =
        (0..10).filter(|&seed| catch_unwind(AssertUnwindSafe(|| run(seed, Some(4)))).is_err());
    assert!(caught.count() > 5);
}

fn reader(script: &mut Script, options: &str) -> ClientId {
    script.client = script.engine.connect().unwrap();
    let told = script.told(&format!("HELLO 3\nCLIENT TRACKING ON{options}"));
    assert!(told.ends_with("+OK\r\n"), "{told}");
    script.client
}

fn told_to(script: &mut Script, client: ClientId) -> String {
    script.client = client;
    script.received().0
}

fn names(keys: &[&str]) -> String {
    let names = keys.iter().map(|key| format!("${}\r\n{key}\r\n", key.len()));
    format!(">2\r\n$10\r\ninvalidate\r\n*{}\r\n{}", keys.len(), names.collect::<String>())
}

#[test]
fn a_change_is_told_behind_the_reply_that_it_makes_old_also_where_that_waits_for_the_journal() {
    let mut script = Script::new();
    let client = reader(&mut script, "");
    script.told("HGET item:0 n");
    let writer = script.engine.connect().unwrap();
    script.client = writer;
    script.send("HSET item:0 n 11");
    script.client = client;
    script.received();
    // The reply tells of what is not durable, and waits; the next change comes meanwhile.
    script.send("HGET item:0 n");
    script.client = writer;
    script.send("HSET item:0 n 12");
    assert_eq!(told_to(&mut script, client), "");
    script.settle();
    let told = told_to(&mut script, client);
    assert_eq!(told, format!("$2\r\n11\r\n{}", names(&["item:0"])));
}

#[test]
fn a_write_that_waits_for_the_origin_is_told_once_it_is_decided_and_if_it_is_not_done_never() {
    for is_applied in [true, false] {
        let mut script = Script::new();
        let client = reader(&mut script, "");
        script.told("HGET item:0 n");
        script.write_through();
        let writer = script.engine.connect().unwrap();
        script.client = writer;
        script.send("HSET item:0 n 11");
        script.settle();
        assert_eq!(told_to(&mut script, client), "");
        if is_applied {
            script.destage();
            assert_eq!(told_to(&mut script, client), names(&["item:0"]));
        } else {
            script.reject();
            let told = told_to(&mut script, client);
            assert!(told.is_empty() || told == names(&["item:0"]), "{told}");
        }
    }
}

#[test]
fn a_transaction_that_waits_for_the_origin_is_answered_before_what_it_read_is_told_to_be_old() {
    let mut script = Script::new();
    let client = reader(&mut script, "");
    script.told("HGET item:0 n\nHGET item:1 n");
    script.write_through();
    script.send("MULTI\nHGET item:1 n\nHSET item:0 n 3\nEXEC");
    script.settle();
    // Another program changes what the transaction has read.
    let keys = [shop::key_cells(1).into()];
    script.engine.changed_at_origin(TableId(shop::ITEM as u16), Some(&keys));
    script.turn();
    let before = told_to(&mut script, client);
    assert!(!before.contains("invalidate"), "{before}");
    script.destage();
    script.settle();
    let told = told_to(&mut script, client);
    let (reply, push) = (told.find("*2\r\n$1\r\n0").unwrap(), told.find("invalidate").unwrap());
    assert!(reply < push && told[push..].contains("item:1"), "{told}");
}

#[test]
fn who_is_told_of_all_keys_is_told_of_those_alone_that_it_may_read() {
    let mut script = Script::new();
    let text = "user bob on read ~parent:* HASH\nuser ada on admin HASH";
    script.engine.set_users(script.now, super::users::users(text), [7; 32]);
    let mut reader = |name: &str| {
        script.client = script.engine.connect().unwrap();
        script.engine.let_in(script.client, name);
        script.told("HELLO 3\nCLIENT TRACKING ON BCAST");
        script.client
    };
    let (bob, ada) = (reader("bob"), reader("ada"));
    script.client = script.engine.connect().unwrap();
    script.engine.let_in(script.client, "ada");
    script.told("HSET item:0 tag v9\nHSET parent:0 tag v9");
    let told = told_to(&mut script, bob);
    assert!(told.contains("parent:0") && !told.contains("item:0"), "{told}");
    let told = told_to(&mut script, ada);
    assert!(told.contains("parent:0") && told.contains("item:0"), "{told}");
}

#[test]
fn a_rejected_write_that_is_given_up_is_told() {
    let mut script = Script::new();
    script.told("HSET item:0 n 11");
    script.reject();
    let client = reader(&mut script, "");
    assert_eq!(script.told("HGET item:0 n"), "$2\r\n11\r\n", "it is shown until somebody decides");
    let answer = script.decide(ParkedCommand::Skip(Lsn(1)));
    script.unparked();
    assert!(answer.recv().unwrap().is_ok());
    assert_eq!(told_to(&mut script, client), names(&["item:0"]));
}

#[test]
fn what_nothing_is_ahead_of_is_told_although_the_journal_is_stuck() {
    let mut script = Script::new();
    let client = reader(&mut script, "");
    script.told("HGET item:0 n\nHGET item:1 n");
    let writer = script.engine.connect().unwrap();
    script.client = writer;
    script.send("HSET item:0 n 11");
    script.client = client;
    script.received();
    // That waits for the journal, and is given up.
    script.send("HGET item:0 n");
    script.now = script.now + Span::from_secs(60);
    script.turn();
    let told = script.received().0;
    assert!(told.starts_with("-UNAVAILABLE "), "{told}");
    // What is durable is read at once, and held.
    script.send("HGET item:1 n");
    let read = script.received().0;
    assert!(read.starts_with('$'), "{read}");
    script.client = writer;
    script.send("DESTAGE INVALIDATE item:1");
    let told = told_to(&mut script, client);
    assert!(told.ends_with(&names(&["item:1"])), "{told}");
}

#[test]
fn a_row_that_is_made_anew_where_one_ended_is_told_of_when_it_ends() {
    let (begun, settings) = (1_000_000_000_000_i64, "column note ms");
    let mut script = Script::serving(|schema| {
        schema.tables[shop::ITEM].columns[4].ty = schema.tables[shop::ITEM].columns[1].ty.clone();
        let ttl = Some(TtlSettings::parse(settings).unwrap());
        let settings = TableSettings { ttl, ..TableSettings::default() };
        schema.let_rows_end(&[("item".to_owned(), settings)].into()).unwrap();
    });
    script.now = Time(begun as u64 * 1_000_000);
    let client = reader(&mut script, "");
    script.by_another(&format!("HSET item:1 n 1 note {}", begun + 60_000));
    let anew = format!("MULTI\nDEL item:1\nHSET item:1 n 2 note {}\nEXEC", begun + 5_000);
    script.by_another(&anew);
    script.client = client;
    script.received();
    assert_eq!(script.told("HGET item:1 n"), "$1\r\n2\r\n");
    script.now = script.now + Span::from_secs(6);
    script.turn();
    assert_eq!(told_to(&mut script, client), names(&["item:1"]));
}

#[test]
fn the_results_of_queries_are_told_with_the_tables_that_they_depend_on() {
    let mut script = Script::over(
        |_| {},
        |mut engine| {
            engine.derive(queries(Span::from_secs(10)));
            engine
        },
    );
    let client = reader(&mut script, "");
    script.send("GET tagged:v0");
    let at = script.ios.iter().position(|io| matches!(io, Io::Query { .. })).unwrap();
    let Io::Query { job, .. } = script.ios.remove(at) else { unreachable!() };
    let answer =
        crate::derived::Answer { json: b"[1]".to_vec(), watermarks: vec![(DOMAIN, Lsn(0))] };
    script.engine.queried(script.now, job, Ok(answer));
    script.turn();
    assert_eq!(told_to(&mut script, client), "$3\r\n[1]\r\n");
    script.by_another("HGET parent:0 tag\nHSET parent:0 tag v7");
    assert_eq!(told_to(&mut script, client), "", "it does not depend on that");
    script.by_another("HGET item:0 tag\nHSET item:0 tag v7");
    assert_eq!(told_to(&mut script, client), names(&["tagged:v0"]));
}

#[test]
fn in_resp2_the_other_connection_is_told_as_a_message() {
    let mut script = Script::new();
    script.client = script.engine.connect().unwrap();
    let listener = script.client;
    let refused = script.told("SUBSCRIBE news");
    assert!(refused.starts_with("-ERR ") && refused.contains("__redis__:invalidate"), "{refused}");
    let confirmed = script.told("SUBSCRIBE __redis__:invalidate\nPING\nHGET item:0 n");
    let expected = "*3\r\n$9\r\nsubscribe\r\n$20\r\n__redis__:invalidate\r\n:1\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n-ERR ";
    assert!(confirmed.starts_with(expected), "{confirmed}");
    script.client = script.engine.connect().unwrap();
    let id = listener.0 + 1;
    assert_eq!(script.told(&format!("CLIENT TRACKING ON REDIRECT {id}")), "+OK\r\n");
    assert_eq!(script.told("CLIENT GETREDIR"), format!(":{id}\r\n"));
    script.told("HGET item:0 n");
    let told = script.told("HSET item:0 n 9");
    assert_eq!(told, ":0\r\n", "its own connection is told nothing");
    let message = "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n*1\r\n$6\r\nitem:0\r\n";
    assert_eq!(told_to(&mut script, listener), message);
}

#[test]
fn a_redirection_that_breaks_is_told_to_those_who_speak_resp3() {
    let mut script = Script::new();
    let listener = script.engine.connect().unwrap();
    let client = reader(&mut script, &format!(" REDIRECT {}", listener.0 + 1));
    script.engine.disconnect(script.now, listener);
    script.turn();
    let expected = format!(">2\r\n$21\r\ntracking-redir-broken\r\n:{}\r\n", listener.0 + 1);
    assert_eq!(told_to(&mut script, client), expected);
    assert!(script.told("CLIENT TRACKINGINFO").contains("broken_redirect"));
    // Whoever gets the number next is told nothing.
    let next = script.engine.connect().unwrap();
    assert_eq!(next, listener);
    script.client = next;
    script.told("HELLO 3");
    script.client = client;
    script.told("HGET item:0 n\nHSET item:0 n 9");
    assert_eq!(told_to(&mut script, next), "");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let mut script = Script::new();
    for options in [
        "ON BCAST OPTIN",
        "ON OPTIN OPTOUT",
        "ON PREFIX a",
        "ON BCAST PREFIX a PREFIX ab",
        "ON REDIRECT 99",
        "ON REDIRECT x",
        "MAYBE",
        "OFF NOLOOP",
    ] {
        let told = script.told(&format!("CLIENT TRACKING {options}"));
        assert!(told.starts_with("-ERR "), "{options}: {told}");
    }
    assert!(script.told("CLIENT CACHING YES").starts_with("-ERR "));
    assert_eq!(script.told("CLIENT GETREDIR"), ":-1\r\n");
    assert_eq!(script.told("CLIENT TRACKING ON OPTIN"), "+OK\r\n");
    assert!(script.told("CLIENT TRACKING ON BCAST").starts_with("-ERR "));
    assert_eq!(script.told("CLIENT CACHING YES"), "+OK\r\n");
    let info = script.told("CLIENT CACHING YES\nCLIENT TRACKINGINFO");
    assert!(info.contains("optin") && info.contains("caching-yes"), "{info}");
    assert_eq!(script.told("CLIENT TRACKING OFF"), "+OK\r\n");
    assert!(script.told("CLIENT TRACKINGINFO").contains("$3\r\noff"));
}

#[test]
fn what_is_read_in_a_transaction_behind_caching_yes_is_held() {
    let mut script = Script::new();
    let client = reader(&mut script, " OPTIN");
    script.told("HGET item:1 n\nCLIENT CACHING YES\nMULTI\nPTTL item:0\nHGET item:0 n\nEXEC");
    script.told("HGET item:2 n");
    script.by_another("HSET item:0 n 4\nHSET item:1 n 4\nHSET item:2 n 4");
    assert_eq!(told_to(&mut script, client), names(&["item:0"]));
}
