//! Charts of lines, as SVG. Text is left to the viewer's fonts.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::fmt;

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// What the points of a series are joined by.
    pub join: Join,
}

/// What the points of a series are joined by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// A line.
    Line,
    /// Nothing: they are of different things.
    Nothing,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it counts.
    pub label: String,
    /// How values lie on it.
    pub scale: Scale,
    /// How values are written.
    pub format: fn(f64) -> String,
}

/// How values lie on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By powers of two; values of zero and below are left out.
    Logarithmic,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by rising x; values that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// A chart that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("failed to draw the chart '{title}': {reason}")]
pub struct ChartError {
    title: String,
    reason: String,
}

/// Lines of one chart that can be told apart.
pub(super) const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(188, 189, 34),
];

impl Chart {
    /// How wide its drawing is.
    pub const WIDTH: u32 = 860;
    /// How high it is.
    pub const HEIGHT: u32 = 460;

    /// The chart as an SVG element; with no point to show it says so.
    ///
    /// # Errors
    /// [`ChartError`].
    pub fn svg(&self) -> Result<String, ChartError> {
        let mut svg = String::new();
        {
            let root =
                SVGBackend::with_string(&mut svg, (Self::WIDTH, Self::HEIGHT)).into_drawing_area();
            self.draw(&root).map_err(|reason| ChartError { title: self.title.clone(), reason })?;
        }
        Ok(svg)
    }

    fn draw(&self, root: &Area<'_>) -> Result<(), String> {
        root.fill(&WHITE).map_err(text)?;
        let series: Vec<Series> = self.series.iter().map(|series| self.drawable(series)).collect();
        let points = || series.iter().flat_map(|series| &series.points);
        if points().next().is_none() {
            let message = format!("{}: no values", self.title);
            let style = ("sans-serif", 16).into_font();
            return root.draw(&Text::new(message, (20, 20), style)).map_err(text);
        }
        let [x, y] =
            [self.x.range(points().map(|&(x, _)| x)), self.y.range(points().map(|&(_, y)| y))];
        let two = 2.0;
        match (self.x.scale, self.y.scale) {
            (Scale::Linear, Scale::Linear) => self.lines(root, x, y, &series),
            (Scale::Logarithmic, Scale::Linear) => {
                self.lines(root, x.log_scale().base(two), y, &series)
            }
            (Scale::Linear, Scale::Logarithmic) => {
                self.lines(root, x, y.log_scale().base(two), &series)
            }
            (Scale::Logarithmic, Scale::Logarithmic) => {
                let (x, y) = (x.log_scale().base(two), y.log_scale().base(two));
                self.lines(root, x, y, &series)
            }
        }
    }

    fn drawable(&self, series: &Series) -> Series {
        let can_be = |axis: &Axis, value: f64| {
            value.is_finite() && (axis.scale == Scale::Linear || value > 0.0)
        };
        let mut series = series.clone();
        series.points.retain(|&(x, y)| can_be(&self.x, x) && can_be(&self.y, y));
        series
    }

    fn lines<X, Y>(&self, root: &Area<'_>, x: X, y: Y, series: &[Series]) -> Result<(), String>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(x, y)
            .map_err(text)?;
        chart
            .configure_mesh()
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .x_labels(8)
            .y_labels(8)
            .x_label_formatter(&|&value| (self.x.format)(value))
            .y_label_formatter(&|&value| (self.y.format)(value))
            .light_line_style(WHITE)
            .label_style(("sans-serif", 13))
            .draw()
            .map_err(text)?;
        for (index, series) in series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            if self.join == Join::Nothing {
                let mark = |&point| Circle::new(point, 4, colour.stroke_width(2));
                let drawn = chart.draw_series(series.points.iter().map(mark)).map_err(text)?;
                let legend = move |(x, y)| Circle::new((x + 8, y), 4, colour.stroke_width(2));
                drawn.label(&series.name).legend(legend);
                continue;
            }
            let line = LineSeries::new(series.points.iter().copied(), colour.stroke_width(2));
            let drawn = chart.draw_series(line.point_size(2)).map_err(text)?;
            drawn.label(&series.name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
            });
        }
        if series.len() < 2 {
            return Ok(());
        }
        chart
            .configure_series_labels()
            .position(self.legend(series))
            .label_font(("sans-serif", 13))
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .draw()
            .map_err(text)
    }

    /// The corner on the right that the lines leave free.
    fn legend(&self, series: &[Series]) -> SeriesLabelPosition {
        let all: Vec<f64> =
            series.iter().flat_map(|series| series.points.iter().map(|&(_, y)| y)).collect();
        let ends = series.iter().filter_map(|series| series.points.last().map(|&(_, y)| y));
        let ends: Vec<f64> = ends.collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        if mean(&ends) > mean(&all) {
            SeriesLabelPosition::LowerRight
        } else {
            SeriesLabelPosition::UpperRight
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

impl Axis {
    /// What the values span, with something to see where they are all the same.
    fn range(&self, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        match self.scale {
            Scale::Linear if high <= 0.0 && low >= 0.0 => 0.0..1.0,
            Scale::Linear => low.min(0.0)..high.max(0.0),
            Scale::Logarithmic if low == high => low / 2.0..high * 2.0,
            Scale::Logarithmic => low..high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: &[(f64, f64)]) -> Chart {
        let axis = |label: &str, scale| Axis {
            label: label.into(),
            scale,
            format: |value| format!("{value:.2}"),
        };
        let series = |name: &str| Series { name: name.into(), points: points.to_vec() };
        Chart {
            title: "misses & <hits>".into(),
            x: axis("size", scale),
            y: axis("share", Scale::Linear),
            series: vec![series("lru"), series("arc")],
            join: Join::Line,
        }
    }

    #[test]
    fn points_of_different_things_are_not_joined() {
        let joined = chart(Scale::Linear, &[(1.0, 0.5), (2.0, 0.25)]);
        let apart = Chart { join: Join::Nothing, ..joined.clone() };
        let lines = |chart: &Chart| {
            let svg = chart.svg().expect("it is drawn");
            assert!(svg.matches("<circle").count() >= 4, "{svg}");
            COLOURS
                .map(colour)
                .iter()
                .filter(|colour| {
                    svg.lines()
                        .any(|line| line.contains("<polyline") && line.contains(colour.as_str()))
                })
                .count()
        };
        assert_eq!((lines(&joined), lines(&apart)), (2, 0));
    }

    fn colour(RGBColor(red, green, blue): RGBColor) -> String {
        format!("#{red:02X}{green:02X}{blue:02X}")
    }

    #[test]
    fn a_chart_shows_its_lines_and_names() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let svg = chart(scale, &[(1.0, 0.5), (1_024.0, 0.25)]).svg().expect("it is drawn");
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(svg.matches("<polyline").count() >= 2 && svg.contains("arc"), "{svg}");
            assert!(svg.contains("misses &amp; &lt;hits&gt;"), "{svg}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let odd = [(0.0, 1.0), (f64::NAN, 0.5), (2.0, f64::INFINITY)];
        let svg = chart(Scale::Logarithmic, &odd).svg().expect("it is drawn");
        assert!(svg.contains("no values"), "{svg}");
        for points in [&[(3.0, 0.0)][..], &[(3.0, 7.0)], &[(-2.0, -7.0)]] {
            let svg = chart(Scale::Linear, points).svg().expect("it is drawn");
            assert!(svg.contains("<circle"), "{svg}");
        }
    }
}
