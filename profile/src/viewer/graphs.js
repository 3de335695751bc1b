// The panel of graphs: before and after each pass, as a list of nodes and as a drawing.
const graphPanel = (() => {
  const list = new List("Nodes", 22);
  const drawing = new Drawing({
    title: (n) => (n === undefined ? "" : `${graph().line(n)}\n${graph().nodes.get(n).op[2]}`),
    choose: (n) => go({ node: n }),
  });
  const steps = make("div", { class: "steps", role: "group", "aria-label": "Passes" });
  const about = make("p", { class: "under", "aria-live": "polite" });
  const views = make("div", { class: "views" });
  const node = make("div", { class: "node" });
  const buttons = make("div", { class: "buttons" },
    make("button", { onclick: () => drawing.zoom(1.25), title: "zoom in", "aria-label": "zoom in" }, "+"),
    make("button", { onclick: () => drawing.zoom(0.8), title: "zoom out", "aria-label": "zoom out" }, "−"),
    make("button", { onclick: () => drawing.whole(), title: "the whole graph" }, "whole"));
  const legend = make("div", { class: "legend" }, ...Object.entries(CLASS_COLOURS).map(([name, colour]) =>
    make("span", {}, make("i", { class: "dot", style: `background:var(--${colour})` }), name)));
  const whole = make("div", { class: "graphs" }, list.outer, make("div", { class: "plot" }, drawing.canvas, buttons, legend), node);
  let laid = "";

  const counts = (change) => [change.added.size && `+${change.added.size}`, change.removed.size && `−${change.removed.size}`].filter(Boolean).join(" ");
  function drawSteps(place) {
    const buttons = graph().passes.map(({ pass }, at) => {
      const change = graph().change(at);
      const told = at ? counts(change) || "same" : `${graph().after(0).length} nodes`;
      const button = make("button", {
        class: at === place ? "on" : at && !counts(change) ? "idle" : "", "aria-pressed": at === place, title: data.passes[pass][1],
        onclick: () => go({ pass: at, node: undefined }),
      }, make("b", {}, data.passes[pass][0]), make("small", {}, told));
      return button;
    });
    steps.replaceChildren(...buttons);
  }
  const toggle = (label, is, change, title) => make("button", { class: is ? "on" : "", "aria-pressed": is, onclick: () => go(change), title }, label);
  function drawViews(place, change, count) {
    const view = state.view || "both", hop = number("hops") || 0;
    const of = [["before", "before"], ["both", "both"], ["after", "after"]].filter(() => place > 0);
    views.replaceChildren(
      ...of.map(([name, label]) => toggle(label, view === name, { view: name === "both" ? undefined : name }, "which of the two graphs")),
      ...(place ? [toggle("only what changed", !!state.changed, { changed: state.changed ? undefined : 1 }, "nodes that are new or have gone, and what they touch")] : []),
      make("span", { class: "under" }, `${count} nodes shown${state.node === undefined ? "" : "; around the selected one:"}`),
      ...(state.node === undefined ? [] : [1, 2, 4].map((n) => toggle(n === 1 ? "1 step" : `${n} steps`, hop === n, { hops: hop === n ? undefined : n }, "only nodes so near to it"))));
  }
  // The nodes that are wanted of those of both graphs.
  function wanted(change) {
    const view = state.view || "both";
    let all = change.all;
    if (view === "before") all = all.filter((n) => !change.added.has(n));
    if (view === "after") all = all.filter((n) => !change.removed.has(n));
    const users = graph().users(all);
    const around = (from, hops) => {
      let edge = [...from];
      const near = new Set(edge);
      for (let i = 0; i < hops; i++) {
        edge = edge.flatMap((n) => [...graph().nodes.get(n).sources, ...(users.get(n) || [])]).filter((n) => !near.has(n));
        edge.forEach((n) => near.add(n));
      }
      return all.filter((n) => near.has(n));
    };
    const selected = number("node");
    if (state.hops && graph().nodes.has(selected)) return around([selected], number("hops"));
    if (state.changed) return around(all.filter((n) => change.added.has(n) || change.removed.has(n)), 1);
    return all;
  }
  const link = (n) => make("button", { class: "link", onclick: () => go({ node: n }), title: graph().line(n) }, `%${n} ${graph().nodes.get(n).op[0]}`);
  function drawNode(change) {
    const n = number("node"), of = graph().nodes.get(n);
    node.hidden = !of;
    if (!of) return;
    const users = graph().users(change.all).get(n) || [];
    const linked = (title, numbers) => (numbers.length ? [make("dt", {}, title), make("dd", {}, ...numbers.slice(0, 40).map(link), numbers.length > 40 ? ` and ${numbers.length - 40} more` : "")] : []);
    const where = change.added.has(n) ? "new in this pass" : change.removed.has(n) ? "gone in this pass" : "";
    node.replaceChildren(
      make("button", { class: "shut", title: "select nothing", "aria-label": "select nothing", onclick: () => go({ node: undefined, hops: undefined }) }, "×"),
      make("h3", {}, `%${n} ${of.op[0]}`, where && make("small", {}, where)),
      make("p", {}, of.op[2]),
      make("dl", {}, make("dt", {}, "type"), make("dd", {}, [of.dtype, of.shape].join(" ")),
        ...(of.argument ? [make("dt", {}, "argument"), make("dd", {}, of.argument)] : []),
        ...linked("reads", of.sources.filter((s) => graph().nodes.has(s))), ...linked("read by", users)));
  }
  function drawLists(change, numbers) {
    const lines = numbers.filter((n) => graph().nodes.get(n).op[0] !== "Const");
    const sign = (n) => (change.added.has(n) ? "+" : change.removed.has(n) ? "−" : " ");
    list.set(lines.length, lines.indexOf(number("node")), (row, at) => {
      const n = lines[at];
      row.classList.add(change.added.has(n) ? "new" : change.removed.has(n) ? "gone" : "same");
      row.append(make("code", {}, `${sign(n)} %${n} ${graph().line(n)}`));
      row.title = graph().line(n);
    }, (at) => go({ node: lines[at] }, true));
    const nodes = graph().nodes;
    const drawn = numbers.filter((n) => !isLeaf(nodes.get(n)));
    const marks = new Map(drawn.map((n) => [n, change.added.has(n) ? "new" : change.removed.has(n) ? "gone" : undefined]));
    const what = [state.function, state.pass, state.view, state.changed, state.hops, state.hops && state.node].join("|");
    const fresh = what !== laid;
    laid = what;
    drawing.set(fresh ? layout(drawn, nodes) : drawing.at, nodes, marks, number("node"), fresh && (state.node === undefined || !!state.hops));
  }
  function draw(panel) {
    const place = Math.min(number("pass") ?? firstChange(), graph().passes.length - 1);
    const change = graph().change(place), numbers = wanted(change);
    if (!whole.isConnected) panel.replaceChildren(steps, about, views, whole);
    drawSteps(place);
    about.textContent = data.passes[graph().passes[place].pass][1];
    drawViews(place, change, numbers.length);
    drawNode(change);
    drawLists(change, numbers);
  }
  // The graph as it was written, for whoever asks for no pass.
  const firstChange = () => 0;
  return { title: "Graph", count: () => graph().after(0).length, draw, drawing };
})();
panels.set("graph", graphPanel);
