//! Generates the blocks of docs/compiler.md: one function at every level of the compiler.
//!
//! A block is the fenced text after a line `<!-- generated: NAME -->`. The test compiles the
//! running example, prints each level and compares. `GRISTMILL_BLESS=1` rewrites the page:
//! `cargo xtask bless -- -p gristmill-tensor --test compiler_page`.

use gristmill_backend::cpu::dialect::C;
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_compiler::testing::{lower_program, print_kernel, renumbered};
use gristmill_compiler::{Cheapest, Compiled, Dialect, Watch, compile_watched};
use gristmill_encodings::{F32, Q4_0};
use gristmill_tensor::function::Capture;
use gristmill_tensor::{dims, nn};
use gristmill_uop::features::Feature;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Scalar, text};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The running example: `y = W · rms_norm(x)` for one row of activations.
fn example() -> Function {
    let c = Capture::new("normed matvec");
    let x = c.input("x", dims![1, 256], Scalar::F32);
    let norm = c.weight("norm", &[256], &F32);
    let w = c.weight("w", &[64, 256], &Q4_0);
    c.output("y", nn::rms_norm(x, norm, 1e-5).linear(w));
    c.finish()
}

/// Text of the function, and of its last nest alone, after each pass.
#[derive(Default)]
struct Passes(BTreeMap<&'static str, [String; 2]>);

impl Watch for Passes {
    fn pass(&mut self, name: &'static str, graph: &mut Graph, roots: &[Id]) {
        let last = &roots[roots.len() - 1..];
        self.0
            .insert(name, [text::print(graph, roots), text::print(graph, last)]);
    }
}

/// The running example, compiled for one machine.
struct Levels {
    passes: Passes,
    compiled: Compiled,
    /// Linear code of the only kernel.
    linear: String,
    source: String,
}

impl Levels {
    fn new(target: &Target, dialect: &dyn Dialect) -> Levels {
        let mut passes = Passes::default();
        let compiled = compile_watched(
            &example(),
            target,
            Some(dialect),
            &mut Cheapest,
            &mut passes,
        );
        let [program] = &compiled.programs[..] else {
            panic!("the running example is one kernel")
        };
        let (graph, code) = lower_program(program, target);
        let linear = renumbered(&print_kernel(&graph, &code));
        let source = program.source.clone();
        Levels {
            passes,
            compiled,
            linear,
            source,
        }
    }

    fn function_after(&self, pass: &str) -> String {
        self.passes.0[pass][0].clone()
    }

    fn last_nest_after(&self, pass: &str) -> String {
        self.passes.0[pass][1].clone()
    }

    /// One line per decision, with its alternatives and their costs.
    fn decisions(&self) -> String {
        self.compiled
            .decisions
            .iter()
            .map(|d| d.explain() + "\n")
            .collect()
    }

    /// What the kernel's modelled time consists of, one feature per line: amount, seconds per unit,
    /// microseconds.
    fn features(&self, target: &Target) -> String {
        let by = target.machine.coefficients();
        let features = self.compiled.programs[0].features;
        let mut out = String::new();
        for (part, amounts) in ["fixed", "memory", "compute"].iter().zip(features.parts()) {
            for of in Feature::ALL.into_iter().filter(|&of| amounts.get(of) > 0.0) {
                let (amount, each) = (amounts.get(of), by.get(of));
                let (name, us) = (of.name(), 1e6 * amount * each);
                let _ = writeln!(
                    out,
                    "{part:<8} {name:<10} {amount:>9.1} x {each:>9.2e} = {us:.3} us"
                );
            }
        }
        let us = 1e6 * features.seconds(&by);
        let _ = writeln!(out, "fixed + the longer of memory and compute: {us:.3} us");
        out
    }

    /// The kernel's plan, one part per line.
    fn plan(&self) -> String {
        let plans = self.compiled.plans.iter().flat_map(|plan| &plan.bodies);
        plans
            .map(|plan| plan.to_string().replace("; ", "\n") + "\n")
            .collect()
    }
}

/// Lines from the last one that contains `first` to the next one that contains `last`.
fn excerpt(text: &str, first: &str, last: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let missing = |end| panic!("no line has `{end}` any more: choose other ends for this block");
    let from = lines
        .iter()
        .rposition(|line| line.contains(first))
        .unwrap_or_else(|| missing(first));
    let rest = &lines[from..];
    let length = rest
        .iter()
        .position(|line| line.contains(last))
        .unwrap_or_else(|| missing(last));
    rest[..=length]
        .iter()
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The blocks of the page by name.
fn blocks() -> BTreeMap<&'static str, String> {
    let h200 = Target::named("h200");
    let gpu = Levels::new(&h200, &Cuda);
    let cpu = Levels::new(&Target::cpu("avx512vnni", 16, 4), &C);
    BTreeMap::from([
        ("captured", gpu.function_after("captured")),
        ("factors", gpu.function_after("factors")),
        ("int8", gpu.function_after("int8")),
        ("decisions", gpu.decisions()),
        ("features", gpu.features(&h200)),
        ("schedule", gpu.function_after("schedule")),
        ("plan", gpu.plan()),
        ("map, last nest", gpu.last_nest_after("map")),
        (
            "linear, prologue",
            excerpt(&gpu.linear, "threads, room for", "  stage "),
        ),
        ("linear, last nest", excerpt(&gpu.linear, "  nest ", "  }")),
        ("CUDA, entry", excerpt(&gpu.source, "ENTRY", "= thread / ")),
        ("CUDA, product", excerpt(&gpu.source, "BARRIER;", "dot4")),
        ("CUDA, end", excerpt(&gpu.source, "dot4", "return;")),
        ("CPU, plan", cpu.plan()),
        (
            "CPU, linear product",
            excerpt(&cpu.linear, "  nest ", "Dot4 "),
        ),
        ("CPU, C product", excerpt(&cpu.source, "for (", "dot4")),
    ])
}

/// The page with its blocks replaced, or the reason why a block cannot be replaced.
fn regenerated(page: &str, blocks: &BTreeMap<&str, String>) -> Result<String, String> {
    let (mut out, mut lines) = (String::new(), page.lines());
    let mut unused: Vec<&str> = blocks.keys().copied().collect();
    while let Some(line) = lines.next() {
        let _ = writeln!(out, "{line}");
        let Some(name) = line
            .strip_prefix("<!-- generated: ")
            .and_then(|l| l.strip_suffix(" -->"))
        else {
            continue;
        };
        let block = blocks
            .get(name)
            .ok_or_else(|| format!("no block is called `{name}`"))?;
        let fence = lines.next().filter(|fence| fence.starts_with("```"));
        let fence = fence.ok_or_else(|| format!("no fenced block after the mark `{name}`"))?;
        lines
            .by_ref()
            .find(|line| *line == "```")
            .ok_or_else(|| format!("`{name}` is not closed"))?;
        let _ = write!(out, "{fence}\n{}\n```\n", block.trim_end());
        unused.retain(|other| *other != name);
    }
    match unused[..] {
        [] => Ok(out),
        _ => Err(format!("the page has no block {unused:?}")),
    }
}

#[test]
fn the_blocks_of_the_page_are_what_the_compiler_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/compiler.md");
    let page = std::fs::read_to_string(&path).expect("docs/compiler.md");
    let new = regenerated(&page, &blocks()).expect("a page with every block");
    if std::env::var_os("GRISTMILL_BLESS").is_some() {
        std::fs::write(&path, new).expect("docs/compiler.md is written");
        return;
    }
    let differing = page.lines().zip(new.lines()).find(|(old, new)| old != new);
    assert!(
        page == new,
        "docs/compiler.md differs from the compiler, first (page, compiler) {differing:?}\n\
         hint: where the change is meant, `cargo xtask bless -- -p gristmill-tensor --test compiler_page`"
    );
}
