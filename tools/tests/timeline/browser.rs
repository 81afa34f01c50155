//! Pages in a browser: scripts click, type and look at the picture.

use super::Scratch;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// `down` calls itself, to a depth of 3000 in the first thread and of 40 in twelve others.
const DEEP: &str = r"
#include <pthread.h>
__attribute__((noinline)) int leaf(int x) { return x * 3 + 1; }
__attribute__((noinline)) int down(int n) { return n ? down(n - 1) + leaf(n) % 2 * n : 0; }
static void *run(void *n) { return (void *)(long)down((long)n); }
int main(void) {
    pthread_t threads[12];
    for (int i = 0; i < 12; i++) pthread_create(&threads[i], 0, run, (void *)40L);
    for (int i = 0; i < 12; i++) pthread_join(threads[i], 0);
    return down(3000) == 7;
}";

/// Tools of the scripts. `say` hands a value to the test.
const TOOLS: &str = r#"
const said = {};
const say = (name, value) => { said[name] = value; };
const pause = () => new Promise(done => setTimeout(done, 20));
// A browser without a screen seldom makes a frame, so what the page has asked for is drawn here.
const settle = async until => {
  const isOpen = () => asked || !wanted().every(chunk => chunk.bars) || until && !until();
  for (let i = 0; i < 500 && (i < 5 || isOpen()); i++) {
    await pause();
    if (asked) { asked = false; drawNow(); }
  }
};
const send = (kind, px, py, more) => {
  const box = canvas.getBoundingClientRect();
  const place = { bubbles: true, cancelable: true, pointerId: 1, clientX: box.left + px, clientY: box.top + py,
    ...more };
  canvas.dispatchEvent(kind === "wheel" ? new WheelEvent(kind, place) : new PointerEvent(kind, place));
};
const press = key => dispatchEvent(new KeyboardEvent("keydown", { key }));
const type = async text => {
  search.value = text;
  search.dispatchEvent(new Event("input"));
  await settle(() => hits.all === 0 || hits.list.length > 0);
};
const middle = bar => [x((bar.from + bar.to) / 2),
  tracks[bar.track].top + TITLE + (bar.depth + .5) * rowOf(tracks[bar.track]) - scroll.scrollTop];
const colourAt = (px, py) => [...pen.getImageData(px * devicePixelRatio, py * devicePixelRatio, 1, 1).data].join();
const painted = () => {
  const words = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return words.reduce((count, word) => count + (word !== theme.paperWord), 0) / words.length;
};
"#;

/// A browser that shows a page, and ends with this value.
struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Settings of Firefox that keep its own pages and requests away.
const FIREFOX: &str = r#"
user_pref("browser.aboutwelcome.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
"#;

impl Browser {
    /// Starts a browser; `None` if it is not installed.
    fn start(program: &str, folder: &Scratch, page: &Path, [width, height]: [u32; 2]) -> Option<Self> {
        let profile = folder.0.join(program);
        fs::create_dir_all(&profile).unwrap();
        let mut browser = Command::new(program);
        browser.arg("--headless");
        if program == "chromium" {
            browser.args([
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
            ]);
            browser.arg(format!("--window-size={width},{height}"));
            browser.arg(format!("--user-data-dir={}", profile.display()));
        } else {
            fs::write(profile.join("user.js"), FIREFOX).unwrap();
            browser.args(["--width", &width.to_string(), "--height", &height.to_string()]);
            browser.args(["--no-remote", "--profile"]).arg(profile);
        }
        browser.arg(format!("file://{}", page.display()));
        browser.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok().map(Self)
    }
}

/// The time after which a script hangs.
const HANGS: Duration = Duration::from_secs(300);

/// Receives the text that a page posts.
fn received(listener: &TcpListener) -> String {
    listener.set_nonblocking(true).unwrap();
    let begin = Instant::now();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => assert!(begin.elapsed() < HANGS, "the script did not end"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    stream.set_nonblocking(false).unwrap();
    let (mut reader, mut line, mut len) = (BufReader::new(&stream), String::new(), 0);
    while reader.read_line(&mut line).unwrap() > 2 {
        let length = line.to_ascii_lowercase();
        len = length.strip_prefix("content-length: ").map_or(len, |text| text.trim().parse().unwrap());
        line.clear();
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).unwrap();
    let _ = (&stream).write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
    String::from_utf8(body).unwrap()
}

/// Runs a script in the page of a timeline, in each browser that is installed. Returns what each has said.
fn visit(folder: &Scratch, window: [u32; 2], script: &str) -> Vec<Value> {
    visit_file(folder, "page.html", "</html>", window, &format!("await settle(); {script}"))
}

/// Runs a script at the end of a file.
pub(super) fn visit_file(
    folder: &Scratch,
    file: &str,
    end: &str,
    window: [u32; 2],
    script: &str,
) -> Vec<Value> {
    let page = fs::read_to_string(folder.0.join(file)).unwrap();
    // The names of XML have the form of addresses.
    let links = page.replace("http://www.w3.org/", "");
    assert!(!links.contains("http://") && !links.contains("https://"), "the page needs the network");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("http://{}/", listener.local_addr().unwrap());
    let script = format!(
        "<script><![CDATA[\n{TOOLS}(async () => {{ {script} }})()\
         .catch(error => say('error', error + error.stack))\
         .then(() => fetch('{to}', {{ method: 'POST', mode: 'no-cors', body: JSON.stringify(said) }}));\n\
         ]]></script>{end}"
    );
    let script = if end == "</html>" { script.replace("<![CDATA[", "").replace("]]>", "") } else { script };
    let visited = folder.0.join(format!("visited-{file}"));
    fs::write(&visited, page.replace(end, &script)).unwrap();
    let said = |programs: &[&str]| {
        let start = |program: &&str| Browser::start(program, folder, &visited, window);
        let Some(_browser) = programs.iter().find_map(start) else {
            println!("skipped: {} is not installed", programs[0]);
            return None;
        };
        let said: Value = serde_json::from_str(&received(&listener)).unwrap();
        assert_eq!(said["error"], Value::Null, "{programs:?}");
        Some(said)
    };
    // Debian has Firefox by the name of its long-term releases.
    [&["chromium"][..], &["firefox-esr", "firefox"]].into_iter().filter_map(said).collect()
}

fn numbers(said: &Value, name: &str) -> Vec<f64> {
    let values = said[name].as_array().unwrap_or_else(|| panic!("{name}: {said}"));
    values.iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn the_page_answers_clicks_and_zoom_in_a_browser() {
    let Some(folder) = Scratch::recorded("browser") else { return };
    folder.page(&["rec"]);
    let script = r##"
say("all", [view.from, view.to]);
await type("busy");
say("busy", found.textContent);
press("n"); await settle();
const busy = view.selected, [px, py] = middle(busy);
say("first", [found.textContent, detail.textContent]);
say("hit", [busy.from, busy.to, view.from, view.to]);
press("Escape"); await settle();
say("cleared", [found.textContent, detail.textContent, list.rows.length]);
send("wheel", px, py, { deltaY: -200, ctrlKey: true }); await settle();
say("zoomed", [view.from, view.to, Math.abs(middle(busy)[0] - px)]);
say("bar", [colourAt(...middle(busy)), theme.bars[busy.site]].map(String));
send("dblclick", ...middle(busy)); await settle();
say("close", [view.from, view.to]);
send("pointerdown", ...middle(busy)); send("pointerup", ...middle(busy)); await settle();
say("detail", detail.textContent);
send("pointerdown", px, py); send("pointermove", px + 50, py); send("pointerup", px + 50, py); await settle();
say("dragged", [view.from, view.to]);
press("0"); await settle();
await type("leaf");
say("leaf", [found.textContent, list.rows.length]);
for (let i = 0; i < 7; i++) {
  search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  await settle();
}
say("round", found.textContent);
press("N"); await settle();
say("back", found.textContent);
await type("nobody");
say("nobody", found.textContent);
press("Escape"); press("0"); await settle();
say("again", [view.from, view.to]);
"##;
    for said in visit(&folder, [1200, 700], script) {
        let [all, zoomed, close] = ["all", "zoomed", "close"].map(|name| numbers(&said, name));
        let (hit, span) = (numbers(&said, "hit"), |times: &[f64]| times[1] - times[0]);
        assert!(span(&zoomed) < span(&all) && span(&close) < 2.0 * (hit[1] - hit[0]) + 10.0, "{said}");
        // The point under the pointer stays there.
        assert!(zoomed[2] < 2.0, "{said}");
        assert!(hit[2] <= hit[0] && hit[1] <= hit[3] && close[0] <= hit[0] && hit[1] <= close[1], "{said}");
        let detail = said["detail"].as_str().unwrap();
        assert!(detail.starts_with("busy   from ") && detail.contains(" instructions, depth "), "{detail}");
        assert_eq!(said["first"][1], said["detail"]);
        assert_eq!([&said["busy"], &said["first"][0]], ["1 call", "1 of 1 call"]);
        assert_eq!(said["cleared"], serde_json::json!(["", "", 0]));
        let colour = said["bar"][1].as_str().unwrap().parse::<u32>().unwrap().to_le_bytes();
        assert_eq!(said["bar"][0], colour.map(|part| part.to_string()).join(","), "{said}");
        assert!(numbers(&said, "dragged")[0] < close[0], "{said}");
        assert_eq!(said["leaf"], serde_json::json!(["6 calls", 7]));
        let found = ["round", "back", "nobody"].map(|name| said[name].as_str().unwrap());
        assert_eq!(found, ["1 of 6 calls", "6 of 6 calls", "0 calls"]);
        assert_eq!(numbers(&said, "again"), all);
    }
}

#[test]
fn deep_stacks_and_many_threads_are_drawn_in_the_window_and_scroll() {
    let Some(folder) = Scratch::recorded_program("deep", DEEP) else { return };
    folder.page(&["rec"]);
    let script = r##"
say("canvas", [canvas.width, canvas.height, content.clientHeight, innerWidth, innerHeight]);
say("folded", tracks.map(track => track.folded));
say("painted", [painted()]);
scroll.scrollTop = 2000 * ROW; await settle();
say("middle", [painted(), scroll.scrollTop, canvas.getBoundingClientRect().top - scroll.getBoundingClientRect().top]);
scroll.scrollTop = content.clientHeight; await settle();
say("end", [painted()]);
const last = tracks.at(-1);
send("pointerdown", 20, last.top + 8 - scroll.scrollTop); send("pointerup", 20, last.top + 8 - scroll.scrollTop);
await settle();
say("opened", [last.folded, last.rows]);
press("f"); await settle();
const one = tracks.every(track => track.folded) || tracks.every(track => !track.folded);
press("f"); await settle();
say("all", [one, tracks.every(track => track.folded) || tracks.every(track => !track.folded)]);
await type("leaf");
press("n"); await settle();
const [px, py] = middle(view.selected);
say("seen", [py > 0 && py < view.height && px >= 0 && px <= view.width, tracks[view.selected.track].folded]);
"##;
    for said in visit(&folder, [1000, 600], script) {
        let canvas = numbers(&said, "canvas");
        assert!(canvas[0] <= canvas[3] && canvas[1] <= canvas[4] && canvas[2] > 3000.0 * 18.0, "{said}");
        let folded = said["folded"].as_array().unwrap();
        assert_eq!(
            (folded.len(), folded.iter().filter(|folded| **folded == true).count()),
            (13, 12),
            "{said}"
        );
        // A blank canvas has nothing but the ruler.
        assert!(numbers(&said, "painted")[0] > 0.2 && numbers(&said, "end")[0] > 0.01, "{said}");
        let middle = numbers(&said, "middle");
        assert!(middle[0] > 0.02 && middle[1] == 2000.0 * 18.0 && middle[2] == 0.0, "{said}");
        assert_eq!(said["opened"][0], false);
        assert!(said["opened"][1].as_u64() > Some(40), "{said}");
        assert_eq!(
            [&said["all"], &said["seen"]],
            [&serde_json::json!([true, true]), &serde_json::json!([true, false])]
        );
    }
}

#[test]
fn a_range_has_totals_by_function_and_a_link_leads_to_a_place() {
    let Some(folder) = Scratch::recorded("totals") else { return };
    let data = folder.page(&["rec"]);
    let script = r##"
await type("busy"); press("n"); await settle();
const busy = view.selected, other = data.end - busy.to;
const rows = () => [...list.rows].map(row => [...row.cells].map(cell => cell.textContent));
const totals = async (from, to) => { await total(from, to); return rows(); };
say("whole", await totals(0, data.end));
say("busy", await totals(busy.from, busy.to));
say("half", await totals(busy.from - 50, (busy.from + busy.to) / 2));
press("Escape"); press("0"); await settle();
const range = [at(10), at(300)];
send("pointerdown", 10, 8); send("pointermove", 300, 8); send("pointerup", 300, 8);
await settle(() => list.rows.length > 0);
say("dragged", [view.range, range]);
say("units", data.unit);
location.hash = "#1000-3000"; await settle(() => view.to === 3000);
say("linked", [view.from, view.to, view.at]);
location.hash = "#2us"; await settle(() => view.at !== null);
say("point", [view.at, x(view.at) / view.width, colourAt(Math.ceil(x(view.at)), view.height - 5)]);
const same = [];
for (let span = data.end; span > 10; span /= 3) {
  move(data.end * .7, span); await settle();
  if (new Set(view.labels).size !== view.labels.length || view.labels.length < 3) same.push(view.labels);
}
say("same", same);
const before = document.documentElement.dataset.theme, paper = theme.paper;
document.getElementById("theme").click(); await settle();
say("theme", [before !== document.documentElement.dataset.theme, paper !== theme.paper,
  colourAt(view.width - 1, view.height - 2) !== "255,255,255,255"]);
"##;
    for said in visit(&folder, [1200, 700], script) {
        let row = |name: &str, function: &str| {
            let rows = said[name].as_array().unwrap();
            let row =
                rows.iter().find(|row| row[3] == function).unwrap_or_else(|| panic!("{function}: {said}"));
            [0, 1, 2].map(|column: usize| row[column].as_str().unwrap().to_owned())
        };
        let nanoseconds = |text: &str| text.strip_suffix(" ns").unwrap().parse::<u64>().unwrap();
        let names: Vec<&str> =
            data["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let slices = data["tracks"][0]["slices"].as_array().unwrap();
        let took = |name: &str| -> Vec<u64> {
            let of = slices.iter().filter(|slice| names[slice[3].as_u64().unwrap() as usize] == name);
            of.map(|slice| slice[1].as_u64().unwrap() - slice[0].as_u64().unwrap()).collect()
        };
        let leaves: u64 = took("leaf").iter().sum();
        let [own, all, calls] = row("whole", "leaf");
        assert_eq!((nanoseconds(&own), nanoseconds(&all), &*calls), (leaves, leaves, "6"));
        // `down` calls itself, and the outermost call has the time of all.
        let outermost = took("down").into_iter().max().unwrap();
        let [own, all, calls] = row("whole", "down");
        assert_eq!((nanoseconds(&all), &*calls), (outermost, "4"));
        assert!(nanoseconds(&own) < outermost, "{said}");
        // Half of a call has half of its time, without what it called there.
        let [own, all, _] = row("busy", "busy");
        let within: u64 = row("busy", "leaf")[1].strip_suffix(" ns").unwrap().parse().unwrap();
        assert_eq!((nanoseconds(&all), nanoseconds(&own) + within), (took("busy")[0], took("busy")[0]));
        let [own, all, _] = row("half", "busy");
        let within = nanoseconds(&row("half", "leaf")[1]);
        assert!(nanoseconds(&all).abs_diff(took("busy")[0] / 2) <= 1, "{said}");
        assert!((nanoseconds(&own) + within).abs_diff(nanoseconds(&all)) <= 2, "{said}");
        assert_eq!(said["dragged"][0], said["dragged"][1]);
        assert_eq!(said["linked"], serde_json::json!([1000, 3000, null]));
        assert_eq!(said["point"][0], 2000);
        assert_eq!(
            [&said["same"], &said["theme"]],
            [&serde_json::json!([]), &serde_json::json!([true, true, true])]
        );
    }
}
