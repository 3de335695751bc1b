//! Commands run, chat and tokenize, and the help.

use super::{DEMO, data, gristmill, outcome, piped, run};
use std::process::Stdio;

fn reference() -> serde_json::Value {
    let text = std::fs::read_to_string(data("demo-glm-pytorch.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn greedy_text_is_that_of_the_original_model() {
    let reference = reference();
    let mut compared = 0;
    for (prompt, expected) in reference.as_object().unwrap() {
        let text = run(&["run", DEMO, "--raw", "--temp", "0", "--exact", "-p", prompt]).ok();
        let expected = expected["text"].as_str().unwrap();
        // With 4-bit weights a story has near-ties that change a word; facts have none.
        if prompt.contains("What is") {
            assert_eq!(text, expected);
            compared += 1;
        } else {
            assert!(
                text.len() > 300 && text.ends_with("makes hard things easy."),
                "{text}"
            );
        }
    }
    assert_eq!(compared, 2);
}

#[test]
fn the_template_is_applied_unless_raw() {
    let greedy = |more: &[&str]| run(&[&["run", "--temp", "0", "-p"], more].concat()).ok();
    assert_eq!(
        greedy(&["What is the capital of Japan?"]),
        "The capital of Japan is Tokyo."
    );
    assert!(greedy(&["Once upon a time", "--raw"]).starts_with(" there was a green frog"));
    let outcome = run(&["run", "--temp", "0", "-p", "What is 17 plus 25?", "-n", "3"]);
    assert!(
        outcome.stderr.contains("14 prompt tokens") && outcome.stderr.contains("tok/s"),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains("token limit"), "{}", outcome.stderr);
    assert_eq!(outcome.ok(), "17 plus ");
    let full = run(&["run", "--raw", "-p", "Once upon", "--ctx", "16"]);
    assert!(full.stderr.contains("context full"), "{}", full.stderr);
}

#[test]
fn every_type_of_cache_runs() {
    for kv in ["f32", "f16", "q8_0"] {
        let text = run(&[
            "run",
            "--temp",
            "0",
            "-p",
            "What is the capital of Japan?",
            "--kv",
            kv,
        ])
        .ok();
        assert_eq!(text, "The capital of Japan is Tokyo.", "{kv}");
    }
}

#[test]
fn a_seed_gives_a_text() {
    let story = |seed: &str| {
        run(&[
            "run",
            "-p",
            "Tell me a story.",
            "--temp",
            "1",
            "-n",
            "40",
            "--seed",
            seed,
        ])
        .ok()
    };
    assert_eq!(story("7"), story("7"));
    assert!(["1", "2", "3"].iter().any(|seed| story(seed) != story("7")));
}

#[test]
fn prompts_come_from_standard_input_too() {
    let question = "What is 17 plus 25?";
    for arguments in [
        &["run", "--temp", "0", "-p", "-"][..],
        &["run", "--temp", "0"],
        &["run", "demo", "--temp", "0"],
        &["run", "demo", "-", "--temp", "0"],
    ] {
        assert_eq!(
            piped(arguments, question.as_bytes()).ok(),
            "17 plus 25 is 42.",
            "{arguments:?}"
        );
    }
    // An argument takes precedence over standard input.
    assert_eq!(
        piped(
            &["run", "demo", question, "--temp", "0"],
            b"Tell me a story."
        )
        .ok(),
        "17 plus 25 is 42."
    );
    let none = piped(&["run", "demo"], b" \n");
    assert!(
        none.code == 2 && none.stderr.contains("there is no prompt"),
        "{}",
        none.stderr
    );
    assert_eq!(run(&["run", "demo", question, "-p", question]).code, 2);
}

#[test]
fn what_is_said_of_an_answer_begins_a_line() {
    let mut both = gristmill(&["run", "--temp", "0", "-p", "What is 17 plus 25?"]);
    let (mut reads, writes) = std::io::pipe().unwrap();
    let mut child = both
        .stdout(writes.try_clone().unwrap())
        .stderr(writes)
        .spawn()
        .unwrap();
    drop(both);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reads, &mut text).unwrap();
    assert!(
        child.wait().unwrap().success() && text.contains("17 plus 25 is 42.\n[14 prompt tokens"),
        "{text}"
    );
}

#[test]
fn what_cannot_go_well_is_said_before_a_model_is_loaded() {
    for arguments in [
        &["run", "-p", "What is the capital of Japan?", "--ctx", "8"][..],
        &["chat", "--ctx", "3"],
        &["serve", "--port", "0", "--ctx", "3"],
    ] {
        let said = run(arguments).failed();
        assert!(
            said.contains("is too small: the prompt alone has") && !said.contains("loading"),
            "{arguments:?}: {said}"
        );
    }
    let most = run(&["run", "-p", "x", "--ctx", "9999999"]).failed();
    assert!(
        most.contains("the model takes 1 to 2048") && !most.contains("loading"),
        "{most}"
    );
    let threads = run(&["run", "-p", "x", "-n", "1", "--threads", "512"]);
    assert!(
        threads.stderr.contains("512 threads on "),
        "{}",
        threads.stderr
    );
    threads.ok();
    // Commands that are no C compiler, and an invalid flag.
    for (cc, said) in [
        ("nonsense", "which does not run"),
        ("cat", "compiles nothing for this processor"),
        ("cc --nonsense", "compiles nothing"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let command = &mut gristmill(&["run", "-p", "x", "-n", "1"]);
        let stderr = outcome(command.env("CC", cc).env("GRISTMILL_CACHE", folder.path())).failed();
        assert!(
            stderr.contains(said) && !stderr.contains("bug"),
            "{cc}: {stderr}"
        );
    }
}

#[test]
fn the_interpreter_agrees() {
    let text = run(&[
        "run",
        "--device",
        "interp",
        "--temp",
        "0",
        "-n",
        "2",
        "--raw",
        "-p",
        "Once upon",
    ])
    .ok();
    assert_eq!(
        text,
        run(&["run", "--temp", "0", "-n", "2", "--raw", "-p", "Once upon"]).ok()
    );
}

#[test]
fn a_conversation_keeps_what_is_in_the_cache() {
    let talk = b"What is 17 plus 25?\nWhat is the capital of Japan?\n\n/reset\nWhat is 17 plus 25?\n/exit\nnever\n";
    let outcome = piped(&["chat", "--temp", "0"], talk);
    assert!(
        outcome.stderr.contains("more in the KV cache"),
        "{}",
        outcome.stderr
    );
    assert!(
        outcome.stderr.contains("new conversation\n"),
        "{}",
        outcome.stderr
    );
    let stderr = outcome.stderr.clone();
    assert_eq!(
        outcome.ok(),
        "17 plus 25 is 42.\nThe capital of Japan is Tokyo.\n17 plus 25 is 42.\n"
    );
    // /reset empties the context.
    assert_eq!(stderr.matches("[14 prompt tokens,").count(), 2, "{stderr}");
}

#[test]
fn a_conversation_survives_a_message_that_is_too_long() {
    let talk = format!("{}\nWhat is 17 plus 25?\n", "long ".repeat(100));
    let outcome = piped(&["chat", "--temp", "0", "--ctx", "64"], talk.as_bytes());
    let stderr = &outcome.stderr;
    assert!(
        stderr.contains("error: the prompt has")
            && stderr.contains("error: a message or command failed"),
        "{stderr}"
    );
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (1, "17 plus 25 is 42.\n")
    );
}

#[test]
fn a_conversation_is_saved_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json");
    let path = file.display();
    let talk =
        format!("What is 17 plus 25?\n/system Be kind.\n/system\n/save {path}\n/stats\n/help\n");
    let outcome = piped(&["chat", "--temp", "0"], talk.as_bytes());
    for part in [
        "Be kind.",
        "3 messages saved to",
        "messages    3",
        "prefill     14 tokens",
        "of weights",
        "/load FILE",
        "seed",
    ] {
        assert!(
            outcome.stderr.contains(part),
            "{part} in {}",
            outcome.stderr
        );
    }
    assert_eq!(outcome.ok(), "17 plus 25 is 42.\n");
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let message = |i: usize| {
        (
            saved["messages"][i]["role"].as_str().unwrap(),
            saved["messages"][i]["content"].as_str().unwrap(),
        )
    };
    assert_eq!(
        (message(0), message(2)),
        (("system", "Be kind."), ("assistant", "17 plus 25 is 42."))
    );
    // A second process continues the conversation: the prompt includes all messages.
    let talk = format!("/load {path}\n/system\nWhat is the capital of Japan?\n/reset\n/stats\n");
    let outcome = piped(&["chat", "--temp", "0"], talk.as_bytes());
    assert!(
        outcome.stderr.contains("3 messages loaded from") && outcome.stderr.contains("Be kind."),
        "{}",
        outcome.stderr
    );
    let prompt = |stderr: &str| -> usize {
        let line = stderr
            .lines()
            .find(|l| l.contains(" prompt tokens"))
            .unwrap();
        line.trim_start_matches('[')
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(prompt(&outcome.stderr) > 30, "{}", outcome.stderr);
    // /reset keeps the system prompt.
    assert!(
        outcome.stderr.contains("messages    1") && outcome.stderr.contains("context     0 of"),
        "{}",
        outcome.stderr
    );
    // A failed /load changes nothing.
    std::fs::write(&file, "[1]").unwrap();
    let talk = format!(
        "/load {path}\n/load\n/load none/such\n/save none/such/file\nWhat is 17 plus 25?\n"
    );
    let outcome = piped(&["chat", "--temp", "0"], talk.as_bytes());
    let stderr = &outcome.stderr;
    for part in [
        "holds no conversation",
        "/load takes a file",
        "cannot read none/such",
        "cannot write none/such/file",
        "4 messages or commands",
    ] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (1, "17 plus 25 is 42.\n")
    );
}

#[test]
fn a_command_that_is_none_is_not_said_to_the_model() {
    for talk in ["/sytem be brief\n", "/nonsense\n", "  /loda x\n"] {
        let outcome = piped(&["chat"], talk.trim_start().as_bytes());
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (1, ""),
            "{talk}: {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains("no command /") && outcome.stderr.contains("/system, /reset"),
            "{}",
            outcome.stderr
        );
    }
    // Paths and text after a space are messages.
    let outcome = piped(&["chat", "-n", "1"], b"/usr/bin is what?\n /so it is\n");
    assert_eq!(
        outcome.stderr.matches(" prompt tokens").count(),
        2,
        "{}",
        outcome.stderr
    );
    outcome.ok();
}

#[test]
fn what_a_command_did_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("talk.json");
    let save = format!("/save {}\n", path.display());
    let talk =
        format!("/system Be kind.\n/reset\n/system\n{save}{save}/system -\n/system\n/reset\n");
    let outcome = piped(&["chat"], talk.as_bytes());
    for part in [
        "the system prompt is set",
        "with the same system prompt",
        "\nBe kind.\n",
        "talk.json\n",
        ", replacing the file",
        "no system prompt; /system TEXT",
        "new conversation with",
    ] {
        assert!(
            outcome.stderr.contains(part),
            "{part} in {}",
            outcome.stderr
        );
    }
    outcome.ok();
}

#[test]
fn minus_one_is_as_much_as_there_is() {
    let text =
        |more: &[&str]| run(&[&["run", "-p", "What is the capital of Japan?"], more].concat());
    let greedy = text(&["--temp", "0"]).ok();
    assert_eq!(text(&["--temp", "0", "-n", "-1"]).ok(), greedy);
    assert_eq!(
        text(&[
            "--temp",
            "0",
            "--top-k",
            "-1",
            "--repeat-last-n",
            "-1",
            "--seed",
            "-1"
        ])
        .ok(),
        greedy
    );
    let seeds: Vec<String> = (0..2)
        .map(|_| {
            text(&["--seed", "-1", "-n", "1"])
                .stderr
                .split(" seed ")
                .nth(1)
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_ne!(seeds[0], seeds[1]);
    for (flags, said) in [
        (["-n", "-2"], "non-negative integer, or -1"),
        (["--top-k", "-2"], "non-negative integer, or -1"),
        (["--seed", "-2"], "non-negative integer, or -1"),
        (["--min-p", "-1"], "from 0 to 1"),
        (["--temp", "-1"], "non-negative number"),
        (["--temp", "nan"], "non-negative number"),
    ] {
        let outcome = text(&flags);
        assert!(
            outcome.code == 2 && outcome.stderr.contains(said) && !outcome.stderr.contains("tip"),
            "{flags:?}: {}",
            outcome.stderr
        );
    }
}

#[test]
fn the_demo_model_has_a_name() {
    let ask = |model: &[&str]| {
        run(&[
            &["run", "--temp", "0", "-p", "What is the capital of Japan?"],
            model,
        ]
        .concat())
    };
    assert_eq!(ask(&["demo"]).ok(), ask(&[]).ok());
    assert!(
        run(&["inspect", "demo", "--brief"])
            .ok()
            .contains("deepseek2")
    );
    assert!(run(&["--help"]).ok().contains("`), demo,"));
    assert!(run(&["list"]).ok().contains("demo "));
    assert!(
        ask(&["demmo"])
            .failed()
            .contains("nearest short name is demo")
    );
    let outcome = run(&["pull", "demo"]);
    assert!(
        outcome.code == 2 && outcome.stderr.contains("built in"),
        "{}",
        outcome.stderr
    );
    assert!(
        run(&["completions", "bash"])
            .ok()
            .contains("demo smollm2-135m")
    );
}

#[test]
fn a_message_may_have_several_lines() {
    let count = |talk: &str| -> usize {
        let outcome = piped(&["chat", "--temp", "0", "-n", "1"], talk.as_bytes());
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        outcome.stderr.matches(" prompt tokens").count()
    };
    assert_eq!(count("What is\n17 plus 25?\n"), 2);
    assert_eq!(count("What is\\\n17 plus 25?\n"), 1);
    assert_eq!(count("\"\"\"\nWhat is\n\n17 plus 25?\n\"\"\"\n"), 1);
    assert_eq!(count("\"\"\"What is"), 1);
}

#[test]
fn flags_of_llama_cpp_are_accepted() {
    let question = "What is the capital of Japan?";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, question).unwrap();
    for (arguments, note) in [
        (
            &[
                "-m", DEMO, "-p", question, "-ngl", "0", "-t", "1", "-c", "0", "-s", "1",
            ][..],
            "",
        ),
        (
            &[
                "-m",
                DEMO,
                question,
                "-fa",
                "-ctk",
                "f32",
                "-ctv",
                "f32",
                "--n-predict",
                "20",
            ],
            "",
        ),
        (
            &[
                "-f",
                file.to_str().unwrap(),
                "--max-tokens",
                "20",
                "--jinja",
            ],
            "",
        ),
        (
            &["-p", question, "-fa", "off", "-n", "20"],
            "note: --flash-attn off is ignored",
        ),
        (
            &["-p", question, "-b", "512", "--ctx-size", "256"],
            "note: --batch-size is ignored",
        ),
        (
            &["-p", question, "-ub", "512", "--mlock"],
            "note: --mlock is ignored",
        ),
        (&["-p", question, "-ngl", "99"], "note: no usable GPU"),
        (
            &["-p", question, "-ngl", "3", "--cpu-moe"],
            "note: no usable GPU",
        ),
    ] {
        let outcome = run(&[&["run", "--temp", "0"], arguments].concat());
        let is_noted = outcome
            .stderr
            .contains(if note.is_empty() { "note: " } else { note });
        assert_eq!(
            is_noted,
            !note.is_empty(),
            "{arguments:?}: {}",
            outcome.stderr
        );
        assert_eq!(
            outcome.ok(),
            "The capital of Japan is Tokyo.",
            "{arguments:?}"
        );
    }
    let outcome = run(&[
        "chat", "-m", DEMO, "-sys", "Be kind.", "-p", "/system", "-n", "1",
    ]);
    assert!(outcome.stderr.contains("Be kind."), "{}", outcome.stderr);
}

#[test]
fn wrong_flags_name_the_nearest() {
    for (arguments, part) in [
        (&["run", "-ot", "exps", "-p", "x"][..], "PATTERN=DEVICE"),
        (
            &["run", "-ctk", "q8_0", "-ctv", "f16", "-p", "x"],
            "keys and values share one type",
        ),
        (
            &["run", "-ngl", "0", "--device", "cuda", "-p", "x"],
            "--gpu-layers contradicts --device",
        ),
        (&["run", "-m", DEMO, "a", "b"], "MODEL is given twice"),
        (
            &["run", "-m", DEMO, "a", "-p", "b"],
            "the prompt is given twice",
        ),
        (&["bench", DEMO, "-m", DEMO], "cannot be used with"),
        (&["run", "--ctx-length", "9"], "'--ctx'"),
        (&["run", "--gpu-layer", "9"], "--gpu-layers"),
        (&["run", "--n-gpu-layer", "9"], "--n-gpu-layers"),
        (&["run", "--max-model-len", "9"], "'--ctx'"),
        (&["serve", "--max-num-seqs", "9"], "'--parallel'"),
        (&["serve", "--shutdown-timout", "9"], "--shutdown-timeout"),
        (&["run", "--cache-type-k", "q5_1", "-p", "x"], "q8_0"),
        (&["-m", DEMO], "gristmill run -m MODEL"),
        (&["run", "--no-such", "9"], "'--disable'"),
        (&["server"], "'serve'"),
    ] {
        let outcome = run(arguments);
        assert_eq!(outcome.code, 2, "{arguments:?}: {}", outcome.stderr);
        assert!(
            outcome.stderr.contains(part),
            "{arguments:?}: {}",
            outcome.stderr
        );
    }
}

#[test]
fn tokens_on_one_line() {
    let reference = reference();
    for (prompt, expected) in reference.as_object().unwrap() {
        let ids: Vec<String> = expected["ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.to_string())
            .collect();
        let line = ids.join(" ") + "\n";
        assert_eq!(run(&["tokenize", DEMO, prompt, "--special"]).ok(), line);
        assert_eq!(
            piped(&["tokenize", DEMO, "--special"], prompt.as_bytes()).ok(),
            line
        );
    }
    assert_eq!(
        run(&["tokenize", DEMO, "<|user|>", "--special"]).ok(),
        "2044\n"
    );
    assert_eq!(
        run(&["tokenize", DEMO, "<|user|>", "--special", "--bos"]).ok(),
        "2040 2044\n"
    );
    let plain = run(&["tokenize", DEMO, "<|user|>"]).ok();
    assert!(
        plain.split(' ').count() > 2 && !plain.contains("2044"),
        "{plain}"
    );
    assert_eq!(piped(&["tokenize", DEMO], b"").ok(), "\n");
    // A vocabulary of 150,000 tokens without weights.
    assert_eq!(
        run(&["tokenize", "synth:glm-4.7-flash:q4_0", "a"])
            .ok()
            .split_whitespace()
            .count(),
        1
    );
    assert!(
        piped(&["tokenize", DEMO], b"\xff")
            .failed()
            .contains("UTF-8")
    );
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    for arguments in [
        &["inspect", DEMO][..],
        &["run", "-p", "Tell me a story.", "--temp", "0"],
        &["kernels", DEMO],
    ] {
        run(&["devices"]).ok();
        let mut child = gristmill(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let outcome: super::Outcome = child.wait_with_output().unwrap().into();
        assert_eq!(outcome.code, 0, "{arguments:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("error"), "{}", outcome.stderr);
    }
}

#[test]
fn help_teaches_every_command() {
    let help = run(&["--help"]).ok();
    let (_, rest) = help.split_once("Commands:\n").unwrap();
    let commands: Vec<&str> = rest
        .lines()
        .take_while(|l| !l.is_empty())
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    assert!(
        commands.len() > 15 && commands.contains(&"profile") && help.contains("Examples:"),
        "{help}"
    );
    for command in commands.iter().filter(|c| **c != "help") {
        let help = outcome(&mut gristmill(&[command, "--help"])).ok();
        let usage = format!("Usage: gristmill {command}");
        assert!(
            help.contains(&usage) && help.contains(&format!("\n  gristmill {command}")),
            "{command}: {help}"
        );
        // Manual pages and completions have it too.
        assert!(
            run(&["man", command])
                .ok()
                .contains(&format!("gristmill\\-{command}")),
            "{command}"
        );
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = run(&["completions", shell]).ok();
        assert!(
            commands.iter().all(|c| text.contains(c)) && text.contains("no-think"),
            "{shell}"
        );
    }
    let page = run(&["man", "run"]).ok();
    for part in [
        ".TH",
        "predict N]",
        ".nf\n  gristmill run",
        ".SH \"EXIT STATUS\"",
        ".SH \"ENVIRONMENT\"",
        "GRISTMILL_CACHE_LIMIT",
    ] {
        assert!(page.contains(part), "{part} in\n{page}");
    }
    assert!(!page.contains("EXTRA"), "{page}");
    let page = run(&["man"]).ok();
    assert!(
        page.contains("gristmill\\-run(1)") && !page.contains("gristmill\\-help(1)"),
        "{page}"
    );
    assert!(help.contains("GRISTMILL_CACHE_LIMIT"), "{help}");
    let folder = tempfile::tempdir().unwrap();
    run(&["man", "--dir", folder.path().to_str().unwrap()]).ok();
    assert!(folder.path().join("gristmill-profile.1").exists());
    assert_eq!(run(&["man", "none"]).code, 2);
    assert_eq!(run(&["completions", "none"]).code, 2);
}
