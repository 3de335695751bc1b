//! Passes over tensor-level nodes.

use crate::case::Case;
use crate::context::{Context, encoding, layout};
use crate::judge::{Applied, Claim, Meaning, Tensors};
use crate::kernels::{Kernels, LaidOut, Linear, Lowered, ranges};
use crate::show::{self, Numbers};
use gristmill_compiler::testing::{
    self, Budget, Cheapest, Decider, Decision, Decomposed, Draft, Expander, FusionContext,
    MatmulVariants, Packing, Policy, Surroundings, TEMP, room,
};
use gristmill_uop::function::Function;
use gristmill_uop::program::Program;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, Scalar, text};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Write;

fn tensors(graph: Graph, outputs: Vec<(u32, Id)>) -> Meaning {
    Meaning::Tensors(Tensors { graph, outputs })
}

fn of_function(f: Function) -> Meaning {
    tensors(f.graph, f.outputs)
}

/// `%12 Reduce [16, 64]`
fn name(g: &Graph, numbers: &Numbers, id: Id) -> String {
    format!(
        "{} {} {}",
        numbers.name(g, id),
        g[id].op.name(),
        g.show_dims(&g.shape(id))
    )
}

/// With `rule: NAME`, all alternatives that this rule creates, which must compute the same.
///
/// Without it, the chosen alternative and the reason.
pub fn alternatives(case: &Case) -> Result<Applied, String> {
    alternatives_by(case, &testing::rules_of_tensors())
}

/// Like [`alternatives`], with the given rules.
pub fn alternatives_by(case: &Case, known: &[testing::Rule]) -> Result<Applied, String> {
    let c = Context::for_case(case)?;
    let before = of_function(c.function.clone());
    let Some(name) = case.get("rule") else {
        let plans = std::collections::BTreeMap::new();
        let mut decider = Decider {
            policy: &mut Cheapest,
            plans: &plans,
            log: vec![],
        };
        let (chosen, report) =
            testing::considered(&c.function, &c.target, &mut decider, known, Budget::USUAL);
        let chosen = chosen.unwrap_or(c.function);
        let roots: Vec<Id> = chosen.outputs.iter().map(|o| o.1).collect();
        let text = format!("{report}{}", text::print(&chosen.graph, &roots));
        return Ok(Applied {
            text,
            claim: Claim::same(before, of_function(chosen)),
        });
    };
    let rules: Vec<_> = known.iter().copied().filter(|r| r.name == name).collect();
    if rules.is_empty() {
        return Err(format!("no rule `{name}`"));
    }
    let written = c.roots;
    let forms = testing::every_form(&c.function, &c.target, &rules, 16);
    let others: Vec<Function> = forms
        .into_iter()
        .filter(|f| f.outputs.iter().map(|o| o.1).ne(written.clone()))
        .collect();
    if others.is_empty() {
        return Err(format!("`{name}` says nothing here"));
    }
    let print =
        |f: &Function| text::print(&f.graph, &f.outputs.iter().map(|o| o.1).collect::<Vec<_>>());
    let text = others.iter().map(print).collect::<Vec<_>>().join("\n");
    let all = std::iter::once(before)
        .chain(others.into_iter().map(of_function))
        .collect();
    Ok(Applied {
        text,
        claim: Claim::Same(all),
    })
}

/// Chooses the option of that name, or the cheapest.
struct Wanted<'a>(Option<&'a str>);

impl Policy for Wanted<'_> {
    fn choose(&mut self, decision: &Decision) -> usize {
        let named = |name| {
            decision
                .options
                .iter()
                .position(|o| o.name == name)
                .expect("an option of that name")
        };
        self.0.map_or_else(|| Cheapest.choose(decision), named)
    }
}

/// Chooses the option of that name where it is offered, else the cheapest.
struct Preferred<'a>(Option<&'a str>);

impl Policy for Preferred<'_> {
    fn choose(&mut self, decision: &Decision) -> usize {
        let named = |name| {
            decision
                .options
                .iter()
                .position(|option| option.name == name)
        };
        self.0
            .and_then(named)
            .unwrap_or_else(|| Cheapest.choose(decision))
    }
}

pub fn scan(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    testing::scan(&mut c.graph, &mut c.roots);
    let (text, outputs) = (text::print(&c.graph, &c.roots), c.outputs());
    Ok(Applied {
        text,
        claim: Claim::same(of_function(c.function), tensors(c.graph, outputs)),
    })
}

/// `form: in order` or `form: atomic`, or else the cheapest; `any_order: yes` permits any order.
pub fn scatter(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    c.target.any_order = case.get("any_order").is_some();
    let mut policy = Wanted(case.get("form"));
    let plans = std::collections::BTreeMap::new();
    let mut decider = Decider {
        policy: &mut policy,
        plans: &plans,
        log: vec![],
    };
    testing::scatter(
        &mut c.graph,
        &mut c.roots,
        &c.function,
        &c.target,
        &mut decider,
    );
    let told: Vec<String> = decider.log.iter().map(|d| d.explain() + "\n").collect();
    let text = told.concat() + &text::print(&c.graph, &c.roots);
    let outputs = c.outputs();
    Ok(Applied {
        text,
        claim: Claim::same(of_function(c.function), tensors(c.graph, outputs)),
    })
}

pub fn attention(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    let mut decider = Decider {
        policy: &mut Cheapest,
        plans: &c.target.plans,
        log: vec![],
    };
    testing::attention(
        &mut c.graph,
        &mut c.roots,
        &mut c.hints,
        &c.target,
        "case",
        &mut decider,
    );
    let numbers = Numbers::new(&c.graph, &c.roots);
    let text = text::print(&c.graph, &c.roots) + &show::hints(&c.graph, &numbers, &c.hints);
    let outputs = c.outputs();
    Ok(Applied {
        text,
        claim: Claim::same(of_function(c.function), tensors(c.graph, outputs)),
    })
}

/// `plan: factor: before`: the position of scale factors, where there is a decision.
pub fn factors(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    let plan = case.get("plan").map(str::to_string);
    let (mut planned, mut cheapest) = (Planned(plan.clone().unwrap_or_default()), Cheapest);
    let policy: &mut dyn Policy = if plan.is_some() {
        &mut planned
    } else {
        &mut cheapest
    };
    let mut decider = Decider {
        policy,
        plans: &c.target.plans,
        log: vec![],
    };
    testing::factors(
        &mut c.graph,
        &mut c.roots,
        &mut c.hints,
        &c.function,
        &c.target,
        &mut decider,
    );
    let numbers = Numbers::new(&c.graph, &c.roots);
    let told = show::decisions(&decider.log);
    let text = told + &text::print(&c.graph, &c.roots) + &show::hints(&c.graph, &numbers, &c.hints);
    let outputs = c.outputs();
    Ok(Applied {
        text,
        claim: Claim::same(of_function(c.function), tensors(c.graph, outputs)),
    })
}

pub fn encode_queries(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    let changed = testing::encode_queries(&mut c.graph, &mut c.roots, &c.target);
    let text = format!("changed: {changed}\n{}", text::print(&c.graph, &c.roots));
    let outputs = c.outputs();
    Ok(Applied {
        text,
        claim: Claim::same(of_function(c.function), tensors(c.graph, outputs)),
    })
}

/// Chooses the option of this plan where it is offered, else the first.
struct Planned(String);

impl Policy for Planned {
    fn choose(&mut self, decision: &Decision) -> usize {
        decision
            .options
            .iter()
            .position(|option| option.plan == self.0)
            .unwrap_or(0)
    }
}

/// `plan: product: floats`: the variant of contractions, where it is legal.
pub fn int8(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    let layouts = testing::layouts_of(&c.function, &c.target);
    let mut policy = Planned(case.get("plan").unwrap_or_default().to_string());
    let mut decider = Decider {
        policy: &mut policy,
        plans: &c.target.plans,
        log: vec![],
    };
    let mut forms = MatmulVariants::new("case", &c.target, &mut decider);
    c.derived = testing::int8(
        &mut c.graph,
        &mut c.roots,
        &mut c.hints,
        layouts,
        &mut forms,
    );
    let (g, derived, all) = (&c.graph, &c.derived, c.all());
    let numbers = Numbers::new(g, &all);
    let mut lines: Vec<String> = Vec::new();
    for (slot, (layout, _)) in &derived.layouts {
        lines.push(format!("slot {slot} as {layout:?}"));
    }
    for (&node, d) in &derived.dots {
        let sums = d.s.map_or("none".to_string(), |(s, zero)| {
            format!("{} times {zero}", numbers.name(g, s))
        });
        let [block, unit, group] = d.sizes;
        let (node, q) = (numbers.name(g, node), numbers.name(g, d.q));
        lines.push(format!(
            "integers {node}: codes {q}, their sums {sums}, {block} a block, {unit} a unit, {group} a group"
        ));
    }
    for (&node, n) in &derived.planes {
        lines.push(format!("plane {}: {n} together", numbers.name(g, node)));
    }
    lines.sort();
    let text = format!(
        "{}{}",
        text::print(g, &all),
        lines.iter().map(|l| format!("{l}\n")).collect::<String>()
    );
    let text = text + &show::hints(g, &numbers, &c.hints);
    let outputs = c.outputs();
    Ok(Applied {
        text,
        claim: Claim::same(of_function(c.function), tensors(c.graph, outputs)),
    })
}

/// `factor: 0.5`, one root: its parts, whose sum is `factor` times the root.
pub fn f16_split(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let &[root] = &p.roots[..] else {
        return Err("one root".into());
    };
    let factor = case.parsed::<f64>("factor")?.unwrap_or(1.0);
    let mut g = p.graph;
    let (are, rounded) = (testing::are_halves(&g, root), testing::rounded(&g, root));
    let parts = testing::f16_split(&mut g, root, factor);
    let text = format!(
        "read from halves: {are}, rounded to halves: {rounded}\n{}",
        text::print(&g, &[parts.all])
    );
    let wide = g.cast(parts.all, Scalar::F32);
    let axis = g.shape(wide).len() - 2;
    let sum = g.sum(wide, &[axis]);
    let times = g.constant(Scalar::F32, factor);
    let want = g.mul(root, times);
    Ok(Applied {
        text,
        claim: Claim::same(
            tensors(g.clone(), vec![(100, want)]),
            tensors(g, vec![(100, sum)]),
        ),
    })
}

pub fn candidates(case: &Case) -> Result<Applied, String> {
    let c = Context::for_case(case)?;
    let found = testing::candidates(&c.graph, &c.roots, &c.hints, &c.derived);
    let numbers = Numbers::new(&c.graph, &c.all());
    let mut out = String::new();
    for n in found.nodes {
        let forced = if found.forced.contains(&n) {
            ", needs a buffer"
        } else {
            ""
        };
        let _ = writeln!(out, "{}{forced}", name(&c.graph, &numbers, n));
    }
    Ok(Applied {
        text: out,
        claim: Claim::Text,
    })
}

/// Lowers one root to a kernel-level expression.
///
/// `buffers: %3 %5` are materialised; `buffers: planes` materialises the nodes that the previous
/// pass marked.
pub fn rangeify(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    let &[root] = &c.roots[..] else {
        return Err("one root".into());
    };
    let nodes = match case.get("buffers").unwrap_or_default() {
        "planes" => {
            let mut all: Vec<Id> = c.derived.planes.keys().copied().collect();
            all.sort_unstable();
            all
        }
        words => c.parsed.named(words)?,
    };
    let mut g = std::mem::take(&mut c.graph);
    let mut filled = Vec::new();
    let mut buffers = FxHashMap::default();
    for (i, &n) in nodes.iter().enumerate() {
        let slot = TEMP + i as u32;
        let scalar = g.scalar(n);
        filled.push((slot, n));
        buffers.insert(n, g.param(slot, &[], scalar));
    }
    let none = FxHashSet::default();
    let mut x = Expander::new(&buffers, &none, &c.derived);
    let dims = g.shape(root);
    let mut index = Vec::new();
    for &d in &dims {
        let bound = x.dim(&mut g, d);
        index.push(x.ranges.range(&mut g, bound, RangeKind::Loop));
    }
    let value = x.compute(&mut g, root, &index);
    let at = testing::flatten(&mut g, &dims, &index);
    let (slot, scalar) = (c.outputs()[0].0, g.scalar(root));
    let out = g.param(slot, &[], scalar);
    let closed: Vec<Id> = index
        .into_iter()
        .filter(|&r| g[r].op == Op::Range)
        .collect();
    let nest = g.store(out, at, value, &closed);
    let text = show::nests(&g, &[nest]);
    let before = tensors(g.clone(), vec![(slot, root)]);
    let layouts = c.laid_out();
    Ok(Applied {
        text,
        claim: Claim::same(
            before,
            Meaning::Kernels(Kernels {
                layouts,
                filled,
                ..Kernels::new(g, vec![nest])
            }),
        ),
    })
}

/// A buffer for each candidate, as in `schedule`.
fn buffers(c: &mut Context, nodes: &[Id]) -> FxHashMap<Id, Id> {
    let outputs = c.outputs();
    let g = &mut c.graph;
    let mut out = FxHashMap::default();
    for (i, &n) in nodes.iter().enumerate() {
        let mut base = n;
        while g[base].op == Op::Assign {
            base = g[base].src[0];
        }
        let own = outputs
            .iter()
            .find(|o| o.1 == n)
            .map_or(TEMP + i as u32, |o| o.0);
        let scalar = g.scalar(n);
        let buffer = if base == n {
            g.param(own, &[], scalar)
        } else {
            base
        };
        out.insert(n, buffer);
    }
    out
}

fn shown(g: &Graph, numbers: &Numbers, d: &Draft) -> String {
    let mut all = d.nests.clone();
    all.extend(d.when.skip.iter().chain(&d.when.prologue));
    let (g_of_kernel, roots) = show::stripped(g, &all);
    let mut text = String::new();
    for (i, &s) in d.stages.iter().enumerate() {
        let _ = writeln!(text, "stage {i}: {}", name(g, numbers, s));
    }
    let mut when = d.when;
    let mut conditions = roots[d.nests.len()..].iter().copied();
    when.skip = when.skip.and_then(|_| conditions.next());
    when.prologue = when.prologue.and_then(|_| conditions.next());
    let of_kernel = Numbers::new(&g_of_kernel, &roots);
    text + &show::when(&g_of_kernel, &of_kernel, &when) + &text::print(&g_of_kernel, &roots)
}

/// The kernel of one root, or of `kernel: %7`, with `fused: %3 %5` inside it.
///
/// `fused: asked` fuses what derivations ask for; all other candidates are materialised.
pub fn cut(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    let found = testing::candidates(&c.graph, &c.roots, &c.hints, &c.derived);
    let fused: Vec<Id> = match case.get("fused").unwrap_or_default() {
        "asked" => {
            let asked: Vec<Id> = c.hints.values().flat_map(|h| h.inside.clone()).collect();
            found
                .nodes
                .iter()
                .copied()
                .filter(|n| asked.contains(n))
                .collect()
        }
        words => c.parsed.named(words)?,
    };
    if let Some(n) = fused.iter().find(|n| !found.nodes.contains(n)) {
        return Err(format!(
            "{} is no candidate",
            text::print_node(&c.graph, *n)
        ));
    }
    let root = match case.get("kernel") {
        Some("hinted") => *c.hints.keys().max().ok_or("no hint")?,
        Some(words) => c.parsed.named(words)?[0],
        None => c.roots[0],
    };
    let mut all = buffers(&mut c, &found.nodes);
    let set: FxHashSet<Id> = fused.iter().copied().collect();
    all.retain(|n, _| !set.contains(n));
    let mut g = std::mem::take(&mut c.graph);
    let around = Surroundings {
        buffers: &all,
        fused: &set,
        order: &found.order,
        hints: &c.hints,
        derived: &c.derived,
        target: &c.target,
        room: room(&c.target),
        smaller: false,
        plan: None,
        stages: None,
    };
    let numbers = Numbers::new(&g, &c.all());
    let draft = match testing::cut(&mut g, root, &around) {
        Ok(draft) => draft,
        Err(illegal) => {
            return Ok(Applied {
                text: format!("not legal: {illegal:?}\n"),
                claim: Claim::Text,
            });
        }
    };
    let text = shown(&g, &numbers, &draft);
    let slot = |n: Id| match g[all[&n]].arg {
        Arg::Param(slot) => slot,
        _ => unreachable!("a buffer is plain"),
    };
    let reads = |b: Id| {
        draft
            .nests
            .iter()
            .any(|&n| g.any(n, |_, m| m.op == Op::Load && m.src[0] == b))
    };
    let filled: Vec<(u32, Id)> = found
        .nodes
        .iter()
        .filter(|&&n| n != root && all.get(&n).is_some_and(|&b| reads(b)))
        .map(|&n| (slot(n), n))
        .collect();
    let before = tensors(g.clone(), vec![(slot(root), root)]);
    let layouts = c.laid_out();
    let nests = draft.nests.clone();
    let kernels = Kernels {
        layouts,
        filled,
        ..Kernels::new(g, nests)
    };
    Ok(Applied {
        text,
        claim: Claim::same(before, Meaning::Kernels(kernels)),
    })
}

/// Slots of temporaries, which are not slots of the function.
fn temporary(g: &Graph, launches: &[Vec<Vec<Id>>]) -> Vec<u32> {
    let nests = launches.iter().flatten().flatten();
    nests
        .filter_map(|&n| crate::memory::slot(g, g[n].src[0]))
        .filter(|&s| s >= TEMP)
        .collect()
}

/// `prefer: reuse` takes that option wherever it is offered, at any cost.
pub fn materialise(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    let found = testing::candidates(&c.graph, &c.roots, &c.hints, &c.derived);
    let all = buffers(&mut c, &found.nodes);
    let numbers = Numbers::new(&c.graph, &c.all());
    let before = tensors(c.graph.clone(), c.outputs());
    let mut g = std::mem::take(&mut c.graph);
    let mut policy = Preferred(case.get("prefer"));
    let mut decider = Decider {
        policy: &mut policy,
        plans: &c.target.plans,
        log: vec![],
    };
    let sites = testing::sites(&g, &c.function.full_name(), &found.nodes);
    let problem = FusionContext {
        candidates: &found,
        buffers: &all,
        sites: &sites,
        hints: &c.hints,
        derived: &c.derived,
        target: &c.target,
        smaller: false,
    };
    let placed = testing::materialise(&mut g, problem, &mut decider);
    let mut text = show::decisions(&decider.log);
    for (draft, _) in &placed.kernels {
        let stages: Vec<String> = draft
            .stages
            .iter()
            .map(|&s| name(&g, &numbers, s))
            .collect();
        let stages = if stages.is_empty() {
            "no stage".into()
        } else {
            format!("stages {}", stages.join(", "))
        };
        let _ = write!(
            text,
            "kernel {}: {} nests, {stages}",
            name(&g, &numbers, draft.root),
            draft.nests.len()
        );
        let (inside, outside) = placed.reads.cut(draft.root, &placed.fusion);
        for (what, nodes) in [("computes", inside), ("reads", outside)]
            .into_iter()
            .filter(|of| !of.1.is_empty())
        {
            let _ = write!(text, ", {what} {}", numbers.names(&g, &nodes));
        }
        text.push('\n');
    }
    let mut fused: Vec<String> = found
        .nodes
        .iter()
        .filter(|n| placed.fusion.everywhere.contains(n))
        .map(|&n| name(&g, &numbers, n))
        .collect();
    fused.sort();
    fused
        .iter()
        .for_each(|f| text += &format!("inside its readers {f}\n"));
    let launches: Vec<Vec<Vec<Id>>> = placed
        .kernels
        .iter()
        .map(|k| vec![k.0.nests.clone()])
        .collect();
    let (between, layouts) = (temporary(&g, &launches), c.laid_out());
    let kernels = Kernels {
        graph: g,
        launches,
        layouts,
        filled: vec![],
        between,
    };
    Ok(Applied {
        text,
        claim: Claim::same(before, Meaning::Kernels(kernels)),
    })
}

pub fn schedule(case: &Case) -> Result<Applied, String> {
    let mut c = Context::for_case(case)?;
    let numbers = Numbers::new(&c.graph, &c.all());
    let outputs = c.outputs();
    let before = tensors(c.graph.clone(), outputs.clone());
    let g = std::mem::take(&mut c.graph);
    let mut policy = Cheapest;
    let mut decider = Decider {
        policy: &mut policy,
        plans: &c.target.plans,
        log: vec![],
    };
    let of = Decomposed {
        function: &c.function,
        outputs: &outputs,
        hints: &c.hints,
        derived: &c.derived,
    };
    let s = testing::schedule(&of, g, &c.target, &mut decider);
    decider.log.retain(|d| d.kind == "merge");
    let mut text = show::decisions(&decider.log);
    for launch in &s.launches {
        let roots: Vec<String> = launch
            .bodies
            .iter()
            .filter_map(|b| b.root)
            .map(|r| name(&s.graph, &numbers, r))
            .collect();
        let _ = writeln!(text, "level {}: {}", launch.level, roots.join(" beside "));
    }
    for (bytes, at) in &s.temps {
        let _ = writeln!(text, "intermediate of {bytes} bytes at {at}");
    }
    let _ = writeln!(text, "arena of {} bytes", s.arena);
    let launches: Vec<Vec<Vec<Id>>> = s
        .launches
        .iter()
        .map(|l| l.bodies.iter().map(|b| b.nests.clone()).collect())
        .collect();
    let (between, layouts) = (temporary(&s.graph, &launches), c.laid_out());
    let kernels = Kernels {
        graph: s.graph,
        launches,
        layouts,
        filled: vec![],
        between,
    };
    Ok(Applied {
        text,
        claim: Claim::same(before, Meaning::Kernels(kernels)),
    })
}

pub fn decisions(case: &Case) -> Result<Applied, String> {
    let c = Context::for_case(case)?;
    let compiled = testing::compile(&c.function, &c.target, None, &mut Cheapest);
    Ok(Applied {
        text: show::decisions(&compiled.decisions),
        claim: Claim::Text,
    })
}

/// Runs all passes up to linear code.
pub fn pipeline(case: &Case) -> Result<Applied, String> {
    let c = Context::for_case(case)?;
    let compiled = testing::compile(&c.function, &c.target, None, &mut Cheapest);
    let (mut g, mut launches, mut text) = (Graph::new(), Vec::new(), String::new());
    let mut lowered = Vec::new();
    for (program, level) in compiled.programs.iter().zip(&compiled.levels) {
        let _ = writeln!(text, "level {level}: {}", program.notes.join(", "));
        let (own, code) = testing::lower_program(program, &c.target);
        text += &show::renumbered(&testing::print_kernel(&own, &code));
        lowered.push(Lowered {
            program: Program::clone(program),
            graph: own,
            code,
        });
        let mut of = Vec::new();
        for body in program.graph[program.root].src.clone() {
            let nests = program.graph[body].src.to_vec();
            let mut map = FxHashMap::default();
            of.push(
                nests
                    .iter()
                    .map(|&n| interned(&program.graph, &mut g, n, &mut map))
                    .collect(),
            );
        }
        launches.push(of);
    }
    let meaning = testing::meaning(&c.function, &c.target, &compiled.decisions)
        .unwrap_or_else(|| c.function.clone());
    let between = temporary(&g, &launches);
    let laid_out = |(slot, layout): &(u32, testing::Layout)| {
        let info = &c.function.slots[*slot as usize];
        let gristmill_uop::function::Storage::Packed(encoding) = info.storage else {
            unreachable!("packed")
        };
        LaidOut {
            slot: *slot,
            encoding,
            layout: *layout,
            dims: info.dims.clone(),
        }
    };
    let layouts = compiled.layouts.iter().map(laid_out).collect();
    let kernels = Kernels {
        graph: g,
        launches,
        layouts,
        filled: vec![],
        between,
    };
    let linear = Linear {
        kernels: lowered,
        nests: kernels.clone(),
    };
    let all = vec![
        of_function(meaning),
        Meaning::Kernels(kernels),
        Meaning::Linear(linear),
    ];
    Ok(Applied {
        text,
        claim: Claim::Same(all),
    })
}

fn interned(from: &Graph, to: &mut Graph, root: Id, map: &mut FxHashMap<Id, Id>) -> Id {
    for id in from.toposort(&[root]) {
        if !map.contains_key(&id) {
            let src = from[id].src.iter().map(|s| map[s]).collect();
            let new = to.intern(gristmill_uop::Node {
                src,
                ..from[id].clone()
            });
            map.insert(id, new);
        }
    }
    map[&root]
}

/// Elements of a weight in a layout, at the row and column of the two roots.
pub fn layout_of(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let &[row, k] = &p.roots[..] else {
        return Err("two roots: a row and an element of it".into());
    };
    let mut g = p.graph;
    let (after, claim) = same_elements(case, &mut g, row, k)?;
    Ok(Applied {
        text: text::print(&g, &[after]),
        claim,
    })
}

/// The element as read in the layout, and the claim that it equals the file's.
fn same_elements(case: &Case, g: &mut Graph, row: Id, k: Id) -> Result<(Id, Claim), String> {
    let (e, layout) = (
        encoding(case)?,
        layout(case.get("layout").ok_or("no `layout`")?)?,
    );
    let columns = case.parsed::<i64>("columns")?.ok_or("no `columns`")?;
    let packing = Packing::for_encoding(e).ok_or("a format that is not taken apart")?;
    let file = g.packed(0, &[columns], e);
    let (elements, bytes) = (g.int(e.elements as i64), g.int(e.bytes as i64));
    let row_bytes = g.int(columns / e.elements as i64 * e.bytes as i64);
    let (block, within) = (g.idiv(k, elements), g.modulo(k, elements));
    let (start, block) = (g.mul(row, row_bytes), g.mul(block, bytes));
    let base = g.add(start, block);
    let before = e.decode(g, file, base, within);
    let packed = g.intern(gristmill_uop::Node {
        src: Default::default(),
        ..g[file].clone()
    });
    let place = packing.place(g, layout, row, k, columns);
    let after = packing.decode(g, packed, &place);
    let rows = g.max_of(row) + 1;
    let dims = vec![
        (rows as u64).next_multiple_of(layout.lanes() as u64) as i64,
        columns,
    ];
    let laid_out = LaidOut {
        slot: 0,
        encoding: e,
        layout,
        dims,
    };
    let all = ranges(g, &[row, k]);
    let old = Kernels::of_values(g.clone(), &[before], &all);
    let new = Kernels {
        layouts: vec![laid_out],
        ..Kernels::of_values(g.clone(), &[after], &all)
    };
    Ok((
        after,
        Claim::same(Meaning::Kernels(old), Meaning::Kernels(new)),
    ))
}

/// The repacking kernel: elements read in the new layout must equal those of the file.
pub fn prepack(case: &Case) -> Result<Applied, String> {
    let (e, target) = (encoding(case)?, case.target()?);
    let layout = layout(case.get("layout").ok_or("no `layout`")?)?;
    let columns = case.parsed::<i64>("columns")?.ok_or("no `columns`")?;
    let packing = Packing::for_encoding(e).ok_or("a format that is not taken apart")?;
    let rows = testing::PackedRows {
        encoding: e,
        packing: &packing,
        layout,
        columns: columns as usize,
    };
    let program = testing::prepack(&rows, &target, None);
    let mut g = Graph::new();
    let [rows, all] = [3 * layout.lanes(), columns].map(|n| g.int(n));
    let (row, k) = (
        g.range(rows, 1, RangeKind::Loop),
        g.range(all, 2, RangeKind::Loop),
    );
    let (_, claim) = same_elements(case, &mut g, row, k)?;
    let bodies = program.graph[program.root].src.clone();
    let nests: Vec<Id> = bodies
        .iter()
        .flat_map(|&b| program.graph[b].src.to_vec())
        .collect();
    Ok(Applied {
        text: text::print(&program.graph, &nests),
        claim,
    })
}

/// Memory planning of lifetimes, one per line: `BYTES from LEVEL to LEVEL`.
pub fn memory(case: &Case) -> Result<Applied, String> {
    let mut lives = Vec::new();
    for line in case.input.lines().filter(|l| !l.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |w: &str| {
            w.parse::<usize>()
                .map_err(|_| format!("`{w}` is no number"))
        };
        let [bytes, "from", from, "to", to] = words[..] else {
            return Err(format!("`{line}` is no life"));
        };
        lives.push(testing::Lifetime {
            bytes: number(bytes)?,
            from: number(from)?,
            to: number(to)?,
        });
    }
    let (at, total) = testing::memory(&lives, 1);
    for (i, a) in lives.iter().enumerate() {
        for (j, b) in lives.iter().enumerate().take(i) {
            let alive = a.from <= b.to && b.from <= a.to;
            if alive && at[i] < at[j] + b.bytes && at[j] < at[i] + a.bytes {
                return Err(format!(
                    "{i} and {j} share bytes and are alive at the same time"
                ));
            }
        }
    }
    let line = |(l, at): (&testing::Lifetime, &usize)| format!("{} bytes at {at}\n", l.bytes);
    let text: String = lives.iter().zip(&at).map(line).collect();
    Ok(Applied {
        text: format!("{text}arena of {total} bytes\n"),
        claim: Claim::Text,
    })
}
