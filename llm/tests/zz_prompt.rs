use gristmill_backend::{Options, open};
use gristmill_llm::engine::{Draw, Engine, Settings};
use gristmill_llm::gguf::Gguf;
use std::time::Instant;
#[test]
fn prompts() {
    let preset = std::env::var("P").unwrap_or("youtu-llm-2b".into());
    let file = Gguf::synth(&preset, "q4_0").unwrap();
    let of = |parallel| { let settings = Settings { context: Some(2048), parallel, ..Settings::default() };
        Engine::load(&file, open("cpu", &Options::default()).unwrap(), settings, &|_| ()).unwrap() };
    let mut a = of(None);
    let mut b = of(Some(4));
    b.select(&(0..32).map(|i| (i * 5 + 3) % 128).collect::<Vec<u32>>()).unwrap();
    let ids: Vec<u32> = (0..512).map(|i| (i * 7919 + 13) % 100000).collect();
    let mut times = [[vec![], vec![]], [vec![], vec![]]];
    for turn in 0..4 { for (i, e) in [&mut a, &mut b].into_iter().enumerate() {
        let t = Instant::now(); e.forward(&ids, 0, false).unwrap(); let p = t.elapsed().as_secs_f64();
        let t = Instant::now(); e.decode(5, 512, 12, &Draw::greedy(), false).unwrap(); for _ in 0..12 { e.next_token().unwrap(); } let d = t.elapsed().as_secs_f64();
        if turn > 0 { times[i][0].push(p); times[i][1].push(d / 12.0); }
    } }
    for (i, t) in times.iter_mut().enumerate() { for v in t.iter_mut() { v.sort_by(f64::total_cmp); } println!("{i}: prompt {:.2}/{:.2} s, token {:.1}/{:.1} ms (least/median)", t[0][0], t[0][1], t[1][0] * 1e3, t[1][1] * 1e3); }
}
