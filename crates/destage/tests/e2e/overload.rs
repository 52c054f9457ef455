//! What one client sends, or leaves unread, is no burden to the others: neither the server's time nor its memory.

use crate::harness::{Client, Launch, PATIENCE, Reply, Scratch, Server, eventually, millis};
use crate::safety::peak_bytes;
use std::time::{Duration, Instant};

/// Processor time that the server has taken so far, in hundredths of a second.
fn processor_ticks(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("the name is in parentheses");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_byte_costs_the_same_however_much_of_its_request_has_come_before() {
    const BYTES: usize = 1_000;
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    // An argument more, again and again, each byte in a packet of its own.
    let dripped = |arguments: usize| {
        let mut client = server.client();
        let head = format!("*1000000\r\n{}", "$1\r\nx\r\n".repeat(arguments));
        client.send_raw(head.as_bytes()).expect("the server takes it");
        let mut other = server.client();
        eventually("it has arrived", PATIENCE, || {
            other.run("PING");
            server.metric("destage_memory_clients_bytes") >= head.len() as f64
        });
        let before = processor_ticks(&server);
        for &byte in b"$1\r\nx\r\n".iter().cycle().take(BYTES) {
            client.send_raw(&[byte]).expect("the server takes it");
            other.run("PING");
        }
        processor_ticks(&server) - before
    };
    let early = dripped(1);
    let late = dripped(300_000);
    // Read from the start at each byte, this takes a hundred times as long.
    assert!(late <= 3 * early + 30, "{late} ticks late in a request, {early} early");
}

/// A row with a value of 1 MiB.
fn with_large_value(server: &Server) {
    server.client().run(&format!("HSET customers:1 name {}", "x".repeat(1 << 20)));
}

/// Waits until the server executes no more commands than ours.
fn settled(server: &Server) {
    let mut before = f64::NAN;
    eventually("all is executed that will be", PATIENCE, || {
        std::thread::sleep(millis(300));
        let now = server.metric("destage_commands_total");
        std::mem::replace(&mut before, now) == now
    });
}

/// So many clients ask for 24 MB each, and read none of it; how much more memory than before that took at most.
fn unread_by(server: &Server, count: usize) -> (Vec<Client>, u64) {
    with_large_value(server);
    let before = peak_bytes(server.id());
    let mut request = Vec::new();
    for _ in 0..24 {
        crate::harness::resp::encode(&mut request, &["HGET", "customers:1", "name"]);
    }
    let deaf: Vec<Client> = (0..count)
        .map(|_| {
            let mut client = server.client();
            client.send_raw(&request).expect("the server takes it");
            client
        })
        .collect();
    settled(server);
    (deaf, peak_bytes(server.id()) - before)
}

#[test]
fn all_clients_together_leave_no_more_unread_than_the_total() {
    const TOTAL: u64 = 64 << 20;
    let scratch = Scratch::new();
    let limits = ["--output-limit", "32M", "--output-limit-total", "64M"];
    let server = Launch::example(&scratch).with(&limits).start();
    let mut modest = server.client();
    modest.send(&["HGET", "customers:2", "name"]).expect("the server takes it");
    let (mut deaf, grown) = unread_by(&server, 40);
    // A buffer that grows holds more than is in it.
    assert!(grown < 3 * TOTAL, "{grown}");
    assert!(server.metric("destage_unread_reply_bytes") <= TOTAL as f64);
    assert!(server.log().contains("--output-limit-total"), "{}", server.log());
    // Those that leave little unread are served on, and so is whoever reads.
    assert!(!modest.receive().expect("an answer").is_error());
    let mut reader = server.client();
    for _ in 0..100 {
        assert_eq!(reader.run("HGET customers:1 name").text().len(), 1 << 20);
    }
    let cut = server.metric("destage_clients_cut_off_total");
    assert!(cut >= 20.0, "{cut}");
    let closed = deaf.iter_mut().map(|client| {
        client.patience(millis(500));
        (0..24).any(|_| client.receive().is_err())
    });
    assert_eq!(closed.filter(|&is_closed| is_closed).count() as f64, cut);
}

#[test]
fn without_the_total_bound_unread_replies_take_memory_without_end() {
    let scratch = Scratch::new();
    let limits = ["--output-limit", "32M", "--output-limit-total", "1T"];
    let server = Launch::example(&scratch).with(&limits).start();
    let (_deaf, grown) = unread_by(&server, 40);
    assert!(grown > 400 << 20, "{grown}");
}

#[test]
fn a_client_that_is_cut_off_holds_nothing_any_more() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--output-limit", "16M"]).start();
    let (_deaf, _) = unread_by(&server, 3);
    eventually("they are cut off", PATIENCE, || {
        server.metric("destage_clients_cut_off_total") == 3.0
    });
    assert_eq!(server.metric("destage_unread_reply_bytes"), 0.0);
    assert_eq!(server.status()["clients"]["cut_off_total"], 3);
}

const LARGE: &str = "
[[query]]
key = \"large:{bytes}\"
sql = \"SELECT hex(zeroblob($bytes / 2)) AS text, (SELECT count(*) FROM customers) AS n\"
depends_on = [\"customers\"]
types = { bytes = \"integer\" }
deadline = \"60s\"
";

/// 60 clients wait for one result of 4 MiB, and read it only once all of them are answered: how many of them get it, and how
/// much memory the copies took.
fn waiting_for_one(total: &str) -> (usize, u64) {
    let scratch = Scratch::new();
    let database = crate::harness::shop::sqlite(&scratch);
    let file = scratch.join("large.toml");
    std::fs::write(&file, LARGE).expect("the file can be written");
    let file = file.to_str().expect("the path is text");
    let limits = ["--config", file, "--output-limit", "16M", "--output-limit-total", total];
    let server = Launch::before(&scratch, &database.url()).with(&limits).start();
    let before = peak_bytes(server.id());
    let lock = database.connect();
    lock.execute_batch("BEGIN EXCLUSIVE").expect("the file can be locked");
    let mut clients: Vec<Client> = (0..60).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(&["GET", "large:4194304"]).expect("the server takes it");
    }
    eventually("they wait", PATIENCE, || server.metric("destage_derived_waiting") == 60.0);
    lock.execute_batch("ROLLBACK").expect("the lock goes");
    eventually("they are answered", PATIENCE, || server.metric("destage_derived_waiting") == 0.0);
    settled(&server);
    let grown = peak_bytes(server.id()) - before;
    let replies = clients.iter_mut().map(|client| client.receive().expect("an answer"));
    let is_whole = |reply: Reply| match reply {
        Reply::Bulk(bytes) => bytes.len() > 4 << 20,
        other => {
            assert!(other.error().starts_with("BUSY "), "{other:?}");
            false
        }
    };
    (replies.filter(|reply| is_whole(reply.clone())).count(), grown)
}

#[test]
fn a_result_is_not_copied_for_more_waiting_clients_than_the_total_allows() {
    let (whole, grown) = waiting_for_one("32M");
    assert!((4..=8).contains(&whole), "{whole}");
    // Without the bound each has a copy.
    let (all, more) = waiting_for_one("1T");
    assert_eq!(all, 60);
    assert!(grown + (150 << 20) < more, "{grown} {more}");
}

/// How long one client's requests, sent at once, take to be answered; and how long another one has to wait meanwhile at most.
fn beside(server: &Server, requests: &[u8], replies: usize) -> (Duration, Duration) {
    let mut busy = server.client();
    let mut other = server.client();
    other.run("HGET products:1 stock");
    std::thread::scope(|scope| {
        let began = Instant::now();
        let at_work = scope.spawn(move || {
            busy.send_raw(requests).expect("the server takes it");
            (0..replies).for_each(|_| drop(busy.receive().expect("an answer")));
            began.elapsed()
        });
        let mut longest = Duration::ZERO;
        while !at_work.is_finished() {
            let asked = Instant::now();
            other.run("HGET products:1 stock");
            longest = longest.max(asked.elapsed());
        }
        (at_work.join().expect("it is answered"), longest)
    })
}

#[test]
fn a_deep_pipeline_keeps_no_other_client_waiting() {
    const COUNT: usize = 30_000;
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let (all, other) = beside(&server, &b"INFO\r\n".repeat(COUNT), COUNT);
    assert!(other * 4 < all, "{other:?} beside a pipeline of {all:?}");
}

#[test]
fn a_large_transaction_keeps_others_waiting_no_longer_than_exec_takes() {
    const COMMANDS: usize = 80_000;
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let waited = |transactions: usize| {
        let mut requests = Vec::new();
        for _ in 0..transactions {
            requests.extend(b"MULTI\r\n");
            requests.extend(b"HINCRBY products:1 stock 1\r\n".repeat(COMMANDS / transactions));
            requests.extend(b"EXEC\r\n");
        }
        beside(&server, &requests, COMMANDS + 2 * transactions).1
    };
    // One EXEC is not divided, so the same work in one keeps others waiting for as long as it takes; that is the control.
    // What else the machine does may come in between.
    let mut seen = Vec::new();
    while seen.last().is_none_or(|&(one, four)| four * 2 >= one) {
        assert!(seen.len() < 5, "beside one as long as all, and beside four: {seen:?}");
        seen.push((waited(1), waited(4)));
    }
    let stock = 12 + 2 * COMMANDS * seen.len();
    assert_eq!(server.client().run("HGET products:1 stock").text(), stock.to_string());
}

#[test]
fn a_command_under_leases_costs_the_same_however_many_writes_came_before() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let behind = |writes: usize| {
        let mut client = server.client();
        client.run("DESTAGE BEGIN 60000").ok();
        client.pipeline(&vec!["HINCRBY customers:1 points 1".to_owned(); writes]);
        let before = processor_ticks(&server);
        let reads = client.pipeline(&vec!["HGET customers:1 points".to_owned(); 500]);
        let ticks = processor_ticks(&server) - before;
        (reads[499].text(), client.run("EXEC").array().len(), ticks)
    };
    let (_, _, early) = behind(10);
    let (seen, done, late) = behind(990);
    assert_eq!((seen.as_str(), done), ("1200", 990));
    // Behind all of them anew, each command takes a hundred times as long.
    assert!(late <= 3 * early + 30, "{late} ticks behind 990 writes, {early} behind 10");
}

#[test]
fn a_connection_keeps_no_long_name() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let mut client = server.client();
    let long = "x".repeat(1_025);
    assert!(client.call(&["CLIENT", "SETNAME", &long]).error().contains("1024 bytes"));
    assert!(client.call(&["HELLO", "3", "SETNAME", &long]).error().contains("1024 bytes"));
    client.call(&["CLIENT", "SETNAME", &long[1..]]).ok();
}

#[test]
fn a_transaction_takes_as_long_as_its_length_whatever_it_changes() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    // New rows, whose references are set once more after all of them were made.
    let ticks = |first: usize, count: usize| {
        let set = |customer: usize| {
            let row = move |n: usize| format!("HSET orders:{} customer_id {customer}", first + n);
            (0..count).map(row)
        };
        let commands: Vec<String> = std::iter::once("MULTI".to_owned())
            .chain(set(1))
            .chain(set(2))
            .chain(["EXEC".to_owned()])
            .collect();
        let before = processor_ticks(&server);
        let replies = server.client().pipeline(&commands);
        assert_eq!(
            replies.last().map(|all| all.array().len()),
            Some(2 * count),
            "{:?}",
            replies.last()
        );
        processor_ticks(&server) - before
    };
    let (short, long) = (ticks(10_000, 3_000), ticks(100_000, 12_000));
    // Four times as many; sixteen times as long where each moves all others.
    assert!(long < 8 * short, "{short} ticks, {long} for four times as many commands");
    assert_eq!(server.client().run("HGET orders:111999 customer_id").text(), "2");
}
