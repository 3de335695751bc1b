// A graph on a canvas: only what is seen is drawn. Dragging moves, the wheel and two fingers zoom, a click selects; keys do all of it too.
class Drawing {
  constructor(tell) {
    this.canvas = make("canvas", {
      tabindex: 0, role: "img", "aria-label": "Drawing of the graph; the list has the same nodes in words",
    });
    Object.assign(this, { tell, at: null, scale: 1, left: 0, top: 0, selected: undefined, marks: new Map(), pointers: new Map() });
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    for (const name of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) this.canvas.addEventListener(name, (event) => this[name](event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = null; this.draw(); });
  }
  // Shows a layout. `marks` says of a number whether it is new or has gone; `whole` shows all of it, else what was seen stays in sight.
  set(at, nodes, marks, selected, whole) {
    Object.assign(this, { at, nodes, marks, selected });
    if (whole) this.begin(); else this.reveal(selected);
    this.draw();
  }
  // All of it, however small.
  whole() {
    const { clientWidth, clientHeight } = this.canvas;
    if (!this.at || !clientWidth) return;
    this.scale = Math.min(1, (clientWidth - 24) / this.at.width, (clientHeight - 84) / this.at.height);
    this.left = (clientWidth - this.at.width * this.scale) / 2;
    this.top = 44 + Math.max(0, (clientHeight - 84 - this.at.height * this.scale) / 2);
    this.draw();
  }
  // All of it, where that can be read; else what comes first, large enough to read, and a map of the whole beside it.
  begin() {
    const { clientWidth, clientHeight } = this.canvas;
    this.whole();
    if (!this.at || !clientWidth || this.scale >= LEGIBLE) return;
    this.scale = Math.min(1, Math.max(LEGIBLE, (clientWidth - 24) / this.at.width));
    const first = this.at.layers[0].filter((i) => i < this.at.numbers.length);
    this.left = clientWidth / 2 - (first.reduce((sum, i) => sum + this.at.x[i], 0) / first.length + BOX.width / 2) * this.scale;
    if (this.at.width * this.scale < clientWidth) this.left = (clientWidth - this.at.width * this.scale) / 2;
    this.top = 44;
    this.draw();
  }
  // The map of a graph that is larger than what is seen: { x, y, width, height, scale }, or null.
  map() {
    const { canvas: { clientWidth, clientHeight }, at } = this;
    if (!at || at.width * this.scale <= clientWidth && at.height * this.scale <= clientHeight) return null;
    const scale = Math.min(MAP.width / at.width, MAP.height / at.height, clientWidth / 3 / at.width, clientHeight / 2 / at.height);
    const width = Math.max(at.width * scale, 12), height = Math.max(at.height * scale, 12);
    return { x: clientWidth - width - 12, y: clientHeight - height - 40, width, height, scale };
  }
  centre(i) {
    this.left = this.canvas.clientWidth / 2 - (this.at.x[i] + BOX.width / 2) * this.scale;
    this.top = this.canvas.clientHeight / 2 - (this.at.y[i] + BOX.height / 2) * this.scale;
  }
  // Brings a node into sight, large enough to read.
  reveal(number) {
    const i = this.at?.place.get(number);
    if (i === undefined) return;
    const x = this.left + this.at.x[i] * this.scale, y = this.top + this.at.y[i] * this.scale;
    const inside = x > 0 && y > 0 && x + BOX.width * this.scale < this.canvas.clientWidth && y + BOX.height * this.scale < this.canvas.clientHeight;
    if (inside && this.scale > 0.45) return;
    this.scale = Math.max(this.scale, 0.75);
    this.centre(i);
  }
  zoom(by, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = Math.min(Math.max(this.scale * by, 0.01), 2.5);
    this.left = x - (x - this.left) * (scale / this.scale);
    this.top = y - (y - this.top) * (scale / this.scale);
    this.scale = scale;
    this.draw();
  }
  // The node at a point of the canvas.
  hit(px, py) {
    const x = (px - this.left) / this.scale, y = (py - this.top) / this.scale;
    const layer = this.at?.layers[Math.floor(y / (BOX.height + BOX.down))];
    const i = layer?.find((i) => i < this.at.numbers.length && x >= this.at.x[i] && x <= this.at.x[i] + BOX.width && y <= this.at.y[i] + BOX.height);
    return i === undefined ? undefined : this.at.numbers[i];
  }
  // Moves to where the map was touched; whether it was.
  jump({ offsetX, offsetY }) {
    const map = this.map();
    const inside = map && offsetX >= map.x - 6 && offsetX <= map.x + map.width + 6 && offsetY >= map.y - 6 && offsetY <= map.y + map.height + 6;
    if (!inside) return false;
    this.left = this.canvas.clientWidth / 2 - ((offsetX - map.x) / map.scale) * this.scale;
    this.top = this.canvas.clientHeight / 2 - ((offsetY - map.y) / map.scale) * this.scale;
    this.draw();
    return true;
  }
  pointerdown(event) {
    if (this.jump(event)) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.moved = this.pointers.size > 1 ? Infinity : 0;
  }
  pointermove(event) {
    const now = { x: event.offsetX, y: event.offsetY }, then = this.pointers.get(event.pointerId);
    if (!then) {
      this.canvas.title = this.tell.title(this.hit(now.x, now.y));
      return;
    }
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    this.pointers.set(event.pointerId, now);
    if (other) {
      const apart = (a) => Math.hypot(a.x - other.x, a.y - other.y);
      this.zoom(apart(now) / Math.max(apart(then), 1), (now.x + other.x) / 2, (now.y + other.y) / 2);
      return;
    }
    this.moved += Math.abs(now.x - then.x) + Math.abs(now.y - then.y);
    this.left += now.x - then.x;
    this.top += now.y - then.y;
    this.draw();
  }
  pointerup(event) {
    if (!this.pointers.delete(event.pointerId) || this.moved > 4) return;
    this.tell.choose(this.hit(event.offsetX, event.offsetY));
  }
  pointercancel(event) {
    this.pointers.delete(event.pointerId);
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = 60;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (moves[event.key]) {
      this.left += moves[event.key][0];
      this.top += moves[event.key][1];
      this.draw();
    } else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.whole();
    else return;
    event.preventDefault();
  }
  colour(name) {
    this.colours ??= new Map();
    if (!this.colours.has(name)) this.colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
    return this.colours.get(name);
  }
  draw() {
    const { canvas, at } = this, { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    if (!at) return;
    pen.setTransform(ratio * this.scale, 0, 0, ratio * this.scale, ratio * this.left, ratio * this.top);
    const seen = { x0: -this.left / this.scale, y0: -this.top / this.scale, x1: (width - this.left) / this.scale, y1: (height - this.top) / this.scale };
    this.edges(pen, seen);
    for (const layer of at.layers) {
      const y = at.y[layer[0]];
      if (y + BOX.height < seen.y0 || y > seen.y1) continue;
      for (const i of layer) if (i < at.numbers.length && at.x[i] + BOX.width >= seen.x0 && at.x[i] <= seen.x1) this.box(pen, i);
    }
    this.overview(pen, ratio);
  }
  overview(pen, ratio) {
    const map = this.map(), { at, canvas } = this;
    if (!map) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.colour("shade");
    pen.strokeStyle = this.colour("line");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.rect(map.x - 6, map.y - 6, map.width + 12, map.height + 12);
    pen.fill();
    pen.stroke();
    for (let i = 0; i < at.numbers.length; i++) {
      pen.fillStyle = this.colour(CLASS_COLOURS[this.nodes.get(at.numbers[i]).op[1]] || "gap");
      pen.fillRect(map.x + at.x[i] * map.scale, map.y + at.y[i] * map.scale, Math.max(1, BOX.width * map.scale), Math.max(1, BOX.height * map.scale));
    }
    const clip = (at, most) => Math.min(Math.max(at, -6), most + 6);
    const [x0, x1] = [0, canvas.clientWidth].map((x) => clip(((x - this.left) / this.scale) * map.scale, map.width));
    const [y0, y1] = [0, canvas.clientHeight].map((y) => clip(((y - this.top) / this.scale) * map.scale, map.height));
    pen.strokeStyle = this.colour("ink");
    pen.lineWidth = 1.5;
    pen.strokeRect(map.x + x0, map.y + y0, x1 - x0, y1 - y0);
  }
  edges(pen, seen) {
    const { at } = this, chosen = at.place.get(this.selected);
    const near = [];
    pen.strokeStyle = this.colour("gap");
    pen.lineWidth = Math.max(1, 0.5 / this.scale);
    pen.globalAlpha = at.numbers.length > 400 ? 0.5 : 0.9;
    pen.beginPath();
    for (let i = 0; i < at.numbers.length; i++) {
      if (at.y[i] < seen.y0) continue;
      for (const s of at.sources[i]) {
        if (at.y[s] > seen.y1) continue;
        if (i === chosen || s === chosen) near.push([s, i]); else this.edge(pen, s, i);
      }
    }
    pen.stroke();
    pen.globalAlpha = 1;
    pen.strokeStyle = this.colour("accent");
    pen.lineWidth = Math.max(1.6, 1.2 / this.scale);
    pen.beginPath();
    for (const [s, i] of near) this.edge(pen, s, i);
    pen.stroke();
  }
  edge(pen, from, to) {
    const { x, y, level, chains } = this.at, chain = chains.get(from);
    const way = chain.length > 1 ? chain.slice(1, level[to] - level[from]) : [];
    let x0 = x[from] + BOX.width / 2, y0 = y[from] + BOX.height;
    const curve = (x1, y1) => pen.bezierCurveTo(x0, y0 + BOX.down / 2, x1, y1 - BOX.down / 2, x1, y1);
    pen.moveTo(x0, y0);
    for (const i of way) {
      curve(x[i] + BOX.width / 2, y[i]);
      [x0, y0] = [x[i] + BOX.width / 2, y[i] + BOX.height];
      pen.lineTo(x0, y0);
    }
    curve(x[to] + BOX.width / 2, y[to]);
  }
  box(pen, i) {
    const number = this.at.numbers[i], node = this.nodes.get(number), x = this.at.x[i], y = this.at.y[i];
    const mark = this.marks.get(number), chosen = number === this.selected;
    pen.fillStyle = this.colour("card");
    pen.strokeStyle = chosen ? this.colour("accent") : mark ? this.colour(mark) : this.colour("gap");
    pen.lineWidth = chosen ? 3 : mark ? 2 : 1;
    pen.setLineDash(mark === "gone" ? [5, 3] : []);
    pen.beginPath();
    pen.rect(x, y, BOX.width, BOX.height);
    pen.fill();
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = this.colour(CLASS_COLOURS[node.op[1]] || "gap");
    pen.fillRect(x, y, 6, BOX.height);
    if (this.scale < 0.3) return;
    pen.fillStyle = this.colour("ink");
    pen.font = "600 13px system-ui, sans-serif";
    const argument = node.argument.replace(/\b(reduce|axes|slot|enc|kind|range|int|float)=/g, "");
    pen.fillText(fittedTo(pen, `${node.op[0]} ${argument}`, BOX.width - 20), x + 13, y + 17);
    pen.fillStyle = this.colour("soft");
    pen.font = "11.5px ui-monospace, 'DejaVu Sans Mono', monospace";
    const leaves = graph().operands(node).map((s) => this.nodes.get(s)).filter((s) => s && isLeaf(s)).map(leafName);
    pen.fillText(fittedTo(pen, [`%${number}`, node.dtype, node.shape, ...leaves].filter(Boolean).join(" "), BOX.width - 20), x + 13, y + 33);
  }
}
const CLASS_COLOURS = { source: "c7", movement: "c4", elementwise: "c0", tensor: "c3", kernel: "c5", linear: "c1" };
const fitted = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
// A text that is cut where it would be wider than its room.
function fittedTo(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let most = Math.floor((text.length * room) / pen.measureText(text).width);
  while (most > 0 && pen.measureText(text.slice(0, most) + "…").width > room) most--;
  return text.slice(0, most) + "…";
}
// Words in a box are 13 and 11.5 pixels high: smaller than this scale they are not read. And the most that a map takes, in pixels.
const LEGIBLE = 0.85, MAP = { width: 130, height: 190 };
