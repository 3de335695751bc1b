//! Commands that measure: logits, perplexity, bench.

use super::{DEMO, data, gristmill, outcome, run};
use serde_json::Value;
use std::path::Path;

const VOCABULARY: usize = 2048;

/// Reads the header and the numbers of a float32 file.
fn npy(path: &Path) -> (String, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let (header, values) =
        bytes[10..].split_at(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])));
    let values = values
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    (String::from_utf8(header.to_vec()).unwrap(), values)
}

/// RMS difference in standard deviations of `b`.
fn difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let n = b.len() as f64;
    let mean = b.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = b
        .iter()
        .map(|&x| (f64::from(x) - mean).powi(2))
        .sum::<f64>()
        / n;
    let error = a
        .iter()
        .zip(b)
        .map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2))
        .sum::<f64>()
        / n;
    (error / variance).sqrt()
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len())
        .max_by(|&a, &b| row[a].total_cmp(&row[b]))
        .unwrap()
}

#[test]
fn logits_are_those_of_llama_cpp() {
    let tokens = std::fs::read_to_string(data("demo-glm-tokens.txt")).unwrap();
    let tokens = tokens.split_whitespace().collect::<Vec<_>>().join(",");
    let (_, expected) = npy(&data("demo-glm-Q4_0-logits.npy"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logits.npy");
    let mut all = Vec::new();
    for more in [
        &[][..],
        &["--exact"],
        &["--exact", "--step"],
        &["--exact", "--chunk", "5"],
    ] {
        run(&[
            &[
                "logits",
                DEMO,
                "--tokens",
                &tokens,
                "-o",
                file.to_str().unwrap(),
            ],
            more,
        ]
        .concat())
        .ok();
        let (header, found) = npy(&file);
        assert_eq!(
            header.trim_end(),
            "{'descr': '<f4', 'fortran_order': False, 'shape': (96, 2048), }"
        );
        // llama.cpp quantises activations to int8, which alone makes 1 to 3 %.
        let error = difference(&found, &expected);
        assert!(error < 0.03, "{more:?}: {error}");
        let same = found
            .chunks(VOCABULARY)
            .zip(expected.chunks(VOCABULARY))
            .filter(|(a, b)| argmax(a) == argmax(b));
        assert!(same.count() >= 95, "{more:?}");
        all.push(found);
    }
    assert!(difference(&all[2], &all[1]) < 1e-4 && difference(&all[3], &all[1]) < 1e-4);
    // int8 activations and an f16 KV cache: below 3 %, but not 0.
    let error = difference(&all[0], &all[1]);
    assert!((1e-4..0.03).contains(&error), "{error}");
}

#[test]
fn perplexity_tells_known_text_from_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let nats = |text: &str, more: &[&str]| -> f64 {
        let file = folder.path().join("text");
        std::fs::write(&file, text).unwrap();
        let out = run(&[&["perplexity", DEMO, file.to_str().unwrap()], more].concat()).ok();
        assert!(out.contains("perplexity "), "{out}");
        let line = out
            .lines()
            .find(|l| l.starts_with("mean negative log-likelihood"))
            .unwrap();
        line.split_whitespace()
            .rev()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    };
    let story = "Once upon a time there was a green frog named Zuzu. One day Zuzu lost the map. He looked under the apples, \
                 but it was not there.";
    let known = nats(story, &[]);
    assert!(known < 2.5, "{known}");
    assert!(nats("colourless 8 gRiStMiLl {} ideas; sleep!! 77 furiously", &[]) > known + 3.0);
    // A shorter context predicts worse.
    assert!(nats(story, &["--ctx", "8"]) > known);
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    assert!(
        run(&["perplexity", DEMO, empty.to_str().unwrap()])
            .failed()
            .contains("too short")
    );
}

#[test]
fn bench_prints_the_fields_of_the_contract() {
    let out = run(&[
        "bench", DEMO, "-p", "40", "-n", "4", "-d", "0,64", "-r", "2", "--json",
    ])
    .ok();
    let lines: Vec<serde_json::Value> = out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let what: Vec<_> = lines
        .iter()
        .map(|l| (l["test"].as_str().unwrap(), l["depth"].as_u64().unwrap()))
        .collect();
    assert_eq!(what, [("pp40", 0), ("tg4", 0), ("pp40", 64), ("tg4", 64)]);
    let fields = [
        "model",
        "device",
        "test",
        "depth",
        "tokens_per_second",
        "ms_per_token",
        "bytes_per_token",
        "bandwidth_fraction",
        "launches_per_token",
    ];
    for line in &lines {
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), fields);
        assert_eq!(
            (line["model"].as_str(), line["device"].as_str()),
            (Some("demo-glm-Q4_0.gguf"), Some("cpu"))
        );
        let number = |name: &str| line[name].as_f64().unwrap();
        assert!(fields[4..].iter().all(|name| number(name) > 0.0), "{line}");
        assert!((number("tokens_per_second") * number("ms_per_token") - 1e3).abs() < 1e-6);
        assert!(number("bandwidth_fraction") < 2.0, "{line}");
    }
    // 2 of 8 experts: part of the file. The KV cache grows by 288 f16 per layer and token.
    let bytes = |i: usize| lines[i]["bytes_per_token"].as_u64().unwrap();
    assert!((2_500_000..7_000_000).contains(&bytes(1)), "{}", bytes(1));
    assert_eq!(bytes(3) - bytes(1), 64 * 288 * 2 * 6);
    assert!(
        run(&["bench", DEMO, "-p", "8", "-n", "0", "-r", "1"])
            .ok()
            .contains("pp8")
    );
    assert!(
        run(&["bench", DEMO, "-d", "2000"])
            .failed()
            .contains("2512")
    );
}

#[test]
fn bench_takes_lists_and_prints_in_several_formats() {
    let bench = |more: &[&str]| run(&[&["bench", "-m", DEMO, "-r", "1"], more].concat()).ok();
    let lists = ["-p", "8,16", "-n", "2,4", "-d", "0,8", "-pg", "8,2"];
    let json: serde_json::Value =
        serde_json::from_str(&bench(&[&lists[..], &["-o", "json"]].concat())).unwrap();
    let tests: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["test"].as_str().unwrap())
        .collect();
    let once = ["pp8", "pp16", "tg2", "tg4", "pp8+tg2"];
    assert_eq!(tests, [once, once].concat());
    let csv = bench(&["-p", "8", "-n", "0", "-o", "csv"]);
    assert!(
        csv.starts_with("model,device,test,depth,") && csv.lines().count() == 2,
        "{csv}"
    );
    let table = bench(&["-p", "0", "-n", "2"]);
    assert!(
        table.contains("| test") && table.contains("| tg2 "),
        "{table}"
    );
    let batch = bench(&["-p", "8", "-n", "2", "--batch", "1,2", "-o", "jsonl"]);
    assert!(
        batch.lines().count() == 2 && batch.contains("\"sequences\":2"),
        "{batch}"
    );
    assert_eq!(run(&["bench", DEMO, "-p", "8,16", "--batch", "1"]).code, 2);
}

/// The optimisations in docs/ablation/ideas.json are those of --disable.
#[test]
fn every_optimisation_is_of_one_idea() {
    use gristmill_uop::target::FLAGS;
    let list = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ablation/ideas.json");
    let ideas: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(list).unwrap()).unwrap();
    let flags = ideas
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|idea| idea["flags"].as_array().unwrap());
    let mut told: Vec<&str> = flags.map(|flag| flag.as_str().unwrap()).collect();
    let mut known: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    told.sort_unstable();
    known.sort_unstable();
    assert_eq!(told, known);
}

/// Tunes on this CPU; the output lists the candidates, and the result is stored.
#[test]
fn a_model_is_tuned_and_what_is_found_is_stored() {
    // A separate kernel cache: other tests keep the defaults.
    let store = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tuned");
    let with =
        |arguments: &[&str]| outcome(gristmill(arguments).env("GRISTMILL_CACHE", &store)).ok();
    let work = [
        "-p",
        "4",
        "-n",
        "4",
        "-r",
        "1",
        "--beam",
        "2",
        "--minutes",
        "0.2",
    ];
    let out = with(
        &[
            &["tune", DEMO, "--device", "cpu", "--threads", "1"],
            &work[..],
        ]
        .concat(),
    );
    let rows = out
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .count();
    let plural = if rows == 1 { "" } else { "s" };
    assert!(
        out.contains("decode tok/s") && out.contains(&format!("\ntried {rows} change{plural} in ")),
        "{out}"
    );
    // At least one candidate is tried on a busy machine.
    assert!(
        rows > 0
            && out
                .lines()
                .nth(1)
                .is_some_and(|line| line.ends_with("groups 2")),
        "{out}"
    );
    let (stored, plans) = out
        .lines()
        .last()
        .unwrap()
        .rsplit_once(", and ")
        .expect("what is stored");
    let tuning = stored.split_once(": ").expect("parameters").1;
    // Either the defaults stay, or the result was measured again.
    match out.contains("the defaults stay") {
        true => assert!(
            tuning.starts_with("groups 1") && plans == "0 plans",
            "{out}"
        ),
        false => assert!(
            out.contains("alternately with the untuned model:") && out.contains("kept: "),
            "{out}"
        ),
    }
    assert!(
        with(&["devices"]).contains(&format!("tuned: {tuning}")),
        "{out}"
    );
    with(&["tune", "--reset"]);
}

#[test]
fn ablation_and_tuning_go_through_their_tables() {
    use gristmill_uop::target::{FLAGS, PARAMETERS, Tuning};
    // The null device runs nothing, so the numbers are arbitrary; --chunk 1 needs one graph only.
    let null = [
        "--device", "null", "-p", "8", "-n", "2", "-r", "1", "--chunk", "1",
    ];
    let with = |command: &[&str]| run(&[command, &null].concat()).ok();
    let out = with(&["bench", DEMO, "--ablate", "--json"]);
    let lines: Vec<serde_json::Value> = out
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let flags: Vec<_> = lines.iter().map(|l| l["flag"].as_str().unwrap()).collect();
    let described = |l: &serde_json::Value| {
        FLAGS
            .iter()
            .any(|row| l["flag"] == row.name && l["does"] == row.doc)
    };
    assert!(
        flags.contains(&"int8") && lines.iter().all(described),
        "{out}"
    );
    assert!(
        lines
            .iter()
            .all(|l| l["decode_ratio"].as_f64().unwrap() > 0.0
                && l["prefill_ratio"].as_f64().unwrap() > 0.0)
    );
    let out = with(&["bench", DEMO, "--ablate=merge,int8", "--json"]);
    assert!(
        out.lines().count() == 2 && out.contains("merge") && out.contains("int8"),
        "{out}"
    );
    let on_cpu = [
        "bench",
        DEMO,
        "--device",
        "cpu",
        "--ablate=factors",
        "-p",
        "0",
        "-n",
        "2",
        "-r",
        "1",
    ];
    assert!(run(&on_cpu).failed().contains("does not use factors"));
    // f32 arithmetic has fewer candidates; `plans.rs` tests which ones.
    let out = with(&["tune", DEMO, "--exact", "--minutes", "0.1"]);
    assert!(
        PARAMETERS.iter().all(|p| out.contains(p.name))
            && out.contains("nothing is stored for null"),
        "{out}"
    );
    // The first candidates on a GPU change kernels of the measured steps.
    let gpu = [
        "--device",
        "null:h200",
        "-p",
        "0",
        "-n",
        "2",
        "-r",
        "1",
        "--minutes",
        "0.05",
    ];
    let out = run(&[&["tune", DEMO], &gpu[..]].concat()).ok();
    let rows: Vec<&str> = out
        .lines()
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect();
    assert!(
        !rows.is_empty() && rows.iter().any(|row| !row.contains("the same kernels")),
        "{out}"
    );
    assert!(
        run(&["tune", DEMO, "-p", "8", "-n", "2", "-d", "999999999"])
            .failed()
            .contains("and -d 999999999")
    );
    assert!(
        run(&["tune", DEMO, "--device", "interp"])
            .failed()
            .contains("nothing to tune")
    );
    assert!(
        run(&["tune", DEMO, "-p", "0", "-n", "0"])
            .failed()
            .contains("nothing to measure")
    );
    let groups = format!("groups {}", Tuning::default().groups);
    assert!(
        run(&["tune", DEMO, "--reset"])
            .ok()
            .contains(&format!("defaults restored: {groups}"))
    );
    assert!(run(&["devices"]).ok().contains(&format!("tuned: {groups}")));
}

/// `tune --timings` appends a line for each plan: its cost, its time, and the kernels that differ.
#[test]
fn plans_are_timed_for_the_cost_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times.jsonl");
    let path = file.to_str().unwrap();
    let tune = |path: &str| {
        let short = ["-p", "0", "-n", "2", "-r", "3", "--minutes", "0.05"];
        run(&[&["tune", DEMO, "--timings", path][..], &short].concat())
    };
    assert!(tune(path).ok().contains("candidates measured"));
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!lines.is_empty());
    for line in &lines {
        let [plans, seconds] = ["plans", "seconds"].map(|of| line[of].as_array().unwrap());
        assert_ne!(plans[0], plans[1]);
        assert!(seconds.iter().all(|s| s.as_f64().unwrap() > 0.0), "{line}");
        let kernels = line["kernels"].as_array().unwrap().iter();
        let kernels: Vec<&Value> = kernels.flat_map(|of| of.as_array().unwrap()).collect();
        assert!(!kernels.is_empty(), "{line}");
        for kernel in kernels {
            assert!(
                kernel["fixed"]["launch"].as_f64().unwrap() >= 1.0,
                "{kernel}"
            );
        }
    }
    assert!(tune("/dev/null/times").failed().contains("cannot write"));
    let both = run(&["tune", DEMO, "--timings", path]);
    assert!(
        both.stderr.contains("one step") && both.code == 2,
        "{}",
        both.stderr
    );
}
