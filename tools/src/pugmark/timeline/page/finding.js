// Search, details and totals.

const MOST_HITS = 1 << 20, MOST_ROWS = 200;
const detail = document.getElementById("detail"), list = document.getElementById("list");
const found = document.getElementById("found");
const hits = { list: [], longest: 0, here: -1, turn: 0, all: 0, text: "" };
let totalling = 0;

// Returns the number of the first hit that begins at or after a time.
function firstHit(from) {
  let [low, high] = [0, hits.list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (hits.list[middle].from < from) low = middle + 1; else high = middle;
  }
  return low;
}

// Returns the call, or the run, that a chunk has at an index.
const barAt = (chunk, i) => ({ track: chunk.track, depth: chunk.group * DEPTHS + chunk.bars.depth[i],
  from: chunk.bars.from[i], to: chunk.bars.to[i], site: chunk.bars.site[i], amount: chunk.bars.amount[i],
  inner: chunk.bars.inner[i], isRun: Boolean(chunk.isRuns) });

async function find(text) {
  const turn = ++hits.turn;
  Object.assign(hits, { list: [], longest: 0, here: -1, all: 0, text });
  const matches = data.names.map(name => text !== "" && name.includes(text));
  matches.forEach((is, name) => { hits.all += is ? data.counts[name] : 0; });
  showFound();
  draw();
  if (hits.all === 0) return showRows([], []);
  const isHit = Uint8Array.from(sites, site => matches[site.name]), all = [];
  await eachChunk(0, Infinity, (chunk, { from, to, depth, site, amount, inner }) => {
    if (turn !== hits.turn) return false;
    for (let i = 0; i < from.length && all.length < MOST_HITS; i++) {
      if (!isHit[site[i]]) continue;
      all.push({ track: chunk.track, depth: chunk.group * DEPTHS + depth[i], from: from[i], to: to[i],
        site: site[i], amount: amount[i], inner: inner[i], isRun: false });
    }
    return all.length < MOST_HITS;
  });
  if (turn !== hits.turn) return;
  all.sort((a, b) => a.from - b.from || a.depth - b.depth);
  hits.list = all;
  for (const hit of all) hits.longest = Math.max(hits.longest, hit.to - hit.from);
  showFound();
  showHits();
  draw();
}

function showFound() {
  const { all, list, here, text } = hits;
  const calls = all === 1 ? "1 call" : `${grouped(all)} calls`;
  const rest = list.length > 0 && list.length < all ? `, ${grouped(list.length)} of them one by one` : "";
  found.textContent = text === "" ? "" : here < 0 ? calls + rest : `${grouped(here + 1)} of ${calls}${rest}`;
}

// Goes to the next hit, or to the one before.
function go(step) {
  if (hits.list.length === 0) return;
  const count = hits.list.length, first = step > 0 ? firstHit(view.from) : firstHit(view.to) - 1;
  hits.here = ((hits.here < 0 ? first : hits.here + step) + count) % count;
  const hit = hits.list[hits.here];
  showFound();
  reveal(hit);
  select(hit);
  showHits();
}

// Moves the picture so that a call can be seen.
function reveal(bar) {
  const time = bar.to - bar.from, now = view.to - view.from;
  const span = time < now / 200 || time > now ? Math.max(time * 4, LEAST) : now;
  const track = tracks[bar.track];
  if (track.folded) { track.folded = false; layout(); }
  const y = track.top + TITLE + bar.depth * ROW;
  if (y < scroll.scrollTop + AXIS || y + ROW > scroll.scrollTop + view.height) scroll.scrollTop = y - view.height / 2;
  move((bar.from + bar.to) / 2 - span / 2, span);
}

function select(bar) {
  view.selected = bar;
  detail.textContent = bar ? describe(bar) : "";
  draw();
}

function describe(bar) {
  const { name, place } = sites[bar.site], track = data.tracks[bar.track].name, took = bar.to - bar.from;
  const when = `from ${precise(bar.from)}, for ${time(took)}`;
  if (bar.isRun && bar.amount > 1)
    return `${grouped(bar.amount)} calls   ${when}, the longest ${data.names[name]}; zoom in to see each   ${track}`;
  if (name >= NOT_TRACED) return `${data.names[name]}   ${when}, depth ${bar.depth}   ${track}`;
  const insns = bar.isRun ? "" : `, itself ${time(took - bar.inner)}, ${grouped(bar.amount)} instructions`;
  const called = place === null ? "" : `, called at ${data.places[place]}`;
  return `${data.names[name]}   ${when}${insns}, depth ${bar.depth}${called}   ${track}   #${link(bar.from, bar.to)}`;
}
const precise = at => writer(at, 1)(at);
const link = (from, to) => `${Math.floor(from)}-${Math.ceil(to)}`;

// Fills the table below the picture.
function showRows(head, rows) {
  list.textContent = "";
  const row = (tag, cells, click) => {
    const line = list.insertRow();
    for (const cell of cells) line.appendChild(document.createElement(tag)).textContent = cell;
    if (click) { line.className = "link"; line.onclick = click; }
    return line;
  };
  if (head.length > 0) row("th", head);
  for (const { cells, click, here } of rows) row("td", cells, click).classList.toggle("here", Boolean(here));
}

function showHits() {
  const begin = Math.max(0, Math.min(Math.max(0, hits.here) - MOST_ROWS / 2, hits.list.length - MOST_ROWS));
  const rows = hits.list.slice(begin, begin + MOST_ROWS).map((hit, index) => ({
    cells: [grouped(begin + index + 1), precise(hit.from), time(hit.to - hit.from),
      `${nameOf(hit.site)} \u00b7 ${data.tracks[hit.track].name}`],
    click: () => { hits.here = begin + index; go(0); },
    here: begin + index === hits.here,
  }));
  showRows(rows.length ? ["call", "begins", "takes", "function"] : [], rows);
}

// Adds up the calls of each function in a range of time, as far as they are inside it.
async function total(from, to) {
  const turn = ++totalling, sums = new Map(), cut = [];
  detail.textContent = `${time(to - from)} from ${precise(from)}: adding up\u2026`;
  const sum = name => {
    if (!sums.has(name)) sums.set(name, { name, calls: 0, all: 0, own: 0 });
    return sums.get(name);
  };
  const inside = (begin, end) => Math.min(end, to) - Math.max(begin, from);
  await eachChunk(from, to, (chunk, { from: begins, to: ends, depth, site, inner }) => {
    if (turn !== totalling) return false;
    for (let i = 0; i < begins.length; i++) {
      if (begins[i] > to || ends[i] < from) continue;
      const { name, isInner } = sites[site[i]], of = sum(name), took = inside(begins[i], ends[i]);
      of.calls++;
      if (!isInner) of.all += took;
      of.own += took - inner[i];
      if (begins[i] < from || ends[i] > to)
        cut.push({ key: keyOf(chunk, depth[i]), from: begins[i], to: ends[i], name, inner: inner[i] });
    }
  });
  if (turn !== totalling) return;
  await addCut(cut, from, to, sum, inside);
  if (turn !== totalling) return;
  const order = [...sums.values()].sort((a, b) => b.own - a.own);
  detail.textContent = `${time(to - from)} from ${precise(from)}   #${link(from, to)}`
    + (data.levels[0] > 0 ? "   without the calls that are merged" : "");
  showRows(["itself", "with callees", "calls", "function"], order.slice(0, MOST_ROWS).map(of => ({
    cells: [time(of.own), time(of.all), grouped(of.calls), data.names[of.name]],
    click: () => { search.value = data.names[of.name]; find(search.value); },
  })));
}

const keyOf = (chunk, depth) => chunk.track * 1e7 + chunk.group * DEPTHS + depth;

// Corrects the own time of the calls that the range cuts: of what they called only a part is inside.
async function addCut(cut, from, to, sum, inside) {
  const of = new Map();
  for (const call of cut) {
    sum(call.name).own += call.inner;
    if (!of.has(call.key)) of.set(call.key, []);
    of.get(call.key).push(call);
  }
  await eachChunk(from, to, (chunk, { from: begins, to: ends, depth }) => {
    for (let i = 0; i < begins.length; i++) {
      if (begins[i] > to || ends[i] < from) continue;
      const callers = of.get(keyOf(chunk, depth[i]) - 1);
      const caller = callers && callers.find(call => call.from <= begins[i] && call.to >= ends[i]);
      if (caller) sum(caller.name).own -= inside(begins[i], ends[i]);
    }
  });
}
