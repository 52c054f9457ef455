//! Every load of `destage-bench loop` on a tiny scale: that it is recorded, advised on and measured again.

mod report;

#[test]
#[ignore = "takes a built destage, PostgreSQL, root, FUSE and loop devices: cargo xtask test --only bench"]
fn every_load_goes_round_twice() {
    let report = report::of(report::bench().args(["loop", "--quick", "--pairs", "2"]));
    let rows = |table: usize| -> Vec<Vec<String>> {
        serde_json::from_value(report["tables"][table]["rows"].clone()).expect("rows")
    };
    let (gains, predictions, settings) = (rows(0), rows(1), rows(2));
    for (at, load) in ["mail", "database", "rows"].into_iter().enumerate() {
        assert_eq!(gains[at][0], load);
        for (column, what) in [(1, "operations"), (2, "mean before"), (3, "mean after")] {
            let number: f64 = gains[at][column].parse().expect("a number");
            assert!(number > 0.0, "{load}, {what}: {report:#}");
        }
        let behind = predictions.iter().filter(|row| row[0] == load && row[1].contains("behind"));
        assert_eq!(behind.count(), 1, "{load}: {report:#}");
        assert!(
            settings.iter().any(|row| row[0] == load && row[2].contains("--cache-size ")),
            "{load}: {report:#}"
        );
        let hit = predictions.iter().filter(|row| row[0] == load && row[1].contains("that hit"));
        assert_eq!(hit.count(), 1, "{load}: {report:#}");
    }
    assert!(gains[3][0].starts_with("rows, ") && gains.len() == 4, "{report:#}");
}
