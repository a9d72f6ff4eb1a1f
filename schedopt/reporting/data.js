// What the page holds, out of its compact form, and numbers for readers.

const SPACE = "\u00a0";  // Between a number and its unit, which stay on one line.

function decodeView(view) {
  const more = { stages: view.stages, until: view.length_ns };
  return { ...view, rows: view.rows.map(row => ({ ...decodeRow(row), ...more })) };
}

function decodeRow(row) {
  const count = row.boxes.length / 3;
  const start = new Float64Array(count), end = new Float64Array(count);
  const kind = new Int32Array(count), number = new Float64Array(count);
  const last = row.kinds.map(() => 0);
  let now = 0;
  for (let i = 0; i < count; i++) {
    const which = row.boxes[3 * i + 1];
    start[i] = now += row.boxes[3 * i];
    end[i] = now += row.kinds[which][2];
    kind[i] = which;
    number[i] = last[which] += row.boxes[3 * i + 2];
  }
  const memory = row.memory && decodeMemory(row.memory);
  return { name: row.name, busy: row.busy, kinds: row.kinds, start, end, kind, number, memory };
}

function decodeMemory(memory) {
  const count = memory.levels.length / 2;
  const time = new Float64Array(count), held = new Float64Array(count), most = new Float64Array(count);
  let now = 0, peak = 0;
  for (let i = 0; i < count; i++) {
    time[i] = now += memory.levels[2 * i];
    [held[i], most[i]] = memory.values[memory.levels[2 * i + 1]];
    peak = Math.max(peak, most[i]);
  }
  return { limit: memory.limit_bytes, time, held, most, peak };
}

// The first place whose value is greater than x.
function firstAbove(values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > x) high = middle; else low = middle + 1;
  }
  return low;
}

function sayTime(ns) {
  for (const [unit, factor] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    if (Math.abs(ns) >= factor) return (ns / factor).toFixed(3) + SPACE + unit;
  }
  return String(Math.round(ns * 1000) / 1000) + SPACE + "ns";
}

function sayBytes(count) {
  for (const [unit, factor] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]) {
    if (Math.abs(count) >= factor) return (count / factor).toFixed(2) + SPACE + unit;
  }
  return count + SPACE + "B";
}

function sayShare(share) {
  return (100 * share).toFixed(1) + "%";
}
