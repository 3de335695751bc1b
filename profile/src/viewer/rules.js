// The panel of rules: which fired in which pass, how often, and a few cases.
panels.set("rules", {
  title: "Rules",
  count: () => new Set(shown().passes.flatMap((pass) => pass.rules.map((rule) => rule.name))).size,
  draw(panel) {
    const rows = shown().passes.flatMap((pass) => pass.rules.map((rule) => ({ ...rule, pass: pass.pass })));
    const most = Math.max(1, ...rows.map((row) => row.times));
    const body = rows.map((row) => {
      const cases = row.examples.map(([before, after]) => make("li", {}, make("code", {}, before), " → ", make("code", {}, after)));
      return make("tr", { class: row.name === state.rule ? "on" : "", id: row.name === state.rule ? "chosen" : "" },
        make("td", {}, data.passes[row.pass][0]),
        make("td", { class: "text" }, make("code", { class: "rule" }, row.name)),
        make("td", {}, String(row.times), make("span", { class: "meter" }, make("i", { style: `width:${(100 * Math.log1p(row.times)) / Math.log1p(most)}%` }))),
        make("td", { class: "text cases" }, make("ul", {}, ...cases)));
    });
    const head = make("tr", {}, ...["pass", "rule", "times", "cases"].map((name, i) => make("th", { class: i === 2 ? "" : "text", scope: "col" }, name)));
    panel.replaceChildren(
      make("p", { class: "under" }, "Of kernels that were only tried too; up to three cases of each rule in a pass. The bar is logarithmic."),
      make("div", { class: "wide" }, make("table", { class: "rules" }, make("thead", {}, head), make("tbody", {}, ...body))));
    $("chosen")?.scrollIntoView({ block: "center" });
  },
});
