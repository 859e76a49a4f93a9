//! Charts as SVG: lines, groups of bars, and rankings.
//!
//! Upstream:   the subcommands, with their figures.
//! Downstream: files that browsers and printers show.
//!
//! Lines differ in color, in their dashes and in the signs of their points; bars in color and
//! hatching. So a chart can be read without colors. The color is that of a server, and the same in
//! each chart; dashes, signs and hatching follow the place in the chart.

use std::fmt::Write as _;

mod axis;
mod bars;
mod ranking;

pub(crate) use axis::{Axis, Scale, compact, short};
pub(crate) use bars::{Bar, BarSeries, Bars};
pub(crate) use ranking::{Ranking, RankingBar};

const WIDTH: f64 = 786.0;
const HEIGHT: f64 = 460.0;
/// The place of the axes: left, top, right, bottom.
const FRAME: [f64; 4] = [96.0, 40.0, 626.0, 400.0];
/// From the right end of the axes to the names of a legend, and the width of a character.
const LEGEND: f64 = 60.0;
const CHARACTER: f64 = 8.0;
/// Colors that most color-blind readers can tell apart (Okabe and Ito, 2008), and black.
pub(crate) const COLORS: [&str; 8] =
    ["#000000", "#d55e00", "#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#777777"];
/// The size of the count beside a point that is not supported.
const COUNT_SIZE: u32 = 11;
const DASHES: [&str; 3] = ["", "7 3", "2 3"];
const SIGNS: usize = 3;

/// The dashes of the line with this index. Nine lines have nine pairs of dashes and signs.
pub(crate) fn dash(index: usize) -> &'static str {
    DASHES[(index + index / SIGNS) % DASHES.len()]
}

/// A point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The least and the greatest value that `y` stands for.
    pub(crate) range: Option<(f64, f64)>,
    /// How many of how many rounds support the point, if they are less than half. It is drawn
    /// hollow, with the count, and no line leads to it.
    pub(crate) unsupported: Option<Rounds>,
}

/// A count of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    pub(crate) good: usize,
    pub(crate) all: usize,
}

impl Rounds {
    /// The rounds, if less than half of them are good.
    pub(crate) fn if_few(self) -> Option<Self> {
        assert!(self.good <= self.all, "a good round is a round");
        (2 * self.good < self.all).then_some(self)
    }

    /// As texts in charts and tables show it.
    pub(crate) fn text(self) -> String {
        format!("{} of {}", self.good, self.all)
    }
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// An index of [`COLORS`], modulo their number.
    pub(crate) color: usize,
    /// From left to right.
    pub(crate) points: Vec<Point>,
}

/// A limit, drawn as a horizontal line.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) y: f64,
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x_label: String,
    pub(crate) x_scale: Scale,
    pub(crate) y_label: String,
    pub(crate) y_scale: Scale,
    pub(crate) lines: Vec<Line>,
    pub(crate) limit: Option<Limit>,
}

impl Chart {
    /// The chart as the text of an SVG file.
    ///
    /// Panics: it has no point, or one that its axes cannot show.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x_axis = Axis::of(self.x_scale, points().map(|point| point.x));
        let ranges = points().filter_map(|point| point.range);
        let ranges = ranges.flat_map(|(low, high)| [low, high]);
        let limit = self.limit.iter().map(|limit| limit.y);
        let y_axis =
            Axis::of(self.y_scale, points().map(|point| point.y).chain(ranges).chain(limit));
        let [left, upper, right, lower] = FRAME;
        let place = |x: f64, y: f64| {
            let across = left + (right - left) * x_axis.share(x);
            (across, lower - (lower - upper) * y_axis.share(y))
        };
        let mut svg = begin(&self.title, self.lines.iter().map(|line| &line.name));
        y_marks(&mut svg, &y_axis);
        for mark in &x_axis.marks {
            let (x, _) = place(*mark, y_axis.low);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {lower}v6\" stroke=\"black\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                lower + 20.0,
                short(*mark)
            );
        }
        labels(&mut svg, &self.x_label, &self.y_label);
        if let Some(limit) = &self.limit {
            let (_, y) = place(x_axis.low, limit.y);
            let _ = writeln!(
                svg,
                "<path d=\"M{left} {y:.1}H{right}\" stroke=\"black\" stroke-dasharray=\"1 3\"/>\
                 <text x=\"{}\" y=\"{:.1}\">{}</text>",
                right + 6.0,
                y + 4.0,
                escaped(&limit.name)
            );
        }
        for (index, line) in self.lines.iter().enumerate() {
            draw(&mut svg, index, line, &place);
        }
        svg + "</svg>\n"
    }
}

/// The beginning of an SVG file, with the title, and with room at the right for a legend of these
/// names.
fn begin<'n>(title: &str, names: impl Iterator<Item = &'n String>) -> String {
    let left = FRAME[0];
    let longest = names.map(|name| name.chars().count()).max().unwrap_or(0);
    let width = WIDTH.max(FRAME[2] + LEGEND + CHARACTER * longest as f64);
    // Without a title its place is cut off.
    let top = if title.is_empty() { 24.0 } else { 0.0 };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 {top} {width} {}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"16\">{}</text>\n",
        HEIGHT - top,
        escaped(title)
    )
}

/// The grid and the numbers of the y axis.
fn y_marks(svg: &mut String, axis: &Axis) {
    let [left, upper, right, lower] = FRAME;
    for mark in &axis.marks {
        let y = lower - (lower - upper) * axis.share(*mark);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 4.0,
            short(*mark)
        );
    }
}

/// The frame and the labels of both axes.
fn labels(svg: &mut String, x_label: &str, y_label: &str) {
    let [left, upper, right, lower] = FRAME;
    let (middle_x, middle_y) = ((left + right) / 2.0, (upper + lower) / 2.0);
    let _ = writeln!(
        svg,
        "<path d=\"M{left} {upper}V{lower}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{middle_x}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
         <text transform=\"translate(14 {middle_y}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        lower + 44.0,
        escaped(x_label),
        escaped(y_label)
    );
}

/// A line with its points, and its row in the legend.
fn draw(svg: &mut String, index: usize, line: &Line, place: &impl Fn(f64, f64) -> (f64, f64)) {
    let color = COLORS[line.color % COLORS.len()];
    let dash = dash(index);
    let _ = writeln!(
        svg,
        "<path d=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.8\" \
         stroke-dasharray=\"{dash}\"/>",
        path(line, place)
    );
    for point in &line.points {
        draw_point(svg, index, color, point, place);
    }
    let (x, y) = (FRAME[2] + 16.0, FRAME[1] + 10.0 + 20.0 * index as f64);
    let _ = writeln!(
        svg,
        "<path d=\"M{x} {y}h32\" stroke=\"{color}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"/>\
         {}<text x=\"{}\" y=\"{}\">{}</text>",
        sign(index, x + 16.0, y, color, color),
        x + 40.0,
        y + 4.0,
        escaped(&line.name)
    );
}

/// The path through the points of a line. It is interrupted at each point that is not supported.
fn path(line: &Line, place: &impl Fn(f64, f64) -> (f64, f64)) -> String {
    let (mut path, mut is_begun) = (String::new(), false);
    for point in &line.points {
        if point.unsupported.is_some() {
            is_begun = false;
            continue;
        }
        let (x, y) = place(point.x, point.y);
        let _ = write!(path, "{}{x:.1} {y:.1}", if is_begun { 'L' } else { 'M' });
        is_begun = true;
    }
    path
}

/// A point with its range. One that is not supported is hollow, and has its count of rounds.
fn draw_point(
    svg: &mut String,
    index: usize,
    color: &str,
    point: &Point,
    place: &impl Fn(f64, f64) -> (f64, f64),
) {
    let (x, y) = place(point.x, point.y);
    if let Some((low, high)) = point.range {
        let ((_, low), (_, high)) = (place(point.x, low), place(point.x, high));
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h6M{:.1} {high:.1}h6\" \
             stroke=\"{color}\"/>",
            x - 3.0,
            x - 3.0
        );
    }
    let fill = if point.unsupported.is_some() { "white" } else { color };
    let _ = writeln!(svg, "{}", sign(index, x, y, fill, color));
    if let Some(rounds) = point.unsupported {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{COUNT_SIZE}\" fill=\"{color}\">{}</text>",
            x + 6.0,
            y - 6.0,
            rounds.text()
        );
    }
}

/// The sign of the points of the line with this index.
fn sign(index: usize, x: f64, y: f64, fill: &str, color: &str) -> String {
    let paint = format!("fill=\"{fill}\" stroke=\"{color}\"");
    match index % SIGNS {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" {paint}/>"),
        1 => format!("<path d=\"M{x:.1} {:.1}l4 7h-8z\" {paint}/>", y - 4.0),
        _ => format!("<path d=\"M{:.1} {:.1}h7v7h-7z\" {paint}/>", x - 3.5, y - 3.5),
    }
}

/// A text within HTML or SVG.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(x_scale: Scale, y_scale: Scale, points: &[(f64, f64)]) -> Chart {
        let point = |(x, y): &(f64, f64)| {
            let (range, unsupported) = (None, None);
            Point { x: *x, y: *y, range, unsupported }
        };
        let points = points.iter().map(point).collect();
        Chart {
            title: "a < b".to_owned(),
            x_label: "x".to_owned(),
            x_scale,
            y_label: "y".to_owned(),
            y_scale,
            lines: vec![Line { name: "one".to_owned(), color: 0, points }],
            limit: None,
        }
    }

    #[test]
    fn points_stand_where_their_values_say() {
        let points = [(1.0, 0.0), (10.0, 0.25), (100.0, 0.5)];
        let svg = chart(Scale::LogAtPoints, Scale::FromZero, &points).svg();
        assert!(svg.contains("M96.0 400.0L361.0 220.0L626.0 40.0"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains(">one<"), "{svg}");
        for mark in [">0.1<", ">0.5<", ">1<", ">100<"] {
            assert!(svg.contains(mark), "{mark} in {svg}");
        }
    }

    #[test]
    fn a_range_and_a_limit_are_drawn_and_fit() {
        let mut chart = chart(Scale::FromZero, Scale::Log, &[(0.0, 10.0), (100.0, 100.0)]);
        chart.lines[0].points[1].range = Some((1.0, 100.0));
        chart.limit = Some(Limit { name: "limit".to_owned(), y: 1_000.0 });
        let svg = chart.svg();
        // Three decades: 1 at 400, 10 at 280, 100 at 160, 1,000 at 40.
        assert!(svg.contains("M96.0 280.0L626.0 160.0"), "{svg}");
        assert!(svg.contains("M626.0 400.0V160.0"), "{svg}");
        assert!(
            svg.contains("M96 40.0H626\" stroke=\"black\"") && svg.contains(">limit<"),
            "{svg}"
        );
    }

    #[test]
    fn a_point_without_support_is_hollow_and_no_line_leads_to_it() {
        let points = [(0.0, 10.0), (25.0, 10.0), (50.0, 100.0), (75.0, 10.0), (100.0, 10.0)];
        let mut chart = chart(Scale::FromZero, Scale::FromZero, &points);
        chart.lines[0].color = 2;
        chart.lines[0].points[2].unsupported = Rounds { good: 1, all: 3 }.if_few();
        let svg = chart.svg();
        // The line is in two parts, and all points but one are filled with its color.
        let (color, ends) = (COLORS[2], ["M96.0 364.0L228.5 364.0M493.5 364.0L626.0 364.0"]);
        assert!(svg.contains(ends[0]), "{svg}");
        assert_eq!(svg.matches("r=\"3.5\" fill=\"white\"").count(), 1, "{svg}");
        // Four points, and the sign of the legend.
        assert_eq!(svg.matches(&format!("r=\"3.5\" fill=\"{color}\"")).count(), 5, "{svg}");
        assert_eq!(svg.matches(">1 of 3<").count(), 1, "{svg}");
        assert_eq!(Rounds { good: 1, all: 2 }.if_few(), None, "half is enough");
    }

    #[test]
    fn lines_differ_without_colors() {
        let pairs: Vec<(usize, &str)> = (0..9).map(|index| (index % SIGNS, dash(index))).collect();
        let is_twice = |pair| pairs.iter().filter(|other| *other == pair).count() > 1;
        assert!(!pairs.iter().any(is_twice), "{pairs:?}");
    }
}
