use gristmill_llm::{engine::*, gguf::Gguf};
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let file = if a[1].starts_with("synth:") {
        let (p, q) = gristmill_llm::synth::parse_name(&a[1]).unwrap();
        Gguf::synth(p, q).unwrap()
    } else {
        Gguf::open(&a[1]).unwrap()
    };
    let opened = gristmill_backend::open(
        &a[2],
        &gristmill_backend::Options {
            threads: std::env::var("THREADS").ok().map(|t| t.parse().unwrap()),
            ..Default::default()
        },
    )
    .unwrap();
    let t = Instant::now();
    let kv = if a.get(5).is_some_and(|s| s == "f16") { gristmill_uop::Scalar::F16 } else { gristmill_uop::Scalar::F32 };
    let mut e = Engine::load(
        &file,
        opened,
        Settings { context: Some(512), cache: kv, chunk: std::env::var("CHUNK").map_or(128, |c| c.parse().unwrap()) },
        &|p| {
            if std::env::var("V").is_ok() {
                eprintln!("{p:?}")
            }
        },
    )
    .unwrap();
    eprintln!("load {:?} functions {}", t.elapsed(), e.compiled());
    let tokens: Vec<u32> = if a[3].contains(',') {
        a[3].split(',').map(|s| s.parse().unwrap()).collect()
    } else {
        std::fs::read_to_string(&a[3])
            .unwrap()
            .split(|c: char| !c.is_ascii_digit())
            .filter(|s| !s.is_empty())
            .map(|s| s.parse().unwrap())
            .collect()
    };
    let reference: Option<Vec<f32>> = std::fs::read(&a[4]).ok().map(|b| {
        let h = u16::from_le_bytes([b[8], b[9]]) as usize;
        b[10 + h..].chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
    });
    if let Ok(n) = std::env::var("PROF") {
        let mut by: std::collections::BTreeMap<(String, usize), (f64, f64, usize, String)> = Default::default();
        let reps: usize = n.parse().unwrap();
        let pos: usize = std::env::var("POS").map_or(0, |p| p.parse().unwrap());
        for i in 0..reps {
            let times = e.timed_step(tokens[0], pos + i).unwrap();
            for (t, (f, k)) in times.iter().zip(e.step_launches()) {
                let p = &f.compiled.programs[*k];
                let x = by.entry((f.function.name.clone(), *k)).or_insert((
                    0.0,
                    0.0,
                    0,
                    format!("{:?} {}", &p.notes[..p.notes.len() - 1], p.name),
                ));
                x.0 = if x.2 == 0 { *t } else { x.0.min(*t) };
                x.1 = p.estimate.weight_bytes;
                x.2 += 1;
            }
        }
        for x in by.values_mut() {
            x.0 *= x.2 as f64;
            x.1 *= x.2 as f64;
        }
        let total: f64 = by.values().map(|x| x.0).sum();
        println!("step {:.2} ms", total * 1e3 / reps as f64);
        for ((f, k), (t, b, n, note)) in by {
            println!(
                "{:5.1}% {f} {k} {:8.1} us x{} {:6.2} GB/s {note}",
                100.0 * t / total,
                t / n as f64 * 1e6,
                n / reps,
                b / t / 1e9
            );
        }
    }
    if std::env::var("PROFC").is_ok() {
        let mut by: std::collections::BTreeMap<(String, usize), (f64, usize, String)> = Default::default();
        let all = e.timed_chunk(&tokens, 0).unwrap();
        let total: f64 = all.iter().map(|x| x.0).sum();
        for (t, f, k) in all {
            let p = &f.compiled.programs[k];
            let x = by.entry((f.function.name.clone(), k)).or_insert((
                0.0,
                0,
                format!("{:?} {}", &p.notes[..p.notes.len() - 1], p.name),
            ));
            x.0 += t;
            x.1 += 1;
        }
        println!("chunk {:.2} ms", total * 1e3);
        for ((f, k), (t, n, note)) in by {
            println!("{:5.1}% {f} {k} {:8.1} us x{n} {note}", 100.0 * t / total, t / n as f64 * 1e6);
        }
    }
    for step in [true, false] {
        let t = Instant::now();
        let mut out = Vec::new();
        if step {
            for (i, &tok) in tokens.iter().enumerate() {
                out.extend_from_slice(e.forward(&[tok], i, true).unwrap());
            }
        } else {
            out = e.forward(&tokens, 0, true).unwrap().to_vec();
        }
        let dt = t.elapsed();
        if let Some(r) = &reference {
            let n = out.len().min(r.len());
            let mean = r[..n].iter().map(|&x| x as f64).sum::<f64>() / n as f64;
            let var = r[..n].iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>() / n as f64;
            let err = out.iter().zip(r).map(|(a, b)| ((a - b) as f64).powi(2)).sum::<f64>() / n as f64;
            let v = e.model().vocabulary();
            let am = |r: &[f32]| r.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            let same = out.chunks(v).zip(r.chunks(v)).filter(|(a, b)| am(a) == am(b)).count();
            println!(
                "step={step} rms/std {:.2e} argmax {same}/{} in {dt:?}  {:?}",
                (err / var).sqrt(),
                n / v,
                &out[..4]
            );
        } else {
            println!("step={step} {dt:?} {:?}", &out[..4]);
        }
    }
}
