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
    if (whole) this.whole(); else this.reveal(selected);
    this.draw();
  }
  whole() {
    const { clientWidth, clientHeight } = this.canvas;
    if (!this.at || !clientWidth) return;
    this.scale = Math.min(1, (clientWidth - 24) / this.at.width, (clientHeight - 24) / this.at.height);
    this.left = (clientWidth - this.at.width * this.scale) / 2;
    this.top = Math.max(12, (clientHeight - this.at.height * this.scale) / 2);
    // What would be too small to read begins at its end, which is what is computed.
    if (this.scale < 0.12) {
      this.scale = 0.6;
      this.centre(this.at.layers[this.at.layers.length - 1][0]);
      this.top = clientHeight - 40 - this.at.height * this.scale;
    }
    this.draw();
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
    const i = layer?.find((i) => x >= this.at.x[i] && x <= this.at.x[i] + BOX.width && y <= this.at.y[i] + BOX.height);
    return i === undefined ? undefined : this.at.numbers[i];
  }
  pointerdown(event) {
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
      for (const i of layer) if (at.x[i] + BOX.width >= seen.x0 && at.x[i] <= seen.x1) this.box(pen, i);
    }
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
    const { x, y } = this.at;
    const x0 = x[from] + BOX.width / 2, y0 = y[from] + BOX.height, x1 = x[to] + BOX.width / 2, y1 = y[to];
    pen.moveTo(x0, y0);
    pen.bezierCurveTo(x0, y0 + BOX.down / 2, x1, y1 - BOX.down / 2, x1, y1);
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
    pen.fillText(fitted(`${node.op[0]} ${argument}`, 23), x + 13, y + 17, BOX.width - 18);
    pen.fillStyle = this.colour("soft");
    pen.font = "11.5px ui-monospace, 'DejaVu Sans Mono', monospace";
    const leaves = graph().operands(node).map((s) => this.nodes.get(s)).filter((s) => s && isLeaf(s)).map(leafName);
    pen.fillText(fitted([`%${number}`, node.dtype, node.shape, ...leaves].filter(Boolean).join(" "), 22), x + 13, y + 33, BOX.width - 18);
  }
}
const CLASS_COLOURS = { source: "c7", movement: "c4", elementwise: "c0", tensor: "c3", kernel: "c5", linear: "c1" };
const fitted = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
