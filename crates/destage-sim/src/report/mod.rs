//! Results for people: charts as SVG, and pages of HTML that need nothing but a browser.

mod chart;
mod page;

pub use chart::{Axis, Chart, ChartError, Mark, Scale, Series};
pub use page::Page;
