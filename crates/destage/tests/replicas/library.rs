//! The library with its buffered writes on other servers: an application without a gateway.

use crate::world::World;
use destage_data::settings::{JournalKind, Places, ReplicaSettings};
use destage_data::store::Options;
use std::time::Duration;

#[test]
fn a_store_keeps_its_writes_on_servers_and_another_host_goes_on() {
    goes_on_elsewhere("commit=0s");
}

/// > With d = T, an end at once hands what is dirty to the servers first.
#[test]
fn a_store_that_is_dropped_hands_over_what_is_not_due_on_its_servers() {
    goes_on_elsewhere("commit=60s");
}

fn goes_on_elsewhere(commit: &str) {
    let mut world = World::new(3, &[]);
    let open = |world: &mut World| {
        let data = world.disk();
        let replicas = ReplicaSettings {
            places: Places::parse(&world.urls()).expect("addresses"),
            copies: 2,
            journal: JournalKind::Replicas,
            name: "destage".into(),
            failover: Duration::from_millis(600),
            standby: false,
            advertise: None,
        };
        let options = Options::new(world.origin_url(), &data);
        let options = options.policy("when=periodic:1h").policy("staleness=none").policy(commit);
        let store = options.with(|settings| settings.replicas = Some(replicas)).open();
        (store.expect("it opens"), data)
    };
    let (store, data) = open(&mut world);
    for row in 1..=20 {
        store.session(|s| s.inc(("t", row), "n", 1)).expect("a session");
    }
    let status = store.status().expect("a status").replicas.expect("it has servers");
    assert_eq!((status.copies, status.servers_ready), (2, 3), "{status:?}");
    // Dropped, it stops at once; then its disk is lost, and one of the servers.
    drop(store);
    std::fs::remove_dir_all(data).expect("its folder");
    world.servers.kill(0);
    assert!(world.origin_rows().is_empty(), "nothing has been destaged");
    let (store, _) = open(&mut world);
    let row = store.read(("t", 7)).expect("it is read").expect("a row");
    assert_eq!(row.get::<i64>("n").expect("a number"), 1);
    store.close().expect("it ends in order");
    assert_eq!(world.origin_rows(), (1..=20).map(|row| (row, 1)).collect::<Vec<_>>());
}
