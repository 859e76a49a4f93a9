//! A line chart as SVG: the x axis is logarithmic, the y axis begins at 0.
//!
//! Upstream:   the subcommands, with their figures.
//! Downstream: a file that browsers and printers show.
//!
//! Lines differ in color, in their dashes and in the signs of their points. So the chart can be
//! read without colors.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
/// The place of the axes: left, top, right, bottom.
const FRAME: [f64; 4] = [70.0, 40.0, 600.0, 400.0];
/// Colors that most color-blind readers can tell apart (Okabe and Ito, 2008), and black.
const COLORS: [&str; 8] =
    ["#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7", "#777777"];
const DASHES: [&str; 3] = ["", "7 3", "2 3"];

/// One line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// The points from left to right. x is greater than 0, y is not negative.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x_label: String,
    pub(crate) y_label: String,
    pub(crate) lines: Vec<Line>,
}

impl Chart {
    /// The chart as the text of an SVG file.
    ///
    /// Panics: it has no point, or a point that no logarithmic axis can show.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        assert!(points().all(|(x, y)| *x > 0.0 && *y >= 0.0 && x.is_finite() && y.is_finite()));
        let least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let most = points().map(|point| point.0).fold(0.0, f64::max);
        assert!(least <= most, "a chart has points");
        let top = round_up(points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max));
        let [left, upper, right, lower] = FRAME;
        let span = (most / least).ln().max(f64::MIN_POSITIVE);
        let place = |(x, y): (f64, f64)| {
            let across = left + (right - left) * (x / least).ln() / span;
            (across, lower - (lower - upper) * y / top)
        };
        let mut svg = String::new();
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{left}\" y=\"24\" font-size=\"16\">{}</text>",
            escaped(&self.title)
        );
        self.axes(&mut svg, top, &place);
        for (index, line) in self.lines.iter().enumerate() {
            draw(&mut svg, index, line, &place);
        }
        svg + "</svg>\n"
    }

    /// The frame, the labels, a mark at each x and at each fifth of y.
    fn axes(&self, svg: &mut String, top: f64, place: &impl Fn((f64, f64)) -> (f64, f64)) {
        let [left, upper, right, lower] = FRAME;
        for fifth in 0..=5 {
            let value = top * f64::from(fifth) / 5.0;
            let (_, y) = place((1.0, value));
            let _ = writeln!(
                svg,
                "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                y + 4.0,
                short(value)
            );
        }
        let mut marks: Vec<f64> =
            self.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        for mark in marks {
            let (x, _) = place((mark, 0.0));
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {lower}v6\" stroke=\"black\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                lower + 20.0,
                short(mark)
            );
        }
        let (middle_x, middle_y) = ((left + right) / 2.0, (upper + lower) / 2.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {upper}V{lower}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
             <text x=\"{middle_x}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(18 {middle_y}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            lower + 44.0,
            escaped(&self.x_label),
            escaped(&self.y_label)
        );
    }
}

/// A line with its points, and its row in the legend.
fn draw(svg: &mut String, index: usize, line: &Line, place: &impl Fn((f64, f64)) -> (f64, f64)) {
    let color = COLORS[index % COLORS.len()];
    let dash = DASHES[index / 2 % DASHES.len()];
    let mut path = String::new();
    for point in &line.points {
        let (x, y) = place(*point);
        let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' });
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.8\" \
         stroke-dasharray=\"{dash}\"/>"
    );
    let sign = |x: f64, y: f64| match index % 3 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{color}\"/>"),
        1 => format!("<path d=\"M{x:.1} {:.1}l4 7h-8z\" fill=\"{color}\"/>", y - 4.0),
        _ => format!("<path d=\"M{:.1} {:.1}h7v7h-7z\" fill=\"{color}\"/>", x - 3.5, y - 3.5),
    };
    for point in &line.points {
        let (x, y) = place(*point);
        let _ = writeln!(svg, "{}", sign(x, y));
    }
    let (x, y) = (FRAME[2] + 16.0, FRAME[1] + 10.0 + 20.0 * index as f64);
    let _ = writeln!(
        svg,
        "<path d=\"M{x} {y}h32\" stroke=\"{color}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"/>\
         {}<text x=\"{}\" y=\"{}\">{}</text>",
        sign(x + 16.0, y),
        x + 40.0,
        y + 4.0,
        escaped(&line.name)
    );
}

/// The next of 1, 2, 2.5, 4, 5, 8 and 10 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= value).unwrap_or(10.0 * power)
}

/// A number with at most four digits after the point.
fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stand_where_their_values_say() {
        let points = vec![(1.0, 0.0), (10.0, 0.25), (100.0, 0.5)];
        let chart = Chart {
            title: "a < b".to_owned(),
            x_label: "x".to_owned(),
            y_label: "y".to_owned(),
            lines: vec![Line { name: "one".to_owned(), points }],
        };
        let svg = chart.svg();
        assert!(svg.contains("M70.0 400.0L335.0 220.0L600.0 40.0"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains(">one<"), "{svg}");
        for mark in [">0.1<", ">0.5<", ">1<", ">100<"] {
            assert!(svg.contains(mark), "{mark} in {svg}");
        }
    }

    #[test]
    fn an_axis_ends_at_a_round_number() {
        for (value, end) in [(0.31, 0.4), (0.5, 0.5), (0.21, 0.25), (7.0, 8.0), (1.0, 1.0)] {
            assert!((round_up(value) - end).abs() < 1e-12, "{value}: {}", round_up(value));
        }
    }
}
