// The picture: a canvas of the window's size over content that scrolls.

const ROW = 18, TITLE = 20, AXIS = 24, GAP = 6, FOLDED_ROW = 2, FOLDED_ROWS = 16;
const canvas = document.getElementById("canvas"), pen = canvas.getContext("2d");
const scroll = document.getElementById("scroll"), content = document.getElementById("content");
const view = { from: 0, to: data.end, width: 1, height: 1, selected: null, range: null, at: null, took: 0 };
const tracks = data.tracks.map((track, index) => ({ ...track, index, folded: false, top: 0 }));
let shown = [], theme = null, image = null;

// With many threads each is a strip until it is opened.
if (tracks.length > 8) tracks.forEach((track, index) => { track.folded = index > 0; });

const rowOf = track => track.folded ? FOLDED_ROW : ROW;
const rowsOf = track => track.folded ? Math.min(track.rows, FOLDED_ROWS) : Math.max(1, track.rows);
const x = at => (at - view.from) / (view.to - view.from) * view.width;
const at = x => view.from + x / view.width * (view.to - view.from);
const nameOf = site => data.names[sites[site].name];

function layout() {
  let top = AXIS;
  for (const track of tracks) {
    track.top = top;
    top += TITLE + rowsOf(track) * rowOf(track) + GAP;
  }
  content.style.height = `${top}px`;
}

// Returns a function that writes a time with as many digits as two times `step` apart need.
function writer(most, step) {
  if (data.unit !== "ns") return at => `${grouped(Math.round(at))} ${data.unit}`;
  const [scale, unit] = most < 1e4 ? [1, "ns"] : most < 1e7 ? [1e3, "\u00b5s"] : most < 1e10 ? [1e6, "ms"] : [1e9, "s"];
  const digits = Math.max(0, Math.ceil(Math.log10(scale / Math.max(step, 1)) - 1e-9));
  return at => `${(at / scale).toFixed(digits)} ${unit}`;
}
const grouped = number => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
const time = at => writer(at, at / 1e4)(at);

function colours() {
  const style = getComputedStyle(document.documentElement);
  const named = {};
  for (const name of ["paper", "ink", "faint", "line"]) named[name] = style.getPropertyValue(`--${name}`).trim();
  const word = text => {
    const [red, green, blue] = [1, 3, 5].map(at => parseInt(text.substr(at, 2), 16));
    return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
  };
  const dark = document.documentElement.dataset.theme === "dark";
  const ofName = data.names.map((name, index) => {
    if (index >= NOT_TRACED) return word(dark ? "#4a4d55" : "#c4c4c4");
    let hash = 7;
    for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
    return hued(hash % 300 + 30, dark ? 35 : 55, (dark ? 32 : 72) + hash % 12);
  });
  theme = { ...named, paperWord: word(named.paper), bars: Uint32Array.from(sites, site => ofName[site.name]),
    letter: "#ffd400", loss: "#dd0000", mark: dark ? "#6aa8ff" : "#0060cc", text: dark ? "#f2f2f2" : "#111111" };
}

function hued(hue, saturation, light) {
  const s = saturation / 100, l = light / 100, a = s * Math.min(l, 1 - l);
  const part = n => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return (255 << 24 | part(4) << 16 | part(8) << 8 | part(0)) >>> 0;
}

// Returns the chunks that the picture consists of.
function wanted() {
  const pixel = (view.to - view.from) / (view.width * (devicePixelRatio || 1));
  const level = data.levels.filter(level => 4 ** level <= pixel).pop() ?? data.levels[0];
  const top = scroll.scrollTop, bottom = top + view.height, all = [];
  for (const track of tracks) {
    const begin = track.top + TITLE, row = rowOf(track);
    if (begin > bottom || begin + rowsOf(track) * row < top) continue;
    const first = Math.max(0, Math.floor((top + AXIS - begin) / row / DEPTHS));
    const last = Math.min(Math.ceil(rowsOf(track) / DEPTHS) - 1, Math.floor((bottom - begin) / row / DEPTHS));
    for (let group = first; group <= last; group++)
      for (const chunk of groups[track.index].get(group) || [])
        if (chunk.from <= view.to && chunk.to >= view.from
          && (chunk.isRuns ? chunk.level === level : chunk.level >= level)) all.push(chunk);
  }
  return all;
}

let asked = false;
function draw() {
  if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; drawNow(); }); }
}

// Draws when all that is needed is read; until then the picture stays.
function drawNow() {
  if (!theme) colours();
  const width = Math.max(1, scroll.clientWidth), height = Math.max(1, scroll.clientHeight);
  [view.width, view.height] = [width, height];
  const need = wanted();
  if (!areRead(need, draw)) return;
  const began = performance.now(), scale = devicePixelRatio || 1;
  shown = need;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high || !image) {
    [canvas.width, canvas.height] = [wide, high];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    image = pen.createImageData(wide, high);
  }
  const pixels = new Uint32Array(image.data.buffer).fill(theme.paperWord), labels = [];
  for (const chunk of shown) paint(pixels, wide, high, scale, chunk, labels);
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.putImageData(image, 0, 0);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.textBaseline = "middle";
  write(labels);
  for (const track of tracks) overlay(track);
  marks();
  ruler();
  view.took = performance.now() - began;
  document.documentElement.dataset.drawn = Number(document.documentElement.dataset.drawn || 0) + 1;
}

// Paints the bars of a chunk, each at least a pixel wide.
function paint(pixels, wide, high, scale, chunk, labels) {
  const { from, to, depth, site } = chunk.bars, track = tracks[chunk.track], row = rowOf(track) * scale;
  const zoom = wide / (view.to - view.from), rows = rowsOf(track) - chunk.group * DEPTHS;
  const top = (track.top + TITLE - scroll.scrollTop) * scale + chunk.group * DEPTHS * row;
  const tall = track.folded ? row : row - scale, least = AXIS * scale, bars = theme.bars;
  for (let i = 0, count = from.length; i < count; i++) {
    if (from[i] > view.to) break;
    if (to[i] < view.from || depth[i] >= rows) continue;
    const y = Math.round(top + depth[i] * row), until = Math.min(high, Math.round(y + tall));
    if (y >= high || until <= least) continue;
    const left = Math.max(0, Math.floor((from[i] - view.from) * zoom));
    let right = Math.min(wide, Math.max(left + 1, Math.floor((to[i] - view.from) * zoom)));
    if (right - left > 3) right -= 1;
    const colour = bars[site[i]];
    for (let line = Math.max(least, y) * wide, end = until * wide; line < end; line += wide) {
      if (right - left > 8) pixels.fill(colour, line + left, line + right);
      else for (let pixel = line + left; pixel < line + right; pixel++) pixels[pixel] = colour;
    }
    if (right - left > 28 * scale && !track.folded && !chunk.isRuns)
      labels.push([left / scale, (right - left) / scale, (y + row / 2) / scale, site[i]]);
  }
}

function write(labels) {
  pen.font = "12px ui-monospace, monospace";
  const letter = pen.measureText("m").width;
  pen.fillStyle = theme.text;
  for (const [left, width, y, site] of labels) {
    const name = nameOf(site), room = Math.floor((width - 5) / letter);
    pen.fillText(name.length > room ? `${name.slice(0, room - 1)}\u2026` : name, left + 3, y);
  }
}

// Draws the title, the losses and the marks of a track.
function overlay(track) {
  const top = track.top - scroll.scrollTop, high = rowsOf(track) * rowOf(track);
  if (top > view.height || top + TITLE + high < AXIS) return;
  pen.fillStyle = theme.loss;
  let last = -1;
  for (const [from, to] of track.losses) {
    if (to < view.from || from > view.to) continue;
    const left = Math.max(0, x(from)), width = Math.max(2, Math.min(view.width, x(to)) - left);
    if (left + width <= last + 1) continue;
    last = left + width;
    pen.fillRect(left, top + TITLE, width, high);
  }
  pen.fillStyle = theme.mark;
  last = -1;
  for (const [when] of track.marks) {
    if (when < view.from || when > view.to || Math.floor(x(when)) === last) continue;
    last = Math.floor(x(when));
    pen.fillRect(last, top + TITLE - 6, 2, 6);
  }
  pen.font = "12px system-ui, sans-serif";
  const title = `${track.folded ? "\u25b8" : "\u25be"} ${track.name}`, width = pen.measureText(title).width;
  pen.fillStyle = theme.paper;
  pen.fillRect(0, top, width + 8, TITLE - 7);
  pen.fillStyle = theme.ink;
  pen.fillText(title, 4, top + TITLE / 2 - 2);
}

// Outlines a bar's place.
function outline(bar, colour) {
  const track = tracks[bar.track], row = rowOf(track);
  if (bar.depth >= rowsOf(track) || bar.to < view.from || bar.from > view.to) return;
  const left = Math.max(-2, x(bar.from)), width = Math.max(2, Math.min(view.width + 2, x(bar.to)) - left);
  const top = track.top + TITLE + bar.depth * row - scroll.scrollTop;
  [pen.strokeStyle, pen.fillStyle] = [colour, colour];
  if (track.folded) pen.fillRect(left, top, width, row);
  else pen.strokeRect(left + .5, top + .5, width, row - 2);
}

// Draws what is selected or found.
function marks() {
  pen.lineWidth = 2;
  let last = new Map();
  for (let i = firstHit(view.from - hits.longest); i < hits.list.length && hits.list[i].from <= view.to; i++) {
    const hit = hits.list[i], pixel = Math.floor(x(hit.from)), key = hit.track * 1e6 + hit.depth;
    if (last.get(key) === pixel) continue;
    last.set(key, pixel);
    outline(hit, theme.letter);
  }
  if (view.selected) outline(view.selected, theme.ink);
  pen.lineWidth = 1;
  if (view.at !== null) { pen.fillStyle = theme.loss; pen.fillRect(x(view.at), AXIS, 1, view.height); }
  if (!view.range) return;
  const [left, right] = [x(view.range[0]), x(view.range[1])];
  pen.fillStyle = "rgba(60, 130, 255, .18)";
  pen.fillRect(left, AXIS, Math.max(1, right - left), view.height);
}

function ruler() {
  pen.fillStyle = theme.paper;
  pen.fillRect(0, 0, view.width, AXIS);
  pen.font = "12px system-ui, sans-serif";
  const span = view.to - view.from, least = span * 130 / view.width, power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max(1, [1, 2, 5, 10].map(factor => factor * power).find(step => step >= least));
  const text = writer(view.to, step);
  pen.strokeStyle = theme.line;
  view.labels = [];
  for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) {
    const left = Math.round(x(tick)) + .5;
    pen.beginPath(); pen.moveTo(left, 0); pen.lineTo(left, AXIS); pen.stroke();
    pen.fillStyle = theme.faint;
    view.labels.push(text(tick));
    pen.fillText(text(tick), left + 4, AXIS / 2);
  }
  if (view.range) {
    const [left, right] = view.range.map(x);
    pen.fillStyle = "rgba(60, 130, 255, .45)";
    pen.fillRect(left, 0, Math.max(2, right - left), AXIS);
  }
  pen.beginPath(); pen.moveTo(0, AXIS - .5); pen.lineTo(view.width, AXIS - .5); pen.stroke();
}
