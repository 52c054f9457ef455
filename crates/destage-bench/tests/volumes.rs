//! The peers of volumes on a small scale: each side is measured in a guest, and what each slow disk is left with is seen.

mod report;

use destage_testkit::needs;

#[test]
#[ignore = "takes a built destage, qemu and the kernel of a guest: cargo xtask test --only bench"]
fn bcache_and_dm_writecache_are_measured_and_only_destage_keeps_the_order() {
    let Some(guest) = needs::prepared("DESTAGE_TEST_GUEST") else { return };
    if !needs::has("qemu-system-x86_64") || !needs::has("fio") {
        return;
    }
    let quick = ["peers", "--only", "volumes", "--quick", "--guest", &guest];
    let report = report::of(report::bench().args(quick));
    let rows = |title: &str| -> Vec<Vec<String>> {
        let tables = report["tables"].as_array().expect("tables");
        let found = tables.iter().find(|table| table["title"].as_str() == Some(title));
        let found = found.unwrap_or_else(|| panic!("no {title} in {report:#}"));
        serde_json::from_value(found["rows"].clone()).expect("rows")
    };
    let sides = ["the slow disk alone", "bcache", "dm-writecache", "Destage, ordered"];
    let measured = rows("Peers of volumes: random writes, each synced, depth 1");
    let names: Vec<&str> = measured.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, sides);
    for row in &measured {
        let rate: f64 = row[1].replace(',', "").parse().expect("a rate");
        assert!(rate > 1.0, "{row:?}");
    }
    let left = rows(
        "Peers of volumes: what the slow disk alone holds after a loss of guest and fast disk",
    );
    let existed = |side: &str| -> &str {
        let row = left.iter().find(|row| row[0] == side);
        row.map(|row| row[3].as_str()).unwrap_or_else(|| panic!("no {side} in {left:?}"))
    };
    assert_eq!(existed("Destage, ordered"), "yes", "{left:?}");
    // The control: who writes back in another order is seen to.
    assert_eq!(existed("bcache"), "**no**", "{left:?}");
}
