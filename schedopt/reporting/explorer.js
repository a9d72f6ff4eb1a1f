// Which plans are looked at: their controls, the map, their figures, and the timeline of both.

const entries = data.entries, picked = [...data.picked];
const decoded = new Map();
const SVG = "http://www.w3.org/2000/svg";
const MAP = { width: 760, height: 340, left: 78, right: 20, top: 14, bottom: 44 };

function make(name, text, attributes = {}) {
  const element = document.createElement(name);
  element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function drawn(name, attributes, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

function isBeside() { return document.getElementById("beside").checked; }
function shownNow() { return isBeside() ? [0, 1] : [0]; }

// The choice with a value on one axis that is nearest on the others.
function nearest(at, axis, value) {
  let best = -1, least = Infinity;
  entries.forEach((entry, number) => {
    if (entry.at[axis] !== value) return;
    const far = entry.at.reduce((sum, place, i) => sum + Math.abs(place - at[i]), 0);
    if (far < least) [best, least] = [number, far];
  });
  return best;
}

function buildPicker(side) {
  const box = document.getElementById("pick-" + side);
  data.axes.forEach((axis, number) => {
    if (axis.values.length < 2) {
      box.append(make("p", `${axis.name}: ${axis.values[0]}`, { class: "fixed" }));
      return;
    }
    const label = make("label", `${axis.name} `), output = make("output", "");
    const input = document.createElement(axis.ordered ? "input" : "select");
    if (axis.ordered) {
      Object.assign(input, { type: "range", min: 0, max: axis.values.length - 1, step: 1 });
    } else {
      input.append(...axis.values.map((value, i) => make("option", value, { value: i })));
    }
    input.dataset.axis = number;
    input.addEventListener("input", () => {
      pick(side, nearest(entries[picked[side]].at, number, Number(input.value)));
    });
    label.append(...(axis.ordered ? [output, input] : [input]));
    box.append(label);
  });
}

function showPicker(side) {
  const at = entries[picked[side]].at;
  for (const input of document.querySelectorAll(`#pick-${side} [data-axis]`)) {
    const axis = data.axes[input.dataset.axis], place = at[input.dataset.axis];
    input.value = place;
    input.setAttribute("aria-valuetext", axis.values[place]);
    if (axis.ordered) input.previousSibling.textContent = axis.values[place];
  }
}

function pick(side, number) {
  picked[side] = number;
  showAll();
}

function pickTarget(number) {
  pick(isBeside() ? Number(document.querySelector("[name=target]:checked").value) : 0, number);
}

// The map.
function ticks(low, high, count) {
  const about = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(about));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= about);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

const short = text => text.replace(/\.?0+\u00a0/, SPACE);
const placed = entries.map((entry, number) => ({ ...entry, number }))
  .filter(entry => entry.time !== null && entry.memory !== null);
const bytes = placed.map(entry => entry.memory).concat(data.limit ?? []);
const times = placed.flatMap(entry => entry.bound === null ? [entry.time] : [entry.time, entry.bound]);
const span = (low, high) => {
  const more = (high - low) * 0.06 || high * 0.1 || 1;
  return [Math.max(0, low - more), high + more];
};
const across = span(Math.min(...bytes), Math.max(...bytes)), upwards = span(0, Math.max(...times));
const toX = value => MAP.left + (value - across[0]) / (across[1] - across[0]) * (MAP.width - MAP.left - MAP.right);
const toY = value => MAP.height - MAP.bottom
  - (value - upwards[0]) / (upwards[1] - upwards[0]) * (MAP.height - MAP.top - MAP.bottom);

function drawMap() {
  const map = document.getElementById("map");
  MAP.width = map.clientWidth || MAP.width;
  map.setAttribute("viewBox", `0 0 ${MAP.width} ${MAP.height}`);
  map.replaceChildren();
  if (!placed.length) return;
  const bottom = MAP.height - MAP.bottom;
  for (const at of ticks(...across, MAP.width / 110)) {
    map.append(drawn("line", { x1: toX(at), x2: toX(at), y1: MAP.top, y2: bottom, class: "grid" }));
    map.append(drawn("text", { x: toX(at), y: bottom + 16, "text-anchor": "middle" }, short(sayBytes(at))));
  }
  for (const at of ticks(...upwards, 5)) {
    map.append(drawn("line", { x1: MAP.left, x2: MAP.width - MAP.right, y1: toY(at), y2: toY(at), class: "grid" }));
    map.append(drawn("text", { x: MAP.left - 6, y: toY(at) + 4, "text-anchor": "end" }, at ? short(sayTime(at)) : "0"));
  }
  map.append(drawn("text", { x: (MAP.left + MAP.width) / 2, y: MAP.height - 8, "text-anchor": "middle" }, data.across));
  map.append(drawn("text", { x: 14, y: MAP.height / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${MAP.height / 2})` }, data.up));
  if (data.limit !== null) {
    map.append(drawn("line", { x1: toX(data.limit), x2: toX(data.limit), y1: MAP.top, y2: bottom, class: "limit" }));
  }
  if (data.joined) {
    data.lines.forEach((name, line) => {
      const there = placed.filter(entry => entry.line === line);
      const bounded = there.filter(entry => entry.bound !== null);
      map.append(drawn("path", { d: pathOf(there.map(entry => [entry.memory, entry.time])), stroke: colourOf(line) }));
      map.append(drawn("path", {
        d: pathOf(bounded.map(entry => [entry.memory, entry.bound])), stroke: colourOf(line), class: "bound",
      }));
    });
  }
  for (const entry of placed) {
    const point = drawn("circle", {
      cx: toX(entry.memory), cy: toY(entry.time), r: radiusOf(entry.line), stroke: colourOf(entry.line),
      fill: entry.filled ? colourOf(entry.line) : "var(--back)", "data-entry": entry.number,
    });
    point.append(drawn("title", {}, `${entry.name}: ${sayTime(entry.time)}, ${sayBytes(entry.memory)}`));
    point.addEventListener("click", () => pickTarget(entry.number));
    map.append(point);
  }
}

function pathOf(points) {
  const sorted = [...points].sort((one, other) => one[0] - other[0]);
  return sorted.map(([x, y], i) => `${i ? "L" : "M"}${toX(x)} ${toY(y)}`).join(" ");
}

// Points of several lines may lie on each other: those below are larger.
function radiusOf(line) { return 5 + 2.5 * Math.min(3, data.lines.length - 1 - line); }

function colourOf(line) { return data.colours[line % data.colours.length]; }

function ringMap() {
  const map = document.getElementById("map");
  map.querySelectorAll(".ring").forEach(ring => ring.remove());
  for (const side of shownNow()) {
    const entry = entries[picked[side]];
    if (entry.time === null || entry.memory === null) continue;
    const x = toX(entry.memory), y = toY(entry.time), right = x < MAP.width - 90;
    const ring = drawn("g", { class: "ring" });
    ring.append(drawn("circle", { cx: x, cy: y, r: radiusOf(entry.line) + 4 + 3 * side }));
    ring.append(drawn("text", {
      x: x + (right ? 20 : -20), y: y + (side ? 16 : -7), "text-anchor": right ? "start" : "end",
    }, side ? "second" : "first"));
    map.append(ring);
  }
}

function showLines() {
  const used = new Set(placed.map(entry => entry.line));
  document.getElementById("lines").replaceChildren(...data.lines.flatMap((name, line) => {
    if (!used.has(line)) return [];
    const item = make("li", ""), sample = drawn("svg", { width: 16, height: 16, "aria-hidden": "true" });
    sample.append(drawn("circle", { cx: 8, cy: 8, r: 6, fill: colourOf(line) }));
    item.append(sample, name);
    return [item];
  }));
}

// Figures and plans in words.
function tableOf(rows, keys) {
  const box = make("div", "", { class: "scroll", role: "region", tabindex: "0", "aria-label": rows.title });
  const table = make("table", ""), head = make("tr", ""), body = make("tbody", "");
  head.append(...rows.columns.map((name, i) => make("th", name, { scope: "col", class: rows.kinds[i] })));
  for (const row of rows.rows) {
    const cells = make("tr", "");
    cells.append(...row.map((cell, i) =>
      make(i < keys ? "th" : "td", cell, { class: rows.kinds[i], ...(i < keys ? { scope: "row" } : {}) })));
    body.append(cells);
  }
  const top = make("thead", "");
  top.append(head);
  table.append(make("caption", rows.title), top, body);
  box.append(table);
  return box;
}

function showFigures() {
  const sides = shownNow(), shown = sides.map(side => entries[picked[side]]);
  const all = shown.map(entry => new Map([...entry.figures, ...(entry.step ?? [])]));
  const names = [...new Set(all.flatMap(figures => [...figures.keys()]))];
  document.getElementById("figures").replaceChildren(tableOf({
    title: "Figures",
    columns: ["", ...shown.map(entry => entry.name)],
    kinds: ["", ...shown.map(() => "words")],
    rows: names.map(name => [name, ...all.map(figures => figures.get(name) ?? "-")]),
  }, 1));
}

function showVerdict() {
  const [first, second] = [entries[picked[0]], entries[picked[1]]];
  let text = first.time === null ? `${first.name} has no plan.` : "";
  if (isBeside() && first.time !== null && second.time !== null) {
    const ratio = second.time / first.time;
    text = picked[0] === picked[1] ? `${first.name} is chosen twice.`
      : first.time === second.time ? `${first.name} and ${second.name} are equally fast.`
      : ratio >= 1 ? `${first.name} is ${ratio.toFixed(3)} times as fast as ${second.name}.`
      : `${second.name} is ${(1 / ratio).toFixed(3)} times as fast as ${first.name}.`;
  } else if (first.time !== null) {
    text = `${first.name}: ${sayTime(first.time)} for each micro-batch.`;
  }
  document.getElementById("verdict").textContent = text;
}

function showPlan(side) {
  const box = document.getElementById("plan-" + side), entry = entries[picked[side]];
  const said = entry.said.map(text => make("p", text));
  const why = entry.lacking ? [make("p", entry.lacking)] : [];
  box.replaceChildren(make("h3", entry.name), ...why, ...said, ...entry.tables.map(rows => tableOf(rows, 1)));
  box.hidden = side > 0 && !isBeside();
}

// The timelines of what is chosen, one below the other, over the same time.
function viewNow() {
  const sides = shownNow().filter(side => entries[picked[side]].view);
  const several = isBeside() && sides.length > 1 && picked[0] !== picked[1];
  const views = (several ? sides : sides.slice(0, 1)).map(side => {
    const number = picked[side];
    if (!decoded.has(number)) decoded.set(number, decodeView(entries[number].view));
    const view = decoded.get(number), owner = `${side ? "Second" : "First"}: ${entries[number].name}, ${sayTime(view.length_ns)}`;
    return several ? { ...view, rows: view.rows.map(row => ({ ...row, owner })) } : view;
  });
  if (!several) return views;
  return [{
    ...views[0],
    title: views.map(view => view.title).filter((title, i, all) => all.indexOf(title) === i).join(", "),
    length_ns: Math.max(...views.map(view => view.length_ns)),
    spans: [],
    rows: views.flatMap(view => view.rows),
  }];
}

function showAll() {
  const beside = isBeside();
  document.getElementById("pick-1").hidden = document.getElementById("target").hidden = !beside;
  for (const side of [0, 1]) { showPicker(side); showPlan(side); }
  ringMap();
  showVerdict();
  showFigures();
  showViews(viewNow());
  document.getElementById("lacking").replaceChildren(...shownNow().map(side => entries[picked[side]])
    .filter(entry => !entry.view).map(entry => make("p", `${entry.name}: ${entry.lacking}`)));
  document.querySelectorAll("#all tbody tr").forEach((row, number) => {
    row.classList.toggle("picked", shownNow().some(side => picked[side] === number));
  });
}

for (const side of [0, 1]) buildPicker(side);
document.getElementById("beside").checked = data.beside;
document.getElementById("beside").addEventListener("change", showAll);
document.querySelectorAll("#all tbody tr").forEach((row, number) => {
  const cell = row.querySelector("th"), button = make("button", cell.textContent, { type: "button" });
  button.addEventListener("click", () => pickTarget(number));
  cell.replaceChildren(button);
});
document.getElementById("explorer").hidden = false;
showLines();
drawMap();
showAll();
recolour();
new ResizeObserver(() => {
  const map = document.getElementById("map");
  if (map.clientWidth && map.clientWidth !== MAP.width) { drawMap(); ringMap(); }
}).observe(document.getElementById("map"));
