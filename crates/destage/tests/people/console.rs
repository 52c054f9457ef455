//! The console in a real browser, in front of real servers under load.

use crate::browser::Browser;
use crate::harness::{Launch, PATIENCE, Scratch, eventually, shop};
use crate::volumes::Volumes;
use destage_block::nbd::client::{Client, ClientOptions};
use std::sync::atomic::{AtomicBool, Ordering};

/// The page need not be scrolled sideways.
const FITS: &str = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";

#[test]
fn rows_are_watched_and_rejected_writes_decided_in_the_browser() {
    let scratch = Scratch::new();
    let Some(mut browser) = Browser::start(&scratch, 1280, 900) else { return };
    let database = shop::sqlite(&scratch);
    let launch =
        Launch::example(&scratch).with(&["--origin", &database.url(), "--password", "secret"]);
    let server = launch.start();
    let mut client = server.client();
    client.run("AUTH secret");
    let own = format!("http://{}/", server.admin);
    browser.prefer("light");
    browser.open(&own);
    // A write that the origin rejects: an order of nobody.
    client.run("HSET orders:990001 customer_id 424242");
    for number in 0..3_000 {
        client.run(&format!("HINCRBY customers:{} visits 1", number % 2 + 1));
    }
    browser.until("document.querySelector('#mode').textContent === 'normal'");
    browser.until("report && report.writes.groups_total >= 1 && points.length >= 3");
    browser.until("document.querySelector('#total .number').textContent.includes('s')");
    browser.until("document.querySelector('#latency-list').textContent.includes('99 %')");
    browser.until("report.destage.parked_groups === 1");
    // What took long, without its key: everything that waits is slow here.
    client.run("CONFIG SET slowlog-log-slower-than 0").ok();
    client.run("HGET products:2 name");
    client.run("HGETALL customers:3");
    browser.until("document.querySelectorAll('#slow tbody tr').length >= 2");
    browser.until("document.querySelector('#slow tbody tr td').textContent === 'hgetall'");
    let slow = server.status()["slow_commands"].clone();
    assert_eq!((&slow[0]["command"], &slow[0]["keys"]), (&"hgetall".into(), &1.into()));
    assert!(!slow.to_string().contains("customers"), "{slow}");
    // Without the password nothing is done, and that is said.
    browser.press("[data-do=parked-list]");
    browser
        .until("document.querySelector('#said').textContent.startsWith('refused: the password')");
    browser.write("#password", "secret");
    browser.press("[data-do=parked-list]");
    browser.until("document.querySelectorAll('#parked tbody tr').length === 1");
    browser.picture("console-rows-light-desktop");
    // What it changes, without keys and values, only for those who have the password.
    let shape = "document.querySelector('#parked tbody tr').children[2].textContent";
    let shape = browser.value(shape).to_string();
    assert!(shape.contains("insert orders (customer_id") && !shape.contains("424242"), "{shape}");
    // Retried, asked twice: the origin rejects it again. Left alone at the second question, nothing is sent.
    let retry = "#parked tbody tr button:nth-of-type(1)";
    for sends in [false, true] {
        browser.press(retry);
        browser.until("document.querySelector('#ask').open");
        browser.press("#ask .yes");
        browser.until("document.querySelector('#ask').open && document.querySelector('#ask h2').textContent.includes('now?')");
        browser.value("document.querySelector('#said').textContent = 'nothing yet'");
        browser.press(if sends { "#ask .yes" } else { "#ask .no" });
        browser.until("!document.querySelector('#ask').open");
        if !sends {
            assert_eq!(browser.value("document.querySelector('#said').textContent"), "nothing yet");
        }
    }
    browser.until("document.querySelector('#said').textContent !== 'nothing yet'");
    assert_eq!(server.status()["destage"]["parked_groups"], 1, "the origin still rejects it");
    // Edited, asked twice: an order of somebody whom there is.
    client.run("HSET orders:990002 customer_id 525252");
    browser.until("report.destage.parked_groups === 2");
    browser.press("[data-do=parked-list]");
    browser.until("document.querySelectorAll('#parked tbody tr').length === 2");
    browser.press("#parked tbody tr:nth-of-type(2) button:nth-of-type(2)");
    browser.until("document.querySelector('#ask').open && document.querySelector('#ask textarea').value.includes('525252')");
    browser.value(
        "document.querySelector('#ask textarea').value = \
         document.querySelector('#ask textarea').value.replaceAll('525252', '1')",
    );
    browser.press("#ask .yes");
    browser.until("document.querySelector('#ask').open && document.querySelector('#ask h2').textContent === 'Apply this?'");
    assert_eq!(server.status()["destage"]["parked_groups"], 2, "it was asked once only");
    browser.press("#ask .yes");
    eventually("the edited write is applied", PATIENCE, || {
        server.status()["destage"]["parked_groups"] == 1
    });
    browser.until("document.querySelectorAll('#parked tbody tr').length === 1");
    // Left alone at the first question, nothing happens; asked twice, it is gone.
    browser.press("#parked tbody tr button:last-of-type");
    browser.until("document.querySelector('#ask').open && document.querySelector('#ask .before').textContent.includes('424242')");
    browser.picture("console-rows-question");
    browser.press("#ask .no");
    browser.until("!document.querySelector('#ask').open");
    assert_eq!(server.status()["destage"]["parked_groups"], 1);
    browser.press("#parked tbody tr button:last-of-type");
    browser.until("document.querySelector('#ask').open");
    browser.press("#ask .yes");
    browser.until("document.querySelector('#ask').open && document.querySelector('#ask h2').textContent.includes('for good')");
    assert_eq!(server.status()["destage"]["parked_groups"], 1, "it was asked once only");
    browser.press("#ask .yes");
    eventually("it is given up", PATIENCE, || server.status()["destage"]["parked_groups"] == 0);
    // The policy, with the difference before it is applied.
    browser.write("#policy input[name=when]", "adaptive");
    browser.press("#policy button");
    browser.until("document.querySelector('#ask .after').textContent === 'when = adaptive'");
    browser.press("#ask .yes");
    eventually("the policy changes", PATIENCE, || server.status()["policy"]["when"] == "adaptive");
    for (button, holds) in [("pause", true), ("resume", false)] {
        browser.press(&format!("[data-do={button}]"));
        eventually(button, PATIENCE, || server.status()["paused"] == holds);
    }
    // While a drain waits it shows how much is left, and for how long.
    browser.press("[data-do=pause]");
    eventually("it is paused", PATIENCE, || server.status()["paused"] == true);
    client.run("HINCRBY customers:1 visits 1");
    browser.until("points[points.length - 1].groups >= 1");
    browser.press("[data-do=drain]");
    browser.until("!document.querySelector('#drain').hidden");
    browser
        .until("document.querySelector('#drain-left').textContent.includes('writes left, about')");
    browser.press("[data-do=resume]");
    browser.until("document.querySelector('#said').textContent.startsWith('everything')");
    browser.until("document.querySelector('#drain').hidden");
    // Light and dark are two looks of the page.
    let [light, dark] = ["light", "dark"].map(|scheme| {
        browser.prefer(scheme);
        browser.value("getComputedStyle(document.body).backgroundColor").to_string()
    });
    assert_ne!(light, dark);
    // Two answers were refusals: to the wrong password, and to the write that the origin rejected once more.
    let complaints = browser.complaints(&own);
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert!(complaints[0].contains("401"), "{complaints:?}");
    assert!(complaints[1].contains("/command"), "{complaints:?}");
    drop(browser);
    let Some(mut phone) = Browser::start(&scratch, 375, 812) else { return };
    phone.prefer("dark");
    phone.open(&own);
    phone.until("points.length >= 3");
    phone.until("document.querySelectorAll('#slow tbody tr').length >= 2");
    assert_eq!(phone.value(FITS), true, "it has to be scrolled sideways");
    phone.picture("console-rows-dark-phone");
    assert_eq!(phone.complaints(&own), [""; 0]);
}

#[test]
fn volumes_are_watched_in_the_browser_under_load() {
    let scratch = Scratch::new();
    let Some(mut browser) = Browser::start(&scratch, 1281, 900) else { return };
    let volumes = Volumes::start(&scratch, &["database", "log"]);
    let own = format!("http://{}/", volumes.admin);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let uris = &volumes.uris;
        let stop = &stop;
        let load = scope.spawn(move || {
            let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
            let clients: Vec<Client> = uris
                .iter()
                .map(|uri| {
                    Client::connect(&uri.parse().expect("a URI"), &options).expect("it connects")
                })
                .collect();
            let mut round = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                for client in &clients {
                    client
                        .write(round % 512 * 4096, &[round as u8; 4096], false)
                        .expect("it is written");
                    let mut block = [0; 4096];
                    client.read(round % 512 * 4096, &mut block).expect("it is read");
                }
                round += 1;
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        browser.prefer("dark");
        browser.open(&own);
        browser.until("report && points.length >= 4 && points[points.length - 1].writes > 10");
        browser.until("document.querySelectorAll('#volumes tbody tr').length === 2");
        browser.until("document.querySelector('#volumes tbody tr td').textContent === 'database'");
        browser.until("document.querySelector('#latency-of').options.length >= 6");
        browser.picture("console-volumes-dark-desktop");
        let mut phone = Browser::start(&scratch, 375, 812).expect("the first one was there");
        phone.prefer("light");
        phone.open(&own);
        phone.until(
            "document.querySelectorAll('#volumes tbody tr').length === 2 && points.length >= 3",
        );
        assert_eq!(phone.value(FITS), true, "it has to be scrolled sideways");
        phone.picture("console-volumes-light-phone");
        assert_eq!(phone.complaints(&own), [""; 0]);
        drop(phone);
        browser.value("document.querySelector('#which select').value = 'log'");
        browser.press("[data-do=pause]");
        browser.until("report.volumes[1].mode !== 'normal' || document.querySelector('#said').textContent === 'paused'");
        browser.press("[data-do=resume]");
        browser.until("document.querySelector('#said').textContent === 'resumed'");
        browser.press("[data-do=flush]");
        browser.until("document.querySelector('#said').textContent.startsWith('in the journal')");
        let complaints = browser.complaints(&own);
        stop.store(true, Ordering::Relaxed);
        load.join().expect("the load ends");
        assert_eq!(complaints, [""; 0]);
    });
}
