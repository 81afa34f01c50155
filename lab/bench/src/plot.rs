//! Plots as SVG: text, so that a repository can keep them and a diff shows changes.

use super::scaling::Curve;
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 190.0;

/// Colours that colour-blind people can tell apart.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Returns the text with XML's special characters escaped.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the least of 1, 2 and 5 times a power of ten that is not below `number`.
fn round_up(number: f64) -> f64 {
    let power = 10_f64.powf(number.max(f64::MIN_POSITIVE).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|round| *round >= number)
        .unwrap_or(number)
}

fn begin(title: &str, x: &str, y: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let (title, x, y) = (escaped(title), escaped(x), escaped(y));
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{title}</text>");
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{x}</text>", HEIGHT - 10.0);
    let _ = writeln!(
        svg,
        "<text x=\"16\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {0})\">{y}</text>",
        HEIGHT / 2.0
    );
    svg
}

fn rule(svg: &mut String, y: f64, label: f64) {
    let right = WIDTH - RIGHT;
    let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#ddd\"/>");
    let _ =
        writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, y + 4.0);
}

fn legend(svg: &mut String, index: usize, name: &str) {
    let (x, y) = (WIDTH - RIGHT + 12.0, TOP + 10.0 + 18.0 * index as f64);
    let _ = writeln!(
        svg,
        "<rect x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{}\"/>",
        y - 9.0,
        colour(index)
    );
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\">{}</text>", x + 15.0, escaped(name));
}

/// Draws curves from the origin; `logarithmic` is for x.
pub(super) fn curves(title: &str, x: &str, y: &str, logarithmic: bool, curves: &[Curve]) -> String {
    let scale = |x: f64| if logarithmic { x.max(1.0).log2() } else { x };
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let xs = || points().map(|(x, _)| scale(*x));
    let least = if logarithmic { xs().fold(f64::MAX, f64::min) } else { 0.0 };
    let most = xs().fold(least + 1e-9, f64::max);
    let top = round_up(points().map(|(_, y)| *y).fold(0.0, f64::max));
    let place_x = |x: f64| LEFT + (scale(x) - least) / (most - least) * (WIDTH - RIGHT - LEFT);
    let place_y = |y: f64| HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - TOP);
    let mut svg = begin(title, x, y);
    for fifth in 0..=5 {
        let value = top * f64::from(fifth) / 5.0;
        rule(&mut svg, place_y(value), (value * 1000.0).round() / 1000.0);
    }
    for (x, _) in curves.first().map_or(&[][..], |curve| &curve.points) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{:.0}</text>",
            place_x(*x),
            HEIGHT - BOTTOM + 16.0,
            x
        );
    }
    for (index, curve) in curves.iter().enumerate() {
        let places: Vec<_> =
            curve.points.iter().map(|(x, y)| format!("{:.1},{:.1}", place_x(*x), place_y(*y))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            places.join(" "),
            colour(index)
        );
        legend(&mut svg, index, &curve.name);
    }
    svg + "</svg>\n"
}

/// Draws groups of bars on a logarithmic scale: each group has a name, and its bars have the names of `series`.
pub(super) fn bars(title: &str, y: &str, series: &[&str], groups: &[(String, Vec<Option<f64>>)]) -> String {
    let values = || groups.iter().flat_map(|(_, bars)| bars.iter().flatten().copied());
    // The margin gives the lowest bar a height, too.
    let least = (values().fold(f64::MAX, f64::min).max(1e-3).log10() - 0.05).floor();
    let most = values().fold(1e-2, f64::max).log10().ceil().max(least + 1.0);
    let place =
        |value: f64| HEIGHT - BOTTOM - (value.log10() - least) / (most - least) * (HEIGHT - BOTTOM - TOP);
    let mut svg = begin(title, "", y);
    for power in least as i32..=most as i32 {
        let value = 10_f64.powi(power);
        rule(&mut svg, place(value), value);
    }
    let step = (WIDTH - RIGHT - LEFT) / groups.len().max(1) as f64;
    let width = step * 0.8 / series.len().max(1) as f64;
    for (group, (name, bars)) in groups.iter().enumerate() {
        let x = LEFT + step * group as f64;
        for (index, value) in bars.iter().enumerate() {
            let Some(value) = value else { continue };
            let (x, y) = (x + step * 0.1 + width * index as f64, place(*value));
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                HEIGHT - BOTTOM - y,
                colour(index)
            );
        }
        // Names are wider than groups.
        let (x, y) = (x + step / 2.0 + 8.0, HEIGHT - BOTTOM + 14.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"end\" font-size=\"11\" \
             transform=\"rotate(-20 {x:.1} {y})\">{}</text>",
            escaped(name)
        );
    }
    for (index, name) in series.iter().enumerate() {
        legend(&mut svg, index, name);
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_at_the_next_round_number() {
        for (number, round) in [(1.0, 1.0), (1.1, 2.0), (37.0, 50.0), (0.06, 0.1), (700.0, 1000.0)] {
            assert!((round_up(number) - round).abs() < 1e-9, "{number}: {}", round_up(number));
        }
    }

    #[test]
    fn a_curve_lies_between_the_axes_and_names_are_escaped() {
        let curve = Curve { name: "a<b".into(), points: vec![(0.0, 0.0), (10.0, 5.0)] };
        let svg = curves("title", "x", "y", false, &[curve]);
        assert!(svg.contains("points=\"70.0,350.0 530.0,40.0\""), "{svg}");
        assert!(svg.contains("a&lt;b") && svg.ends_with("</svg>\n"), "{svg}");
    }

    #[test]
    fn a_bar_is_as_high_as_the_logarithm_of_its_value() {
        let svg = bars("title", "y", &["one", "two"], &[("group".into(), vec![Some(10.0), None])]);
        // The background, the bar, and two squares of the legend.
        assert!(!svg.contains("NaN") && svg.matches("<rect").count() == 1 + 1 + 2, "{svg}");
        assert!(svg.contains("height=\"310.0\""), "{svg}");
    }
}
