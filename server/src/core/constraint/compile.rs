//! Compiles the constraint of a request. A tool's schema that cannot be enforced is left open, as
//! the same tool could be called without a constraint.

use super::bounds::refers;
use super::calls::Callable;
use super::grammar::{OutputConstraint, OutputFormat, grammar};
use super::mask::Constraint;
use super::relax::{arguments, relaxed};
use crate::core::model::Served;
use gristmill_llm::chat::markup::{Arguments, CallFormat};
use gristmill_llm::chat::reply::Begins;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Maximum digits in a row of a JSON number.
const MAX_DIGITS: usize = 16;
/// The same in markups with texts without quotes, whose digits are not told from numbers.
const MAX_UNQUOTED_DIGITS: usize = 64;

/// Time after which further schemas of tools are left open untried.
const MAX_TRIAL_TIME: Duration = Duration::from_secs(3);

/// Compiles a constraint. Keywords that are left open are logged.
///
/// # Errors
/// A description of what is wrong with the format; the schemas of tools never fail.
pub fn compile(
    served: &Served,
    constraint: &OutputConstraint,
    begins: Begins,
) -> Result<Constraint, String> {
    let (mut open, begin) = (BTreeSet::new(), Instant::now());
    let form = constraint.form.map(|form| match form {
        OutputFormat::Schema(schema) => OutputFormat::Schema(relaxed(schema, &mut open)),
        form => form.clone(),
    });
    let mut schemas: Vec<Value> = constraint
        .calls
        .iter()
        .map(|call| arguments(call.parameters, &mut open))
        .collect();
    let compile_with = |schemas: &[Value]| {
        let calls = constraint.calls.iter().zip(schemas);
        let calls = calls.map(|(call, schema)| Callable {
            name: call.name,
            parameters: Some(schema),
        });
        let constraint = OutputConstraint {
            form: form.as_ref(),
            calls: calls.collect(),
            several: constraint.several,
        };
        compile_one(served, &constraint, begins)
    };
    // An unsatisfiable schema is only detected at a grammar's beginning, and arguments begin in
    // the middle of a call.
    open_failing(served, &mut schemas, &mut open, refers, begin);
    let mut compiled = compile_with(&schemas);
    if compiled.is_err() && !schemas.is_empty() {
        open_failing(served, &mut schemas, &mut open, |_| true, begin);
        compiled = compile_with(&schemas);
    }
    if compiled.is_err() && !schemas.is_empty() {
        open.insert("parameters".into());
        schemas.fill(json!({ "type": "object" }));
        compiled = compile_with(&schemas);
    }
    if !open.is_empty() {
        let keywords = open.into_iter().take(20).collect::<Vec<_>>().join(" ");
        tracing::info!(
            keywords,
            "parts of a schema that cannot be enforced are left open"
        );
    }
    compiled
}

/// Replaces those of the selected schemas that do not compile by one that allows any object, and
/// those that are left after the maximum time since `begin`.
fn open_failing(
    served: &Served,
    schemas: &mut [Value],
    open: &mut BTreeSet<String>,
    selected: fn(&Value) -> bool,
    begin: Instant,
) {
    for schema in schemas.iter_mut().filter(|schema| selected(schema)) {
        let form = OutputFormat::Schema(schema.clone());
        let alone = OutputConstraint {
            form: Some(&form),
            ..OutputConstraint::default()
        };
        let late = begin.elapsed() > MAX_TRIAL_TIME;
        if late || compile_one(served, &alone, Begins::Answer).is_err() {
            *schema = json!({ "type": "object" });
            open.insert("parameters".into());
        }
    }
}

fn compile_one(
    served: &Served,
    constraint: &OutputConstraint,
    begins: Begins,
) -> Result<Constraint, String> {
    let grammar = grammar(constraint, served.markup, begins, &served.tokenizer)?;
    let thinking = (begins == Begins::Reasoning).then_some(served.markup.think[1]);
    let mut compiled = served.grammars.compile(grammar, thinking)?;
    let is_json = constraint
        .form
        .is_none_or(|form| matches!(form, OutputFormat::Schema(_)));
    let quoted = constraint.calls.is_empty()
        || matches!(
            served.markup.form,
            CallFormat::Object { .. } | CallFormat::Named(_, Arguments::Json)
        );
    if is_json {
        compiled.bound_digits(if quoted {
            MAX_DIGITS
        } else {
            MAX_UNQUOTED_DIGITS
        });
    }
    Ok(compiled)
}
