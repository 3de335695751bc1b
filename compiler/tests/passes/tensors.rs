//! Passes over tensor-level nodes.

use crate::case::Case;
use crate::context::Context;
use crate::judge::{Applied, Claim, Meaning, Tensors};
use crate::show::{self, Numbers};
use gristmill_compiler::testing::{
    self, Budget, Cheapest, Decider, Decision, MatmulVariants, Policy,
};
use gristmill_uop::function::Function;
use gristmill_uop::{Graph, Id, Scalar, text};

pub fn tensors(graph: Graph, outputs: Vec<(u32, Id)>) -> Meaning {
    Meaning::Tensors(Tensors { graph, outputs })
}

pub fn of_function(f: Function) -> Meaning {
    tensors(f.graph, f.outputs)
}

/// `%12 Reduce [16, 64]`
pub fn name(g: &Graph, numbers: &Numbers, id: Id) -> String {
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

/// Attentions over dequantised rows, which are offered as another form of the function.
pub fn dequantise_rows(case: &Case) -> Result<Applied, String> {
    let c = Context::for_case(case)?;
    let found = testing::dequantised(&c.function, &c.target).map(|found| found.0);
    let changed = found.is_some();
    let other = found.unwrap_or_else(|| c.function.clone());
    let roots: Vec<Id> = other.outputs.iter().map(|o| o.1).collect();
    let text = format!("changed: {changed}\n{}", text::print(&other.graph, &roots));
    Ok(Applied {
        text,
        claim: Claim::same(of_function(c.function), of_function(other)),
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
