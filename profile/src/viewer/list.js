// A list of any length, of which only what is seen is there. Arrows, Page up and down, Home and End move; Enter and a click choose.
class List {
  constructor(label, height) {
    Object.assign(this, { height, rows: 0, current: -1, draw: null, choose: null });
    this.inner = make("div", { class: "inner" });
    this.outer = make("div", {
      class: "list", tabindex: 0, role: "listbox", "aria-label": label,
      onscroll: () => this.show(), onkeydown: (event) => this.key(event),
    }, this.inner);
    new ResizeObserver(() => this.show()).observe(this.outer);
  }
  // So many rows, drawn by `draw(row, place)`, chosen by `choose(place)`.
  set(rows, current, draw, choose) {
    Object.assign(this, { rows, current, draw, choose });
    this.inner.style.height = `${rows * this.height}px`;
    this.outer.style.setProperty("--rows", `${rows * this.height + 2}px`);
    if (current >= 0) this.reveal(current);
    this.show();
  }
  reveal(place) {
    const top = place * this.height, { scrollTop, clientHeight } = this.outer;
    if (top < scrollTop || top + this.height > scrollTop + clientHeight) this.outer.scrollTop = Math.max(0, top - clientHeight / 3);
  }
  show() {
    if (!this.draw) return;
    const { scrollTop, clientHeight } = this.outer;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - 6);
    const last = Math.min(this.rows, Math.ceil((scrollTop + clientHeight) / this.height) + 6);
    const rows = [];
    for (let place = first; place < last; place++) {
      const row = make("div", {
        class: place === this.current ? "row on" : "row", role: "option", "aria-selected": place === this.current,
        "aria-setsize": this.rows, "aria-posinset": place + 1, style: `top:${place * this.height}px;height:${this.height}px`,
        onclick: () => this.choose(place),
      });
      this.draw(row, place);
      rows.push(row);
    }
    this.inner.replaceChildren(...rows);
  }
  key(event) {
    const page = Math.max(1, Math.floor(this.outer.clientHeight / this.height) - 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || !this.rows || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const place = Math.min(Math.max(this.current + by, 0), this.rows - 1);
    if (place !== this.current) this.choose(place);
  }
}
