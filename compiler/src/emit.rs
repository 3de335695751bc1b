//! Emits the programs of launches: maps nests to the machine, lowers them, prints them in the
//! device's dialect and names each kernel by a hash of its text.

mod arrays;
mod custom;
mod dialect;
mod kernel;

pub use dialect::{Accessor, Array, CustomCode, CustomDialect, Dialect, Element, Signature};
pub(crate) use kernel::{Slots, verify};

use crate::apply::Kernel;
use crate::apply::mapping::map_body;
use crate::ir::size_estimate::typical;
use crate::ir::title::title;
use crate::lower::spec as linear_spec;
use crate::lower::{KernelCode, finish, lower_bodies};
use crate::plan::TilePlan;
use crate::schedule::{Body, Launch};
use gristmill_uop::program::{BodySize, KernelContext, Param, Program, When};
use gristmill_uop::spec::Level;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};
use kernel::{fingerprint, sized};
use std::sync::Arc;

/// Inputs of code generation for the programs of one function.
pub(crate) struct Emission<'a> {
    pub slots: &'a Slots<'a>,
    pub target: &'a Target,
    /// Prints the code; without a dialect programs have no source text.
    pub dialect: Option<&'a dyn Dialect>,
}

/// Returns the workgroup count of each body and the time of one workgroup; empty for a single body.
fn sizes(g: &Graph, groups: &[Id], launch: &Launch, target: &Target) -> Vec<BodySize> {
    if launch.bodies.len() < 2 {
        return vec![];
    }
    let of = |(&groups, body): (&Id, &Body)| {
        let count = typical(g, groups).max(1.0);
        // With fewer workgroups than processor units, each workgroup has a unit to itself.
        BodySize {
            groups,
            seconds: body.seconds * count.min(target.machine.units as f64) / count,
        }
    };
    groups.iter().zip(&launch.bodies).map(of).collect()
}

/// Compiles a mapped launch to a program.
pub(crate) fn program(g: &Graph, launch: &Launch, mapped: &[Vec<Id>], with: &Emission) -> Program {
    let &Emission {
        slots,
        target,
        dialect,
    } = with;
    if let Some((launch, kernel, dialect)) = custom::called_by(launch, dialect) {
        let emission = custom::CustomEmission {
            slots,
            target,
            dialect,
        };
        return custom::program(g, launch, kernel, &emission);
    }
    let when: Vec<When> = launch.bodies.iter().map(|b| b.when).collect();
    let nests: Vec<&[Id]> = mapped.iter().map(|nests| &nests[..]).collect();
    let mut kernel = Kernel::new(g, &nests, &when);
    let root = kernel.root;
    verify(&kernel.graph, root, Level::Kernel, "map");
    let Lowered {
        graph: linear,
        code,
        signature,
        params,
        groups,
        sizes,
        context,
    } = lowered(&mut kernel, launch, with);
    let reduces = reduces(&kernel);
    let own = kernel.graph;
    let draft = dialect.map(|d| d.render("KERNEL", &linear, &code, &signature));
    let roots: Vec<Id> = launch.bodies.iter().filter_map(|b| b.root).collect();
    let (name, source) = named(draft, reduces, &roots);
    let notes = roots
        .iter()
        .map(|&r| format!("{:?} {}", g[r].op, g.show_dims(&g.shape(r))))
        .collect();
    Program {
        source,
        name,
        seconds: launch.cost.seconds,
        title: title(&own, root, slots.function, &params),
        params,
        vars: signature.vars.iter().map(|v| v.0.clone()).collect(),
        context,
        groups,
        bodies: sizes,
        threads: target.threads,
        scratch: signature.scratch_bytes,
        estimate: launch.cost.estimate,
        features: launch.cost.features,
        notes,
        root,
        graph: Arc::new(own),
    }
}

/// Returns whether a kernel has a reduction.
fn reduces(kernel: &Kernel) -> bool {
    let has_reduction = |&n: &Id| kernel.graph.any(n, |_, m| m.op == Op::Reduce);
    kernel.bodies.iter().flatten().any(has_reduction)
}

/// A kernel after lowering.
struct Lowered {
    /// Graph of the linear code.
    graph: Graph,
    code: KernelCode,
    signature: Signature,
    params: Vec<Param>,
    /// Total number of workgroups.
    groups: Id,
    sizes: Vec<BodySize>,
    context: KernelContext,
}

/// Lowers a kernel to linear code.
fn lowered(kernel: &mut Kernel, launch: &Launch, with: &Emission) -> Lowered {
    let &Emission { slots, target, .. } = with;
    let (own, when) = (&mut kernel.graph, std::mem::take(&mut kernel.when));
    let bodies = &kernel.bodies;
    let (mut signature, groups) = sized(own, bodies, launch, slots.function, target);
    let sizes = sizes(own, &signature.groups, launch, target);
    let params = signature.cut(slots, target);
    // Lowering works on a copy: `own` stays as the reference interpreter runs it.
    let mut linear = own.clone();
    let codes = lower_bodies(&mut linear, bodies, &when, target);
    signature.place_stages(&linear, &codes);
    let context = KernelContext {
        when,
        plan: launch.plan.launch,
        streams: slots.streams.clone(),
    };
    let code = finish(&mut linear, codes, &context, target);
    signature.add_rings(&linear, &code, target);
    signature.in_words(&mut linear, target);
    verify_linear(&linear, &code, target);
    Lowered {
        graph: linear,
        code,
        signature,
        params,
        groups,
        sizes,
        context,
    }
}

/// Returns the name and the source text of a kernel. The name is a hash of the text, so equal
/// kernels of different models share one name.
fn named(draft: Option<String>, reduces: bool, roots: &[Id]) -> (String, String) {
    let text = draft.clone().unwrap_or_else(|| format!("{roots:?}"));
    let name = format!(
        "{}_{:016x}",
        if reduces { "r" } else { "e" },
        fingerprint(&text)
    );
    let source = draft
        .map(|d| d.replace("KERNEL", &name))
        .unwrap_or_default();
    (name, source)
}

/// Maps the nests of every body of a launch to the machine, as its plan says.
pub(crate) fn map(g: &mut Graph, launch: &Launch, target: &Target) -> Vec<Vec<Id>> {
    let bodies = launch.bodies.iter().zip(&launch.plan.bodies);
    let mapped = |(body, plan): (&Body, &TilePlan)| match body.kernel {
        Some(_) => body.nests.clone(),
        None => map_body(g, &body.nests, &plan.nests, target).0,
    };
    bodies.map(mapped).collect()
}

/// Verifies the linear code in debug builds, as [`verify`] does between the earlier passes.
fn verify_linear(g: &Graph, code: &KernelCode, target: &Target) {
    let machine = &target.machine;
    if cfg!(debug_assertions)
        && let Err(e) =
            linear_spec::check(g, code).and_then(|()| linear_spec::check_widths(g, code, machine))
    {
        panic!("after lower: {e}");
    }
}
