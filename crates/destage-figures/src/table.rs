//! What stands beside a figure's numbers: the drawing itself, as rows, with what the paper has of its cells.

use crate::expected;
use serde::Serialize;

/// A table that belongs to a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// The figure.
    pub figure: &'static str,
    /// What it shows.
    pub title: String,
    /// What the columns are; a unit follows a comma.
    pub header: Vec<String>,
    /// As many cells as the header has.
    pub rows: Vec<Vec<String>>,
    /// What the paper has of some of the cells.
    pub paper: Vec<Told>,
    /// The columns over which each row is a point, of the series that its first cell names. Without them each column is a
    /// series over the first one.
    #[serde(skip)]
    pub point: Option<(usize, usize)>,
}

/// What the paper has of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    /// The row of the cell, from 0.
    pub row: usize,
    /// Its column, from 0.
    pub column: usize,
    /// The number of the figure that says so, if one does.
    pub number: Option<&'static str>,
    /// What the paper says of that number.
    pub says: String,
    /// The least that fits it, in the unit of the cell; the same as the most where the paper has one number. Of a ratio
    /// the paper's, times our cell that is the other side of it.
    pub low: Option<f64>,
    /// The most that fits it.
    pub high: Option<f64>,
    /// The number as the cells have it.
    #[serde(skip)]
    pub(super) ours: f64,
}

/// A cell, by the names of its row and its column.
pub(super) type Cell<'a> = (&'a str, &'a str);

/// What a number of a figure is of a cell.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of<'a> {
    /// The cell itself.
    Itself,
    /// The cell over another one, in percent where the number is.
    Over(Cell<'a>),
    /// What the cell leaves of another one, in percent where the number is.
    Rest(Cell<'a>),
}

impl Table {
    pub(super) fn new(figure: &'static str, title: impl Into<String>, header: &[&str]) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        let (title, rows, paper) = (title.into(), Vec::new(), Vec::new());
        Self { figure, title, header, rows, paper, point: None }
    }

    pub(super) fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }

    /// The number in a cell, if it is one.
    pub fn value(&self, row: usize, column: usize) -> Option<f64> {
        self.rows.get(row)?.get(column)?.replace(',', "").parse().ok()
    }

    /// Says which cell a number of the figure is of, so that what the paper has of it stands there.
    pub(super) fn tell(&mut self, number: &'static str, cell: Cell<'_>, of: Of<'_>) {
        let told = self.told(number, cell, of);
        self.paper.push(told.expect("the figure has the number, and the table its cells"));
    }

    /// The same of a number that stands in the paper alone.
    pub(super) fn show(&mut self, cell: Cell<'_>, number: &'static str) {
        let shown = expected::Says::Paper(number).numbers().zip(self.find(cell));
        let (numbers, (row, column)) = shown.expect("it is a number, and the table has the cell");
        let (low, high) = (numbers.low, numbers.high);
        let ours = self.value(row, column).unwrap_or(f64::NAN);
        let says = format!("shown: {number}");
        self.paper.push(Told { row, column, number: None, says, low, high, ours });
    }

    fn find(&self, (row, column): Cell<'_>) -> Option<(usize, usize)> {
        let row =
            self.rows.iter().position(|cells| cells.first().is_some_and(|cell| cell == row))?;
        Some((row, self.header.iter().position(|name| name == column)?))
    }

    fn told(&self, number: &'static str, cell: Cell<'_>, of: Of<'_>) -> Option<Told> {
        let mut all = expected::all();
        let expected = all.find(|one| one.figure == self.figure && one.what == number)?;
        let (row, column) = self.find(cell)?;
        let value = self.value(row, column)?;
        let whole = if expected.unit == "%" { 100.0 } else { 1.0 };
        let other = |cell| self.find(cell).and_then(|(row, column)| self.value(row, column));
        let numbers = expected.says.numbers();
        let (low, high) = numbers.map_or((None, None), |numbers| (numbers.low, numbers.high));
        let (low, high, ours) = match of {
            Of::Itself => (low, high, value),
            Of::Over(cell) => {
                let other = other(cell)?;
                let part = |number: f64| number / whole * other;
                (low.map(part), high.map(part), value / other * whole)
            }
            // The more is left, the less is in the cell.
            Of::Rest(cell) => {
                let other = other(cell)?;
                let rest = |number: f64| (1.0 - number / whole) * other;
                (high.map(rest), low.map(rest), (1.0 - value / other) * whole)
            }
        };
        let (number, says) = (Some(number), expected.says.to_string());
        Some(Told { row, column, number, says, low, high, ours })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALL, Figure, Line};
    use rayon::prelude::*;

    /// Numbers of the paper that are of no cell of a figure with tables: what decides them is in no table.
    const ELSEWHERE: &[(&str, &[&str])] = &[
        ("break-even", &["lowest, simulated", "highest, simulated", "reads 0.4, writes 0.7"]),
        ("figure-4-3", &["AIPU, longest wait behind a usual burst"]),
        ("figure-4-7", &["largest burst PU / AIPU-1"]),
        (
            "flash-3",
            &["reads, metadata", "writes, metadata", "cold flash is better than none after"],
        ),
        ("host-12", &["YCSB-F, a journal a fifth as large", "any of them"]),
        ("host-13", &["0.5 GB, 16 threads"]),
        // Of these the tables have what the ratios are of.
        ("table-4-2", &["async writes: ", "delayed writes: ", "PU: ", "AIPU: ", "writes delayed"]),
        ("table-4-3", &["async writes", "delayed writes", "PU: "]),
    ];

    fn is_elsewhere(line: &Line) -> bool {
        let mut of_figure = ELSEWHERE.iter().filter(|(figure, _)| *figure == line.figure);
        of_figure.any(|(_, begins)| begins.iter().any(|begin| line.what.starts_with(begin)))
    }

    /// What a cell has of a number is the number, but for what the cells are rounded by.
    fn is_the_same(told: &Told, lines: &[Line]) -> bool {
        let line = lines.iter().find(|line| Some(line.what) == told.number);
        line.is_none_or(|line| (told.ours - line.ours).abs() <= 0.01 * line.ours.abs().max(0.1))
    }

    #[test]
    fn each_number_of_the_papers_stands_at_the_cell_that_it_is_of() {
        let drawn = |figure: &Figure| (figure.run(1), figure.tables(1));
        let figures: Vec<(Vec<Line>, Vec<Table>)> = ALL.par_iter().map(drawn).collect();
        let mut numbers = 0;
        for (lines, tables) in figures.iter().filter(|(_, tables)| !tables.is_empty()) {
            let told = || tables.iter().flat_map(|table| &table.paper);
            for told in told() {
                assert!(is_the_same(told, lines), "{told:?} is not of {lines:#?}");
                numbers += usize::from(told.low.or(told.high).is_some());
            }
            for line in lines.iter().filter(|line| line.paper_low.or(line.paper_high).is_some()) {
                let is_told = told().any(|told| told.number == Some(line.what));
                assert!(is_told || is_elsewhere(line), "{line:?} is of no cell");
            }
            for table in tables {
                let width = table.header.len();
                assert!(table.rows.iter().all(|row| row.len() == width), "{table:?}");
            }
        }
        assert!(numbers >= 100, "{numbers}");
    }

    fn table() -> Table {
        let mut table = Table::new("host-13", "rates", &["cache, GB", "ordered", "write-through"]);
        table.row("2", ["1,200".to_owned(), "800".to_owned()]);
        table
    }

    #[test]
    fn a_ratio_of_the_papers_is_drawn_over_our_cell() {
        let (ordered, through) = (("2", "ordered"), ("2", "write-through"));
        let told = table().told("2 GB: ordered / write-through", ordered, Of::Over(through));
        let told = told.unwrap();
        assert_eq!((told.row, told.column, told.low, told.high), (0, 1, Some(800.0), None));
        assert_eq!((told.ours, &*told.says), (1.5, "paper: above 1"));
        let mut bursts = Table::new("figure-4-7", "bursts", &["bursts of at most", "PU"]);
        bursts.row("62", ["40".to_owned()]);
        bursts.row("500", ["200".to_owned()]);
        let number = "PU, blocks in bursts of more than 62";
        let told = bursts.told(number, ("62", "PU"), Of::Rest(("500", "PU"))).unwrap();
        let low = told.low.unwrap();
        assert!((low - 10.0).abs() < 1e-9 && told.high == Some(low), "{told:?}");
        assert!((told.ours - 80.0).abs() < 1e-9, "{told:?}");
    }

    #[test]
    fn a_place_that_does_not_exist_is_refused_and_another_one_is_noticed() {
        let (number, through) = ("2 GB: ordered / write-through", ("2", "write-through"));
        let over = Of::Over(through);
        assert!(table().told(number, ("2", "ordered"), over).is_some());
        assert!(table().told(number, ("3", "ordered"), over).is_none());
        assert!(table().told(number, ("2", "strict"), over).is_none());
        assert!(table().told(number, ("2", "ordered"), Of::Over(("3", "ordered"))).is_none());
        assert!(table().told("3 GB: ordered / write-through", ("2", "ordered"), over).is_none());
        let mut line = Figure::find("table-2-1").unwrap().run(1).swap_remove(0);
        (line.what, line.ours) = (number, 1.5);
        let right = table().told(number, ("2", "ordered"), over).unwrap();
        let wrong = table().told(number, through, over).unwrap();
        let lines = [line];
        assert!(is_the_same(&right, &lines) && !is_the_same(&wrong, &lines));
    }
}
