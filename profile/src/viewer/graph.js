// The graph of a function after each of its passes. Nothing here draws.
class FunctionGraph {
  constructor(of) {
    this.passes = of.passes;
    this.nodes = new Map();
    for (const [number, op, dtype, shape, argument, sources] of of.nodes) {
      this.nodes.set(number, { number, op: data.ops[op], dtype, shape, argument, sources });
    }
    this.orders = new Map();
    this.changes = new Map();
  }
  // The nodes that these depend on, sources before their users.
  reach(roots) {
    const order = [], seen = new Set(), stack = [];
    for (const root of roots) {
      if (seen.has(root) || !this.nodes.has(root)) continue;
      seen.add(root);
      stack.push([root, 0]);
      while (stack.length) {
        const top = stack[stack.length - 1];
        const source = this.nodes.get(top[0]).sources[top[1]++];
        if (source === undefined) {
          order.push(top[0]);
          stack.pop();
        } else if (!seen.has(source) && this.nodes.has(source)) {
          seen.add(source);
          stack.push([source, 0]);
        }
      }
    }
    return order;
  }
  // Nodes after the pass of that place.
  after(place) {
    if (!this.orders.has(place)) this.orders.set(place, this.reach(this.passes[place].roots));
    return this.orders.get(place);
  }
  // What a pass made of the graph before it: all nodes of both, and which are new and which have gone.
  change(place) {
    if (!this.changes.has(place)) this.changes.set(place, this.compare(place));
    return this.changes.get(place);
  }
  compare(place) {
    const before = new Set(place ? this.after(place - 1) : []), after = new Set(this.after(place));
    const roots = place ? [...this.passes[place].roots, ...this.passes[place - 1].roots] : this.passes[place].roots;
    const all = this.reach(roots);
    return {
      all,
      added: new Set(place ? all.filter((n) => !before.has(n)) : []),
      removed: new Set(all.filter((n) => !after.has(n))),
    };
  }
  users(numbers) {
    const users = new Map();
    for (const number of numbers) {
      for (const source of this.nodes.get(number).sources) {
        if (!users.has(source)) users.set(source, []);
        if (!users.get(source).includes(number)) users.get(source).push(number);
      }
    }
    return users;
  }
  // What a node is called where it is an operand.
  operand(number) {
    const node = this.nodes.get(number);
    if (!node) return `%${number}`;
    if (node.op[0] === "Const") return node.argument;
    return `%${number}`;
  }
  // What a node reads, but for numbers that its shape says already.
  operands(node) {
    const dims = (node.op[1] === "movement" && node.op[0] !== "Shrink") || node.op[1] === "source";
    return dims ? node.sources.filter((s) => this.nodes.get(s)?.op[0] !== "Const") : node.sources;
  }
  // A node in a line, as the text form has it, with its dims.
  line(number) {
    const node = this.nodes.get(number);
    const parts = [node.op[0], node.dtype, node.shape, ...this.operands(node).map((s) => this.operand(s)), node.argument];
    return parts.filter((part) => part !== "").join(" ");
  }
}
// Leaves that everything reads: edges to them would hide all others, so they stand in the nodes that read them.
const isLeaf = (node) => ["Const", "Var", "Range"].includes(node.op[0]);
function leafName(node) {
  if (node.op[0] === "Range") return "r" + (/range=(\d+)/.exec(node.argument) || [])[1];
  if (node.op[0] === "Var") return (/var=(\S+)/.exec(node.argument) || [])[1];
  return node.argument;
}
