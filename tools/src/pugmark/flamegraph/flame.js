"use strict";
// Zoom, search and flip of a flame graph. Without this the picture is as it was written.
const MARGIN = 10, HEIGHT = 17, TITLE = 40, LETTER = 7;
const svg = document.documentElement;
const part = id => document.getElementById(id);
const frames = [...document.querySelectorAll("g[data-from]")].map(group => {
  const [from, total, depth] = ["from", "total", "depth"].map(name => Number(group.getAttribute(`data-${name}`)));
  const title = group.querySelector("title").textContent;
  return { group, from, to: from + total, total, depth, name: group.getAttribute("data-name"), title,
    box: group.querySelector("rect"), colour: group.querySelector("rect").getAttribute("fill"), label: null };
});
const root = frames.find(frame => frame.depth === 0);
const shown = { zoomed: root, hangs: svg.getAttribute("data-hangs") === "1", found: "" };

// Returns as much of a name as there is room for.
function fitting(name, width) {
  const room = Math.floor((width - 6) / LETTER);
  return name.length <= room ? name : room >= 3 ? `${name.slice(0, room - 2)}..` : "";
}

// Puts each function where it belongs: those that the zoomed one stands on are as wide as the window.
function arrange() {
  const width = Math.max(200, svg.clientWidth || innerWidth), { zoomed } = shown;
  const scale = (width - 2 * MARGIN) / Math.max(1, zoomed.total);
  // The picture is as high as the highest function that can be seen.
  const seen = frames.filter(frame => frame.total * scale >= .1 && frame.from >= zoomed.from && frame.to <= zoomed.to);
  const deepest = seen.reduce((most, frame) => Math.max(most, frame.depth), zoomed.depth);
  const height = TITLE + (deepest + 1) * HEIGHT + 3 * MARGIN;
  for (const frame of frames) {
    const isBelow = frame.depth < zoomed.depth && frame.from <= zoomed.from && frame.to >= zoomed.to;
    const isInside = frame.depth >= zoomed.depth && frame.from >= zoomed.from && frame.to <= zoomed.to;
    const wide = isBelow ? width - 2 * MARGIN : frame.total * scale;
    frame.group.style.display = (isBelow || isInside) && wide >= .1 ? "" : "none";
    if (!isBelow && !isInside) continue;
    const x = isBelow ? MARGIN : MARGIN + (frame.from - zoomed.from) * scale;
    const y = TITLE + (shown.hangs ? frame.depth : deepest - frame.depth) * HEIGHT;
    frame.group.style.opacity = isBelow ? ".5" : "";
    for (const [name, value] of [["x", x], ["y", y], ["width", wide]]) frame.box.setAttribute(name, value.toFixed(2));
    frame.box.setAttribute("fill", isFound(frame) ? "#b030e0" : frame.colour);
    write(frame, x, y, wide);
  }
  part("sum").setAttribute("x", MARGIN);
  part("sum").setAttribute("text-anchor", "start");
  for (const [name, value] of [["width", width], ["height", height]]) part("sheet").setAttribute(name, value);
  svg.setAttribute("height", height);
  part("detail").setAttribute("y", height - MARGIN);
  part("tools").setAttribute("transform", `translate(${Math.max(10, width - 330)} 4)`);
}

function write(frame, x, y, width) {
  const text = fitting(frame.name, width);
  let label = frame.group.querySelector("text");
  if (!label && text !== "") {
    label = document.createElementNS("http://www.w3.org/2000/svg", "text");
    frame.group.appendChild(label);
  }
  if (!label) return;
  label.textContent = text;
  label.setAttribute("x", x + 3);
  label.setAttribute("y", y + 12);
}

const isFound = frame => shown.found !== "" && frame.name.includes(shown.found);

function zoom(frame) {
  shown.zoomed = frame;
  arrange();
}

// Finds functions by name, and says how much they took: those inside another one that is found count once.
function find(text) {
  shown.found = text;
  let [sum, until] = [0, -1];
  const found = frames.filter(isFound).sort((a, b) => a.from - b.from || a.depth - b.depth);
  for (const frame of found) {
    if (frame.from < until) continue;
    sum += frame.total;
    until = frame.to;
  }
  part("found").textContent = text === "" ? "" : `${(sum * 100 / Math.max(1, root.total)).toFixed(2)} %`;
  arrange();
}

function flip() {
  shown.hangs = !shown.hangs;
  arrange();
}

svg.removeAttribute("viewBox");
svg.setAttribute("width", "100%");
part("tools").removeAttribute("display");
for (const frame of frames) {
  frame.group.style.cursor = "pointer";
  frame.group.addEventListener("click", () => zoom(frame));
  frame.group.addEventListener("mouseover", () => { part("detail").textContent = frame.title; });
}
part("all").addEventListener("click", () => zoom(root));
part("flip").addEventListener("click", flip);
part("search").addEventListener("input", event => find(event.target.value));
addEventListener("keydown", event => {
  if (event.key === "Escape") { part("search").value = ""; find(""); zoom(root); }
  else if (event.key === "/" && event.target !== part("search")) { event.preventDefault(); part("search").focus(); }
});
addEventListener("resize", arrange);
arrange();
