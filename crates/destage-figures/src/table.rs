//! What stands beside a figure's numbers: the drawing itself, as rows.

use serde::Serialize;

/// A table that belongs to a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Table {
    /// The figure.
    pub figure: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What the columns are.
    pub header: Vec<String>,
    /// As many cells as the header has.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(figure: &'static str, title: &'static str, header: &[&str]) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Self { figure, title, header, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        self.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
}
