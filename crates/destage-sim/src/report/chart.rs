//! Charts of lines, as SVG. Text is left to the viewer's fonts.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
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
    /// The lines, and points that no line joins.
    pub series: Vec<Series>,
}

/// How the points of a series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line joins them.
    Line,
    /// Circles: they are of different things, so no line joins them.
    Circle,
    /// Crosses, in the colour of the last line or circles before: what others have of the same thing.
    Cross,
    /// Triangles in that colour that point up: what others have is at least so much.
    AtLeast,
    /// Triangles in that colour that point down: what others have is at most so much.
    AtMost,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from zero.
    Linear,
    /// By powers of two; values of zero and below are left out.
    Logarithmic,
    /// One beside the other, from 0: the values count these names. Only of the horizontal axis.
    Names(Vec<String>),
}

/// A line, or points.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by rising x; values that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// How they are drawn.
    pub mark: Mark,
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

/// What labels are written in.
const FONT: (&str, i32) = ("sans-serif", 13);
/// Labels of an axis, about.
const LABELS: usize = 8;
/// How wide one of their letters is, about.
const LETTER: usize = 6;
/// What margins and the labels of the vertical axis take of the width.
const BESIDE_AXES: u32 = 100;
/// A legend of more names stands beside the chart.
const NAMES_ON_CHART: usize = 7;
/// What the description of the axis takes below them.
const DESCRIPTION: usize = 34;

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
        let is_logarithmic = |axis: &Axis| axis.scale == Scale::Logarithmic;
        match (is_logarithmic(&self.x), is_logarithmic(&self.y)) {
            (false, false) => self.lines(root, x, y, &series),
            (true, false) => self.lines(root, x.log_scale().base(two), y, &series),
            (false, true) => self.lines(root, x, y.log_scale().base(two), &series),
            (true, true) => {
                let (x, y) = (x.log_scale().base(two), y.log_scale().base(two));
                self.lines(root, x, y, &series)
            }
        }
    }

    fn drawable(&self, series: &Series) -> Series {
        let can_be = |axis: &Axis, value: f64| {
            value.is_finite() && (axis.scale != Scale::Logarithmic || value > 0.0)
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
        let (names, labels) = match &self.x.scale {
            Scale::Names(names) => (&names[..], 0),
            _ => (&[][..], LABELS),
        };
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let beside = beside(series);
        let is_turned =
            longest * names.len() * LETTER > (Self::WIDTH - BESIDE_AXES - beside) as usize;
        let below = if is_turned { longest * LETTER + DESCRIPTION } else { 44 };
        let mut chart = ChartBuilder::on(root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .margin_right(12 + beside)
            .x_label_area_size(below as u32)
            .y_label_area_size(76)
            .build_cartesian_2d(x, y)
            .map_err(text)?;
        chart
            .configure_mesh()
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .x_labels(labels)
            .y_labels(LABELS)
            .x_label_formatter(&|&value| (self.x.format)(value))
            .y_label_formatter(&|&value| (self.y.format)(value))
            .light_line_style(WHITE)
            .label_style(FONT)
            .draw()
            .map_err(text)?;
        let (across, down) = chart.plotting_area().get_pixel_range();
        named(root, names, &across, down.end, is_turned)?;
        let mut colours = COLOURS.into_iter().cycle();
        let mut colour = COLOURS[0];
        for (at, series) in (0..).zip(series) {
            if matches!(series.mark, Mark::Line | Mark::Circle) {
                colour = colours.next().unwrap_or_default();
            }
            let (mark, style) = (series.mark, colour.stroke_width(2));
            let points = series.points.iter().copied();
            let drawn = match mark {
                Mark::Line => chart.draw_series(LineSeries::new(points, style).point_size(2)),
                _ => chart.draw_series(points.map(|point| element(mark, point, style))),
            };
            drawn.map_err(text)?.label(&series.name).legend(move |place| key(mark, place, style));
            if beside > 0 {
                let (x, y) = (across.end + 12, 60 + 17 * at);
                root.draw(&key(mark, (x, y), style)).map_err(text)?;
                let left =
                    TextStyle::from(FONT.into_font()).pos(Pos::new(HPos::Left, VPos::Center));
                root.draw_text(&series.name, &left, (x + 24, y)).map_err(text)?;
            }
        }
        if series.len() < 2 || beside > 0 {
            return Ok(());
        }
        chart
            .configure_series_labels()
            .position(self.legend(series))
            .label_font(FONT)
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

/// What a legend beside the chart takes; nothing where one on the chart hides little of it.
fn beside(series: &[Series]) -> u32 {
    let longest = series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0);
    if series.len() > NAMES_ON_CHART { (longest * LETTER) as u32 + 40 } else { 0 }
}

/// A series in a legend.
fn key<'a>(
    mark: Mark,
    (x, y): (i32, i32),
    style: ShapeStyle,
) -> DynElement<'static, SVGBackend<'a>, (i32, i32)> {
    match mark {
        Mark::Line => PathElement::new([(x, y), (x + 16, y)], style).into_dyn(),
        _ => element(mark, (x + 8, y), style),
    }
}

/// A point that no line joins with others.
fn element<'a, Coord: Clone + 'static>(
    mark: Mark,
    at: Coord,
    style: ShapeStyle,
) -> DynElement<'static, SVGBackend<'a>, Coord> {
    match mark {
        Mark::Line | Mark::Circle => Circle::new(at, 4, style).into_dyn(),
        Mark::Cross => Cross::new(at, 5, style).into_dyn(),
        Mark::AtLeast => TriangleMarker::new(at, 6, style).into_dyn(),
        Mark::AtMost => TriangleMarker::new(at, -6, style).into_dyn(),
    }
}

/// Writes the names below their places, from top to bottom where they do not fit beside one another.
fn named(
    root: &Area<'_>,
    names: &[String],
    across: &std::ops::Range<i32>,
    bottom: i32,
    is_turned: bool,
) -> Result<(), String> {
    let style = TextStyle::from(FONT.into_font());
    let style = if is_turned {
        style.transform(FontTransform::Rotate90).pos(Pos::new(HPos::Left, VPos::Center))
    } else {
        style.pos(Pos::new(HPos::Center, VPos::Top))
    };
    let width = f64::from(across.end - across.start) / names.len().max(1) as f64;
    for (at, name) in (0..).zip(names) {
        let x = across.start + ((f64::from(at) + 0.5) * width) as i32;
        root.draw_text(name, &style, (x, bottom + 8)).map_err(text)?;
    }
    Ok(())
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

impl Axis {
    /// What the values span, with something to see where they are all the same.
    fn range(&self, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        match &self.scale {
            Scale::Names(names) => -0.5..names.len() as f64 - 0.5,
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
        let series =
            |name: &str| Series { name: name.into(), points: points.to_vec(), mark: Mark::Line };
        Chart {
            title: "misses & <hits>".into(),
            x: axis("size", scale),
            y: axis("share", Scale::Linear),
            series: vec![series("lru"), series("arc")],
        }
    }

    #[test]
    fn points_of_different_things_are_not_joined() {
        let joined = chart(Scale::Linear, &[(1.0, 0.5), (2.0, 0.25)]);
        let mut apart = joined.clone();
        apart.series.iter_mut().for_each(|series| series.mark = Mark::Circle);
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
    fn what_others_have_is_drawn_in_the_colour_of_what_it_is_beside() {
        let mut chart = chart(Scale::Linear, &[(1.0, 0.5), (2.0, 0.25)]);
        let beside =
            [(Mark::Cross, "<line"), (Mark::AtLeast, "<polygon"), (Mark::AtMost, "<polygon")];
        for (mark, shape) in beside {
            chart.series[1].mark = mark;
            let svg = chart.svg().expect("it is drawn");
            let drawn = |at: usize| {
                let colour = colour(COLOURS[at]);
                svg.lines().filter(|line| line.contains(shape) && line.contains(&colour)).count()
            };
            // Two points and the legend; a cross is two lines.
            let each = if mark == Mark::Cross { 2 } else { 1 };
            assert_eq!((drawn(0), drawn(1)), (3 * each, 0), "{mark:?}: {svg}");
        }
    }

    #[test]
    fn a_long_legend_stands_beside_the_chart() {
        let mut chart = chart(Scale::Linear, &[(1.0, 0.5), (2.0, 0.25)]);
        let series = chart.series[0].clone();
        let ends = |chart: &Chart| {
            let svg = chart.svg().expect("it is drawn");
            assert_eq!(svg.matches("lru").count(), chart.series.len(), "{svg}");
            let points = svg.lines().filter(|line| line.contains("<circle"));
            points.map(|line| number(line, "cx")).fold(0.0, f64::max)
        };
        chart.series = vec![series.clone(); NAMES_ON_CHART];
        let on_chart = ends(&chart);
        chart.series.push(series);
        assert!(ends(&chart) < on_chart - 40.0, "{on_chart}");
    }

    #[test]
    fn names_stand_below_their_places_and_are_turned_where_they_are_long() {
        let mut chart = chart(Scale::Linear, &[(0.0, 0.5), (1.0, 0.25)]);
        for (name, turned) in [("PU", 0), (&*"a name as long as a line".repeat(4), 2)] {
            chart.x.scale = Scale::Names(vec![name.into(), name.into()]);
            let svg = chart.svg().expect("it is drawn");
            assert_eq!(svg.matches(name).count(), 2, "{svg}");
            assert_eq!(svg.matches("rotate(90,").count(), turned, "{svg}");
            let circles: Vec<&str> = svg.lines().filter(|line| line.contains("<circle")).collect();
            let places: Vec<f64> = circles.iter().map(|line| number(line, "cx")).collect();
            let labels = svg.lines().zip(svg.lines().skip(1)).filter(|(_, text)| text == &name);
            for ((label, _), place) in labels.zip(places) {
                assert!((number(label, " x") - place).abs() <= 1.0, "{label} {place}");
            }
        }
    }

    fn number(line: &str, attribute: &str) -> f64 {
        let (_, rest) = line.split_once(&format!("{attribute}=\"")).expect("it has the attribute");
        rest.split('"').next().and_then(|text| text.parse().ok()).expect("it is a number")
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
