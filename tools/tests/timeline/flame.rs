//! Flame graphs: in a browser, of deep stacks, and of two recordings.

use super::{Scratch, browser::visit_file};
use serde_json::json;
use std::fs;

/// The depth to which `down` calls itself, and two functions whose costs another version exchanges.
fn program(depth: u32, one: u32, two: u32) -> String {
    format!(
        "__attribute__((noinline)) int leaf(int x) {{ return x * 3 + 1; }}\n\
         __attribute__((noinline)) int one(int n) {{ int s = 0; while (n--) s += leaf(n); return s; }}\n\
         __attribute__((noinline)) int two(int n) {{ int s = 1; while (n--) s += leaf(n); return s; }}\n\
         __attribute__((noinline)) int down(int n) {{ return n ? down(n - 1) + leaf(n) % 2 * n : 0; }}\n\
         int main(void) {{ return one({one}) + two({two}) + down({depth}) == 7; }}"
    )
}

#[test]
fn a_flame_graph_zooms_finds_and_turns_over_in_a_browser() {
    let Some(folder) = Scratch::recorded_program("flame", &program(3, 400, 800)) else { return };
    folder.text(&["flamegraph", "-o", "flame.svg", "rec"]);
    let script = r##"
const of = name => frames.find(frame => frame.name === name);
const place = frame => ["x", "y", "width"].map(name => Number(frame.box.getAttribute(name)));
const click = element => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
say("window", [svg.clientWidth]);
say("all", place(root));
say("before", [place(of("main")), place(of("one")), place(of("two"))]);
click(of("one").group);
say("zoomed", [place(of("main")), place(of("one")), of("two").group.style.display]);
say("label", of("one").group.querySelector("text").textContent);
click(part("all"));
say("again", [place(of("main")), place(of("one")), place(of("two"))]);
part("search").value = "leaf"; part("search").dispatchEvent(new Event("input"));
say("found", [part("found").textContent, of("leaf").box.getAttribute("fill") !== of("leaf").colour,
  of("one").box.getAttribute("fill") !== of("one").colour]);
part("search").value = "two"; part("search").dispatchEvent(new Event("input"));
say("whole", [part("found").textContent, (of("two").total * 100 / root.total).toFixed(2) + " %"]);
click(part("flip"));
say("flipped", [place(root)[1] < place(of("main"))[1] && place(of("main"))[1] < place(of("one"))[1]]);
of("two").group.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
say("detail", part("detail").textContent === of("two").title && of("two").title.startsWith("two: "));
"##;
    for said in visit_file(&folder, "flame.svg", "</svg>", [1500, 700], script) {
        // It is as wide as the window, and a function that was clicked as wide as the picture.
        let width = said["window"][0].as_f64().unwrap();
        assert!(width > 1400.0 && said["all"][2] == width - 20.0, "{said}");
        assert_eq!([&said["zoomed"][0][2], &said["zoomed"][1][2]], [&said["all"][2]; 2]);
        assert_eq!([&said["zoomed"][2], &said["label"]], ["none", "one"]);
        assert_eq!(said["before"], said["again"]);
        let wide = |index: usize| said["before"][index][2].as_f64().unwrap();
        assert!(wide(1) < wide(2) && wide(2) < wide(0), "{said}");
        assert_eq!((&said["found"][1], &said["found"][2]), (&json!(true), &json!(false)));
        assert_eq!(said["whole"][0], said["whole"][1]);
        assert_eq!((&said["flipped"][0], &said["detail"]), (&json!(true), &json!(true)));
    }
}

#[test]
fn deep_recursion_is_cut_at_a_depth() {
    let Some(folder) = Scratch::recorded_program("cut", &program(20_000, 1, 1)) else { return };
    let longest = |options: &[&str]| {
        let text = folder.text(&[&["flamegraph", "-f", "folded"], options, &["rec"]].concat());
        let costs = text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        let all = costs.sum::<u64>();
        (text.lines().map(|line| line.split(';').count()).max().unwrap(), text.len(), all)
    };
    let (depth, bytes, all) = longest(&[]);
    assert!(depth == 256 && bytes < 1 << 20, "{depth} {bytes}");
    let (depth, bytes, same) = longest(&["--depth", "20"]);
    assert!(depth == 20 && bytes < 1 << 15 && same == all, "{depth} {bytes}");
    folder.text(&["flamegraph", "-o", "flame.svg", "rec"]);
    assert!(fs::metadata(folder.0.join("flame.svg")).unwrap().len() < 1 << 20);
    assert_eq!(folder.pugmark(&["flamegraph", "--depth", "0", "rec"]).status.code(), Some(2));
}

#[test]
fn a_flame_graph_of_two_recordings_says_what_each_function_took_before() {
    let Some(folder) = Scratch::recorded_program("diff", &program(3, 400, 800)) else { return };
    let Some(other) = Scratch::recorded_program("diff-before", &program(3, 800, 400)) else { return };
    let before = other.0.join("rec");
    let svg = folder.text(&["flamegraph", "--diff", before.to_str().unwrap(), "rec"]);
    let took = |folder: &Scratch, function: &str| -> u64 {
        let text = folder.text(&["flamegraph", "-f", "folded", "rec"]);
        let of = text.lines().filter(|line| line.contains(&format!(";main;{function}")));
        of.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    for function in ["one", "two"] {
        let (now, then) = (took(&folder, function), took(&other, function));
        let title = svg.split(&format!("<title>{function}: {now} instructions, ")).nth(1).unwrap();
        let (title, rest) = title.split_once("</title>").unwrap();
        assert!(title.ends_with(&format!("; before {then}, {:+}", now as i64 - then as i64)), "{title}");
        let colour = rest.split("fill=\"#").nth(1).unwrap();
        assert!(
            if now > then { colour.starts_with("ff") } else { colour[4..].starts_with("ff") },
            "{colour}"
        );
    }
    let output = folder.pugmark(&["flamegraph", "-f", "folded", "--diff", before.to_str().unwrap(), "rec"]);
    assert_eq!(output.status.code(), Some(1));
}
