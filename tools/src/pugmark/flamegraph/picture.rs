//! The picture: each function is as wide as what it took with all that it called, and stands on its caller.

use super::{LOST, NOT_TRACED, tree::FlameTree};
use std::fmt::Write;

/// The width of the picture, its margin, and the height of a function, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const HEIGHT: usize = 17;
/// Room for the title.
const TITLE: usize = 40;
/// Functions narrower than this are not drawn: nobody would see them.
const NARROWEST: f64 = 0.1;
/// The width of a letter.
const LETTER: f64 = 7.0;

/// A function that is drawn.
struct DrawnFunction {
    node: usize,
    depth: usize,
    /// Where it begins, in the unit that is counted.
    from: u64,
}

/// Draws a tree; `unit` is what is counted.
pub(super) fn svg(tree: &FlameTree, unit: &str) -> String {
    let totals = tree.totals();
    let all = totals[FlameTree::ROOT];
    let scale = (WIDTH - 2.0 * MARGIN) / all.max(1) as f64;
    let mut frames = vec![];
    let mut left = vec![DrawnFunction { node: FlameTree::ROOT, depth: 0, from: 0 }];
    while let Some(frame) = left.pop() {
        // A node's own part comes after what it called.
        let mut from = frame.from;
        for child in tree.children(frame.node) {
            if totals[child] as f64 * scale >= NARROWEST {
                left.push(DrawnFunction { node: child, depth: frame.depth + 1, from });
            }
            from += totals[child];
        }
        frames.push(frame);
    }
    let deepest = frames.iter().map(|frame| frame.depth).max().unwrap_or_default();
    let height = TITLE + (deepest + 1) * HEIGHT + MARGIN as usize;
    let mut svg = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{}\" y=\"25\" text-anchor=\"middle\" font-size=\"16\">{all} {unit}</text>\n",
        WIDTH / 2.0
    );
    for frame in &frames {
        let total = totals[frame.node];
        let name = if frame.node == FlameTree::ROOT { "all" } else { tree.name(frame.node) };
        let (x, width) = (MARGIN + frame.from as f64 * scale, total as f64 * scale);
        let y = TITLE + (deepest - frame.depth) * HEIGHT;
        let percent = total as f64 * 100.0 / all.max(1) as f64;
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<g><title>{}: {total} {unit}, {percent:.2} %, {} of them itself</title>\
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\" rx=\"2\" fill=\"{}\"/>",
            escaped(name),
            tree.own(frame.node),
            HEIGHT - 1,
            color(name),
        );
        if let Some(label) = label(name, width) {
            let _ = write!(svg, "<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 3.0, y + 12, escaped(&label));
        }
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

/// As much of a name as there is room for; `None` if that says nothing.
fn label(name: &str, width: f64) -> Option<String> {
    let room = ((width - 6.0) / LETTER).max(0.0) as usize;
    match name.chars().count() {
        letters if letters <= room => Some(name.into()),
        _ if room >= 3 => Some(name.chars().take(room - 2).chain("..".chars()).collect()),
        _ => None,
    }
}

/// Returns a warm colour, the same for all functions of one name. Missing parts are red, and what is not the program's
/// is grey.
fn color(name: &str) -> String {
    match name {
        LOST => return "#e00000".into(),
        NOT_TRACED => return "#c0c0c0".into(),
        _ => {}
    }
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("#{:02x}{:02x}{:02x}", 225 + hash % 30, 90 + hash / 30 % 130, 40 + hash / 3900 % 50)
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            // XML has no way to write these.
            _ if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the title, place and width of each function of a picture, and its label.
    fn frames(svg: &str) -> Vec<(String, f64, f64, f64, Option<String>)> {
        let document = roxmltree::Document::parse(svg).unwrap();
        let groups = document.descendants().filter(|node| node.has_tag_name("g"));
        let child = |group: roxmltree::Node<'_, '_>, name: &str| {
            group.children().find(|node| node.has_tag_name(name)).map(|node| node.id())
        };
        let text = |id| document.get_node(id).and_then(|node| node.text()).unwrap_or_default().to_owned();
        let mut frames: Vec<_> = groups
            .map(|group| {
                let rect = document.get_node(child(group, "rect").unwrap()).unwrap();
                let number = |name: &str| rect.attribute(name).unwrap().parse::<f64>().unwrap();
                let title = text(child(group, "title").unwrap());
                (title, number("x"), number("y"), number("width"), child(group, "text").map(text))
            })
            .collect();
        frames.sort_by(|a, b| a.0.cmp(&b.0));
        frames
    }

    #[test]
    fn a_function_stands_on_its_caller_and_is_as_wide_as_its_share() {
        let mut tree = FlameTree::new();
        let main = tree.child(FlameTree::ROOT, "main");
        let a = tree.child(main, "a<b> & c");
        let b = tree.child(main, "b");
        let tiny = tree.child(main, "c");
        let inner = tree.child(a, "inner");
        for (node, own) in [(main, 250_000), (a, 300_000), (inner, 200_000), (b, 249_999), (tiny, 1)] {
            tree.add(node, own);
        }
        let drawn = frames(&svg(&tree, "instructions"));
        let row = HEIGHT as f64;
        let (bottom, whole) = (TITLE as f64 + 3.0 * row, WIDTH - 2.0 * MARGIN);
        let expected = [
            ("a<b> & c: 500000 instructions, 50.00 %, 300000 of them itself", 0.0, 2.0, 0.5, "a<b> & c"),
            ("all: 1000000 instructions, 100.00 %, 0 of them itself", 0.0, 0.0, 1.0, "all"),
            ("b: 249999 instructions, 25.00 %, 249999 of them itself", 0.5, 2.0, 0.25, "b"),
            ("inner: 200000 instructions, 20.00 %, 200000 of them itself", 0.0, 3.0, 0.2, "inner"),
            ("main: 1000000 instructions, 100.00 %, 250000 of them itself", 0.0, 1.0, 1.0, "main"),
        ];
        assert_eq!(drawn.len(), expected.len());
        for ((title, x, y, width, label), (expected, from, depth, share, name)) in
            drawn.into_iter().zip(expected)
        {
            assert_eq!((&*title, label.as_deref()), (expected, Some(name)));
            assert!((x - MARGIN - from * whole).abs() < 0.01, "{title}: {x}");
            assert!((width - share * whole).abs() < 0.01, "{title}: {width}");
            assert!((y - (bottom - depth * row)).abs() < 0.01, "{title}: {y}");
        }
    }

    #[test]
    fn a_picture_is_as_high_as_its_highest_function_and_each_is_drawn_in_its_place() {
        let mut tree = FlameTree::new();
        let main = tree.child(FlameTree::ROOT, "main");
        let inner = tree.child(main, "a&b");
        tree.add(main, 3);
        tree.add(inner, 1);
        // Three rows of 17 pixels below 40 for the title and above a margin of 10; 1180 pixels for four. The colours
        // are of the names' FNV-1a 32: 225 + hash % 30, 90 + hash / 30 % 130, 40 + hash / 3900 % 50.
        let expected = [
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>",
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1200\" height=\"101\" viewBox=\"0 0 1200 101\" \
             font-family=\"monospace\" font-size=\"12\">",
            "<rect width=\"1200\" height=\"101\" fill=\"#ffffff\"/>",
            "<text x=\"600\" y=\"25\" text-anchor=\"middle\" font-size=\"16\">4 ns</text>",
            "<g><title>all: 4 ns, 100.00 %, 0 of them itself</title>\
             <rect x=\"10.00\" y=\"74\" width=\"1180.00\" height=\"16\" rx=\"2\" fill=\"#edcc33\"/>\
             <text x=\"13.00\" y=\"86\">all</text></g>",
            "<g><title>main: 4 ns, 100.00 %, 3 of them itself</title>\
             <rect x=\"10.00\" y=\"57\" width=\"1180.00\" height=\"16\" rx=\"2\" fill=\"#eda639\"/>\
             <text x=\"13.00\" y=\"69\">main</text></g>",
            "<g><title>a&amp;b: 1 ns, 25.00 %, 1 of them itself</title>\
             <rect x=\"10.00\" y=\"40\" width=\"295.00\" height=\"16\" rx=\"2\" fill=\"#ed902b\"/>\
             <text x=\"13.00\" y=\"52\">a&amp;b</text></g>",
            "</svg>",
        ];
        assert_eq!(svg(&tree, "ns").lines().collect::<Vec<_>>(), expected);
        assert!(svg(&FlameTree::new(), "ns").contains(">all: 0 ns, 0.00 %, 0 of them itself<"));
    }

    #[test]
    fn what_is_too_narrow_to_be_seen_is_not_drawn_but_takes_its_place() {
        let mut tree = FlameTree::new();
        // 0.1 pixels are one part in 11800.
        for (name, own) in [("a", 1), ("b", 2), ("c", 23_597)] {
            let node = tree.child(FlameTree::ROOT, name);
            tree.add(node, own);
        }
        let drawn = frames(&svg(&tree, "ns"));
        let names: Vec<&str> = drawn.iter().map(|(title, ..)| title.split(':').next().unwrap()).collect();
        assert_eq!(names, ["all", "b", "c"]);
        assert_eq!((drawn[1].1, drawn[1].3, drawn[2].1), (10.05, 0.1, 10.15));
    }

    #[test]
    fn a_label_is_as_long_as_there_is_room() {
        for (width, expected) in [
            (62.0, Some("function")),
            (61.0, Some("funct..")),
            (27.0, Some("f..")),
            (26.0, None),
            (0.0, None),
        ] {
            assert_eq!(label("function", width).as_deref(), expected, "{width}");
        }
        assert_eq!(label("f", 13.0).as_deref(), Some("f"));
    }

    #[test]
    fn a_name_has_one_colour_and_what_is_missing_has_its_own() {
        assert_eq!(color("main"), color("main"));
        assert_ne!(color("main"), color("niam"));
        assert_eq!([color(LOST), color(NOT_TRACED)], ["#e00000", "#c0c0c0"]);
    }
}
