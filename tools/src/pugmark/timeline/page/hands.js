// Mouse, touch, keys and links.

const LEAST = Math.min(data.end, data.unit === "ns" ? 10 : 4);
const search = document.getElementById("search");
const KEYS = `w s or ctrl+wheel: zoom   a d or drag: move   wheel: scroll   0: the whole run
/ and Enter: find   n N: the next call, the one before   drag on the ruler, or with Shift: totals of a range
click: details   double click: zoom to a call   click on a thread's name: fold it   f: fold all   Esc: nothing selected
a link to a place: #FROM-TO or #TIME after the page's address, with ns, us, ms or s`;
const hand = { x: 0, places: new Map(), start: null };

function move(from, span) {
  span = Math.min(data.end, Math.max(LEAST, span));
  view.from = Math.min(data.end - span, Math.max(0, from));
  view.to = view.from + span;
  draw();
  clearTimeout(move.timer);
  move.timer = setTimeout(remember, 300);
}

function zoom(px, factor) {
  const middle = at(px), span = Math.min(data.end, Math.max(LEAST, (view.to - view.from) * factor));
  move(middle - px / view.width * span, span);
}
const pan = part => move(view.from + (view.to - view.from) * part, view.to - view.from);

// Puts the place into the address, so that it can be copied, unless somebody has just put another one there.
let remembered = location.hash;
function remember() {
  if (location.hash !== remembered) return;
  const is_all = view.from === 0 && view.to === data.end;
  try { history.replaceState(null, "", is_all ? "#" : `#${link(view.from, view.to)}`); } catch { /* As in a frame. */ }
  remembered = location.hash;
}

// Goes to the place in the address.
function follow() {
  remembered = location.hash;
  const unit = { "": 1, ns: 1, us: 1e3, "\u00b5s": 1e3, ms: 1e6, s: 1e9 };
  const times = decodeURIComponent(location.hash.slice(1)).split("-").map(text => {
    const [, number, name] = /^([0-9.]+) ?(|ns|us|\u00b5s|ms|s)$/.exec(text) || [0, NaN, ""];
    return Number(number) * unit[name];
  });
  if (times.some(Number.isNaN)) return;
  view.at = times.length === 1 ? times[0] : null;
  if (times.length > 1) move(times[0], times[1] - times[0]);
  else move(times[0] - data.end / 2000, data.end / 1000);
}

// Returns the track whose title is at a place, or the bar, loss or mark there.
function hit(px, py) {
  const y = py + scroll.scrollTop, pixel = (view.to - view.from) / view.width, when = at(px);
  const track = tracks.find(track => y >= track.top && y < track.top + TITLE + rowsOf(track) * rowOf(track));
  if (!track || py < AXIS) return null;
  if (y < track.top + TITLE) {
    const mark = track.marks.find(([when]) => Math.abs(x(when) - px) <= 3);
    return mark && y > track.top + TITLE - 8 ? { text: mark[1], track } : { title: track };
  }
  const loss = track.losses.find(([from, to]) => when >= from - pixel && when <= Math.max(to, from + 2 * pixel));
  if (loss) return { text: `LOST: ${loss[2]}, for ${time(loss[1] - loss[0])} from ${precise(loss[0])}`, track };
  const depth = Math.floor((y - track.top - TITLE) / rowOf(track));
  let best = null, nearest = pixel * 1.5;
  for (const chunk of shown) {
    if (chunk.track !== track.index || !chunk.bars) continue;
    const { from, to, depth: depths } = chunk.bars;
    for (let i = 0; i < from.length && from[i] <= when + nearest; i++) {
      if (chunk.group * DEPTHS + depths[i] !== depth) continue;
      const far = Math.max(from[i] - when, when - to[i], 0);
      if (far < nearest || (far === nearest && best && to[i] - from[i] < best.to - best.from))
        [best, nearest] = [barAt(chunk, i), far];
    }
  }
  return best && { bar: best };
}

function click(px, py) {
  const there = hit(px, py);
  if (there && there.title) {
    there.title.folded = !there.title.folded;
    layout();
    return draw();
  }
  select(there && there.bar || null);
  if (there && there.text) detail.textContent = `${there.text}   ${there.track.name}`;
}

function foldAll() {
  const folded = !tracks.some(track => track.folded);
  tracks.forEach(track => { track.folded = folded; });
  layout();
  draw();
}

function clear() {
  Object.assign(view, { range: null, at: null });
  totalling++;
  search.value = "";
  find("");
  showRows([], []);
  select(null);
}

const ACTIONS = { w: () => zoom(hand.x, 1 / 1.5), s: () => zoom(hand.x, 1.5), a: () => pan(-.2), d: () => pan(.2),
  ArrowLeft: () => pan(-.2), ArrowRight: () => pan(.2), "+": () => zoom(view.width / 2, 1 / 1.5),
  "-": () => zoom(view.width / 2, 1.5), "0": () => move(0, data.end), n: () => go(1), N: () => go(-1), f: foldAll,
  Escape: clear, "/": () => search.focus(), "?": () => { detail.textContent = KEYS; } };
addEventListener("keydown", event => {
  if (event.target === search) {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { search.blur(); clear(); }
    return;
  }
  const action = ACTIONS[event.key] || ACTIONS[event.key.toLowerCase()];
  if (!action || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  action();
});

canvas.addEventListener("wheel", event => {
  const box = canvas.getBoundingClientRect(), side = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.ctrlKey || event.metaKey) zoom(event.clientX - box.left, 1.002 ** event.deltaY);
  else if (event.shiftKey || Math.abs(side) > Math.abs(event.deltaY)) pan(side / view.width);
  else return;
  event.preventDefault();
}, { passive: false });

const placeOf = event => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
canvas.addEventListener("pointerdown", event => {
  const [px, py] = placeOf(event);
  if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  hand.places.set(event.pointerId, [px, py]);
  hand.start = { px, py, from: view.from, span: view.to - view.from, top: scroll.scrollTop, moved: false,
    selects: py < AXIS || event.shiftKey, apart: apart() };
});
// Returns the distance and the middle of two fingers.
function apart() {
  const [one, two] = [...hand.places.values()];
  return two ? { far: Math.max(20, Math.abs(one[0] - two[0])), middle: (one[0] + two[0]) / 2 } : null;
}
canvas.addEventListener("pointermove", event => {
  const [px, py] = placeOf(event), start = hand.start;
  hand.x = px;
  if (!start || !hand.places.has(event.pointerId)) return;
  hand.places.set(event.pointerId, [px, py]);
  if (!start.moved && Math.hypot(px - start.px, py - start.py) < 4) return;
  start.moved = true;
  const unit = start.span / view.width, fingers = apart();
  if (fingers && start.apart) {
    const span = start.span * start.apart.far / fingers.far;
    return move(start.from + start.apart.middle * unit - fingers.middle * span / view.width, span);
  }
  if (start.selects) {
    view.range = [start.px, px].sort((a, b) => a - b).map(at).map(when => Math.min(data.end, Math.max(0, when)));
    detail.textContent = time(view.range[1] - view.range[0]);
    return draw();
  }
  scroll.scrollTop = start.top - (py - start.py);
  move(start.from - (px - start.px) * unit, start.span);
});
canvas.addEventListener("pointerup", event => {
  const start = hand.start;
  hand.places.delete(event.pointerId);
  hand.start = null;
  if (!start) return;
  if (start.moved && start.selects && view.range) total(...view.range);
  if (!start.moved) click(...placeOf(event));
});
canvas.addEventListener("pointercancel", event => { hand.places.delete(event.pointerId); hand.start = null; });
canvas.addEventListener("dblclick", event => {
  const there = hit(...placeOf(event));
  if (!there || !there.bar) return;
  const { from, to } = there.bar, room = Math.max((to - from) * .05, 2);
  move(from - room, to - from + 2 * room);
});

search.addEventListener("input", () => find(search.value));
for (const [id, act] of [["next", () => go(1)], ["previous", () => go(-1)], ["all", ACTIONS["0"]], ["fold", foldAll],
  ["help", ACTIONS["?"]], ["theme", () => dress(document.documentElement.dataset.theme !== "dark")]])
  document.getElementById(id).addEventListener("click", act);

function dress(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme = null;
  draw();
}
const prefers = matchMedia("(prefers-color-scheme: dark)");
prefers.addEventListener("change", () => dress(prefers.matches));
scroll.addEventListener("scroll", draw);
addEventListener("resize", draw);
new ResizeObserver(draw).observe(scroll);
addEventListener("hashchange", follow);
if (data.warnings.length > 0) {
  document.getElementById("warning").hidden = false;
  document.getElementById("warning").textContent = data.warnings.join("; ");
}
layout();
dress(prefers.matches);
follow();
