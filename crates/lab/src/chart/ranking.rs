//! A chart of horizontal bars, each with its name: measured and published systems in one order.
//!
//! Upstream:   `report`.
//! Downstream: files that browsers and printers show.
//!
//! The names may be long, so they stand at the left of the bars, and the chart is as high as it has
//! bars. Measured bars are filled, published ones hatched.

use std::fmt::Write as _;

use super::axis::{Axis, Scale, compact};
use super::escaped;

const WIDTH: f64 = 786.0;
/// The ends of the bars, and the space of a text behind the longest one.
const FRAME: [f64; 2] = [330.0, 690.0];
/// The height of a row, and of a bar.
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
/// Above the first row: the legend.
const TOP: f64 = 36.0;

/// A bar of a ranking.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RankingBar {
    pub(crate) name: String,
    /// `None`: unknown, so there is only the text.
    pub(crate) value: Option<f64>,
    /// The text behind the bar.
    pub(crate) text: String,
    pub(crate) is_measured: bool,
}

/// Horizontal bars.
#[derive(Clone, Debug)]
pub(crate) struct Ranking {
    /// Part of the names within the SVG, so that a page may have several charts.
    pub(crate) id: String,
    pub(crate) x_label: String,
    /// From top to bottom.
    pub(crate) bars: Vec<RankingBar>,
}

impl Ranking {
    /// The chart as the text of an SVG file.
    ///
    /// Panics: no bar has a value.
    pub(crate) fn svg(&self) -> String {
        let axis = Axis::of(Scale::FromZero, self.bars.iter().filter_map(|bar| bar.value));
        let [left, right] = FRAME;
        let bottom = TOP + ROW * self.bars.len() as f64;
        let place = |value: f64| left + (right - left) * axis.share(value);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"{WIDTH}\" height=\"{}\" fill=\"white\"/>\n\
             <pattern id=\"{}-published\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"8\" height=\"8\" fill=\"white\"/>\
             <path d=\"M-2 2l4 -4M0 8l8 -8M6 10l4 -4\" stroke=\"#0072b2\" stroke-width=\"2\"/>\
             </pattern>\n",
            bottom + 46.0,
            bottom + 46.0,
            self.id
        );
        for (index, name) in ["measured here", "published"].into_iter().enumerate() {
            let x = left + 160.0 * index as f64;
            let fill = self.fill(index == 0);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"8\" width=\"32\" height=\"14\" {fill}/>\
                 <text x=\"{}\" y=\"20\">{name}</text>",
                x + 40.0
            );
        }
        for mark in &axis.marks {
            let x = place(*mark);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                compact(*mark)
            );
        }
        for (row, bar) in self.bars.iter().enumerate() {
            self.draw(&mut svg, TOP + ROW * row as f64, bar, &place);
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (left + right) / 2.0,
            bottom + 38.0,
            escaped(&self.x_label)
        );
        svg + "</svg>\n"
    }

    fn fill(&self, is_measured: bool) -> String {
        match is_measured {
            true => "fill=\"#333\" stroke=\"black\"".to_owned(),
            false => format!("fill=\"url(#{}-published)\" stroke=\"#0072b2\"", self.id),
        }
    }

    /// A row: the name, the bar, and the text behind it.
    fn draw(&self, svg: &mut String, top: f64, bar: &RankingBar, place: &impl Fn(f64) -> f64) {
        let [left, _] = FRAME;
        let baseline = top + ROW / 2.0 + 4.5;
        let weight = if bar.is_measured { "bold" } else { "normal" };
        let end = bar.value.map_or(left, place);
        assert!(end >= left, "a bar has no negative length");
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{baseline}\" text-anchor=\"end\" font-weight=\"{weight}\">{}</text>",
            left - 8.0,
            escaped(&bar.name)
        );
        if bar.value.is_some() {
            let _ = writeln!(
                svg,
                "<rect x=\"{left}\" y=\"{}\" width=\"{:.1}\" height=\"{BAR}\" {}/>",
                top + (ROW - BAR) / 2.0,
                end - left,
                self.fill(bar.is_measured)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{baseline}\">{}</text>",
            end + 6.0,
            escaped(&bar.text)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |name: &str, value: Option<f64>, is_measured: bool| RankingBar {
            name: name.to_owned(),
            value,
            text: value.map_or("no meter".to_owned(), |value| format!("v{value}")),
            is_measured,
        };
        let bars =
            vec![bar("a < b", Some(50.0), true), bar("c", Some(25.0), false), bar("d", None, true)];
        let (id, x_label) = ("i".to_owned(), "x".to_owned());
        let svg = Ranking { id, x_label, bars }.svg();
        // The axis ends at 50, and is 360 long.
        for words in [
            "width=\"360.0\" height=\"16\" fill=\"#333\"",
            "width=\"180.0\" height=\"16\" fill=\"url(#i-published)\"",
            ">a &lt; b<",
            ">no meter<",
        ] {
            assert!(svg.contains(words), "{words} in {svg}");
        }
        assert_eq!(svg.matches("height=\"16\"").count(), 2, "an unknown value has no bar");
    }
}
