//! Scans: page after page, and what all pages together must hold.

use super::*;
use destage_engine::Drive;

impl Sim {
    pub(super) fn begin_scan(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let table = client.rng.below(NAMES.len() as u64) as usize;
        let low = self.engine.last().0;
        let (began, cursor, seen) = (self.now, "0".into(), BTreeSet::new());
        client.scan = Some(Scan { table, low, began, cursor, seen });
        self.send_scan(client, bytes);
    }

    pub(super) fn send_scan(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let Some(scan) = &client.scan else { return };
        if client.sent.iter().any(|sent| matches!(sent.request, Request::Quit)) {
            return;
        }
        let words = [
            "SCAN".to_owned(),
            scan.cursor.clone(),
            "MATCH".into(),
            format!("{}:*", NAMES[scan.table]),
            "COUNT".into(),
            client.rng.pick(&[1, 2, 5]).to_string(),
        ];
        self.send(client, bytes, Request::Scan, &words);
    }

    pub(super) fn scan_page(&mut self, index: usize, value: Value) {
        let mut scan = self.clients[index].scan.take().expect("a scan is under way");
        let page = match value {
            Value::List(page) => page,
            Value::Error(error) => return assert!(is_refusal(&error), "{error}"),
            other => panic!("SCAN: {other:?}"),
        };
        let [Value::Text(cursor), Value::List(keys)] = &page[..] else { panic!("{page:?}") };
        let prefix = format!("{}:", NAMES[scan.table]);
        for key in keys {
            let Value::Text(key) = key else { panic!("{key:?}") };
            let key = key.strip_prefix(&prefix).and_then(|key| key.parse().ok());
            scan.seen.insert(key.expect("a key of the table"));
        }
        scan.cursor.clone_from(cursor);
        if scan.cursor == "0" {
            self.counts.scans += 1;
            return self.check_scan(&scan);
        }
        let mut client = std::mem::replace(&mut self.clients[index], placeholder(ClientId(0)));
        client.scan = Some(scan);
        let mut bytes = std::mem::take(&mut client.unsent);
        self.send_scan(&mut client, &mut bytes);
        let id = client.id;
        client.unsent = bytes;
        self.clients[index] = client;
        let _ = id;
        self.later(100_000, Event::Act(index));
    }

    /// A scan shows what existed all the time, and nothing that never did.
    pub(super) fn check_scan(&self, scan: &Scan) {
        let last = self.history.last();
        for key in 0..KEYS[scan.table] {
            let place = (scan.table, key);
            let moments = self.history.changes_after(&[place], scan.low);
            let through = (1..=last).any(|lsn| {
                let entry = self.history.entry(lsn);
                entry.through
                    && !entry.dropped
                    && entry.changes.iter().any(|change| change.place == place)
            });
            // What was given up meanwhile, or came along, may be seen or not.
            let turned = !self.history.turns_from(&[place], scan.began).is_empty();
            if through || turned || self.history.is_implied(place) {
                continue;
            }
            let exists: Vec<bool> = std::iter::once(scan.low)
                .chain(moments)
                .map(|at| self.history.row(place, at).is_some())
                .collect();
            let seen = scan.seen.contains(&key);
            assert!(
                seen || exists.contains(&false),
                "SCAN missed {place:?}: {scan:?}{}",
                self.history.story(place)
            );
            assert!(
                !seen || exists.contains(&true),
                "SCAN invented {place:?}: {scan:?}{}",
                self.history.story(place)
            );
        }
    }
}
