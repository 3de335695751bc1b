use super::*;
use crate::lower::{KernelCode, spec};
use gristmill_uop::adapter::Adapter;

const THREADS: i64 = 64;

/// A sum and a maximum over all threads in a nest, on a machine with subgroups of 16.
fn kernel() -> (Graph, KernelCode) {
    let adapter = Adapter {
        subgroup: Some(16),
        ..Adapter::named("arc-b580").expect("a row")
    };
    let target = Target {
        threads: THREADS as usize,
        ..Target::new(adapter.machine())
    };
    let mut g = Graph::new();
    let (zero, many, f32) = (g.int(0), g.int(THREADS), Scalar::F32);
    let lanes = g.range(many, 1, RangeKind::VectorReduce);
    let (x, y) = (g.param(0, &[], f32), g.param(1, &[], f32));
    let load = g.load(x, lanes, f32);
    let fold = |g: &mut Graph, how| {
        let arg = Arg::Reduce(how, smallvec![]);
        g.intern(Node {
            op: Op::Fold,
            dtype: f32.one(),
            src: smallvec![load, lanes],
            arg,
        })
    };
    let (sum, most) = (fold(&mut g, ReduceOp::Add), fold(&mut g, ReduceOp::Max));
    let both = g.add(sum, most);
    let threads = vec![ThreadIndex {
        range: lanes,
        divide: None,
        modulo: None,
    }];
    let mut statements = vec![
        Statement::DependencyWait,
        Statement::Nest {
            buffer: y,
            staged: false,
            globals: vec![],
            threads,
        },
    ];
    statements.extend([load, sum, most, both].map(Statement::Define));
    statements.extend([Statement::Write(y, zero, both), Statement::End]);
    let code = shared_memory_reduce(
        &mut g,
        Code {
            statements,
            ..Code::default()
        },
        &target,
    );
    let idle = vec![Statement::DependencyWait];
    (
        g,
        KernelCode {
            bodies: vec![code],
            threads: THREADS as usize,
            resident: 1,
            shared: None,
            entry: vec![],
            idle,
        },
    )
}

#[test]
fn subgroup_partial_sums_share_one_stage() {
    let (g, kernel) = kernel();
    spec::check(&g, &kernel).expect("linear code");
    let code = &kernel.bodies[0];
    assert_eq!(code.locals.len(), 1);
    let folds = code.statements.iter().filter_map(|s| match s {
        Statement::Define(id) if g[*id].op == Op::Fold => g.int_value(g[g[*id].src[1]].src[0]),
        _ => None,
    });
    assert_eq!(folds.collect::<Vec<_>>(), [16, 16]);
}

#[test]
fn threads_wait_before_they_read_what_meets_and_before_they_write_there_again() {
    let (g, kernel) = kernel();
    let is_barrier = |&i: &usize| kernel.bodies[0].statements[i] == Statement::Barrier;
    let barriers: Vec<usize> = (0..kernel.bodies[0].statements.len())
        .filter(is_barrier)
        .collect();
    let wrong = |barrier: usize| {
        let mut without = kernel.clone();
        without.bodies[0].statements.remove(barriers[barrier]);
        spec::check(&g, &without).map_or_else(|e| e.rule, |()| "nothing")
    };
    assert_eq!(barriers.len(), 4);
    assert!(
        wrong(1).starts_with("a barrier separates writes"),
        "{}",
        wrong(1)
    );
    assert!(
        wrong(2).starts_with("a barrier separates accesses"),
        "{}",
        wrong(2)
    );
    assert!(
        wrong(3).starts_with("a barrier separates writes"),
        "{}",
        wrong(3)
    );
}
