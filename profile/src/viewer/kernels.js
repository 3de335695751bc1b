// The panel of kernels: what each computes, how, and its stages side by side. And that of the texts of the whole function.
const textOf = (stage) => (stage.name === "source" ? indented(stage.text) : stage.text);
const bytes = (n) => (n >= 1e6 ? mega(n) + " MB" : (n / 1e3).toFixed(1) + " kB");
// A text, with the line that was looked for in sight.
function reader(text, line) {
  const pre = make("pre", { tabindex: 0 }, text);
  if (line !== undefined) {
    requestAnimationFrame(() => {
      const lines = text.split("\n"), from = lines.slice(0, line).reduce((sum, l) => sum + l.length + 1, 0);
      const range = document.createRange();
      range.setStart(pre.firstChild, from);
      range.setEnd(pre.firstChild, from + lines[line].length);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      pre.scrollTop = (pre.scrollHeight / lines.length) * line - pre.clientHeight / 3;
    });
  }
  return pre;
}
function chooser(name, stages, chosen, label) {
  const select = make("select", { "aria-label": label, onchange: () => go({ [name]: select.value, line: undefined }) },
    ...stages.map((stage) => make("option", {}, stage.name)));
  select.value = chosen.name;
  return select;
}

panels.set("kernels", {
  title: "Kernels",
  count: () => shown().kernels.length,
  draw(panel) {
    const all = shown().kernels, at = Math.min(number("kernel") ?? 0, all.length - 1), kernel = all[at];
    if (!kernel) return panel.replaceChildren(make("p", { class: "under" }, "No kernels."));
    const most = Math.max(...all.map((k) => k.seconds), 1e-12);
    const rows = all.map((k, i) => make("button", {
      class: i === at ? "kernel on" : "kernel", "aria-pressed": i === at, onclick: () => go({ kernel: i, line: undefined }), title: k.about,
    },
    make("span", {}, make("b", {}, String(i)), ` ${k.about.split(": ")[0] || k.about}`),
    make("small", {}, `level ${k.level} · ${modelled(k.seconds)}`, make("span", { class: "meter" }, make("i", { style: `width:${(100 * k.seconds) / most}%` })))));
    const fact = (name, value) => make("span", {}, name + " ", make("b", {}, value));
    const facts = make("div", { class: "facts" }, fact("symbol", kernel.name), fact("a launch", modelled(kernel.seconds)), fact("level", String(kernel.level)),
      fact("weights", bytes(kernel.weight_bytes)), fact("other", bytes(kernel.other_bytes)), fact("operations", power(kernel.operations)));
    const find = (name, otherwise) => kernel.stages.find((s) => s.name === name) || kernel.stages.find((s) => s.name === otherwise) || kernel.stages[0];
    const left = find(state.left, "kernel"), right = find(state.right, "source");
    const line = (stage) => (state.line !== undefined && state.of === stage.name ? number("line") : undefined);
    const pane = (name, stage, label) => make("div", { class: "pane" }, chooser(name, kernel.stages, stage, label), reader(textOf(stage), line(stage)));
    panel.replaceChildren(make("div", { class: "kernels" },
      make("div", { class: "names" }, ...rows),
      make("div", { class: "one" }, make("p", { class: "about" }, kernel.about), facts,
        ...(kernel.plans.length ? [make("details", { open: "" }, make("summary", {}, "Plan"), ...kernel.plans.map((plan) => make("code", { class: "plan" }, plan)))] : []),
        kernel.stages.length ? make("div", { class: "panes" }, pane("left", left, "Stage on the left"), pane("right", right, "Stage on the right")) : "")));
    panel.querySelector(".kernel.on")?.scrollIntoView({ block: "nearest" });
  },
});

panels.set("text", {
  title: "Text",
  count: () => shown().stages.length,
  draw(panel) {
    const stage = shown().stages.find((s) => s.name === state.stage) || shown().stages[0];
    if (!stage) return panel.replaceChildren(make("p", { class: "under" }, "No texts."));
    panel.replaceChildren(make("div", { class: "pane" }, chooser("stage", shown().stages, stage, "Stage"),
      reader(stage.text, state.line !== undefined && state.of === stage.name ? number("line") : undefined)));
  },
});
