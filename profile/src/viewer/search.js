// Searches everything: functions, kernels and their texts, decisions, rules, nodes. All words must be there.
// Of one kind no more are shown.
const OF_A_KIND = 12;
function* everything() {
  for (let at = 0; at < data.functions.length; at++) {
    const f = data.functions[at], where = short(f.name);
    yield ["function", f.name, "", { function: at, tab: "graph" }];
    for (let k = 0; k < f.kernels.length; k++) {
      const kernel = f.kernels[k];
      yield ["kernel", `${kernel.name} ${kernel.about}`, where, { function: at, tab: "kernels", kernel: k }];
      for (const plan of kernel.plans) yield ["plan", plan, `${where} ${k}`, { function: at, tab: "kernels", kernel: k }];
    }
    for (let d = 0; d < f.decisions.length; d++) {
      const of = f.decisions[d];
      yield ["decision", `${of.kind} ${of.site} ${of.options.map((o) => `${o.name} ${o.plan}`).join(" ")}`, where, { function: at, tab: "decisions", decision: d, kind: undefined, other: undefined }];
    }
    for (const pass of f.passes) for (const rule of pass.rules) yield ["rule", rule.name, `${where} ${data.passes[pass.pass][0]}`, { function: at, tab: "rules", rule: rule.name }];
  }
}
function* nodesAndTexts() {
  for (let at = 0; at < data.functions.length; at++) {
    const f = data.functions[at], where = short(f.name);
    for (const [n, op, dtype, shape, argument] of f.nodes) {
      if (data.ops[op][0] !== "Const") yield ["node", `%${n} ${data.ops[op][0]} ${dtype} ${shape} ${argument}`, where, () => ({ function: at, tab: "graph", node: n, pass: passWith(at, n), view: undefined, changed: undefined, hops: undefined })];
    }
    for (let k = 0; k < f.kernels.length; k++) {
      for (const stage of f.kernels[k].stages) yield* lines(textOf(stage), `${where} ${k} ${stage.name}`, (line) => ({ function: at, tab: "kernels", kernel: k, [stage.name === "kernel" ? "left" : "right"]: stage.name, of: stage.name, line }));
    }
  }
}
function* lines(text, where, to) {
  let line = 0;
  for (const words of text.split("\n")) yield ["text", words, where, ((at) => () => to(at))(line++)];
}
// The first pass whose graph has that node.
function passWith(at, n) {
  if (!graphs.has(at)) graphs.set(at, new FunctionGraph(data.functions[at]));
  const of = graphs.get(at);
  return Math.max(0, of.passes.findIndex((_, pass) => of.after(pass).includes(n)));
}

const search = (() => {
  const input = $("find"), box = $("found");
  let hits = [], current = 0, run = 0;
  // In pieces, so that typing goes on meanwhile.
  async function find() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean), mine = ++run;
    hits = [];
    current = 0;
    if (!words.length) return shut();
    const counts = new Map();
    let looked = 0;
    for (const source of [everything(), nodesAndTexts()]) {
      for (const hit of source) {
        if (++looked % 20000 === 0) {
          await new Promise((done) => setTimeout(done));
          if (mine !== run) return;
        }
        const text = hit[1].toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
        counts.set(hit[0], (counts.get(hit[0]) || 0) + 1);
        if (counts.get(hit[0]) <= OF_A_KIND) hits.push(hit);
      }
    }
    show(counts, words[0]);
  }
  function show(counts, word) {
    box.hidden = false;
    input.setAttribute("aria-expanded", "true");
    const rows = hits.map(([kind, text, where], at) => make("div", {
      class: at === current ? "hit on" : "hit", role: "option", id: `hit-${at}`, "aria-selected": at === current, onclick: () => open(at),
    }, make("b", {}, kind), make("code", {}, around(text.trim(), word)), make("small", {}, where)));
    const all = [...counts.values()].reduce((a, b) => a + b, 0);
    const told = all ? `${all} found${all > hits.length ? `, ${hits.length} shown` : ""}` : "Nothing found";
    box.replaceChildren(make("p", { class: "under", role: "status" }, told), ...rows);
    if (hits.length) input.setAttribute("aria-activedescendant", `hit-${current}`); else input.removeAttribute("aria-activedescendant");
  }
  // The part of a long text that has the word.
  function around(text, word) {
    const at = Math.max(0, text.toLowerCase().indexOf(word) - 40);
    return (at ? "…" : "") + fitted(text.slice(at), 160);
  }
  function mark(by) {
    if (!hits.length) return;
    box.children[current + 1]?.classList.remove("on");
    box.children[current + 1]?.setAttribute("aria-selected", "false");
    current = (current + by + hits.length) % hits.length;
    box.children[current + 1].classList.add("on");
    box.children[current + 1].setAttribute("aria-selected", "true");
    box.children[current + 1].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", `hit-${current}`);
  }
  function open(at) {
    if (!hits[at]) return;
    const [, , , to] = hits[at];
    shut();
    go({ line: undefined, ...(typeof to === "function" ? to() : to) });
    input.blur();
    $("panel").focus({ preventScroll: true });
  }
  function shut() {
    run++;
    box.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }
  input.addEventListener("input", find);
  input.addEventListener("focus", () => input.value && find());
  input.addEventListener("keydown", (event) => {
    const act = { ArrowDown: () => mark(1), ArrowUp: () => mark(-1), Enter: () => open(current), Escape: () => { shut(); input.blur(); } }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".find")) shut(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
  return { shut };
})();
