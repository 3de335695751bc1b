// What is shown, which the address keeps: so a link leads to it, and the browser's arrows go back and forth.
const graphs = new Map();
const state = { function: 0, tab: "graph" };
// A time that the cost model says, not a clock.
const modelled = (seconds) => `${time(seconds)} modelled`;
const shown = () => data.functions[state.function];
function graph() {
  if (!graphs.has(state.function)) graphs.set(state.function, new FunctionGraph(shown()));
  return graphs.get(state.function);
}
// The panels by name, in the order of the tabs: `{ title, count, draw }`; each file of one adds its own.
const panels = new Map();
const short = (name) => name.split(".").slice(-2).join(".");

// The function whose calls take the most of a step: what the page begins with.
function costliest() {
  const cost = (f) => f.calls * f.seconds;
  return data.functions.reduce((most, f, at, all) => (cost(f) > cost(all[most]) ? at : most), 0);
}
function readAddress() {
  for (const name of Object.keys(state)) delete state[name];
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) state[name] = value;
  const named = data.functions.findIndex((f) => f.name === state.function);
  state.function = named < 0 ? costliest() : named;
  if (!panels.has(state.tab)) state.tab = "graph";
}
// Shows something else; undefined forgets.
function go(changes, replace = false) {
  const other = changes.function !== undefined && changes.function !== state.function;
  if (other) for (const name of Object.keys(state)) if (!["function", "tab", "left", "right"].includes(name)) delete state[name];
  Object.assign(state, changes);
  const words = Object.entries(state).filter(([, value]) => value !== undefined && value !== "");
  const address = new URLSearchParams(words.map(([name, value]) => [name, name === "function" ? shown().name : String(value)]));
  history[replace ? "replaceState" : "pushState"](null, "", "#" + address);
  draw();
}
const number = (name) => (state[name] === undefined ? undefined : Number(state[name]));
