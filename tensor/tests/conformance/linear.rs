//! Interpreted linear code against the evaluator.
//!
//! Threads run one after the other, slowly, so there are few groups of cases: sums, stages and
//! loops of each kind of machine, and a GPU warp's products, of halves and of bytes.

use crate::harness::{Case, Way, check};
use crate::ways::{linear, linear_of, with_matrices};
use crate::{attention, dynamic, elementwise, experts, network, packed};
use crate::{paged, products, reductions, scatter};
use gristmill_uop::target::Target;

fn all(cases: Vec<Case>) {
    let mut ways = linear();
    ways.iter_mut().for_each(|w| w.device.target.int8 = false);
    check(cases, ways);
}
#[test]
fn matvec() {
    all(packed::matvec());
}
#[test]
fn matmul() {
    all(packed::matmul().into_iter().step_by(5).collect());
}
#[test]
fn experts() {
    all(experts::one_token().into_iter().step_by(5).collect());
}
#[test]
fn attention() {
    all(attention::cases()
        .into_iter()
        .chain(attention::caps().into_iter().take(4))
        .collect());
}
#[test]
fn products_of_halves() {
    let mut ways = linear();
    ways.retain(|w| w.name.ends_with("threads"));
    ways.iter_mut().for_each(|w| w.device.target.int8 = false);
    check(attention::halves().into_iter().take(1).collect(), ways);
}
/// Kernels with many stages, on GPU threads only; the interpreter checks their barriers.
fn by_threads(cases: Vec<Case>) {
    let mut ways = linear();
    ways.retain(|w| w.name.ends_with("threads"));
    check(cases, ways);
}
#[test]
fn quantised_prompts() {
    by_threads(attention::quantised_prompts().into_iter().take(2).collect());
}
/// Machines with 32-bit accesses only, whose subgroups reduce over 16 lanes or not at all.
fn of_words() -> Vec<Way> {
    let some = with_matrices("arc-b580", 64);
    let mut none = some.clone();
    none.machine.folds = 1;
    linear_of(vec![
        ("16 of 64 threads fold", some),
        ("64 threads that meet", none),
    ])
}
/// Scatter-add of words and halves updates 32-bit words there, in some variants atomically.
#[test]
fn sums_scattered_in_words() {
    let mut ways = scatter::in_every_form(of_words());
    // The compared variant reads narrow types, whose last word extends past the buffer's end.
    ways.retain(|w| w.name.contains("form") && !w.name.ends_with("form 0"));
    check(scatter::cases(), ways);
}
#[test]
fn words_alone() {
    let cases = [
        elementwise::edges(),
        elementwise::half(),
        elementwise::casts(),
        reductions::cases(),
        network::choosing(),
    ];
    let mut cases: Vec<Case> = cases
        .into_iter()
        .flat_map(|cases| cases.into_iter().step_by(2))
        .collect();
    // The last word of a narrow type extends past the end of the interpreter's memory.
    cases.retain(|case| !case.name.contains("[7]"));
    check(cases, of_words());
}
#[test]
fn networks() {
    by_threads(network::cases());
}
#[test]
fn choosing() {
    by_threads(network::choosing());
}
#[test]
fn states() {
    by_threads(dynamic::states());
}
#[test]
fn scattered_sums() {
    check(scatter::cases(), scatter::in_every_form(linear()));
}
#[test]
fn products() {
    let mut ways = linear();
    ways.retain(|w| w.name.ends_with("threads") || w.name.ends_with("amx"));
    check(products::cases(), ways);
}
#[test]
fn products_of_tiles() {
    let mut ways = linear();
    ways.retain(|w| w.name.ends_with("amx"));
    check(
        packed::tiles()
            .into_iter()
            .step_by(4)
            .chain(packed::tiles().into_iter().rev().take(2))
            .collect(),
        ways,
    );
}
#[test]
fn products_of_several_warps() {
    // Every third case covers each kind.
    let ways = linear_of(vec![(
        "256 threads",
        packed::with_groups(Target::named("h200")),
    )]);
    check(
        packed::shared_columns().into_iter().step_by(3).collect(),
        ways,
    );
}
#[test]
fn pages_before_a_product() {
    check(
        paged::projections(),
        linear_of(vec![(
            "256 threads",
            packed::with_groups(Target::named("h200")),
        )]),
    );
}
#[test]
fn products_of_bytes() {
    check(
        attention::integers()
            .into_iter()
            .chain(packed::integer())
            .step_by(7)
            .collect(),
        linear(),
    );
}
