//! A chart of groups of bars.
//!
//! Upstream:   `report`.
//! Downstream: `mod` draws the axes.

use std::fmt::Write as _;

use super::axis::{Axis, Scale};
use super::{COLORS, FRAME, begin, escaped, labels, y_marks};

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
    /// The bars with this name, one in each group or none.
    pub(crate) series: Vec<(String, Vec<Option<Bar>>)>,
}

impl Bars {
    /// The chart as the text of an SVG file.
    ///
    /// Panics: it has no bar.
    pub(crate) fn svg(&self) -> String {
        let bars = self.series.iter().flat_map(|(_, bars)| bars).flatten();
        let axis = Axis::of(Scale::FromZero, bars.flat_map(|bar| [bar.value, bar.range.1]));
        let [left, upper, right, lower] = FRAME;
        let group_width = (right - left) / self.groups.len() as f64;
        let width = (group_width * FILLED / self.series.len() as f64).min(WIDTH_MAX);
        let height = |value: f64| (lower - upper) * axis.share(value);
        let mut svg = begin(&self.title, self.series.iter().map(|(name, _)| name));
        y_marks(&mut svg, &axis);
        for (index, (name, bars)) in self.series.iter().enumerate() {
            let fill = hatching(&mut svg, &self.id, index);
            for (group, bar) in bars.iter().enumerate() {
                let Some(bar) = bar else { continue };
                let middle = left + group_width * (group as f64 + 0.5);
                let x = middle + width * (index as f64 - self.series.len() as f64 / 2.0);
                let (tall, center) = (height(bar.value), x + width / 2.0);
                let (low, high) = (lower - height(bar.range.0), lower - height(bar.range.1));
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
                if width >= WIDTH_OF_TEXT {
                    let _ = writeln!(
                        svg,
                        "<text x=\"{center:.1}\" y=\"{:.1}\" text-anchor=\"middle\" \
                         font-size=\"12\">{}</text>",
                        high.min(lower - tall) - 6.0,
                        escaped(&bar.text)
                    );
                }
            }
            let (x, y) = (right + 16.0, upper + 10.0 + 24.0 * index as f64);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{}\" width=\"32\" height=\"14\" {fill}/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                y - 8.0,
                x + 40.0,
                y + 4.0,
                escaped(name)
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

/// Defines the hatching of the series with this index, and returns the attributes that use it.
fn hatching(svg: &mut String, chart: &str, index: usize) -> String {
    let color = COLORS[index % COLORS.len()];
    if index == 0 {
        return "fill=\"#bbb\" stroke=\"black\"".to_owned();
    }
    let lines = match index % 3 {
        1 => "M-2 2l4 -4M0 8l8 -8M6 10l4 -4",
        2 => "M0 4h8",
        _ => "M4 0v8M0 4h8",
    };
    let id = format!("{chart}-hatching-{index}");
    let _ = writeln!(
        svg,
        "<pattern id=\"{id}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
         <rect width=\"8\" height=\"8\" fill=\"white\"/>\
         <path d=\"{lines}\" stroke=\"{color}\" stroke-width=\"2\"/></pattern>"
    );
    format!("fill=\"url(#{id})\" stroke=\"{color}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_tall_as_their_values() {
        let bar = |value: f64| {
            Some(Bar { value, range: (value, value * 2.0), text: format!("v{value}") })
        };
        let series = vec![
            ("a".to_owned(), vec![bar(25.0), None]),
            ("b".to_owned(), vec![bar(50.0), bar(10.0)]),
        ];
        let groups = vec!["first".to_owned(), "second".to_owned()];
        let [id, title, x_label, y_label] = ["i", "t", "x", "y"].map(str::to_owned);
        let svg = Bars { id, title, x_label, y_label, groups, series }.svg();
        // The axis ends at 100, and is 360 high.
        for tall in ["height=\"90.0\"", "height=\"180.0\"", "height=\"36.0\""] {
            assert!(svg.contains(tall), "{tall} in {svg}");
        }
        assert!(svg.contains(">first<") && svg.contains(">v10<"), "{svg}");
        assert_eq!(svg.matches("width=\"32\"").count(), 2, "a row of the legend for each series");
    }

    #[test]
    fn names_of_many_groups_take_turns_on_several_lines() {
        let bar = || Some(Bar { value: 1.0, range: (1.0, 1.0), text: "above".to_owned() });
        let bars = |count: usize| Bars {
            id: "i".to_owned(),
            title: String::new(),
            x_label: String::new(),
            y_label: "y".to_owned(),
            groups: (0..count).map(|index| format!("name of many letters {index}")).collect(),
            series: ["a", "b", "c"].map(|name| (name.to_owned(), vec![bar(); count])).to_vec(),
        };
        let (few, many) = (bars(3).svg(), bars(10).svg());
        assert_eq!(few.matches(">above<").count(), 9, "{few}");
        assert!(!many.contains(">above<"), "the bars are narrower than the text: {many}");
        let on = |line: usize| many.matches(&format!("y=\"{}\"", 422 + 16 * line)).count();
        assert_eq!([on(0), on(1), on(2)], [4, 3, 3], "{many}");
        assert!(few.matches("y=\"422\"").count() == 3 && !few.contains("y=\"438\""), "{few}");
    }
}
