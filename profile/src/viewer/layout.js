// Where nodes are drawn: in layers, users below what they read, each near its neighbours.
const BOX = { width: 172, height: 40, across: 16, down: 34 };
// Rounds in which layers are sorted by their neighbours: more change little.
const SORTS = 6;

function layout(numbers, nodes) {
  const place = new Map(numbers.map((number, i) => [number, i]));
  const sources = numbers.map((number) => nodes.get(number).sources.map((s) => place.get(s)).filter((s) => s !== undefined));
  const users = numbers.map(() => []);
  sources.forEach((list, i) => list.forEach((s) => users[s].push(i)));
  const layers = intoLayers(sources, users);
  const x = new Float64Array(numbers.length), y = new Float64Array(numbers.length);
  const step = BOX.width + BOX.across;
  layers.forEach((layer, at) => layer.forEach((i, n) => { x[i] = n * step; y[i] = at * (BOX.height + BOX.down); }));
  for (let round = 0; round < SORTS; round++) {
    const down = round % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) settle(layer, down ? sources : users, x, step);
  }
  const least = numbers.length ? Math.min(...layers.map((layer) => x[layer[0]])) : 0;
  for (let i = 0; i < x.length; i++) x[i] -= least;
  const width = Math.max(0, ...layers.map((layer) => x[layer[layer.length - 1]])) + BOX.width;
  return { numbers, place, sources, users, layers, x, y, width, height: layers.length * (BOX.height + BOX.down) - BOX.down };
}

// A node is below all that it reads; what nothing comes before stands just above its first user.
function intoLayers(sources, users) {
  const layer = sources.map(() => 0);
  sources.forEach((list, i) => list.forEach((s) => { layer[i] = Math.max(layer[i], layer[s] + 1); }));
  sources.forEach((list, i) => {
    if (!list.length && users[i].length) layer[i] = users[i].reduce((least, u) => Math.min(least, layer[u]), Infinity) - 1;
  });
  const layers = [];
  layer.forEach((at, i) => (layers[at] ||= []).push(i));
  return layers.filter(Boolean);
}

// Sorts a layer by where its neighbours stand, and moves its nodes there as far as they have room.
function settle(layer, neighbours, x, step) {
  const want = new Map(layer.map((i) => {
    const near = neighbours[i];
    return [i, near.length ? near.reduce((sum, n) => sum + x[n], 0) / near.length : x[i]];
  }));
  layer.sort((a, b) => want.get(a) - want.get(b));
  // From the left each as far left as it wants and can; then the whole layer back by what that pushed it to the right.
  let next = -Infinity, pushed = 0;
  for (const i of layer) {
    x[i] = Math.max(want.get(i), next);
    pushed += x[i] - want.get(i);
    next = x[i] + step;
  }
  pushed /= layer.length;
  for (const i of layer) x[i] -= pushed;
}
