// Where nodes are drawn: in layers, users below what they read, each near its neighbours.
const BOX = { width: 172, height: 40, across: 16, down: 34 };
// Room of a line that passes a layer, and most places where lines do: with more they go straight.
const LINE = 14, MOST_BENDS = 30000;
// Rounds in which layers are sorted by their neighbours: more change little.
const SORTS = 6;

function layout(numbers, nodes) {
  const place = new Map(numbers.map((number, i) => [number, i]));
  const sources = numbers.map((number) => nodes.get(number).sources.map((s) => place.get(s)).filter((s) => s !== undefined));
  const users = numbers.map(() => []);
  sources.forEach((list, i) => list.forEach((s) => users[s].push(i)));
  const layers = intoLayers(sources, users), level = [];
  layers.forEach((layer, at) => layer.forEach((i) => { level[i] = at; }));
  const bends = bend(layers, level, sources, users);
  const half = (i) => (i < numbers.length ? (BOX.width + BOX.across) / 2 : LINE / 2);
  const middle = new Float64Array(level.length), y = new Float64Array(level.length);
  layers.forEach((layer, at) => {
    let next = 0;
    for (const i of layer) {
      middle[i] = next + half(i);
      next = middle[i] + half(i);
      y[i] = at * (BOX.height + BOX.down);
    }
  });
  for (let round = 0; round < SORTS; round++) {
    const down = round % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) settle(layer, down ? bends.above : bends.below, middle, half);
  }
  const sides = layers.map((layer) => [middle[layer[0]] - half(layer[0]), middle[layer.at(-1)] + half(layer.at(-1))]);
  const least = Math.min(...sides.map(([left]) => left)), most = Math.max(...sides.map(([, right]) => right));
  const x = middle.map((at) => at - least - (BOX.width + BOX.across) / 2);
  const width = numbers.length ? most - least - BOX.across : 0;
  return { numbers, place, sources, users, layers, level, chains: bends.chains, x, y, width, height: layers.length * (BOX.height + BOX.down) - BOX.down };
}

// Where lines pass layers between two nodes they have places of their own, numbered behind the nodes, so that none is hidden by a box. All lines
// of a node share theirs. `chains` has them by node, from its own layer down; `above` and `below` are the neighbours that all are sorted by.
function bend(layers, level, sources, users) {
  const chains = new Map(), above = sources.map(() => []), below = sources.map(() => []);
  const lowest = users.map((list, i) => list.reduce((most, u) => Math.max(most, level[u]), level[i]));
  const many = lowest.reduce((sum, low, i) => sum + Math.max(0, low - level[i] - 1), 0) > MOST_BENDS;
  const join = (from, to) => { (below[from] ||= []).push(to); (above[to] ||= []).push(from); };
  lowest.forEach((low, i) => {
    const chain = [i];
    for (let at = level[i] + 1; at < low && !many; at++) {
      const own = level.push(at) - 1;
      layers[at].push(own);
      join(chain.at(-1), own);
      chain.push(own);
    }
    chains.set(i, chain);
    for (const u of users[i]) join(chain[Math.min(level[u] - level[i], chain.length) - 1] ?? i, u);
  });
  level.forEach((_, i) => { above[i] ||= []; below[i] ||= []; });
  return { chains, above, below };
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
function settle(layer, neighbours, middle, half) {
  const want = new Map(layer.map((i) => {
    const near = neighbours[i];
    return [i, near.length ? near.reduce((sum, n) => sum + middle[n], 0) / near.length : middle[i]];
  }));
  layer.sort((a, b) => want.get(a) - want.get(b));
  // From the left each as far left as it wants and can; then the whole layer back by what that pushed it to the right.
  let next = -Infinity, pushed = 0;
  for (const i of layer) {
    middle[i] = Math.max(want.get(i), next + half(i));
    pushed += middle[i] - want.get(i);
    next = middle[i] + half(i);
  }
  pushed /= layer.length;
  for (const i of layer) middle[i] -= pushed;
}
