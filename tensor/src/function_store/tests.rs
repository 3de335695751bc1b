//! Tests keys and records of compiled functions.

use super::*;
use crate::build_id;
use crate::function::{Capture, ContentKey};
use crate::{dims, nn};
use gristmill_backend::cpu::dialect::C;
use gristmill_compiler::{Cheapest, Dialect, compile};
use gristmill_encodings::{F32, Q4_0};
use gristmill_uop::machine::Machine;
use gristmill_uop::program::Program;
use gristmill_uop::target::{FLAGS, PARAMETERS};
use gristmill_uop::{Id, Scalar, text};
use std::path::Path;

/// Function: RMS norm and product of up to eight tokens with a packed weight.
fn function(name: &str, weight: &str, width: usize) -> Function {
    let c = Capture::new(name);
    let n = c.var("n", 1, 8);
    let x = c.input("x", dims![n, 256], Scalar::F32);
    let norm = c.weight("norm", &[256], &F32);
    let w = c.weight(weight, &[width, 256], &Q4_0);
    c.output("y", nn::rms_norm(x, norm, 1e-5).linear(w));
    c.finish()
}

fn place(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("gristmill-kept-{name}-{}", std::process::id()))
}

fn nowhere() -> Store {
    Store::without(gristmill_runtime::Error::invalid(
        "a store",
        "is of no use here",
    ))
}

#[test]
fn every_compilation_input_changes_the_key() {
    let store = nowhere();
    let key = |build: &str, device: &str, target: &Target, f: &Function| {
        FunctionStore {
            store: &store,
            device,
            target,
        }
        .key(build, f, f.key())
    };
    let (f, cpu) = (function("f", "w", 64), Target::cpu("avx2", 8, 2));
    let base = key("1", "cpu", &cpu, &f);
    assert_eq!(base, key("1", "cpu", &cpu.clone(), &function("f", "w", 64)));
    let mut keys = vec![
        base,
        key("2", "cpu", &cpu, &f),
        key("1", "cuda", &cpu, &f),
        key("1", "cpu", &cpu, &function("g", "w", 64)),
        key("1", "cpu", &cpu, &function("f", "v", 64)),
        key("1", "cpu", &cpu, &function("f", "w", 128)),
    ];
    // Each fact alone is changed, on a machine where a change matters.
    let fragments = &[gristmill_uop::fragment::AMX_BF16];
    let all_on = Target::new(Machine {
        pairs: true,
        fragments,
        ..Machine::cpu("test", 16, 2)
    });
    for on in [&all_on, &Target::named("h200")] {
        keys.push(key("1", "cpu", on, &f));
        for flag in FLAGS.iter().filter(|flag| flag.acts_on(on.machine.kind)) {
            let mut off = on.clone();
            (flag.off)(&mut off);
            keys.push(key("1", "cpu", &off, &f));
        }
    }
    for parameter in PARAMETERS {
        let mut tuned = cpu.clone();
        *(parameter.field)(&mut tuned.tuning) = 99;
        keys.push(key("1", "cpu", &tuned, &f));
    }
    let mut planned = cpu.clone();
    planned.plans.insert(
        format!("workgroup {} sum", f.full_name()),
        "workgroup: whole".into(),
    );
    keys.push(key("1", "cpu", &planned, &f));
    // Plans of other functions do not affect the key, except those for weight layouts.
    let mut others = planned.clone();
    others.plans.insert(
        format!("workgroup {} sum", function("f", "w", 128).full_name()),
        "workgroup: whole".into(),
    );
    assert_eq!(key("1", "cpu", &others, &f), key("1", "cpu", &planned, &f));
    others
        .plans
        .insert("layout q4_0 [64, 256]".into(), "layout: planes".into());
    keys.push(key("1", "cpu", &others, &f));
    let (threads, registers) = (
        Target {
            threads: 2,
            ..cpu.clone()
        },
        Target {
            registers: 9,
            ..cpu.clone()
        },
    );
    keys.extend([threads, registers].map(|target| key("1", "cpu", &target, &f)));
    keys.extend(machines(&cpu.machine).into_iter().map(|m| {
        key(
            "1",
            "cpu",
            &Target {
                machine: m,
                ..cpu.clone()
            },
            &f,
        )
    }));
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count, "two of them are one");
}

/// The target with each of its facts changed, one at a time.
fn machines(m: &Machine) -> Vec<Machine> {
    // Destructured without `..`, so that a new field must be handled here.
    let Machine {
        name: _,
        kind: _,
        sm: _,
        units,
        lanes,
        subgroup,
        widest,
        schedulers,
        threads_per_unit,
        registers,
        shared_per_unit,
        shared_per_workgroup,
        cache,
        least_bytes,
        part_writes,
        words_alone,
        copies_loops,
        stage_words,
        alignment,
        largest_binding,
        most_bindings,
        folds,
        early,
        table_lookup,
        pairs,
        dot4,
        signed_bytes,
        signed_codes,
        fragments: _,
        bandwidth,
        jump,
        cache_bandwidth,
        operations,
        rate,
        launch,
        latency,
        atomic,
        barrier,
    } = *m;
    let of = || m.clone();
    vec![
        Machine {
            name: "another".into(),
            ..of()
        },
        Machine {
            kind: gristmill_uop::machine::MachineKind::Gpu,
            ..of()
        },
        Machine {
            sm: Some(1),
            ..of()
        },
        Machine {
            units: units + 1,
            ..of()
        },
        Machine {
            lanes: lanes + 1,
            ..of()
        },
        Machine {
            subgroup: subgroup + 1,
            ..of()
        },
        Machine {
            widest: widest + 1,
            ..of()
        },
        Machine {
            schedulers: schedulers + 1,
            ..of()
        },
        Machine {
            threads_per_unit: threads_per_unit + 1,
            ..of()
        },
        Machine {
            registers: registers + 1,
            ..of()
        },
        Machine {
            shared_per_unit: shared_per_unit + 1,
            ..of()
        },
        Machine {
            shared_per_workgroup: shared_per_workgroup + 1,
            ..of()
        },
        Machine {
            cache: cache + 1,
            ..of()
        },
        Machine {
            least_bytes: least_bytes + 1,
            ..of()
        },
        Machine {
            part_writes: !part_writes,
            ..of()
        },
        Machine {
            words_alone: !words_alone,
            ..of()
        },
        Machine {
            copies_loops: !copies_loops,
            ..of()
        },
        Machine {
            stage_words: stage_words + 1,
            ..of()
        },
        Machine {
            alignment: alignment + 1,
            ..of()
        },
        Machine {
            largest_binding: largest_binding - 1,
            ..of()
        },
        Machine {
            most_bindings: most_bindings - 1,
            ..of()
        },
        Machine {
            folds: folds - 1,
            ..of()
        },
        Machine {
            early: !early,
            ..of()
        },
        Machine {
            table_lookup: !table_lookup,
            ..of()
        },
        Machine {
            pairs: !pairs,
            ..of()
        },
        Machine {
            dot4: !dot4,
            ..of()
        },
        Machine {
            signed_bytes: !signed_bytes,
            ..of()
        },
        Machine {
            signed_codes: !signed_codes,
            ..of()
        },
        Machine {
            fragments: &[gristmill_uop::fragment::AMX_BF16],
            ..of()
        },
        // The next float up: no float is rounded in a key.
        Machine {
            bandwidth: bandwidth.next_up(),
            ..of()
        },
        Machine {
            jump: jump.next_up(),
            ..of()
        },
        Machine {
            cache_bandwidth: cache_bandwidth.next_up(),
            ..of()
        },
        Machine {
            operations: operations.next_up(),
            ..of()
        },
        Machine {
            rate: rate.next_up(),
            ..of()
        },
        Machine {
            launch: launch.next_up(),
            ..of()
        },
        Machine {
            latency: latency.next_up(),
            ..of()
        },
        Machine {
            atomic: atomic.next_up(),
            ..of()
        },
        Machine {
            barrier: barrier.next_up(),
            ..of()
        },
    ]
}

#[test]
fn a_build_is_the_source_it_was_made_of() {
    assert_eq!(
        BUILD,
        format!(
            "{:016x}",
            build_id::hash_folders(&build_id::FOLDERS.map(Path::new))
        )
    );
    let place = place("build");
    std::fs::create_dir_all(place.join("deeper")).unwrap();
    let file = place.join("deeper").join("pass.rs");
    let mut builds = Vec::new();
    for text in ["a", "b", "ab"] {
        std::fs::write(&file, text).unwrap();
        builds.push(build_id::hash_folders(&[&place]));
    }
    std::fs::rename(&file, place.join("pass.rs")).unwrap();
    builds.push(build_id::hash_folders(&[&place]));
    std::fs::write(place.join("second.rs"), "").unwrap();
    builds.push(build_id::hash_folders(&[&place]));
    assert_eq!(builds[4], build_id::hash_folders(&[&place]));
    builds.sort_unstable();
    builds.dedup();
    assert_eq!(builds.len(), 5);
    std::fs::remove_dir_all(place).unwrap();
}

/// All fields of a program, with its graph as text.
fn shown(program: &Program) -> String {
    let conditions = program
        .context
        .when
        .iter()
        .flat_map(|w| [w.skip, w.prologue]);
    let is_there: Vec<(bool, bool, bool)> = program
        .context
        .when
        .iter()
        .map(|w| (w.skip.is_some(), w.prologue.is_some(), w.exclusive))
        .collect();
    let roots: Vec<Id> = [program.root, program.groups]
        .into_iter()
        .chain(conditions.flatten())
        .collect();
    let Program {
        name,
        source,
        params,
        vars,
        threads,
        scratch,
        estimate,
        seconds,
        title,
        notes,
        context,
        ..
    } = program;
    let (plan, streams) = (context.plan, &context.streams);
    format!(
        "{name} {title} {params:?} {vars:?} {threads} {scratch} {estimate:?} {seconds:?} {notes:?} {plan:?} {streams:?} {is_there:?}\n{source}\n{}",
        text::print(&program.graph, &roots)
    )
}

fn assert_same(read: &Compiled, written: &Compiled) {
    let of = |c: &Compiled| {
        format!(
            "{:?} {:?} {:?} {} {:?}",
            c.levels, c.layouts, c.temps, c.arena, c.seconds
        )
    };
    assert_eq!(of(read), of(written));
    assert_eq!(read.plans, written.plans);
    let programs = |c: &Compiled| c.programs.iter().map(|p| shown(p)).collect::<Vec<_>>();
    assert_eq!(programs(read), programs(written));
}

#[test]
fn records_round_trip_and_damaged_ones_are_recompiled() {
    let place = place("damage");
    let store = Store::open(&place, 1 << 24).unwrap();
    let f = function("f", "w", 64);
    let machines: [(Target, Option<&dyn Dialect>); 3] = [
        (Target::cpu("avx512vnni", 16, 2), Some(&C)),
        (Target::named("h200"), None),
        (Target::named("m3-max"), None),
    ];
    for (target, dialect) in &machines {
        let compiled = compile(&f, target, *dialect, &mut Cheapest);
        let kept = FunctionStore {
            store: &store,
            device: "test",
            target,
        };
        assert!(kept.get(&f, f.key()).is_none());
        kept.put(&f, f.key(), &compiled);
        assert_same(
            &kept.get(&f, f.key()).expect("what was put there"),
            &compiled,
        );
        // Records with a valid seal but a wrong length or malformed content.
        let (key, bytes) = (kept.key(BUILD, &f, f.key()), record::write(&compiled));
        for end in (0..bytes.len()).step_by(53) {
            assert!(
                record::read(&bytes[..end], &f).is_none(),
                "{end} of {} bytes",
                bytes.len()
            );
        }
        for at in (0..bytes.len()).step_by(211) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            // Reading must not panic; a changed digit of a kernel's text yields another text.
            let _ = record::read(&damaged, &f);
        }
        store.put(&key, &bytes[..bytes.len() / 2]).unwrap();
        assert!(kept.get(&f, f.key()).is_none());
        assert_eq!(
            store.get(&key).unwrap(),
            None,
            "a record that is none is removed"
        );
        // A corrupt byte of the file is detected by the seal.
        kept.put(&f, f.key(), &compiled);
        let path = place.join(format!("{}.kernel", key.hex()));
        let mut damaged = std::fs::read(&path).unwrap();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert!(kept.get(&f, f.key()).is_none());
    }
    std::fs::remove_dir_all(place).unwrap();
}
