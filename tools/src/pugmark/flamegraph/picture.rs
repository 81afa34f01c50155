//! The picture: each function is as wide as what it took with all that it called, and stands on its caller. A script
//! inside zooms, searches and turns it over; without it the picture is as it was written.

use super::{LOST, NOT_TRACED, tree::FlameTree};
use std::fmt::Write;

const SCRIPT: &str = include_str!("flame.js");
/// The width of the picture, its margin, and the height of a function, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const HEIGHT: usize = 17;
/// Room for the title.
const TITLE: usize = 40;
/// Functions narrower than this cannot be seen until the picture is zoomed.
const NARROWEST: f64 = 0.1;
/// The most functions of a picture, which a browser still moves at once: the widest.
const MOST_FRAMES: usize = 10_000;
/// The width of a letter.
const LETTER: f64 = 7.0;

/// A function that is drawn.
struct DrawnFunction {
    node: usize,
    depth: usize,
    /// Where it begins, in the unit that is counted.
    from: u64,
}

/// A tree, and the way to draw it.
pub(super) struct FlamePicture<'t> {
    pub(super) tree: &'t FlameTree,
    /// The unit that is counted.
    pub(super) unit: &'static str,
    /// True if functions hang from their callers.
    pub(super) hangs: bool,
    /// The tree of another recording, to compare with.
    pub(super) before: Option<&'t FlameTree>,
}

impl FlamePicture<'_> {
    /// Draws the tree.
    pub(super) fn svg(&self) -> String {
        let totals = self.tree.totals();
        let all = totals[FlameTree::ROOT];
        let (frames, left_out) = frames(self.tree, &totals);
        let deepest = frames.iter().map(|frame| frame.depth).max().unwrap_or_default();
        let before = self.before.map(|before| self.tree.totals_in(before));
        let mut svg = self.head(all, deepest, left_out);
        for frame in &frames {
            let before = before.as_ref().map(|before| before[frame.node]);
            self.add_frame(&mut svg, frame, deepest, all, totals[frame.node], before);
        }
        svg + "<script><![CDATA[\n" + SCRIPT + "]]></script>\n</svg>\n"
    }

    fn head(&self, all: u64, deepest: usize, left_out: u64) -> String {
        let (unit, height) = (self.unit, TITLE + (deepest + 1) * HEIGHT + 3 * MARGIN as usize);
        let more = match left_out {
            0 => String::new(),
            _ => format!(", without functions of less than {left_out}"),
        };
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"12\" data-hangs=\"{}\">\n\
             <rect id=\"sheet\" width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text id=\"sum\" x=\"{}\" y=\"25\" text-anchor=\"middle\" font-size=\"16\">{all} {unit}{more}</text>\n\
             <g id=\"tools\" display=\"none\"><foreignObject width=\"130\" height=\"24\">\
             <input xmlns=\"http://www.w3.org/1999/xhtml\" id=\"search\" type=\"search\" placeholder=\"find (/)\" \
             style=\"width: 120px\"/></foreignObject><text id=\"found\" x=\"135\" y=\"16\"/>\
             <text id=\"all\" x=\"210\" y=\"16\" style=\"cursor: pointer\">[all]</text>\
             <text id=\"flip\" x=\"255\" y=\"16\" style=\"cursor: pointer\">[flip]</text></g>\n\
             <text id=\"detail\" x=\"{MARGIN}\" y=\"{}\"/>\n",
            u8::from(self.hangs),
            WIDTH / 2.0,
            height - MARGIN as usize,
        )
    }

    fn add_frame(
        &self,
        svg: &mut String,
        frame: &DrawnFunction,
        deepest: usize,
        all: u64,
        total: u64,
        before: Option<u64>,
    ) {
        let (unit, all) = (self.unit, all.max(1) as f64);
        let plain = if frame.node == FlameTree::ROOT { "all" } else { self.tree.name(frame.node) };
        let name = escaped(plain);
        let scale = (WIDTH - 2.0 * MARGIN) / all;
        let (x, width) = (MARGIN + frame.from as f64 * scale, total as f64 * scale);
        let row = if self.hangs { frame.depth } else { deepest - frame.depth };
        let (y, percent, own) = (TITLE + row * HEIGHT, total as f64 * 100.0 / all, self.tree.own(frame.node));
        let change =
            before.map(|before| format!("; before {before}, {:+}", total as i128 - i128::from(before)));
        let change = change.unwrap_or_default();
        let color = before.map_or_else(|| color(plain), |before| color_of_change(before, total));
        let hidden = if width < NARROWEST { " style=\"display: none\"" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<g data-from=\"{}\" data-total=\"{total}\" data-depth=\"{}\" data-name=\"{name}\"{hidden}>\
             <title>{name}: {total} {unit}, {percent:.2} %, self {own}{change}</title>\
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\" rx=\"2\" fill=\"{color}\"/>",
            frame.from,
            frame.depth,
            HEIGHT - 1,
        );
        if let Some(label) = label(plain, width) {
            let _ = write!(svg, "<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 3.0, y + 12, escaped(&label));
        }
        *svg += "</g>\n";
    }
}

/// Returns the functions that are drawn, and the least that a function must have taken to be one of them, or 0 if all
/// are.
fn frames(tree: &FlameTree, totals: &[u64]) -> (Vec<DrawnFunction>, u64) {
    let mut largest: Vec<u64> = totals.to_vec();
    let least = match largest.len() > MOST_FRAMES {
        false => 0,
        // At most MOST_FRAMES functions took more than the one that is selected.
        true => *largest.select_nth_unstable_by(MOST_FRAMES, |one, other| other.cmp(one)).1 + 1,
    };
    let (mut frames, mut left) = (vec![], vec![DrawnFunction { node: FlameTree::ROOT, depth: 0, from: 0 }]);
    while let Some(frame) = left.pop() {
        // A node's own part comes after what it called.
        let mut from = frame.from;
        for child in tree.children(frame.node) {
            if totals[child] >= least.max(1) {
                left.push(DrawnFunction { node: child, depth: frame.depth + 1, from });
            }
            from += totals[child];
        }
        frames.push(frame);
    }
    (frames, least)
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
        _ if name.starts_with(NOT_TRACED) => return "#c0c0c0".into(),
        _ => {}
    }
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("#{:02x}{:02x}{:02x}", 225 + hash % 30, 90 + hash / 30 % 130, 40 + hash / 3900 % 50)
}

/// Returns a red for what takes more than before, a blue for what takes less; the stronger, the more the cost changed.
fn color_of_change(before: u64, now: u64) -> String {
    let change = (now as f64 - before as f64) / before.max(now).max(1) as f64;
    let faint = 255 - (change.abs() * 180.0) as u8;
    if change > 0.0 { format!("#ff{faint:02x}{faint:02x}") } else { format!("#{faint:02x}{faint:02x}ff") }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
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

    fn svg(tree: &FlameTree, unit: &'static str) -> String {
        FlamePicture { tree, unit, hangs: false, before: None }.svg()
    }

    /// Returns the title, place and width of each function of a picture, and its label.
    fn drawn(svg: &str) -> Vec<(String, f64, f64, f64, Option<String>)> {
        let document = roxmltree::Document::parse(svg).unwrap();
        let groups = document.descendants().filter(|node| node.attribute("data-from").is_some());
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
        let mut drawn = drawn(&svg(&tree, "instructions"));
        drawn.retain(|(title, ..)| !title.starts_with("c: 1 instructions, 0.00 %, "));
        let row = HEIGHT as f64;
        let (bottom, whole) = (TITLE as f64 + 3.0 * row, WIDTH - 2.0 * MARGIN);
        let expected = [
            ("a<b> & c: 500000 instructions, 50.00 %, self 300000", 0.0, 2.0, 0.5, "a<b> & c"),
            ("all: 1000000 instructions, 100.00 %, self 0", 0.0, 0.0, 1.0, "all"),
            ("b: 249999 instructions, 25.00 %, self 249999", 0.5, 2.0, 0.25, "b"),
            ("inner: 200000 instructions, 20.00 %, self 200000", 0.0, 3.0, 0.2, "inner"),
            ("main: 1000000 instructions, 100.00 %, self 250000", 0.0, 1.0, 1.0, "main"),
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
        // Three rows of 17 pixels below 40 for the title and above 30 for the detail; 1180 pixels for four. The colours
        // are of the names' FNV-1a 32: 225 + hash % 30, 90 + hash / 30 % 130, 40 + hash / 3900 % 50.
        let expected = [
            "<g data-from=\"0\" data-total=\"4\" data-depth=\"0\" data-name=\"all\">\
             <title>all: 4 ns, 100.00 %, self 0</title>\
             <rect x=\"10.00\" y=\"74\" width=\"1180.00\" height=\"16\" rx=\"2\" fill=\"#edcc33\"/>\
             <text x=\"13.00\" y=\"86\">all</text></g>",
            "<g data-from=\"0\" data-total=\"4\" data-depth=\"1\" data-name=\"main\">\
             <title>main: 4 ns, 100.00 %, self 3</title>\
             <rect x=\"10.00\" y=\"57\" width=\"1180.00\" height=\"16\" rx=\"2\" fill=\"#eda639\"/>\
             <text x=\"13.00\" y=\"69\">main</text></g>",
            "<g data-from=\"0\" data-total=\"1\" data-depth=\"2\" data-name=\"a&amp;b\">\
             <title>a&amp;b: 1 ns, 25.00 %, self 1</title>\
             <rect x=\"10.00\" y=\"40\" width=\"295.00\" height=\"16\" rx=\"2\" fill=\"#ed902b\"/>\
             <text x=\"13.00\" y=\"52\">a&amp;b</text></g>",
        ];
        let text = svg(&tree, "ns");
        let groups: Vec<_> = text.lines().filter(|line| line.starts_with("<g data-from")).collect();
        assert_eq!(groups, expected);
        assert!(text.contains("width=\"1200\" height=\"121\" viewBox=\"0 0 1200 121\""), "{text}");
        assert!(svg(&FlameTree::new(), "ns").contains(">all: 0 ns, 0.00 %, self 0<"));
        // Hanging from their callers they are in the opposite order.
        let hanging = FlamePicture { tree: &tree, unit: "ns", hangs: true, before: None }.svg();
        let rows: Vec<f64> = drawn(&hanging).into_iter().map(|(_, _, y, ..)| y).collect();
        assert_eq!(rows, [74.0, 40.0, 57.0]);
    }

    #[test]
    fn what_is_too_narrow_to_be_seen_is_hidden_and_the_widest_are_drawn() {
        let mut tree = FlameTree::new();
        // 0.1 pixels are one part in 11800.
        for (name, own) in [("a", 1), ("b", 2), ("c", 23_597)] {
            let node = tree.child(FlameTree::ROOT, name);
            tree.add(node, own);
        }
        let text = svg(&tree, "ns");
        let frames = drawn(&text);
        let names: Vec<&str> = frames.iter().map(|(title, ..)| title.split(':').next().unwrap()).collect();
        assert_eq!((names, text.matches("display: none").count()), (vec!["a", "all", "b", "c"], 1));
        assert_eq!((frames[2].1, frames[2].3, frames[3].1), (10.05, 0.1, 10.15));
        assert!(!text.contains("without functions"), "{text}");
        for number in 0..MOST_FRAMES as u64 + 5 {
            let node = tree.child(FlameTree::ROOT, &format!("f{number}"));
            tree.add(node, 3 + number);
        }
        let text = svg(&tree, "ns");
        let least: Vec<u64> = text
            .match_indices("data-total=\"")
            .map(|(at, found)| text[at + found.len()..].split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(least.len(), MOST_FRAMES);
        let least = least.into_iter().min().unwrap();
        assert!(text.contains(&format!(", without functions of less than {least}<")), "{least}");
    }

    #[test]
    fn a_picture_of_two_recordings_shows_by_colour_what_has_changed() {
        let tree = |costs: &[(&str, u64)]| {
            let mut tree = FlameTree::new();
            let main = tree.child(FlameTree::ROOT, "main");
            for (name, own) in costs {
                let node = tree.child(main, name);
                tree.add(node, *own);
            }
            tree
        };
        let now = tree(&[("less", 50), ("more", 200), ("new", 10), ("same", 7)]);
        let before = tree(&[("less", 100), ("more", 100), ("gone", 99), ("same", 7)]);
        let text = FlamePicture { tree: &now, unit: "ns", hangs: false, before: Some(&before) }.svg();
        let colour = |title: &str| {
            let after = text.split_once(title).unwrap_or_else(|| panic!("{title}: {text}")).1;
            after.split_once("fill=\"").unwrap().1.split('"').next().unwrap().to_owned()
        };
        assert_eq!(colour("self 50; before 100, -50<"), "#a5a5ff");
        assert_eq!(colour("self 200; before 100, +100<"), "#ffa5a5");
        assert_eq!(colour("self 10; before 0, +10<"), "#ff4b4b");
        assert_eq!(colour("self 7; before 7, +0<"), "#ffffff");
        assert_eq!(colour("all: 267 ns, 100.00 %, self 0; before 306, -39<"), "#e9e9ff");
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
        assert_eq!([color(LOST), color("[not traced: write]")], ["#e00000", "#c0c0c0"]);
    }
}
