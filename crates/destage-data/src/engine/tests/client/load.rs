//! What clients send.

use super::super::once::Once;
use super::*;
use destage_engine::Drive;

impl Sim {
    pub(in crate::engine::tests) fn send(
        &mut self,
        client: &mut Client,
        bytes: &mut Vec<u8>,
        request: Request,
        words: &[String],
    ) {
        bytes.extend(encode(words));
        client.sent.push_back(Sent { request, low: self.engine.last().0, at: self.now });
    }

    pub(super) fn generate(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        if client.sent.iter().any(|sent| matches!(sent.request, Request::Quit)) {
            return;
        }
        let word = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        match client.rng.below(100) {
            0..70 if self.options.sets.is_some() && client.rng.chance(25) => {
                let asked = sets::Asked::choose(&mut client.rng);
                let words = asked.words();
                self.send(client, bytes, Request::Members(asked), &words);
            }
            0..70 if self.options.derives && client.rng.chance(20) => {
                let asked = Asked::choose(&mut client.rng, self.next_command);
                let words = asked.words();
                self.send(client, bytes, Request::Derived(asked), &words);
            }
            0..70 if self.options.raw && client.watch.is_none() && client.rng.chance(12) => {
                self.raw(client, bytes);
            }
            0..70 if self.options.once != Once::Never && client.rng.chance(50) => {
                self.send_once(client, bytes);
            }
            0..70 => {
                let number = self.number();
                let command = self.command(&mut client.rng, number);
                let words = command.words();
                self.issue(number, vec![command], false);
                self.send(client, bytes, Request::Data(number), &words);
            }
            70..85 if self.options.watches && client.watch.is_none() => self.watch(client, bytes),
            70..85 => self.transaction(client, bytes),
            85..87 => self.send(client, bytes, Request::WaitAof, &word("WAITAOF 1 0 0")),
            87..89 => {
                let wait = format!("DESTAGE WAIT {}", client.rng.pick(&[0, 5, 100]));
                self.send(client, bytes, Request::Wait, &word(&wait));
            }
            89..95 if client.scan.is_none() => self.begin_scan(client, bytes),
            95..97 => {
                client.resp3 |= client.sent.is_empty();
                let version = if client.resp3 { "HELLO 3" } else { "HELLO 2" };
                self.send(client, bytes, Request::Hello, &word(version));
            }
            97 => self.send(client, bytes, Request::Quit, &word("QUIT")),
            _ => {
                let text = format!("p{}", client.rng.below(1_000));
                let words = word(&format!("PING {text}"));
                self.send(client, bytes, Request::Ping(text), &words);
            }
        }
    }

    pub(in crate::engine::tests) fn number(&mut self) -> u64 {
        self.next_command += 1;
        self.next_command
    }

    pub(in crate::engine::tests) fn issue(&mut self, number: u64, commands: Vec<Data>, exec: bool) {
        let issued = Issued { commands, exec, expected: Vec::new(), forgotten: false };
        self.issued.insert(number, issued);
    }

    /// Watches a few rows for a transaction to come.
    pub(super) fn watch(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let number = self.number();
        let places: Vec<Place> = (0..=client.rng.below(2))
            .map(|_| {
                let table = client.rng.pick(&[ITEM, PARENT, CHILD, DERIVED]);
                (table, client.rng.below(KEYS[table] as u64) as i64)
            })
            .collect();
        let mut words = vec!["WATCH".to_owned()];
        words.extend(places.iter().map(|(table, key)| format!("{}:{key}", NAMES[*table])));
        if self.options.forgets_to_watch {
            words = vec!["UNWATCH".into()];
        }
        let watching = Watching { places, low: self.engine.last().0, at: self.now, high: None };
        self.watching.insert(number, watching);
        client.watch = Some(number);
        self.send(client, bytes, Request::Watch(number), &words);
    }

    pub(super) fn transaction(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let watch = client.watch.take();
        let count = 1 + client.rng.below(5);
        let reads = client.rng.chance(25);
        let mut commands = Vec::new();
        let mut first = None;
        let exec = watch.unwrap_or_else(|| self.number());
        self.send(client, bytes, Request::Multi, &["MULTI".into()]);
        for at in 0..count {
            let number = self.number();
            let command = loop {
                let command = self.command(&mut client.rng, number);
                let fits = match at {
                    _ if reads => !command.is_write(),
                    0 => matches!(command, Data::Set(..)),
                    // The first command's tag must last, since the group is known by it.
                    _ => {
                        let clears =
                            matches!(command, Data::Clear(..) | Data::Delete(_) | Data::Leave(_));
                        !clears || first != Some(command.place())
                    }
                };
                if fits {
                    break command;
                }
            };
            first = first.or_else(|| Some(command.place()));
            self.owners.insert(number, exec);
            self.send(client, bytes, Request::Queued, &command.words());
            commands.push(command);
        }
        if client.rng.chance(5) {
            return self.send(client, bytes, Request::Discard, &["DISCARD".into()]);
        }
        self.issue(exec, commands, true);
        self.send(client, bytes, Request::Exec(exec), &["EXEC".into()]);
    }

    pub(in crate::engine::tests) fn command(&mut self, rng: &mut Rng, number: u64) -> Data {
        let table = rng.pick(&[ITEM, ITEM, ITEM, PARENT, CHILD, DERIVED]);
        let place = (table, rng.below(KEYS[table] as u64) as i64);
        let (count, tag) = [(2, 3), (1, 5), (1, 2), (2, 1)][table];
        let width = self.history.tables[table].columns.len() as u64;
        if self.options.sets.is_some() && table == ITEM {
            match rng.below(8) {
                0 => return Data::Raise(place, number as i64),
                1 => return Data::Leave(place),
                _ => {}
            }
        }
        match rng.below(20) {
            0..6 => Data::Set(place, self.sets(rng, place, number)),
            6..10 => Data::Add(place, count, number as i64),
            10 => Data::SetAbsent(place, tag, format!("v{number}")),
            11 if table != PARENT => Data::Clear(place, tag),
            12 => Data::Delete(place),
            13..16 => Data::Get(place, rng.below(width) as usize),
            16 => Data::GetSome(place, (0..3).map(|_| rng.below(width) as usize).collect()),
            17 => Data::Exists(place),
            _ => Data::GetAll(place),
        }
    }

    pub(super) fn sets(
        &mut self,
        rng: &mut Rng,
        (table, _): Place,
        number: u64,
    ) -> Vec<(usize, String)> {
        let tag = format!("v{number}");
        let poison = rng.chance(self.options.poison_percent);
        let mut sets = Vec::new();
        match table {
            CHILD => {
                let parents = if poison { 9 } else { 2 };
                sets.push((3, tag));
                if rng.chance(90) {
                    sets.push((1, rng.below(parents).to_string()));
                    let most = if poison { 2 * shop::QUANTITY_MAX as u64 } else { 100 };
                    sets.push((2, rng.below(most).to_string()));
                }
            }
            DERIVED => {
                sets.extend([(1, rng.below(50).to_string()), (5, tag)]);
                if poison {
                    sets.push((4, format!("u{}", rng.below(2))));
                }
            }
            PARENT => sets.push((1, tag)),
            _ => {
                sets.push((2, tag));
                if rng.chance(20) {
                    sets.push((1, rng.below(5).to_string()));
                }
                if self.options.bulky {
                    sets.push((4, "n".repeat(rng.below(9_000) as usize)));
                }
                if poison {
                    sets.push((3, format!("u{}", rng.below(3))));
                }
            }
        }
        sets
    }
}
