// The calls: in chunks of some thousand, each read when a picture or a search needs it.

const DEPTHS = 64, MOST_HELD = 4e6;
const sites = data.sites.map(([name, place, isInner]) => ({ name, place, isInner }));
// The names from this number on are of periods without a trace.
const NOT_TRACED = data.names.length - data.untraced;
const letters = document.getElementById("chunks").textContent;
const chunks = [];
// By track and group of depths.
const groups = data.tracks.map(() => new Map());
{
  let at = 0;
  for (const [track, group, level, isRuns, from, to, count, length] of data.chunks) {
    const chunk = { track, group, level, isRuns, from, to, count, at, length, bars: null, reading: null, used: 0 };
    at += length;
    chunks.push(chunk);
    if (!groups[track].has(group)) groups[track].set(group, []);
    groups[track].get(group).push(chunk);
  }
}
let held = 0, clock = 0;

// Returns the columns of a chunk. A number has seven bits in a byte, the lowest first; the highest bit says that
// another byte follows.
function columns(bytes, count, from) {
  let at = 0;
  const number = () => {
    let byte = bytes[at++];
    if (byte < 128) return byte;
    let value = byte & 127, scale = 128;
    do { byte = bytes[at++]; value += (byte & 127) * scale; scale *= 128; } while (byte >= 128);
    return value;
  };
  const column = values => { for (let i = 0; i < count; i++) values[i] = number(); return values; };
  const begins = column(new Float64Array(count)), ends = column(new Float64Array(count));
  for (let i = 0; i < count; i++) { from = begins[i] += from; ends[i] += from; }
  const depths = column(new Uint8Array(count)), of = column(new Uint32Array(count));
  return { from: begins, to: ends, depth: depths, site: of, amount: column(new Float64Array(count)),
    inner: column(new Float64Array(count)) };
}

async function inflated(chunk) {
  const binary = atob(letters.substr(chunk.at, chunk.length)), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return columns(new Uint8Array(await new Response(stream).arrayBuffer()), chunk.count, chunk.from);
}

// Reads a chunk, and keeps it until others need the room.
function read(chunk) {
  chunk.reading = chunk.reading || inflated(chunk).then(bars => {
    held += chunk.count;
    chunk.bars = bars;
    chunk.reading = null;
    return bars;
  });
  return chunk.reading;
}

// Returns true if all of these can be drawn now. Otherwise `then` is called when they can.
function areRead(wanted, then) {
  clock++;
  for (const chunk of wanted) chunk.used = clock;
  const missing = wanted.filter(chunk => !chunk.bars);
  if (missing.length === 0) return true;
  if (held > MOST_HELD) {
    const old = chunks.filter(chunk => chunk.bars && chunk.used < clock).sort((a, b) => a.used - b.used);
    for (const chunk of old) {
      if (held <= MOST_HELD / 2) break;
      held -= chunk.count;
      chunk.bars = null;
    }
  }
  Promise.all(missing.map(read)).then(then, fail);
  return false;
}

function fail(error) {
  const warning = document.getElementById("warning");
  warning.hidden = false;
  warning.textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old: the page needs DecompressionStream." : `The page is damaged: ${error}`;
}

// Gives `use` the calls, without runs, that overlap a time, chunk by chunk in the order of their begins.
async function eachChunk(from, to, use) {
  const wanted = chunks.filter(chunk => !chunk.isRuns && chunk.from <= to && chunk.to >= from);
  wanted.sort((a, b) => a.from - b.from);
  for (const chunk of wanted)
    if (use(chunk, chunk.bars || await inflated(chunk)) === false) return;
}
