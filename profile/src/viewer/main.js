// The frame: functions, tabs, and the beginning.
function drawFunctions() {
  // Steps of one token and of many are not compared: a function's name ends in what its steps are.
  const steps = (f) => f.name.replace(/ \(\d+\)$/, "").split(".").pop();
  const most = (f) => Math.max(...data.functions.filter((other) => steps(other) === steps(f)).map((f) => f.seconds * f.calls), 1e-12);
  const entry = (f, at) => make("button", { class: at === state.function ? "on" : "", "aria-current": at === state.function, onclick: () => go({ function: at }), title: f.name },
    make("b", {}, f.name),
    make("small", {}, `${f.calls} × ${modelled(f.seconds)} · ${f.kernels.length} ${f.kernels.length === 1 ? "kernel" : "kernels"}`),
    make("span", { class: "meter" }, make("i", { style: `width:${(100 * f.seconds * f.calls) / most(f)}%` })));
  $("functions").replaceChildren(...data.functions.map(entry));
  $("choose").replaceChildren(...data.functions.map((f, at) => make("option", { value: at }, f.name)));
  $("choose").value = state.function;
}
function drawHead() {
  const f = shown();
  $("head").replaceChildren(make("h2", {}, f.name,
    make("small", {}, `${f.calls} ${f.calls === 1 ? "call" : "calls"} a step, ${modelled(f.seconds)} each · intermediates ${bytes(f.arena)}`)));
}
function drawTabs() {
  const names = [...panels.keys()];
  const tab = ([name, panel]) => make("button", {
    class: name === state.tab ? "on" : "", role: "tab", id: `tab-${name}`, "aria-selected": name === state.tab, "aria-controls": "panel",
    tabindex: name === state.tab ? 0 : -1, onclick: () => go({ tab: name }),
    onkeydown: (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      go({ tab: names[(names.indexOf(name) + by + names.length) % names.length] });
      $(`tab-${state.tab}`).focus();
    },
  }, panel.title, make("small", {}, ` ${panel.count()}`));
  $("tabs").replaceChildren(...[...panels].map(tab));
  $("panel").setAttribute("aria-labelledby", `tab-${state.tab}`);
}
let drawn = "";
function draw() {
  const focused = document.activeElement?.id;
  drawFunctions();
  drawHead();
  drawTabs();
  $("panel").className = state.tab;
  panels.get(state.tab).draw($("panel"));
  if (focused && focused.startsWith("tab-")) $(focused)?.focus();
  const now = `${state.function}`;
  if (now !== drawn) $("functions").querySelector(".on")?.scrollIntoView({ block: "nearest" });
  drawn = now;
}

$("model").textContent = data.model;
$("machine").textContent = data.machine;
$("choose").addEventListener("change", () => go({ function: Number($("choose").value) }));
addEventListener("popstate", () => { readAddress(); draw(); });
readAddress();
if (data.functions.length) draw(); else $("head").append(make("p", {}, "No functions."));
