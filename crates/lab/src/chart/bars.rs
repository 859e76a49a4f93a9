//! A chart of groups of bars.
//!
//! Upstream:   `report`.
//! Downstream: `mod` draws the axes.

use std::fmt::Write as _;

use super::axis::{Axis, Scale};
use super::{COLORS, FRAME, Rounds, begin, escaped, labels, y_marks};

/// The share of the place of a group that its bars take.
const FILLED: f64 = 0.7;
/// The widest bar.
const WIDTH_MAX: f64 = 70.0;
/// The narrowest bar with a text above it. The table of the figure has the numbers of all bars.
const WIDTH_OF_TEXT: f64 = 26.0;
/// The width of a letter below the axis, about.
const LETTER: f64 = 7.0;
/// The most lines of names below the axis.
const LINES_MAX: f64 = 3.0;

/// A bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) value: f64,
    pub(crate) range: (f64, f64),
    /// The text above it.
    pub(crate) text: String,
    /// As of a point: the bar is hollow, and the count stands in its text.
    pub(crate) unsupported: Option<Rounds>,
}

/// The bars with one name, one in each group or none.
#[derive(Clone, Debug)]
pub(crate) struct BarSeries {
    pub(crate) name: String,
    /// An index of [`COLORS`], modulo their number.
    pub(crate) color: usize,
    pub(crate) bars: Vec<Option<Bar>>,
}

/// Groups of bars.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    /// Part of the names within the SVG, so that a page may have several charts.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) x_label: String,
    pub(crate) y_label: String,
    pub(crate) groups: Vec<String>,
    pub(crate) series: Vec<BarSeries>,
}

impl Bars {
    /// The chart as the text of an SVG file.
    ///
    /// Panics: it has no bar.
    pub(crate) fn svg(&self) -> String {
        let bars = self.series.iter().flat_map(|series| &series.bars).flatten();
        let axis = Axis::of(Scale::FromZero, bars.flat_map(|bar| [bar.value, bar.range.1]));
        let [left, upper, right, _] = FRAME;
        let group_width = (right - left) / self.groups.len() as f64;
        let width = (group_width * FILLED / self.series.len() as f64).min(WIDTH_MAX);
        let mut svg = begin(&self.title, self.series.iter().map(|series| &series.name));
        y_marks(&mut svg, &axis);
        for (index, series) in self.series.iter().enumerate() {
            let paint = Paint::new(&mut svg, &self.id, index, series.color);
            for (group, bar) in series.bars.iter().enumerate() {
                let Some(bar) = bar else { continue };
                let middle = left + group_width * (group as f64 + 0.5);
                let x = middle + width * (index as f64 - self.series.len() as f64 / 2.0);
                draw(&mut svg, &axis, bar, (x, width), &paint);
            }
            let (x, y) = (right + 16.0, upper + 10.0 + 24.0 * index as f64);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"32\" height=\"14\" {}/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                y - 8.0,
                paint.filled,
                x + 40.0,
                y + 4.0,
                escaped(&series.name)
            );
        }
        self.names(&mut svg, group_width);
        labels(&mut svg, &self.x_label, &self.y_label);
        svg + "</svg>\n"
    }

    /// The names of the groups below the axis. Long names take turns on several lines.
    fn names(&self, svg: &mut String, group_width: f64) {
        let [left, _, _, lower] = FRAME;
        let longest = self.groups.iter().map(String::len).max().unwrap_or(0) as f64 * LETTER;
        let lines = (longest / group_width).ceil().clamp(1.0, LINES_MAX) as usize;
        for (index, group) in self.groups.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                left + group_width * (index as f64 + 0.5),
                lower + 22.0 + 16.0 * (index % lines) as f64,
                escaped(group)
            );
        }
    }
}

/// A bar with its range and its text, `(x, width)` of it from the left.
fn draw(svg: &mut String, axis: &Axis, bar: &Bar, (x, width): (f64, f64), paint: &Paint) {
    let [_, upper, _, lower] = FRAME;
    let height = |value: f64| (lower - upper) * axis.share(value);
    let (tall, center) = (height(bar.value), x + width / 2.0);
    let (low, high) = (lower - height(bar.range.0), lower - height(bar.range.1));
    let fill = if bar.unsupported.is_some() { &paint.hollow } else { &paint.filled };
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" {fill}/>\
         <path d=\"M{center:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h8M{:.1} {high:.1}h8\" \
         stroke=\"white\" stroke-width=\"4\"/>\
         <path d=\"M{center:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h8M{:.1} {high:.1}h8\" \
         stroke=\"black\" stroke-width=\"1.5\"/>",
        lower - tall,
        (width - 4.0).max(width / 2.0),
        center - 4.0,
        center - 4.0,
        center - 4.0,
        center - 4.0,
    );
    if width < WIDTH_OF_TEXT {
        return;
    }
    let mut line = |text: &str, above: f64| {
        let _ = writeln!(
            svg,
            "<text x=\"{center:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"12\">{}</text>",
            high.min(lower - tall) - above,
            escaped(text)
        );
    };
    line(&bar.text, 6.0);
    if let Some(rounds) = bar.unsupported {
        line(&rounds.text(), 20.0);
    }
}

/// The attributes of the bars of a series.
struct Paint {
    filled: String,
    hollow: String,
}

impl Paint {
    /// Defines the hatching of the series with this index and this color.
    fn new(svg: &mut String, chart: &str, index: usize, color: usize) -> Self {
        let color = COLORS[color % COLORS.len()];
        let hollow = format!("fill=\"white\" stroke=\"{color}\" stroke-dasharray=\"3 2\"");
        let lines = match index % 3 {
            1 => "M-2 2l4 -4M0 8l8 -8M6 10l4 -4",
            2 => "M0 4h8",
            _ => "M4 0v8M0 4h8",
        };
        // The first series is plain.
        let filling = match index {
            0 => format!("<rect width=\"8\" height=\"8\" fill=\"{color}\" fill-opacity=\"0.3\"/>"),
            _ => format!("<path d=\"{lines}\" stroke=\"{color}\" stroke-width=\"2\"/>"),
        };
        let id = format!("{chart}-hatching-{index}");
        let _ = writeln!(
            svg,
            "<pattern id=\"{id}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"8\" height=\"8\" fill=\"white\"/>{filling}</pattern>"
        );
        Self { filled: format!("fill=\"url(#{id})\" stroke=\"{color}\""), hollow }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_tall_as_their_values() {
        let bar = |value: f64| {
            let (range, text) = ((value, value * 2.0), format!("v{value}"));
            Some(Bar { value, range, text, unsupported: None })
        };
        let mut few = bar(10.0);
        few.as_mut().expect("a bar").unsupported = Some(Rounds { good: 1, all: 3 });
        let series = |name: &str, color, bars| BarSeries { name: name.to_owned(), color, bars };
        let series =
            vec![series("a", 0, vec![bar(25.0), None]), series("b", 5, vec![bar(50.0), few])];
        let groups = vec!["first".to_owned(), "second".to_owned()];
        let [id, title, x_label, y_label] = ["i", "t", "x", "y"].map(str::to_owned);
        let svg = Bars { id, title, x_label, y_label, groups, series }.svg();
        // The axis ends at 100, and is 360 high.
        for tall in ["height=\"90.0\"", "height=\"180.0\"", "height=\"36.0\""] {
            assert!(svg.contains(tall), "{tall} in {svg}");
        }
        assert!(svg.contains(">first<") && svg.contains(">v10<"), "{svg}");
        let hollow = format!("height=\"36.0\" fill=\"white\" stroke=\"{}\"", COLORS[5]);
        assert!(svg.contains(&hollow) && svg.contains(">1 of 3<"), "{svg}");
        assert_eq!(svg.matches("width=\"32\"").count(), 2, "a row of the legend for each series");
    }

    #[test]
    fn names_of_many_groups_take_turns_on_several_lines() {
        let bar = || {
            let (range, text) = ((1.0, 1.0), "above".to_owned());
            Some(Bar { value: 1.0, range, text, unsupported: None })
        };
        let bars = |count: usize| Bars {
            id: "i".to_owned(),
            title: String::new(),
            x_label: String::new(),
            y_label: "y".to_owned(),
            groups: (0..count).map(|index| format!("name of many letters {index}")).collect(),
            series: ["a", "b", "c"]
                .map(|name| BarSeries { name: name.to_owned(), color: 0, bars: vec![bar(); count] })
                .to_vec(),
        };
        let (few, many) = (bars(3).svg(), bars(10).svg());
        assert_eq!(few.matches(">above<").count(), 9, "{few}");
        assert!(!many.contains(">above<"), "the bars are narrower than the text: {many}");
        let on = |line: usize| many.matches(&format!("y=\"{}\"", 422 + 16 * line)).count();
        assert_eq!([on(0), on(1), on(2)], [4, 3, 3], "{many}");
        assert!(few.matches("y=\"422\"").count() == 3 && !few.contains("y=\"438\""), "{few}");
    }
}
