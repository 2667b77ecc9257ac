//! Charts of studies, drawn as SVG.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::{Error, Result};

/// A chart with one pair of axes.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Above the chart.
    pub title: String,
    /// Left to right.
    pub x: Axis,
    /// Bottom to top.
    pub y: Axis,
    /// What is drawn, each in a colour of its own.
    pub series: Vec<Series>,
}

/// An axis; it spans the data.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Whether it is logarithmic; values that are not positive are left out.
    pub log: bool,
    /// Names of the values 0, 1, 2, …; numbers where empty.
    pub names: Vec<String>,
}

/// One set of data.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
    /// Whether points are joined.
    pub joined: bool,
    /// Vertical intervals as (x, lowest y, highest y).
    pub ranges: Vec<(f64, f64, f64)>,
}

const SIZE: (u32, u32) = (960, 540);
const FONT: &str = "sans-serif";

/// Room around the data, as a share of its span.
const MARGIN: f64 = 0.06;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

impl Chart {
    /// The chart as the text of an SVG file.
    pub fn svg(&self) -> Result<String> {
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        self.draw(&area)
            .map_err(|e| Error::internal(format!("a chart cannot be drawn: {e}")))?;
        drop(area);
        Ok(text)
    }

    fn draw(&self, area: &Area<'_>) -> std::result::Result<(), Box<dyn std::error::Error + '_>> {
        let drawn = || self.series.iter().flat_map(|s| s.all(self));
        let (xs, ys) = (span(drawn().map(|p| p.0)), span(drawn().map(|p| p.1)));
        area.fill(&WHITE).map_err(text)?;
        let mut plane = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(xs.0..xs.1, ys.0..ys.1)
            .map_err(text)?;
        self.mesh(&mut plane)?;
        for (i, series) in self.series.iter().enumerate() {
            series.draw(self, &mut plane, Palette99::pick(i).to_rgba())?;
        }
        plane
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .position(SeriesLabelPosition::UpperRight)
            .label_font((FONT, 14))
            .draw()
            .map_err(text)
    }

    fn mesh(
        &self,
        plane: &mut Plane<'_, '_>,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let (x, y) = (&self.x, &self.y);
        let (of_x, of_y) = (|v: &f64| x.text(*v), |v: &f64| y.text(*v));
        let mut mesh = plane.configure_mesh();
        mesh.x_desc(&x.label)
            .y_desc(&y.label)
            .label_style((FONT, 14))
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&of_x)
            .y_label_formatter(&of_y);
        if !x.names.is_empty() {
            mesh.x_labels(x.names.len() + 2);
        }
        mesh.draw().map_err(text)
    }
}

/// Errors of the library borrow the drawing; their text does not.
fn text<E: std::error::Error>(error: E) -> Box<dyn std::error::Error> {
    error.to_string().into()
}

impl Axis {
    /// Where a value lies; `None` where it cannot be shown.
    fn place(&self, value: f64) -> Option<f64> {
        let place = if self.log { value.log10() } else { value };
        place.is_finite().then_some(place)
    }

    /// The label at a place.
    fn text(&self, place: f64) -> String {
        let whole = place.round();
        let near = (place - whole).abs() < 1e-9;
        match (self.names.is_empty(), self.log) {
            (false, _) if near && whole >= 0.0 => {
                self.names.get(whole as usize).cloned().unwrap_or_default()
            }
            (false, _) => String::new(),
            (true, true) => format!("{:.1e}", 10f64.powf(place)),
            (true, false) => crate::report::table::short(place),
        }
    }
}

impl Series {
    fn placed(&self, chart: &Chart) -> Vec<(f64, f64)> {
        let place = |&(x, y): &(f64, f64)| Some((chart.x.place(x)?, chart.y.place(y)?));
        self.points.iter().filter_map(place).collect()
    }

    /// The ends of its intervals.
    fn ends(&self, chart: &Chart) -> Vec<[(f64, f64); 2]> {
        let place = |&(x, low, high): &(f64, f64, f64)| {
            let x = chart.x.place(x)?;
            Some([(x, chart.y.place(low)?), (x, chart.y.place(high)?)])
        };
        self.ranges.iter().filter_map(place).collect()
    }

    fn all(&self, chart: &Chart) -> Vec<(f64, f64)> {
        let ends = self.ends(chart).into_iter().flatten();
        self.placed(chart).into_iter().chain(ends).collect()
    }

    fn draw(
        &self,
        chart: &Chart,
        plane: &mut Plane<'_, '_>,
        color: RGBAColor,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let points = self.placed(chart);
        if self.joined {
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2));
            plane.draw_series(line).map_err(text)?;
        }
        let ends = self.ends(chart).into_iter();
        let intervals = ends.map(|pair| PathElement::new(pair.to_vec(), color.stroke_width(3)));
        plane.draw_series(intervals).map_err(text)?;
        let dots = points.iter().map(|&p| Circle::new(p, 4, color.filled()));
        let drawn = plane.draw_series(dots).map_err(text)?;
        drawn
            .label(&self.name)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, color.filled()));
        Ok(())
    }
}

/// Lowest and highest value with some room; 0 to 1 of nothing.
fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
        (l.min(v), h.max(v))
    });
    match high - low {
        width if !width.is_finite() => (0.0, 1.0),
        0.0 => (low - 0.5, high + 0.5),
        width => (low - MARGIN * width, high + MARGIN * width),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(log: bool) -> Chart {
        let axis = |label: &str, log| Axis {
            label: label.to_owned(),
            log,
            names: Vec::new(),
        };
        Chart {
            title: "Some <title>".to_owned(),
            x: axis("step", false),
            y: axis("difference", log),
            series: vec![Series {
                name: "one".to_owned(),
                points: vec![(1.0, 1e-7), (2.0, 0.0), (3.0, 1e-3)],
                joined: true,
                ranges: vec![(1.0, 1e-8, 1e-6)],
            }],
        }
    }

    #[test]
    fn svg_shows_every_point_that_its_axes_can() {
        let circles = |log| chart(log).svg().unwrap().matches("<circle").count();
        // One more in the legend; zero has no place on a logarithmic axis.
        assert_eq!(circles(false), 4);
        assert_eq!(circles(true), 3);
        let svg = chart(true).svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("Some &lt;title&gt;"), "{svg}");
    }

    #[test]
    fn svg_of_nothing_is_still_a_chart() {
        assert!(Chart::default().svg().unwrap().contains("<svg"));
    }

    #[test]
    fn axis_text_named_values_and_powers() {
        let named = Axis {
            names: vec!["a".to_owned(), "b".to_owned()],
            ..Axis::default()
        };
        assert_eq!(named.text(1.0), "b");
        assert_eq!(named.text(0.5) + &named.text(7.0), "");
        let log = Axis {
            log: true,
            ..Axis::default()
        };
        assert_eq!(log.text(-3.0), "1.0e-3");
    }
}
