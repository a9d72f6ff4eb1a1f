// The timeline: which part of the time is shown, and what a reader points at.

const data = JSON.parse(document.getElementById("data").textContent);
const chart = document.getElementById("chart"), tip = document.getElementById("tip");
const seen = new Set();  // Rows that are on the screen.
const watcher = new IntersectionObserver(entries => {
  for (const entry of entries) {
    const number = Number(entry.target.dataset.row);
    if (entry.isIntersecting) seen.add(number); else seen.delete(number);
  }
  repaint();
}, { rootMargin: "200px" });

let views = [], view, time, sizes, palette, rows, axis, chosen = null, waiting = false;

function begin(number) {
  view = views[number];
  time = { from: 0, to: view.length_ns };
  const many = view.rows.filter(row => row.memory).length > 16;
  sizes = many ? { lane: 18, gap: 2, memory: 20, font: 10 } : { lane: 26, gap: 3, memory: 34, font: 11 };
  palette = readPalette();
  chosen = null;
  watcher.disconnect();
  seen.clear();
  axis = document.createElement("canvas");
  axis.style.height = "34px";
  axis.setAttribute("aria-hidden", "true");
  chart.replaceChildren(line("row axis", "", axis), ...view.rows.flatMap(linesOf));
  rows = [...chart.querySelectorAll(".row:not(.axis)")];
  rows.forEach(row => watcher.observe(row));
  document.querySelectorAll("#views button").forEach((button, i) => {
    button.setAttribute("aria-pressed", String(i === number));
  });
  document.getElementById("legend").textContent = view.legend + ".";
  say("Point at a box, or press an arrow key, to read what it is.");
  hide();
  repaint();
}

function say(text) { document.getElementById("said").textContent = text; }

function line(name, text, canvas) {
  const whole = document.createElement("div"), label = document.createElement("div");
  whole.className = name;
  for (const part of text.split("\n")) {
    const piece = document.createElement("span");
    piece.textContent = part;
    label.append(piece, " ");
  }
  whole.append(label, canvas);
  return whole;
}

// The line of a row, below the name of the plan where another one begins.
function linesOf(row, number) {
  const before = number ? view.rows[number - 1].owner : "";
  if (!row.owner || row.owner === before) return [lineOf(row, number)];
  const heading = document.createElement("h3");
  heading.textContent = row.owner;
  return [heading, lineOf(row, number)];
}

function lineOf(row, number) {
  const canvas = document.createElement("canvas");
  const held = row.memory ? `most ${sayBytes(row.memory.peak)} of ${sayBytes(row.memory.limit)}` : "";
  canvas.style.height = sizes.lane + (row.memory ? sizes.gap + sizes.memory : 0) + "px";
  canvas.setAttribute("role", "img");
  const name = row.memory ? row.name : `Link ${row.name}`;
  canvas.setAttribute("aria-label", `${row.owner ? row.owner + ", " : ""}${name}: works ${sayShare(row.busy)} of the time${held && ", memory at " + held}`);
  const whole = line(row.memory ? "row" : "row link", `${name}, ${sayShare(row.busy)} busy\n${held}`, canvas);
  whole.dataset.row = number;
  return whole;
}

function repaint() {
  if (waiting || !views.length) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; paint(seen); });
}

function paint(numbers) {
  const length = sayTime(time.to - time.from);
  document.getElementById("range").textContent =
    `Shown: ${sayTime(time.from)} to ${sayTime(time.to)} (${length} of ${sayTime(view.length_ns)})`;
  paintAxis(axis, view, time, palette);
  for (const number of numbers) {
    const canvas = rows[number].lastChild;
    if (canvas.clientWidth) paintRow(canvas, view.rows[number], view, time, sizes, palette, chosen);
    rows[number].classList.toggle("chosen", chosen !== null && chosen.row === number);
  }
  if (numbers.size) document.documentElement.dataset.painted = "yes";
}

function show(from, to) {
  const least = Math.min(view.length_ns, 10), long = Math.min(view.length_ns, Math.max(least, to - from));
  const start = Math.min(Math.max(0, from), view.length_ns - long);
  time = { from: start, to: start + long };
  repaint();
}

function zoom(factor, around) {
  const at = around ?? (chosen ? middleOf(chosen) : (time.from + time.to) / 2);
  const inside = at >= time.from && at <= time.to ? at : (time.from + time.to) / 2;
  show(inside - (inside - time.from) * factor, inside + (time.to - inside) * factor);
}

function middleOf(place) {
  const row = view.rows[place.row];
  return (row.start[place.box] + row.end[place.box]) / 2;
}

// In words.
function sayBox(number, box) {
  const row = view.rows[number], [what, stage, length] = row.kinds[row.kind[box]];
  const which = view.numbering === "shift"
    ? `micro-batch i${row.number[box] < 0 ? "" : "+"}${row.number[box]}` : `micro-batch ${row.number[box]}`;
  const name = data.names[what][0].toUpperCase() + data.names[what].slice(1);
  const where = row.memory ? `on ${row.name}` : `over link ${row.name}`;
  return `${name}, stage ${stage} with ${row.stages[stage]}, ${which}, ${where}\n` +
    `from ${sayTime(row.start[box])} to ${sayTime(row.end[box])}, ${sayTime(length)} long`;
}

function sayMemory(number, at) {
  const memory = view.rows[number].memory;
  const held = memory.held[Math.max(0, firstAbove(memory.time, at) - 1)];
  const share = memory.limit ? ` (${sayShare(held / memory.limit)})` : "";
  return `${view.rows[number].name} at ${sayTime(at)}: ${sayBytes(held)} of ${sayBytes(memory.limit)}${share}`;
}

function hide() { tip.hidden = true; }

function tell(text, x, y) {
  const frame = document.getElementById("timeline").getBoundingClientRect();
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = Math.max(0, Math.min(x - frame.left + 12, frame.width - tip.offsetWidth)) + "px";
  tip.style.top = y - frame.top + 16 + "px";
}

function choose(place) {
  const number = place && view.rows[place.row].number[place.box];
  if ((chosen && chosen.number) !== number || (chosen && chosen.row) !== (place && place.row)) repaint();
  chosen = place && { ...place, number };
}

// What lies at a point of the screen.
function timeAt(canvas, x) {
  const frame = canvas.getBoundingClientRect();
  return time.from + (x - frame.left) / frame.width * (time.to - time.from);
}

function point(event) {
  const canvas = event.target.closest(".row:not(.axis) canvas");
  if (!canvas) { hide(); return; }
  const number = Number(canvas.parentNode.dataset.row), row = view.rows[number];
  const at = timeAt(canvas, event.clientX), y = event.clientY - canvas.getBoundingClientRect().top;
  if (row.memory && y > sizes.lane) {
    choose(null);
    tell(sayMemory(number, at), event.clientX, event.clientY);
    return;
  }
  const box = firstAbove(row.end, at);
  if (box < row.end.length && row.start[box] <= at) {
    choose({ row: number, box });
    tell(sayBox(number, box), event.clientX, event.clientY);
  } else {
    choose(null);
    tell(`${row.name} idles at ${sayTime(at)}`, event.clientX, event.clientY);
  }
}

// Drag to move, two fingers to zoom.
const pointers = new Map();
let moved = false;

chart.addEventListener("pointerdown", event => {
  if (event.target.tagName !== "CANVAS") return;
  pointers.set(event.pointerId, event.clientX);
  moved = false;
});
chart.addEventListener("pointermove", event => {
  if (!pointers.has(event.pointerId)) { if (event.pointerType === "mouse") point(event); return; }
  const before = [...pointers.values()], last = pointers.get(event.pointerId);
  if (pointers.size === 1 && !moved && Math.abs(event.clientX - last) < 4) return;
  if (!moved) event.target.setPointerCapture(event.pointerId);
  moved = true;
  pointers.set(event.pointerId, event.clientX);
  const canvas = event.target, after = [...pointers.values()];
  const ns = (time.to - time.from) / canvas.clientWidth;
  hide();
  if (pointers.size === 1) show(time.from - (event.clientX - last) * ns, time.to - (event.clientX - last) * ns);
  else if (pointers.size === 2) {
    const wide = Math.max(8, Math.abs(after[0] - after[1])), was = Math.max(8, Math.abs(before[0] - before[1]));
    zoom(was / wide, timeAt(canvas, (after[0] + after[1]) / 2));
  }
});
for (const name of ["pointerup", "pointercancel"]) {
  chart.addEventListener(name, event => {
    if (pointers.delete(event.pointerId) && name === "pointerup" && !moved) point(event);
  });
}
chart.addEventListener("pointerleave", event => {
  if (event.pointerType !== "mouse") return;
  hide();
  choose(null);
});
chart.addEventListener("wheel", event => {
  const canvas = event.target.closest("canvas");
  if (!canvas || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), timeAt(canvas, event.clientX));
}, { passive: false });
chart.addEventListener("dblclick", event => {
  const canvas = event.target.closest("canvas");
  if (canvas) zoom(0.5, timeAt(canvas, event.clientX));
});

// Keys.
function walk(down, along) {
  const open = rows.map((row, i) => i).filter(i => rows[i].offsetParent && view.rows[i].start.length);
  if (!open.length) return;
  let place = open.indexOf(chosen ? chosen.row : -1);
  const at = chosen ? middleOf(chosen) : time.from;
  place = place < 0 ? 0 : Math.min(open.length - 1, Math.max(0, place + down));
  const row = view.rows[open[place]];
  let box = Math.min(row.end.length - 1, firstAbove(row.end, at));
  if (along && chosen) box = Math.min(row.end.length - 1, Math.max(0, chosen.box + along));
  choose({ row: open[place], box });
  const long = time.to - time.from;
  if (row.end[box] <= time.from || row.start[box] >= time.to) {
    show(middleOf(chosen) - long / 2, middleOf(chosen) + long / 2);
  }
  rows[open[place]].scrollIntoView({ block: "nearest" });
  say(sayBox(open[place], box));
  repaint();
}
const KEYS = {
  ArrowLeft: () => walk(0, -1), ArrowRight: () => walk(0, 1), ArrowUp: () => walk(-1, 0),
  ArrowDown: () => walk(1, 0), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
  "0": () => show(0, view.length_ns), Escape: () => { hide(); choose(null); },
};
chart.addEventListener("keydown", event => {
  if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  KEYS[event.key]();
});

// Buttons, the colours of the reader's system, and paper.
document.getElementById("in").addEventListener("click", () => zoom(0.5));
document.getElementById("out").addEventListener("click", () => zoom(2));
document.getElementById("whole").addEventListener("click", () => show(0, view.length_ns));
document.getElementById("links").addEventListener("change", event => {
  chart.classList.toggle("nolinks", !event.target.checked);
});

// What is drawn from now on, the first of it at once.
function showViews(decoded) {
  views = decoded;
  document.getElementById("views").replaceChildren(...views.map((each, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = each.title;
    button.addEventListener("click", () => begin(i));
    return button;
  }));
  document.getElementById("timeline").hidden = !views.length;
  document.getElementById("links").parentNode.hidden = views.every(each => each.rows.every(row => row.memory));
  if (views.length) begin(0);
}

function recolour() {
  palette = readPalette();
  for (const sample of document.querySelectorAll(".legend canvas")) {
    const context = sample.getContext("2d");
    context.clearRect(0, 0, sample.width, sample.height);
    paintFill(context, palette, sample.dataset.what, 0, 0, 0, sample.width, sample.height);
  }
  repaint();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
const folded = [];
addEventListener("beforeprint", () => {
  document.documentElement.dataset.print = "yes";
  for (const fold of document.querySelectorAll("details:not([open])")) { fold.open = true; folded.push(fold); }
  recolour();
  if (views.length) paint(new Set(rows.keys()));
});
addEventListener("afterprint", () => {
  delete document.documentElement.dataset.print;
  for (const fold of folded.splice(0)) fold.open = false;
  recolour();
});

new ResizeObserver(() => { if (views.length) repaint(); }).observe(chart);
