// Paints a row of the timeline: boxes, and memory against its limit.

const NARROW = 3;  // Of boxes that are narrower than so many pixels on average shares are painted.
const COLUMN = 2;  // Pixels of a share.
const LIGHT = { B: 1, I: 0.75 };  // How much of a stage's colour an operation has; all others less.

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const palette = { patterns: new Map(), fills: new Map() };
  for (const name of ["back", "fore", "quiet", "line", "lane", "memory", "limit"]) {
    palette[name] = style.getPropertyValue("--" + name).trim();
  }
  return palette;
}

function channels(colour) {
  return [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
}

// The colour of an operation of a stage, or of a transfer, on the background; and one for text.
function fillOf(palette, what, stage) {
  const key = what + stage;
  if (!palette.fills.has(key)) {
    const sent = data.sent[what];
    const share = LIGHT[what] ?? (sent ? 1 : 0.45);
    const full = channels(sent || data.colours[stage % data.colours.length]);
    const back = channels(palette.back);
    const mixed = full.map((value, i) => Math.round(share * value + (1 - share) * back[i]));
    const bright = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2] > 140;
    palette.fills.set(key, { fill: `rgb(${mixed})`, text: bright ? "#000000" : "#ffffff" });
  }
  return palette.fills.get(key);
}

// Strokes over a fill, so that kinds can be told apart without colours. None for a forward.
function patternOf(context, palette, what, text) {
  const sign = data.hatches[what];
  if (!sign) return null;
  const key = sign + text;
  if (!palette.patterns.has(key)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const on = tile.getContext("2d");
    on.strokeStyle = on.fillStyle = text;
    on.globalAlpha = 0.55;
    const lines = {
      "/": [[-2, 2, 2, -2], [-2, 10, 10, -2], [6, 10, 10, 6]],
      "\\": [[-2, 6, 2, 10], [-2, -2, 10, 10], [6, -2, 10, 2]],
      "x": [[-2, -2, 10, 10], [-2, 10, 10, -2]],
      "+": [[4, 0, 4, 8], [0, 4, 8, 4]],
      ".": [],
    }[sign];
    for (const [x, y, toX, toY] of lines) {
      on.beginPath(); on.moveTo(x, y); on.lineTo(toX, toY); on.stroke();
    }
    if (sign === ".") on.fillRect(3, 3, 2, 2);
    palette.patterns.set(key, context.createPattern(tile, "repeat"));
  }
  return palette.patterns.get(key);
}

function paintFill(context, palette, what, stage, x, y, width, height) {
  const look = fillOf(palette, what, stage);
  context.fillStyle = look.fill;
  context.fillRect(x, y, width, height);
  const pattern = patternOf(context, palette, what, look.text);
  if (pattern) {
    context.fillStyle = pattern;
    context.fillRect(x, y, width, height);
  }
  return look;
}

function sayNumber(view, number) {
  return view.numbering === "shift" ? (number < 0 ? "" : "+") + number : ":" + number;
}

// The whole picture of a row in a window of time, with the boxes of one micro-batch framed.
function paintRow(canvas, row, view, time, sizes, palette, chosen) {
  const width = canvas.clientWidth, height = sizes.lane + (row.memory ? sizes.gap + sizes.memory : 0);
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = palette.lane;
  context.fillRect(0, 0, width, sizes.lane);
  const scale = width / (time.to - time.from);
  const from = firstAbove(row.end, time.from), to = firstAbove(row.start, time.to);
  if ((to - from) * NARROW > width) paintShares(context, row, time, scale, sizes, palette, from, to, width);
  else paintBoxes(context, row, view, time, scale, sizes, palette, from, to, chosen);
  if (row.memory) paintMemory(context, row, time, scale, sizes, palette, width);
}

function paintBoxes(context, row, view, time, scale, sizes, palette, from, to, chosen) {
  context.font = sizes.font + "px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "center";
  for (let i = from; i < to; i++) {
    const [what, stage] = row.kinds[row.kind[i]];
    const left = Math.max(-2, (row.start[i] - time.from) * scale);
    const right = Math.min(context.canvas.clientWidth + 2, (row.end[i] - time.from) * scale);
    const wide = Math.max(1, right - left);
    const look = paintFill(context, palette, what, stage, left, 0, wide, sizes.lane);
    const marked = chosen && row.number[i] === chosen.number;
    context.lineWidth = marked ? 3 : 1;
    context.strokeStyle = marked ? palette.fore : palette.back;
    if (marked || wide > 3) {
      const inset = marked ? 1.5 : 0.5;
      context.strokeRect(left + inset, inset, Math.max(1, wide - 2 * inset), sizes.lane - 2 * inset);
    }
    if (wide > 12) paintLabel(context, row, view, i, left, wide, sizes, look);
  }
}

function paintLabel(context, row, view, i, left, wide, sizes, look) {
  const [what, stage] = row.kinds[row.kind[i]];
  const number = sayNumber(view, row.number[i]), letter = data.letters[what];
  for (const label of [letter + stage + number, letter + number, letter]) {
    const room = context.measureText(label).width + 4;
    if (room > wide - 4) continue;
    context.fillStyle = look.fill;
    context.fillRect(left + (wide - room) / 2, sizes.lane / 2 - sizes.font * 0.6, room, sizes.font * 1.2);
    context.fillStyle = look.text;
    context.fillText(label, left + wide / 2, sizes.lane / 2 + 0.5);
    return;
  }
}

function paintShares(context, row, time, scale, sizes, palette, from, to, width) {
  const columns = Math.ceil(width / COLUMN), kinds = row.kinds.length;
  const shares = new Float64Array(columns * kinds);
  for (let i = from; i < to; i++) {
    const begin = Math.max(0, (row.start[i] - time.from) * scale / COLUMN);
    const end = Math.min(columns, (row.end[i] - time.from) * scale / COLUMN);
    for (let column = Math.floor(begin); column < end; column++) {
      shares[column * kinds + row.kind[i]] += Math.min(end, column + 1) - Math.max(begin, column);
    }
  }
  for (let column = 0; column < columns; column++) {
    let below = sizes.lane;
    for (let kind = 0; kind < kinds; kind++) {
      const height = shares[column * kinds + kind] * sizes.lane;
      if (!height) continue;
      below -= height;
      paintFill(context, palette, row.kinds[kind][0], row.kinds[kind][1], column * COLUMN, below, COLUMN, height);
    }
  }
}

// The most bytes in each pixel, with the limit as a dashed line.
function paintMemory(context, row, time, scale, sizes, palette, width) {
  const memory = row.memory, until = Math.min(row.until, time.to);
  const top = sizes.lane + sizes.gap, most = new Float64Array(Math.ceil(width));
  const highest = 1.06 * Math.max(memory.limit, memory.peak, 1);
  let i = Math.max(0, firstAbove(memory.time, time.from) - 1);
  for (; i < memory.time.length && memory.time[i] < until; i++) {
    const ends = i + 1 < memory.time.length ? memory.time[i + 1] : until;
    const begin = Math.max(0, Math.floor((memory.time[i] - time.from) * scale));
    const end = Math.min(most.length, Math.max(begin + 1, Math.ceil((ends - time.from) * scale)));
    for (let x = begin; x < end; x++) most[x] = Math.max(most[x], memory.most[i]);
  }
  context.fillStyle = palette.memory;
  for (let x = 0; x < most.length; x++) {
    const high = most[x] / highest * sizes.memory;
    context.fillRect(x, top + sizes.memory - high, 1, high);
  }
  context.strokeStyle = palette.limit;
  context.lineWidth = 1;
  context.setLineDash([5, 3]);
  const at = Math.round(top + sizes.memory * (1 - memory.limit / highest)) + 0.5;
  context.beginPath(); context.moveTo(0, at); context.lineTo(width, at); context.stroke();
  context.setLineDash([]);
}

// Times along the top, and the named parts of the time below them.
function paintAxis(canvas, view, time, palette) {
  const width = canvas.clientWidth, height = 34, ratio = Math.min(3, window.devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const scale = width / (time.to - time.from);
  const about = (time.to - time.from) / Math.max(2, width / 90), power = 10 ** Math.floor(Math.log10(about));
  const step = Math.max(1, power * [1, 2, 5, 10].find(factor => factor * power >= about));
  context.fillStyle = context.strokeStyle = palette.fore;
  for (let at = Math.ceil(time.from / step) * step; at <= time.to; at += step) {
    const x = (at - time.from) * scale;
    context.fillRect(x, 12, 1, 5);
    context.textAlign = x < 20 ? "left" : x > width - 30 ? "right" : "center";
    context.fillText(at ? sayTime(at).replace(/\.?0+\u00a0/, SPACE) : "0", x, 6);
  }
  context.textAlign = "center";
  for (const [start, end, name] of view.spans) {
    const left = Math.max(0, (start - time.from) * scale), right = Math.min(width, (end - time.from) * scale);
    if (right - left < 4) continue;
    context.strokeStyle = palette.quiet;
    context.strokeRect(left + 0.5, 19.5, right - left - 1, 14);
    if (context.measureText(name).width < right - left - 6) {
      context.fillText(name, (left + right) / 2, 27);
    }
  }
}
