//! Builds the program of a launch that is a user's custom kernel: its text, with the accessors that
//! follow from its nest.

use super::dialect::{Accessor, CustomCode, CustomDialect, Dialect};
use super::kernel::{Slots, fingerprint, sized, verify};
use crate::apply::Kernel;
use crate::custom::{OUTPUT, argument, range, value};
use crate::lower::legalise::loads;
use crate::lower::legalise::types::in_words;
use crate::lower::{Statement, accesses, define};
use crate::schedule::Launch;
use gristmill_uop::custom::CustomRef;
use gristmill_uop::program::{KernelContext, Program};
use gristmill_uop::spec::Level;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// Inputs of code generation for a custom kernel.
pub struct CustomEmission<'a> {
    /// Slots of the kernel's function.
    pub slots: &'a Slots<'a>,
    pub target: &'a Target,
    pub dialect: &'a dyn CustomDialect,
}

/// Returns the custom kernel of a launch, and the dialect that renders it. `None` if the launch is
/// generated code, or the dialect takes no custom kernels.
pub fn called_by<'l, 'd>(
    launch: &'l Launch,
    dialect: Option<&'d dyn Dialect>,
) -> Option<(&'l Launch, CustomRef, &'d dyn CustomDialect)> {
    let [body] = &launch.bodies[..] else {
        return None;
    };
    Some((launch, body.kernel?, dialect?.custom()?))
}

/// Compiles a custom kernel to a program.
pub fn program(g: &Graph, launch: &Launch, kernel: CustomRef, around: &CustomEmission) -> Program {
    let &CustomEmission {
        slots,
        target,
        dialect,
    } = around;
    let body = &launch.bodies[0];
    let Kernel {
        graph: mut own,
        root,
        bodies,
        when,
    } = Kernel::new(g, &[&body.nests], &[body.when]);
    verify(&own, root, Level::Kernel, "schedule");
    let nest = bodies[0][0];
    let value: Id = value(&own, &[nest]).unwrap_or(nest);
    // The kernel itself determines its workgroup count: its output has not been tiled.
    let groups = own[value].src[own[value].src.len() - 1];
    let (mut signature, _) = sized(&mut own, &bodies, launch, slots.function, target);
    signature.groups = vec![groups];
    let params = signature.cut(slots, target);
    let accessors = accessors(&mut own, nest, kernel, target);
    signature.in_words(&mut own, target);
    signature.lay_out(
        &own,
        &accesses(&own, accessors.iter().flat_map(|of| &of.statements)),
    );
    let code = CustomCode {
        kernel,
        output: own[nest].src[0],
        value,
        threads: target.threads,
        accessors,
    };
    let draft = dialect.render("KERNEL", &own, &code, &signature);
    let name = format!("c_{:016x}", fingerprint(&draft));
    Program {
        source: draft.replace("KERNEL", &name),
        name,
        seconds: launch.cost.seconds,
        title: body.title.clone(),
        params,
        vars: signature.vars.iter().map(|v| v.0.clone()).collect(),
        context: KernelContext {
            when,
            streams: slots.streams.clone(),
            ..KernelContext::default()
        },
        groups,
        bodies: vec![],
        threads: target.threads,
        scratch: 0,
        estimate: launch.cost.estimate,
        features: launch.cost.features,
        notes: body
            .root
            .map(|r| format!("{:?} {}", g[r].op, g.show_dims(&g.shape(r))))
            .into_iter()
            .collect(),
        root,
        graph: Arc::new(own),
    }
}

/// Returns the accessor functions that the text calls: those of the arguments in order, then
/// that of the output.
fn accessors(g: &mut Graph, nest: Id, kernel: CustomRef, target: &Target) -> Vec<Accessor> {
    let nest = loads::loads(g, nest, target);
    let Some(text) = value(g, &[nest]) else {
        return vec![];
    };
    // Builds an accessor from statements that end with `value`. On a machine with 32-bit words
    // only, statements, value and index are legalised.
    let function = |g: &mut Graph, name, index: Option<Id>, statements, value| {
        let stores = value == text;
        if !target.machine.words_alone {
            return Accessor {
                name,
                index,
                statements,
                value,
                stores,
            };
        }
        let values: Vec<Id> = index.into_iter().chain([value]).collect();
        let (statements, values) = in_words(g, statements, text, &values);
        Accessor {
            name,
            index: index.map(|_| values[0]),
            statements,
            value: values[values.len() - 1],
            stores,
        }
    };
    let defined = |g: &mut Graph, values: &[Id]| {
        let (mut known, mut statements) = (FxHashSet::from_iter([text]), Vec::new());
        values
            .iter()
            .for_each(|&value| define(g, value, &mut known, &mut statements));
        statements
    };
    let mut all = Vec::new();
    for (i, &name) in kernel
        .arguments
        .iter()
        .enumerate()
        .filter(|(_, name)| kernel.calls(name).is_some())
    {
        let (value, index) = (g[text].src[i], range(g, nest, argument(i)));
        let statements = defined(g, &[value]);
        all.push(function(g, name, index, statements, value));
    }
    if kernel.calls(kernel.output).is_some() {
        let (buffer, at, value) = (g[nest].src[0], g[nest].src[1], g[nest].src[2]);
        let index = range(g, nest, OUTPUT);
        let mut statements = defined(g, &[at, value]);
        statements.push(Statement::Write(buffer, at, value));
        all.push(function(g, kernel.output, index, statements, text));
    }
    all
}
