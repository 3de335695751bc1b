use gristmill_llm::{arch::*, gguf::Gguf};
use gristmill_uop::Scalar;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (p, q) = gristmill_llm::synth::parse_name(&a[1]).unwrap();
    let file = Gguf::synth(p, q).unwrap();
    let model = load(file.metadata(), &file).unwrap();
    let o = gristmill_backend::open(&a[2], &Default::default()).unwrap();
    let chunk = a.get(3).is_some_and(|s| s == "chunk");
    let opt = Options {
        tokens: if chunk { TokenClass::Chunk { max: 512 } } else { TokenClass::One },
        rows: 4096,
        cache: Scalar::F16,
        attention: AttentionForm::Absorbed,
        logits: Logits::Last,
    };
    let plan = model.plan(&opt, &mut Functions::new());
    for f in plan.functions() {
        let t = Instant::now();
        let c = gristmill_compiler::compile(f, o.device.target(), o.dialect, &mut gristmill_compiler::Cheapest);
        println!(
            "== {} launches {} modelled {:.1} us, compiled in {:?}, arena {} MB, text {} KB",
            f.name,
            c.programs.len(),
            c.seconds * 1e6,
            t.elapsed(),
            c.arena >> 20,
            c.programs.iter().map(|p| p.source.len()).sum::<usize>() >> 10
        );
        for (p, l) in c.programs.iter().zip(&c.levels) {
            println!("  L{l} {} {:?}", p.name, p.notes);
        }
        if let Ok(k) = std::env::var("SRC") {
            for p in &c.programs {
                if p.name.contains(&k) {
                    println!("{}", p.source);
                }
            }
        }
        if a.len() > 4 {
            for d in &c.decisions {
                println!("    {}", d.explain());
            }
        }
    }
}
