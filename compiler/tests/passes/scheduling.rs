//! Passes that form kernels of tensor-level nodes: fusion, scheduling and memory planning.

use crate::case::Case;
use crate::context::Context;
use crate::judge::{Applied, Claim, Meaning};
use crate::kernels::{Kernels, LaidOut, Linear, Lowered};
use crate::show::{self, Numbers};
use crate::tensors::{name, of_function, tensors};
use gristmill_compiler::testing::{
    self, Cheapest, Decider, Decision, Decomposed, Draft, DraftContext, Expander, FusionContext,
    Policy, TEMP, resident_workgroups,
};
use gristmill_uop::program::Program;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, text};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Write;

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
    let around = DraftContext {
        buffers: &all,
        fused: &set,
        order: &found.order,
        hints: &c.hints,
        derived: &c.derived,
        target: &c.target,
        max_workgroups: resident_workgroups(&c.target),
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
        compared: false,
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
        text += &testing::renumbered(&testing::print_kernel(&own, &code));
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
