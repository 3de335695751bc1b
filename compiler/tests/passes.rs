//! Runs every compiler pass alone, text in and text out: a case is a file in `tests/passes/PASS/`.
//!
//! CONTRIBUTING.md describes the format. The output of a pass is compared with the file, checked by
//! the spec of its level, and run on the same random values as its input: the tensor level by the
//! evaluator, the kernel level by `interp`, linear code by its interpreter. So blessed output
//! computes the same. The evaluator and the interpreters are dev-dependencies of the compiler.
//!
//! `GRISTMILL_BLESS=1` rewrites the expected output; `GRISTMILL_CASE=text` runs only the cases with
//! that text in their path.

#[path = "passes/apply.rs"]
mod apply;
#[path = "passes/case.rs"]
mod case;
#[path = "passes/context.rs"]
mod context;
#[path = "passes/judge.rs"]
mod judge;
#[path = "passes/kernels.rs"]
mod kernels;
#[path = "passes/memory.rs"]
mod memory;
#[path = "passes/scheduling.rs"]
mod scheduling;
#[path = "passes/show.rs"]
mod show;
#[path = "passes/statements.rs"]
mod statements;
#[path = "passes/straight.rs"]
mod straight;
#[path = "passes/tensors.rs"]
mod tensors;
#[path = "passes/weights.rs"]
mod weights;

use case::Case;
use gristmill_compiler::testing;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Op, ReduceOp, Scalar};
use std::cell::Cell;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes")
}

/// Entries of a folder, sorted by name.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").path())
        .collect();
    all.sort();
    all
}

/// The folders of cases, one per pass.
fn passes() -> Vec<PathBuf> {
    entries(&folder())
        .into_iter()
        .filter(|p| p.is_dir())
        .collect()
}

/// Runs a case and returns a description of its failure.
fn run(path: &Path, bless: bool) -> Result<(), String> {
    let case = Case::read(path)?;
    let pass = apply::PASSES
        .iter()
        .find(|p| p.0 == case.pass)
        .ok_or_else(|| format!("no pass `{}`", case.pass))?;
    let applied = (pass.1)(&case)?;
    judge::judge(&case, &applied)?;
    case.all_read()?;
    case.compare(&applied.text, bless)
}

#[test]
fn every_case() {
    let only = std::env::var("GRISTMILL_CASE").unwrap_or_default();
    let bless = std::env::var_os("GRISTMILL_BLESS").is_some();
    let cases: Vec<PathBuf> = passes().iter().flat_map(|p| entries(p)).collect();
    let cases = cases
        .into_iter()
        .filter(|p| p.to_string_lossy().contains(&only));
    let failed: Vec<String> = cases
        .filter_map(|path| {
            // A panic in a pass fails its own case only.
            let result = std::panic::catch_unwind(|| run(&path, bless));
            let words = match result {
                Ok(result) => result.err()?,
                Err(_) => "panicked: the message is above".to_string(),
            };
            let name = path
                .strip_prefix(folder())
                .unwrap_or(&path)
                .display()
                .to_string();
            Some(format!("{name}: {words}"))
        })
        .collect();
    assert!(
        failed.is_empty(),
        "{} cases fail\n\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}

#[test]
fn every_pass_has_cases_and_every_folder_is_a_pass() {
    let folders: Vec<String> = passes()
        .iter()
        .map(|p| {
            p.file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let mut names: Vec<&str> = apply::PASSES.iter().map(|p| p.0).collect();
    names.sort_unstable();
    assert_eq!(folders, names);
    for folder in passes() {
        assert!(
            !entries(&folder).is_empty(),
            "{} is empty",
            folder.display()
        );
    }
}

#[test]
fn every_rule_of_tensors_has_a_case() {
    let cases = entries(&folder().join("alternatives"));
    let said: Vec<String> = cases
        .iter()
        .map(|p| std::fs::read_to_string(p).expect("a case"))
        .collect();
    for rule in testing::rules_of_tensors() {
        let line = format!("\nrule: {}\n", rule.name);
        assert!(
            said.iter().any(|text| text.contains(&line)),
            "no case is of `{}`",
            rule.name
        );
    }
}

#[test]
fn a_rule_more_finds_another_form() {
    const RULE: testing::Rule = testing::Rule {
        name: "e^a e^b -> e^(a + b)",
        better: false,
        apply: |terms, term| {
            let exponent = |c| terms.of_op(c, Op::Exp).first().map(|t| t.children[0]);
            let (Some(Op::Mul), &[a, b]) = (term.op(), &term.children[..]) else {
                return vec![];
            };
            let (Some(a), Some(b)) = (exponent(a), exponent(b)) else {
                return vec![];
            };
            let sum = terms.node(Op::Add, Arg::None, term.shaped(), &[a, b], &[]);
            vec![terms.node(Op::Exp, Arg::None, term.shaped(), &[sum], &[])]
        },
    };
    let mut g = Graph::new();
    let dims = [1024, 1024].map(|n| g.int(n));
    let sides = [0, 1].map(|slot| {
        let x = g.param(slot, &dims, Scalar::F32);
        g.exp(x)
    });
    let product = g.mul(sides[0], sides[1]);
    let sum = g.reduce(product, &[1], ReduceOp::Max);
    let function = context::function(&g, &[sum]);
    let target = Target::cpu("avx2", 8, 2);
    let form = |rules: &[testing::Rule]| {
        let mut decider = testing::Decider {
            policy: &mut testing::Cheapest,
            plans: &target.plans,
            log: vec![],
        };
        testing::considered(
            &function,
            &target,
            &mut decider,
            rules,
            testing::Budget::USUAL,
        )
        .0
    };
    let mut rules = testing::rules_of_tensors();
    assert!(form(&rules).is_none());
    rules.push(RULE);
    let found = form(&rules).expect("a cheaper form");
    let count = |g: &Graph, root| {
        g.toposort(&[root])
            .into_iter()
            .filter(|&n| g[n].op == Op::Exp)
            .count()
    };
    assert_eq!(
        (count(&g, sum), count(&found.graph, found.outputs[0].1)),
        (2, 1)
    );
}

thread_local! {
    /// Index of the rule to break.
    static SPOILT: Cell<usize> = const { Cell::new(0) };
}

/// Breaks every rule in turn by negating its result: its own cases must catch that, blessed or not.
#[test]
fn a_wrong_rule_is_caught_by_its_own_cases() {
    let cases: Vec<Case> = entries(&folder().join("alternatives"))
        .iter()
        .map(|path| Case::read(path).expect("a case"))
        .collect();
    for (number, rule) in testing::rules_of_tensors().into_iter().enumerate() {
        SPOILT.set(number);
        let wrong = testing::Rule {
            apply: |terms, term| {
                let right = (testing::rules_of_tensors()[SPOILT.get()].apply)(terms, term);
                right
                    .into_iter()
                    .map(|c| terms.node(Op::Neg, Arg::None, term.shaped(), &[c], &[]))
                    .collect()
            },
            ..rule
        };
        for case in cases
            .iter()
            .filter(|case| case.get("rule") == Some(rule.name))
        {
            let judged =
                |rule| tensors::alternatives_by(case, &[rule]).and_then(|a| judge::judge(case, &a));
            assert_eq!(judged(rule), Ok(()), "{}", rule.name);
            let error = judged(wrong).expect_err("a wrong rule");
            assert!(
                error.contains("computes something else"),
                "{}: {error}",
                rule.name
            );
        }
    }
}

/// Blesses a case in a temporary folder; returns the file's text and the failure, if any.
fn blessed(name: &str, text: &str) -> (String, Option<String>) {
    let folder = std::env::temp_dir()
        .join(format!("gristmill-passes-{}-{name}", std::process::id()))
        .join("rules_algebra");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("case.txt");
    std::fs::write(&path, text).expect("a file");
    let result = run(&path, true);
    let after = std::fs::read_to_string(&path).expect("a file");
    std::fs::remove_dir_all(folder.parent().expect("a folder")).expect("removed");
    (after, result.err())
}

#[test]
fn a_case_is_blessed_and_a_difference_is_shown() {
    let text = "# Shown.\n\n%0 = Param i32 slot=0\n%1 = Add i32 %0 0:i32\nreturn %1\n";
    let (after, error) = blessed("fresh", text);
    assert_eq!(error, None);
    assert_eq!(
        after,
        format!("{text}---\n%0 = Param i32 slot=0\nreturn %0\n")
    );
    // A missing comment, and a header key that the pass does not read.
    assert!(
        blessed("comment", &text.replace('.', ""))
            .1
            .expect("an error")
            .contains("comment")
    );
    let unread = text.replace("Shown.\n", "Shown.\ntarget: cpu-avx2\n");
    assert!(
        blessed("header", &unread)
            .1
            .expect("an error")
            .contains("`target` is nothing that rules_algebra reads")
    );
}

#[test]
fn a_result_with_other_values_is_not_blessed() {
    let g = |text: &str| {
        gristmill_uop::text::parse(text, &gristmill_encodings::by_name).expect("a graph")
    };
    let of = |text: &str| {
        let (graph, roots) = g(text);
        let kernel = text.contains("Store");
        match kernel {
            true => judge::Meaning::Kernels(kernels::Kernels::new(graph, roots)),
            false => judge::Meaning::Tensors(judge::Tensors {
                graph,
                outputs: vec![(9, roots[0])],
            }),
        }
    };
    let path = folder().join("simd/a_row_of_six_lanes.txt");
    let case = Case::read(&path).expect("a case");
    let judged = |before: &str, after: &str| {
        let claim = judge::Claim::same(of(before), of(after));
        judge::judge(
            &case,
            &judge::Applied {
                text: String::new(),
                claim,
            },
        )
    };
    let tensor = "%0 = Param f32 6:i64 slot=0\n%1 = Exp f32 %0\nreturn %1";
    let nest = "%0 = Param f32 slot=9\n%1 = Range i64 6:i64 range=1 kind=loop\n%2 = Param f32 slot=0\n%3 = Load f32 %2 %1\n\
        %4 = Exp f32 %3\n%5 = Store f32 %0 %1 %4 %1\nreturn %5";
    assert_eq!(judged(tensor, nest), Ok(()));
    let wrong = |before: &str, after: &str, words: &str| {
        let error = judged(before, after).expect_err("an error");
        assert!(error.contains(words), "{error}");
    };
    wrong(
        tensor,
        &nest.replace("Exp", "Sqrt"),
        "computes something else",
    );
    wrong(
        nest,
        &nest.replace("Exp", "Sqrt"),
        "computes something else",
    );
    wrong(
        tensor,
        &tensor.replace("Exp", "Neg"),
        "computes something else",
    );
    wrong(
        tensor,
        &nest.replace("6:i64", "5:i64"),
        "ends before element 5",
    );
    wrong(
        tensor,
        &nest.replace("slot=9", "slot=8"),
        "slot 9 is not written",
    );
    wrong(
        tensor,
        &nest.replace("Load f32", "Load i8"),
        "breaks its spec",
    );
}

#[test]
fn statements_must_be_in_order() {
    let case =
        Case::read(&folder().join("linear/values_go_to_the_outermost_loop.txt")).expect("a case");
    let judged = |change: &mut dyn FnMut(&mut Vec<testing::Statement>)| {
        let Ok(judge::Applied {
            claim: judge::Claim::Same(mut all),
            text,
        }) = statements::linear(&case)
        else {
            unreachable!("linear code that is claimed to be the same")
        };
        let Some(judge::Meaning::Linear(linear)) = all.last_mut() else {
            unreachable!("linear code")
        };
        change(&mut linear.kernels[0].code.bodies[0].statements);
        judge::judge(
            &case,
            &judge::Applied {
                text,
                claim: judge::Claim::Same(all),
            },
        )
    };
    let defines = |s: &&testing::Statement| matches!(s, testing::Statement::Define(_));
    let mut count = 0;
    assert_eq!(
        judged(&mut |all| count = all.iter().filter(defines).count()),
        Ok(())
    );
    assert!(count > 4, "{count} definitions");
    // Each definition is needed before its present successor.
    for i in 0..count {
        let late = judged(&mut |all| {
            let at = (0..all.len())
                .filter(|&at| defines(&&all[at]))
                .nth(i)
                .expect("a definition");
            let moved = all.remove(at);
            all.insert(all.len() - 1, moved);
        });
        assert!(
            late.expect_err("an error")
                .contains("a value is defined before it is used")
        );
    }
}

/// Position of a barrier or wait in linear code: kernel, body, statement.
#[derive(Clone, Copy)]
struct Wait {
    kernel: usize,
    body: usize,
    statement: usize,
}

/// The meanings that a case claims to be equal; the last one is linear code.
fn claimed(case: &Case) -> (Vec<judge::Meaning>, kernels::Linear) {
    let pass = apply::PASSES
        .iter()
        .find(|p| p.0 == case.pass)
        .expect("a pass");
    let judge::Claim::Same(mut all) = (pass.1)(case).expect("it applies").claim else {
        panic!("{} claims nothing", case.pass)
    };
    let Some(judge::Meaning::Linear(linear)) = all.pop() else {
        panic!("{} makes no linear code", case.pass)
    };
    (all, linear)
}

/// The barriers and waits for copies in a case's linear code.
fn waits(case: &Case) -> Vec<Wait> {
    let mut out = Vec::new();
    for (kernel, k) in claimed(case).1.kernels.iter().enumerate() {
        for (body, b) in k.code.bodies.iter().enumerate() {
            let waits = |s: &testing::Statement| {
                matches!(
                    s,
                    testing::Statement::Barrier | testing::Statement::AsyncWait(_)
                )
            };
            let all = b.statements.iter().enumerate().filter(|s| waits(s.1));
            out.extend(all.map(|(statement, _)| Wait {
                kernel,
                body,
                statement,
            }));
        }
    }
    out
}

/// Removes one wait from a case's linear code and returns the failure of the spec or of the run.
fn without(case: &Case, wait: Wait, as_meaning: fn(kernels::Linear) -> judge::Meaning) -> String {
    let (mut all, mut broken) = claimed(case);
    broken.kernels[wait.kernel].code.bodies[wait.body]
        .statements
        .remove(wait.statement);
    all.push(as_meaning(broken));
    let applied = judge::Applied {
        text: String::new(),
        claim: judge::Claim::Same(all),
    };
    judge::judge(case, &applied).err().unwrap_or_default()
}

#[test]
fn a_wait_that_is_missing_is_a_fault() {
    let mut seen = 0;
    for path in ["barriers", "pipeline", "dependents"]
        .iter()
        .flat_map(|p| entries(&folder().join(p)))
    {
        let case = Case::read(&path).expect("a case");
        for wait in waits(&case) {
            let at = format!("{}, statement {}", path.display(), wait.statement);
            let words = without(&case, wait, judge::Meaning::Linear);
            assert!(words.contains("breaks its spec"), "{at}: {words}");
            let words = without(&case, wait, judge::Meaning::Values);
            let race = [
                "wrote since the last barrier",
                "read since the last barrier",
                "being copied",
                "in flight",
            ];
            assert!(race.iter().any(|r| words.contains(r)), "{at}: {words}");
            seen += 1;
        }
    }
    assert!(seen >= 20, "{seen} waits");
}
