// A colour for each kind of layer, the same everywhere.
const kinds = new Map(data.kinds.map((kind, i) => [kind.function, `var(--c${i % 8})`]));
const colour = (kernel) => kinds.get(kernel.function) || "var(--gap)";
const short = (name) => name.split(".").slice(-2).join(".");
// A kernel by what it does, and by where it stands.
const label = (kernel) => kernel.about.split(": ")[0] || kernel.name;
const place = (kernel) => `${short(kernel.function)} ${kernel.place}`;
const notes = (kernel) => kernel.about.split(": ").slice(1).join(": ");
const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
// Within a kind, the later kernels of a layer are paler.
const longest = new Map();
for (const kernel of data.kernels) longest.set(kernel.function, Math.max(longest.get(kernel.function) || 1, kernel.place + 1));
const strength = (kernel) => 1 - (0.6 * kernel.place) / longest.get(kernel.function);

function heading() {
  $("model").textContent = data.model;
  $("what").textContent = `${data.what} · ${data.device}, ${data.devices.map((d) => d.workers).join(" + ")} ${data.devices.every((d) => d.workers === 1) ? "worker" : "workers"} · ${data.runs} runs`;
  const gap = data.wall - data.covered;
  const rate = data.bytes / data.wall;
  const limit = data.devices.length > 1 ? null : data.limits.bandwidth;
  const tiles = [
    [time(data.wall), `${data.tokens === 1 ? "a token" : "a step"}, ${(data.tokens / data.wall).toFixed(1)} tokens a second`],
    [time(data.covered), `in kernels, ${percent(data.covered / data.wall)}`],
    [time(gap), `between kernels, ${percent(gap / data.wall)}`],
    [mega(data.bytes) + " MB", "must be read"],
    [giga(rate) + " GB/s", limit ? `${percent(rate / limit, 0)} of ${giga(limit)} that can be read` : "read"],
    [String(data.launches.length), "launches"],
  ];
  for (const [value, what] of tiles) {
    $("tiles").append(make("div", { class: "tile" }, make("b", {}, value), make("span", {}, what)));
  }
}

function layers() {
  const gap = data.wall - data.covered;
  const sum = data.kinds.reduce((s, kind) => s + kind.seconds, Math.max(gap, 0));
  const part = (name, seconds, style) =>
    make("div", { ...style, title: `${name}: ${time(seconds)}` }, short(name));
  for (const kind of data.kinds) {
    const style = { style: `width:${(100 * kind.seconds) / sum}%;background:${kinds.get(kind.function)}` };
    $("bar").append(part(kind.function, kind.seconds, style));
  }
  if (gap > 0) {
    const between = part("between kernels", gap, { class: "gap", style: `width:${(100 * gap) / sum}%` });
    $("bar").append(between);
  }
  // A name that has no room is none; the table below has them all.
  const fit = () => {
    for (const part of $("bar").children) {
      const name = part.dataset.name ??= part.textContent;
      part.textContent = name;
      if (part.scrollWidth > part.clientWidth) part.textContent = "";
    }
  };
  addEventListener("resize", fit);
  fit();
  const head = ["layers", "calls", "launches", "time", "each call", "MB", "GB/s", "share"];
  $("kinds").append(make("tr", {}, ...head.map((h) => make("th", {}, h))));
  for (const kind of data.kinds) {
    const dot = make("i", { class: "dot", style: `background:${kinds.get(kind.function)}` });
    const cells = [kind.calls, kind.launches, time(kind.seconds), time(kind.seconds / kind.calls), mega(kind.bytes),
      giga(kind.bytes / kind.seconds), percent(kind.share)];
    $("kinds").append(make("tr", {}, make("td", {}, dot, kind.function), ...cells.map((c) => make("td", {}, String(c)))));
  }
  const cells = ["", "", time(gap), "", "", "", percent(gap / data.wall)];
  $("kinds").append(
    make("tr", {}, make("td", {}, make("i", { class: "dot gap" }), "between kernels"), ...cells.map((c) => make("td", {}, c))));
}

function timeline() {
  const svg = $("timeline");
  const end = Math.max(...data.spans.map((s) => s[3]), ...data.copies.map((c) => c[3]), 1e-3);
  // A row for each worker of each device, then one for copies of each pair of devices.
  const several = data.devices.length > 1;
  const device = (launch) => data.kernels[data.launches[launch][0]].device;
  const first = [], names = [];
  data.devices.forEach(({ name }, d) => {
    const own = data.spans.filter((s) => device(s[0]) === d);
    const workers = Math.max(...own.map((s) => s[1] + 1), 1);
    first.push(names.length);
    const lead = several ? name.split(" ")[0] : "worker";
    for (let w = 0; w < workers; w++) names.push(several && workers === 1 ? lead : `${lead} ${w}`);
  });
  const copies = names.length;
  names.push(...data.routes);
  const lane = names.length > 12 ? 12 : names.length > 4 ? 20 : 34;
  const left = several ? 150 : 70, top = 22, gap = 4;
  const height = top + names.length * (lane + gap) + 4;
  svg.setAttribute("height", height);
  let from = 0, to = end, width = 0;
  const axis = make("g");
  const bars = make("g", { "clip-path": "url(#lanes)" });
  const clip = make("rect", { x: left, y: 0, width: 10, height });
  svg.append(make("defs", {}, make("clipPath", { id: "lanes" }, clip)), axis, bars);
  names.forEach((name, row) => svg.append(make("text", { x: 0, y: top + row * (lane + gap) + lane / 2 + 4 }, name)));
  const rects = data.spans.map(([launch, worker, start, stop]) => {
    const [number, call] = data.launches[launch];
    const kernel = data.kernels[number];
    const row = first[kernel.device] + worker;
    const tell = () => {
      $("under").textContent =
        `${kernel.about} · ${place(kernel)} · launch ${launch}, call ${call} · ${names[row]}: ` +
        `${time((stop - start) * 1e-6)} from ${time(start * 1e-6)}`;
    };
    const attributes = { y: top + row * (lane + gap), height: lane, fill: colour(kernel), "fill-opacity": strength(kernel) };
    const rect = make("rect", { ...attributes, onmouseenter: tell, onclick: () => moved || open(number, true) });
    bars.append(rect);
    return [rect, start, stop];
  });
  for (const [route, bytes, start, stop] of data.copies) {
    const tell = () => {
      const seconds = (stop - start) * 1e-6;
      $("under").textContent =
        `${data.routes[route]}: ${mega(bytes)} MB in ${time(seconds)}, ${giga(bytes / Math.max(seconds, 1e-9))} GB/s, from ${time(start * 1e-6)}`;
    };
    const rect = make("rect", { y: top + (copies + route) * (lane + gap), height: lane, fill: "var(--gap)", onmouseenter: tell });
    bars.append(rect);
    rects.push([rect, start, stop]);
  }
  // Where a step of 1, 2 or 5 makes about eight of them.
  function ticks() {
    const rough = (to - from) / 8;
    const size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * size).find((s) => s >= rough);
    const found = [];
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) found.push(t);
    return found;
  }
  function draw() {
    width = svg.clientWidth - left;
    const x = (t) => left + ((t - from) / (to - from)) * width;
    clip.setAttribute("width", Math.max(width, 0));
    for (const [rect, start, stop] of rects) {
      const seen = stop >= from && start <= to;
      rect.style.display = seen ? "" : "none";
      if (!seen) continue;
      rect.setAttribute("x", x(start));
      rect.setAttribute("width", Math.max(x(stop) - x(start), 0.6));
    }
    axis.replaceChildren();
    for (const t of ticks()) {
      axis.append(make("line", { class: "axis", x1: x(t), x2: x(t), y1: 16, y2: height }));
      axis.append(make("text", { x: x(t), y: 11, "text-anchor": "middle" }, time(t * 1e-6).replace(/\.?0+ /, " ")));
    }
  }
  function show(a, b) {
    const size = Math.min(Math.max(b - a, end / 5000), end);
    from = Math.min(Math.max(a, 0), end - size);
    to = from + size;
    draw();
  }
  function zoom(factor, at = (from + to) / 2) {
    show(at - (at - from) * factor, at + (to - at) * factor);
  }
  const at = (event) => from + ((event.clientX - svg.getBoundingClientRect().left - left) / width) * (to - from);
  // The wheel alone is the page's.
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event));
  }, { passive: false });
  let held = null, moved = false;
  svg.addEventListener("pointerdown", (event) => { held = at(event); moved = false; svg.classList.add("moving"); });
  addEventListener("pointermove", (event) => {
    if (held === null) return;
    const by = held - at(event);
    if (Math.abs(by) > (to - from) / 300) moved = true;
    show(from + by, to + by);
  });
  addEventListener("pointerup", () => { held = null; svg.classList.remove("moving"); });
  svg.addEventListener("dblclick", () => show(0, end));
  $("in").onclick = () => zoom(0.5);
  $("out").onclick = () => zoom(2);
  $("whole").onclick = () => show(0, end);
  addEventListener("resize", draw);
  draw();
}

const points = new Map();
function roofline() {
  const svg = $("roofline");
  const height = 330, left = 74, right = 30, top = 12, bottom = 40;
  svg.setAttribute("height", height);
  // The roof is that of the main device.
  const rows = data.rows.filter((row) => row.bytes > 0 && row.operations > 0 && data.kernels[row.kernel].device === 0);
  const { bandwidth, operations } = data.limits;
  if (!rows.length || !bandwidth) {
    svg.setAttribute("height", 0);
    $("roofs").textContent = bandwidth ? "No kernel reads weights or the cache." : "The read bandwidth of this device is not known.";
    return;
  }
  const intensity = (row) => row.operations / row.bytes;
  const speed = (row) => row.operations / row.seconds;
  const ridge = operations / bandwidth;
  const span = (values) => [10 ** Math.floor(Math.log10(Math.min(...values))), 10 ** Math.ceil(Math.log10(Math.max(...values)))];
  const [x0, x1] = span([...rows.map(intensity), ridge / 2, ridge * 2]);
  const [y0, y1] = span([...rows.map(speed), operations * 1.1]);
  function draw() {
    svg.replaceChildren();
    const width = svg.clientWidth;
    const x = (v) => left + (Math.log(v / x0) / Math.log(x1 / x0)) * (width - left - right);
    const y = (v) => height - bottom - (Math.log(v / y0) / Math.log(y1 / y0)) * (height - top - bottom);
    for (let v = x0; v <= x1 * 1.001; v *= 10) {
      svg.append(make("line", { class: "axis", x1: x(v), x2: x(v), y1: top, y2: height - bottom }));
      svg.append(make("text", { x: x(v), y: height - bottom + 16, "text-anchor": "middle" }, v >= 1 ? String(Math.round(v)) : v.toPrecision(1)));
    }
    for (let v = y0; v <= y1 * 1.001; v *= 10) {
      svg.append(make("line", { class: "axis", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
      svg.append(make("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, power(v).replace(/\.0+ /, " ") + "op/s"));
    }
    svg.append(make("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "operations a byte"));
    const start = Math.max(x0, y0 / bandwidth);
    const roof = `M${x(start)},${y(start * bandwidth)} L${x(ridge)},${y(operations)} L${x(x1)},${y(operations)}`;
    svg.append(make("path", { class: "roof", d: roof }));
    points.clear();
    for (const row of rows) {
      const kernel = data.kernels[row.kernel];
      const tell = () => {
        $("roofs").textContent =
          `${kernel.about} · ${place(kernel)} · ${intensity(row).toPrecision(3)} op a byte, ${power(speed(row))}op/s, ` +
          `${giga(row.bytes / row.seconds)} GB/s, ${percent(row.fraction, 0)} of its limit · ${percent(row.share)} of the step` +
          (row.above ? ` · above the roof: ${data.above}` : "");
      };
      const circle = make("circle", {
        class: "point", cx: x(intensity(row)), cy: y(speed(row)), r: 4 + 34 * Math.sqrt(row.share), fill: colour(kernel),
        onmouseenter: tell, onclick: () => open(row.kernel, true),
      });
      points.set(row.kernel, circle);
      svg.append(circle);
    }
    // Small ones stay within reach.
    [...points.values()].sort((a, b) => b.getAttribute("r") - a.getAttribute("r")).forEach((c) => svg.append(c));
    names();
  }
  // The names of the dearest, each as near to its circle as there is room: over no other name, no circle and no edge.
  function names() {
    const width = svg.clientWidth, taken = [...points.values()].map((c) => {
      const [x, y, r] = ["cx", "cy", "r"].map((name) => Number(c.getAttribute(name)));
      return [x - r, y - r, x + r, y + r];
    });
    const free = ([x0, y0, x1, y1]) => x0 >= left && x1 <= width - 4 && y0 >= top && y1 <= height - bottom && taken.every(([a, b, c, d]) => x1 < a || x0 > c || y1 < b || y0 > d);
    for (const row of rows.filter((row) => row.share > 0.05)) {
      const circle = points.get(row.kernel), [cx, cy, r] = ["cx", "cy", "r"].map((name) => Number(circle.getAttribute(name)));
      const text = make("text", { class: "name" }, cut(label(data.kernels[row.kernel]), 30) + (row.above ? " *" : ""));
      svg.append(text);
      const long = text.getComputedTextLength() || 200, box = (x, y) => [x, y - 11, x + long, y + 4];
      const tries = Array.from({ length: 24 }, (_, n) => (n % 2 ? 1 : -1) * Math.ceil(n / 2) * 15).flatMap((dy) =>
        [[cx + r + 10, cy + 4 + dy], [cx - r - 10 - long, cy + 4 + dy], [cx + r + 90, cy + 4 + dy]]);
      const spot = tries.find(([x, y]) => free(box(x, y)));
      // One without room is told when its circle is pointed at.
      if (!spot) { text.remove(); continue; }
      const [x, y] = spot, right = x > cx;
      taken.push(box(x, y));
      text.setAttribute("x", x);
      text.setAttribute("y", y);
      svg.append(make("line", { class: "axis", x1: cx + (right ? r : -r), y1: cy, x2: right ? x - 3 : x + long + 3, y2: y - 4 }));
    }
  }
  const above = rows.filter((row) => row.above).length;
  $("roofs").textContent = `The roof: ${giga(bandwidth)} GB/s, measured before the model was loaded, and ${power(operations)}op/s modelled.` +
    (above ? ` Above it, marked *, ${above === 1 ? "is one kernel" : `are ${above} kernels`}: ${data.above}.` : "");
  addEventListener("resize", draw);
  draw();
}

// The table, and what opens under a row.
const columns = [
  ["kernel", (row) => label(data.kernels[row.kernel])],
  ["calls", (row) => row.calls],
  ["time", (row) => row.seconds, time],
  ["each", (row) => row.seconds / row.calls, time],
  ["MB", (row) => row.bytes, mega],
  ["GB/s", (row) => row.bytes / row.seconds, giga],
  ["of limit", (row) => row.fraction ?? -1, (f, row) => (f < 0 ? "?" : percent(f, 0) + (row.above ? " *" : ""))],
  ["share", (row) => row.share, (x) => percent(x)],
  ["of", (row) => place(data.kernels[row.kernel])],
];
let by = 2, opened = null;

function table() {
  const head = columns.map(([name], i) =>
    make("th", { class: (i === by ? "by" : "") + (i === 8 ? " text" : ""), onclick: () => { by = i; table(); } }, name));
  const value = (row) => columns[by][1](row);
  const text = by === 0 || by === 8;
  const sorted = [...data.rows].sort((a, b) => (text ? value(a).localeCompare(value(b), undefined, { numeric: true }) : value(b) - value(a)));
  const most = Math.max(...data.rows.map((row) => row.share), 1e-9);
  $("kernels").replaceChildren(make("tr", {}, ...head));
  for (const row of sorted) {
    const kernel = data.kernels[row.kernel];
    const cells = columns.map(([, get, show], i) => {
      const shown = show ? show(get(row), row) : String(get(row));
      if (i === 0) {
        const dot = make("i", { class: "dot", style: `background:${colour(kernel)}` });
        return make("td", { class: "text about", title: kernel.about }, dot, shown, make("small", {}, notes(kernel)));
      }
      if (i === 7) {
        const bar = make("i", { style: `width:${(100 * row.share) / most}%` });
        return make("td", {}, shown, make("span", { class: "meter" }, bar));
      }
      if (i === 8) return make("td", { class: "text" }, shown, " ", make("span", { class: "name" }, kernel.name));
      return make("td", {}, shown);
    });
    const toggle = () => open(opened === row.kernel ? null : row.kernel);
    const line = make("tr", {
      class: opened === row.kernel ? "row open" : "row", id: `kernel-${row.kernel}`, tabindex: 0,
      onclick: toggle, onkeydown: (event) => { if (event.key === "Enter") toggle(); },
    }, ...cells);
    $("kernels").append(line);
    if (opened === row.kernel) $("kernels").append(make("tr", { class: "detail" }, make("td", { colspan: columns.length }, ...detail(row))));
  }
}

function detail(row) {
  const kernel = data.kernels[row.kernel];
  const fact = (name, value) => make("span", {}, name + " ", make("b", {}, value));
  const each = row.seconds / row.calls;
  const facts = make("div", { class: "facts" },
    fact("symbol", kernel.name), fact("of", place(kernel)), fact("a launch", time(each) + " measured"), fact("", time(kernel.modelled) + " modelled"),
    fact("reads", mega(kernel.bytes) + " MB"), fact("operations", power(kernel.operations) + " modelled"),
    fact("intensity", kernel.bytes > 0 ? (kernel.operations / kernel.bytes).toPrecision(3) + " op a byte" : "reads no weights"));
  const made = data.decisions.find((d) => d.function === kernel.function);
  const stages = [...kernel.stages];
  if (made && made.lines.length) stages.push({ name: "decisions (modelled times)", text: made.lines.join("\n") });
  const shown = make("pre", {});
  const tabs = stages.map((stage) => make("button", { onclick: () => choose(stage) }, stage.name));
  function choose(stage) {
    shown.textContent = stage.name === "source" ? indented(stage.text) : stage.text;
    tabs.forEach((tab, i) => tab.classList.toggle("on", stages[i] === stage));
  }
  if (stages.length) choose(stages.find((s) => s.name === "source") || stages[0]);
  return [facts, make("div", { class: "tabs" }, ...tabs), shown];
}

function open(kernel, jump = false) {
  points.get(opened)?.classList.remove("on");
  opened = kernel;
  points.get(opened)?.classList.add("on");
  table();
  if (jump) $(`kernel-${kernel}`)?.scrollIntoView({ behavior: "smooth", block: "start" });
}

heading();
layers();
timeline();
roofline();
table();
// A kernel may be named in the address: page.html#r_0123.
const wanted = data.kernels.findIndex((kernel) => kernel.name === location.hash.slice(1));
if (wanted >= 0) open(wanted, true);
