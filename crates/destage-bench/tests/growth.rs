//! Growth on a tiny scale: each curve has its points, its exponents and its verdict.

mod report;

use serde_json::Value;

#[test]
#[ignore = "takes a built destage and PostgreSQL: cargo xtask test --only bench"]
fn each_curve_has_its_points_and_its_exponents() {
    let report = report::of(report::bench().args(["growth", "--quick"]));
    let tables = report["tables"].as_array().expect("a list");
    // Sorted sets have two, in parts and as a whole.
    assert_eq!(tables.len(), 8, "{report:#}");
    for table in tables {
        let rows = table["rows"].as_array().expect("a list");
        let names: Vec<_> = rows.iter().map(|row| row[0].as_str().unwrap_or_default()).collect();
        let (sizes, verdict) = names.split_at(names.len() - 4);
        assert_eq!(verdict, ["exponent", "exponent, last decade", "bound", "within"], "{table:#}");
        assert!(sizes.len() >= 2, "{table:#}");
        // What was counted is not nothing.
        let values = rows[..sizes.len()].iter().filter_map(|row| row.as_array());
        let cells = values.flat_map(|row| row.iter().skip(1).filter_map(Value::as_str));
        let numbers = cells.map(|cell| cell.replace(',', "").parse::<f64>());
        assert!(
            numbers.clone().all(|number| number.is_ok_and(|number| number >= 0.0)),
            "{table:#}"
        );
        assert!(numbers.flatten().any(|number| number > 0.0), "{table:#}");
    }
}
