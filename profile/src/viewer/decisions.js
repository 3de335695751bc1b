// The panel of decisions: what could be chosen, at which price, and what was.
panels.set("decisions", (() => {
  const list = new List("Decisions", 44);
  const detail = make("div", { class: "detail" });
  const kinds = make("div", { class: "views" });
  const whole = make("div", { class: "decisions" }, list.outer, detail);
  const price = (seconds) => (seconds > 0 ? modelled(seconds) : "—");
  const isOther = (d) => d.options.length > 1 && d.chosen > 0;
  function drawKinds(all) {
    const names = [...new Set(all.map((d) => d.kind))];
    const button = (label, kind, count) => make("button", {
      class: (state.kind || "") === kind ? "on" : "", "aria-pressed": (state.kind || "") === kind,
      onclick: () => go({ kind: kind || undefined, decision: undefined }),
    }, label, make("small", {}, ` ${count}`));
    kinds.replaceChildren(button("all", "", all.length), ...names.map((name) => button(name, name, all.filter((d) => d.kind === name).length)),
      make("button", { class: state.other ? "on" : "", "aria-pressed": !!state.other, onclick: () => go({ other: state.other ? undefined : 1, decision: undefined }) }, "not the first proposal"));
  }
  function drawDetail(of) {
    detail.hidden = !of;
    if (!of) return;
    const most = Math.max(...of.options.map((option) => option.seconds), 1e-12);
    const rows = of.options.map((option, at) => make("tr", { class: at === of.chosen ? "on" : "" },
      make("td", {}, at === of.chosen ? "✓ " : "", make("b", {}, option.name), option.plan && make("code", {}, option.plan)),
      make("td", {}, price(option.seconds), make("span", { class: "meter" }, make("i", { style: `width:${(100 * option.seconds) / most}%` })))));
    const told = of.asked ? `the first, unless another saves ${percent(of.margin, 0)} of its price` : "follows from others: nobody was asked";
    detail.replaceChildren(make("h3", {}, of.kind), make("p", {}, of.site), make("p", { class: "under" }, told), make("table", {}, ...rows));
  }
  function draw(panel) {
    const all = shown().decisions;
    const wanted = all.map((d, at) => [d, at]).filter(([d]) => (!state.kind || d.kind === state.kind) && (!state.other || isOther(d)));
    if (!whole.isConnected) panel.replaceChildren(kinds, whole);
    drawKinds(all);
    const chosen = number("decision");
    list.set(wanted.length, wanted.findIndex(([, at]) => at === chosen), (row, place) => {
      const [d] = wanted[place], option = d.options[d.chosen];
      row.append(
        make("div", {}, make("b", {}, d.kind), " ", d.site.replace(shown().name + " ", "")),
        make("div", { class: "soft" }, `${option?.name ?? ""}, ${price(option?.seconds ?? 0)}`, d.options.length > 1 ? `, of ${d.options.length} options` : "", option?.plan ? ` · ${option.plan}` : ""));
      row.title = d.site;
    }, (place) => go({ decision: wanted[place][1] }, true));
    drawDetail(all[chosen]);
  }
  return { title: "Decisions", count: () => shown().decisions.length, draw };
})());
