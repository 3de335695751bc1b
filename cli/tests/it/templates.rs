//! Hostile chat templates: the program answers or fails soon, in little memory.

use super::serve::{get, serve};
use super::{DEMO, Outcome, gristmill};
use gristmill_llm::chat::{
    ChatTemplate, Helper, Isolation, Message, RenderOptions, SpecialTexts, builtin_names,
    builtin_source,
};
use gristmill_llm::gguf::{Gguf, TensorDecl, Writer};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Limit of a run's processor time, its helpers included: a check and a rendering, each of two
/// seconds at most. Wall-clock time would depend on what else the machine does.
const LONGEST: Duration = Duration::from_secs(9);
/// Memory limit of program and helper, in KiB: the program uses 40 MiB, a template at most 64.
const MOST: i64 = 160 << 10;

/// Part of the demo model that is in a file.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Whole,
    /// Metadata only, enough for `run` up to the first rendering.
    Text,
}

/// Writes the demo model with another template to `folder`.
fn with_template(folder: &Path, source: &str, part: Part) -> PathBuf {
    let demo = Gguf::open(DEMO).unwrap();
    let mut metadata = demo.metadata().clone();
    metadata.insert("tokenizer.chat_template", source);
    let tensors = if part == Part::Whole {
        demo.tensors()
    } else {
        &[]
    };
    let declared: Vec<TensorDecl<'_>> = tensors
        .iter()
        .map(|t| TensorDecl {
            name: &t.name,
            dims: &t.dims,
            encoding: t.encoding,
        })
        .collect();
    let mut writer = Writer::new(Vec::new(), &metadata, &declared).unwrap();
    for tensor in tensors {
        let mut bytes = vec![0; usize::try_from(tensor.bytes).unwrap()];
        demo.read_tensor(tensor, &mut bytes).unwrap();
        writer.data(&bytes).unwrap();
    }
    let path = folder.join("hostile.gguf");
    std::fs::write(&path, writer.finish().unwrap()).unwrap();
    path
}

/// Outcome of a run, its processor time with that of its children, and the peak memory of it or its
/// children in KiB.
pub(super) struct Measured {
    pub(super) outcome: Outcome,
    pub(super) time: Duration,
    pub(super) memory: i64,
}

/// Runs a command with little output.
#[expect(
    clippy::zombie_processes,
    reason = "wait4 waits for it, and says what it took"
)]
pub(super) fn measured(command: &mut Command) -> Measured {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    let id = libc::pid_t::try_from(child.id()).expect("an id");
    // SAFETY: both pointers are valid for writes, and no other code waits for this child.
    let (ended, usage) = unsafe {
        (
            libc::wait4(id, &raw mut status, 0, usage.as_mut_ptr()),
            usage.assume_init(),
        )
    };
    assert_eq!(ended, id);
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    let time = Duration::from_secs_f64(seconds(usage.ru_utime) + seconds(usage.ru_stime));
    let read = |from: &mut dyn Read| {
        let mut text = String::new();
        from.read_to_string(&mut text).expect("UTF-8");
        text
    };
    let outcome = Outcome {
        // -1 for a signal.
        code: if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            -1
        },
        stdout: read(child.stdout.as_mut().expect("piped")),
        stderr: read(child.stderr.as_mut().expect("piped")),
    };
    Measured {
        outcome,
        time,
        memory: usage.ru_maxrss,
    }
}

/// Asserts the memory limit. The kernel counts for a child at least the peak of this process, which
/// shares its memory until exec; other tests load models.
fn assert_modest(what: &str, time: Duration, memory: i64) {
    /// Pages that the kernel has not counted yet, per core.
    const UNCOUNTED: i64 = 4 << 10;
    let inherited = || measured(&mut Command::new("true")).memory;
    assert!(time < LONGEST, "{what}: {time:?}");
    assert!(
        memory < MOST || memory <= inherited() + UNCOUNTED,
        "{what}: {memory} KiB"
    );
}

/// Hostile templates, and part of the expected message.
type Case = (&'static str, &'static str);

const RENDERED: &[Case] = &[
    // Values that contain themselves.
    (
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns|tojson }}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns|tojson(indent=2) }}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% set ns.a = {'x': [ns]} %}{{ ns|pprint }}",
        "ran out of ",
    ),
    (
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns ~ 'x' }}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ 'x' ~ [ns]|string }}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ [ns, ns]|join(', ') }}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ '%s'|format(ns) }}",
        "stack",
    ),
    (
        "{% set a = namespace() %}{% set a.a = a %}{% set b = namespace() %}{% set b.a = b %}{{ a == b }}",
        "stack",
    ),
    (
        "{% set a = namespace() %}{% set a.a = a %}{% set b = namespace() %}{% set b.a = b %}{{ [a, b]|sort|length }}",
        "stack",
    ),
    (
        "{% set a = namespace() %}{% set a.a = a %}{% set b = namespace() %}{% set b.a = b %}{{ [a, b]|unique|list|length }}",
        "stack",
    ),
    (
        "{% set a = namespace() %}{% set a.a = a %}{% set b = namespace() %}{% set b.a = b %}{{ a in [b] }}",
        "stack",
    ),
    (
        "{% set a = namespace() %}{% set a.a = a %}{{ {a: 1} }}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% for x in [1] %}{% set ns.a = [loop, ns] %}{{ ns }}{% endfor %}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% macro m() %}{{ ns }}{% endmacro %}{% set ns.a = [m, ns] %}{{ m() }}",
        "stack",
    ),
    (
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ raise_exception(ns|string) }}",
        "stack",
    ),
    // Deeply nested values.
    (
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "stack",
    ),
    (
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "stack",
    ),
    (
        "{% set ns = namespace(x={}) %}{% for i in range(99999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x|tojson }}",
        "stack",
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = ns.x[0:] %}{% endfor %}{{ ns.x|list }}",
        "ran out of ",
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = ns.x + [i] %}{% endfor %}{{ ns.x|length }}",
        "ran out of ",
    ),
    // Recursive macros.
    (
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "recursion",
    ),
    (
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{% call m() %}x{% endcall %}",
        "unknown keyword",
    ),
    (
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "recursion limit",
    ),
    ("{% include 'chat' %}", "include"),
    ("{% extends 'chat' %}", "cycle"),
    (
        "{% block a %}{{ self.a() }}{% endblock %}",
        "recursion limit",
    ),
    // Growing strings.
    (
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "memory",
    ),
    (
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "memory",
    ),
    (
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
        "memory",
    ),
    (
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
        "memory",
    ),
    (
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = '%s%s'|format(ns.s, ns.s) %}{% endfor %}",
        "memory",
    ),
    (
        "{{ ('x' * 99999)|replace('x', 'x' * 99999)|length }}",
        "memory",
    ),
    (
        "{{ ('x' * 99999).replace('x', 'x' * 99999)|length }}",
        "memory",
    ),
    ("{{ range(99999)|join('x' * 99999)|length }}", "memory"),
    ("{{ ('x' * 99999).join(['a'] * 99999)|length }}", "memory"),
    ("{{ '%99999999999d'|format(1) }}", "memory"),
    ("{{ '%2000000000d'|format(1)|length }}", "memory"),
    (
        "{{ '%.999999999f'|format(1)|length }}",
        "cannot be evaluated",
    ),
    ("{{ '{:>2000000000}'.format('x')|length }}", "memory"),
    (
        "{{ ('x' * 99999999)|upper|title|capitalize|trim|e|length }}",
        "memory",
    ),
    (
        "{% set x = 'x' * 90000000 %}{% set y = x|upper %}{% set z = y|list %}",
        "memory",
    ),
    ("{{ [['x' * 9999] * 9999] * 99 }}", "longer than"),
    ("{{ ([['x' * 9999] * 9999] * 99)|tojson|length }}", "memory"),
    ("{{ ([['x' * 9999] * 9999] * 99)|pprint|length }}", "memory"),
    (
        "{% macro m() %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endmacro %}{{ m()|length }}",
        "memory",
    ),
    // Growing lists.
    ("{{ [1]|batch(9999999999, 'x')|list|length }}", "memory"),
    ("{{ [1]|slice(9999999999)|list|length }}", "memory"),
    ("{{ (range(99999)|list * 999)|list|length }}", "memory"),
    ("{{ ([1] * 99999999)|sort|length }}", "memory"),
    (
        "{{ ([{'a': 1}] * 99999999)|groupby('a')|length }}",
        "ran out of ",
    ),
    (
        "{{ ([1] * 99999999)|map('string')|list|length }}",
        "ran out of ",
    ),
    ("{{ ([1] * 99999999)|unique|list|length }}", "ran out of "),
    (
        "{{ range(0, 99999999999)|list|length }}",
        "too many elements",
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|list|length }}",
        "ran out of ",
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = (ns.x * 2)|list %}{% endfor %}{{ ns.x|length }}",
        "ran out of ",
    ),
    (
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x, range(99999)|list] %}{% endfor %}",
        "memory",
    ),
    (
        "{% set ns = namespace(x={}) %}{% for i in range(99999) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}",
        "ran out of ",
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|string|length }}",
        "ran out of ",
    ),
    ("{{ ('x' * 99999999).split('')|length }}", "memory"),
    ("{{ ('x ' * 49999999).split()|length }}", "memory"),
    ("{{ ('\\n' * 49999999).splitlines()|length }}", "memory"),
    ("{{ ('x' * 99999999)|list|length }}", "memory"),
    // Many steps, and long steps.
    // The step limit is reached in a second, or the time limit on a busy machine.
    (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "chat template",
    ),
    (
        "{% set s = 'x' * 9999999 %}{% for i in range(99999) %}{% set t = s|replace('y', 'z') %}{% endfor %}",
        "time",
    ),
    (
        "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
        "longer than",
    ),
    ("{{ 2 ** 99999999 }}{{ 10 ** 999 }}", "unable to calculate"),
];

#[test]
fn templates_that_do_harm_are_stopped() {
    let folder = tempfile::tempdir().unwrap();
    for (source, said) in RENDERED {
        let path = with_template(folder.path(), source, Part::Text);
        let Measured {
            outcome,
            time,
            memory,
        } = measured(&mut gristmill(&[
            "run",
            path.to_str().unwrap(),
            "-p",
            "hi",
            "-n",
            "1",
        ]));
        let error = outcome.failed();
        assert!(error.contains(said), "{source}: {error}");
        assert_modest(source, time, memory);
    }
}

/// Prefix, repeated part, number of repetitions, and suffix.
type Long = (&'static str, &'static str, usize, &'static str);

const COMPILED: &[Long] = &[
    ("{{ ", "-", 20_000, "1 }}"),
    ("{{ ", "- ", 400_000, "1 }}"),
    ("{{ ", "not ", 200_000, "1 }}"),
    ("{{ 1", " or 1", 200_000, " }}"),
    ("{{ 1", " if 1 else 1", 80_000, " }}"),
    ("{{ 1", "|f", 400_000, " }}"),
    ("{{ 1", ".b", 400_000, " }}"),
    ("{{ 1", "[1]", 300_000, " }}"),
    ("{{ 1", "**1", 300_000, " }}"),
    ("{{ ", "[", 900_000, " }}"),
    ("{{ ", "{1:", 300_000, " }}"),
    ("{% set x = ", "(", 900_000, " %}"),
    ("", "{% if 1 %}", 90_000, ""),
    ("{% if 1 %}", "{% elif 1 %}", 80_000, "{% endif %}"),
    ("", "{% for a in b %}", 60_000, ""),
    ("", "{% macro f() %}", 60_000, ""),
    ("", "{% filter upper %}", 50_000, ""),
    ("", "{% set a %}", 80_000, ""),
    ("", "{% call f() %}", 60_000, ""),
    ("", "{% block a %}", 60_000, ""),
    ("", "{% if 1 %}{% else %}", 50_000, ""),
];

#[test]
fn templates_that_do_not_compile_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    for (begin, repeated, times, end) in COMPILED {
        let path = with_template(
            folder.path(),
            &format!("{begin}{}{end}", repeated.repeat(*times)),
            Part::Text,
        );
        let Measured {
            outcome,
            time,
            memory,
        } = measured(
            gristmill(&["inspect", "--brief", path.to_str().unwrap()]).stdin(Stdio::null()),
        );
        let out = outcome.ok();
        let line = out
            .lines()
            .find(|line| line.contains("chat template  "))
            .unwrap_or_default();
        assert!(
            line.contains("using the built-in template"),
            "{begin}{repeated}: {line}"
        );
        assert_modest(&format!("{begin}{repeated}"), time, memory);
    }
}

/// Isolation of templates in the program under test.
fn apart() -> Isolation {
    Isolation::Helper(Helper::new(
        env!("CARGO_BIN_EXE_gristmill"),
        ["render-template"],
    ))
}

#[test]
fn apart_or_not_a_conversation_is_the_same() {
    let texts = [
        "<|user|>",
        "<think>",
        "</think>",
        "<tool_response>",
        "\u{1}\"\\\n",
        "é😀",
        "<|us",
        "er|>",
        "\u{fdd0}",
    ];
    let control: Vec<String> = [
        "<|user|>",
        "<|assistant|>",
        "<think>",
        "</think>",
        "<tool_response>",
    ]
    .map(String::from)
    .into();
    let specials = SpecialTexts {
        bos: "<B>".into(),
        eos: "<E>".into(),
        control,
    };
    let echo = "{% for m in messages %}<|user|>{{ m.content|tojson(ensure_ascii=true) }}{{ m|tojson(indent=2) }}\
                {% endfor %}{{ tools|tojson }}{{ number }} {{ strftime_now('%Y-%m-%d %H:%M:%S') }}";
    let sources = builtin_names()
        .into_iter()
        .filter_map(builtin_source)
        .chain([echo]);
    for source in sources {
        let [here, there] = [Isolation::InProcess, apart()]
            .map(|isolation| ChatTemplate::new(source, &specials, &isolation).unwrap());
        for shift in 0..texts.len() {
            let text = |i: usize| {
                [
                    texts[(i + shift) % texts.len()],
                    texts[(3 * i + 1) % texts.len()],
                ]
                .join(" x ")
            };
            let numbers = json!([
                0.1,
                1e300,
                -7,
                u64::MAX,
                0.30000000000000004,
                5e-324,
                123_456_789.123_456_78
            ]);
            let call = json!([{"function": {"name": text(5), "arguments": {"a": numbers, text(6): null}}}]);
            let messages = [
                Message::system(text(0)),
                Message::user(text(1)),
                Message {
                    tool_calls: Some(call),
                    ..Message::assistant(text(2))
                },
                Message::tool(text(3)),
                Message::user(text(4)),
            ];
            let mut options = RenderOptions {
                add_generation_prompt: true,
                tools: (shift > 3).then(|| json!([{"d": text(7), "n": numbers}])),
                now: Some(std::time::UNIX_EPOCH + Duration::from_secs(1_709_210_096)),
                ..RenderOptions::default()
            };
            options
                .extra
                .insert("number".into(), json!(2.225_073_858_507_201e-308));
            assert_eq!(
                here.render(&messages, &options),
                there.render(&messages, &options),
                "{source}"
            );
        }
    }
}

#[test]
fn a_helper_that_is_none_is_an_error_with_a_hint() {
    for program in ["/nonexistent", "/bin/false", "/bin/cat"] {
        let isolation = Isolation::Helper(Helper::new(program, ["-"; 0]));
        let error = ChatTemplate::new("x", &SpecialTexts::default(), &isolation).unwrap_err();
        assert!(
            error.to_string().contains("the process that renders"),
            "{error}"
        );
        assert!(error.hint().is_some());
        ChatTemplate::select(Some("x"), "glm4", &SpecialTexts::default(), &isolation).unwrap_err();
    }
}

fn post(address: &str, content: &str) -> (String, Value) {
    let body =
        json!({"model": "hostile", "max_tokens": 1, "messages": [{"role": "user", "content": content}]}).to_string();
    let mut stream = TcpStream::connect(address).expect("a connection");
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a response");
    let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
    (status, serde_json::from_str(body).expect("JSON"))
}

#[test]
fn a_server_lives_on() {
    let folder = tempfile::tempdir().unwrap();
    let source = "{% set ns = namespace(s='x') %}{% set ns.n = ns %}{% set said = messages[-1].content %}\
                  {% if said == 'cycle' %}{{ ns }}{% endif %}\
                  {% if said == 'double' %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% endif %}\
                  {% if said == 'no' %}{{ raise_exception('no') }}{% endif %}\
                  [gMASK]<sop><|user|>\n{{ said }}<|assistant|>\n";
    let path = with_template(folder.path(), source, Part::Whole);
    let server = serve(&[path.to_str().unwrap()]);
    let healthy = || assert!(get(&server.address, "/health").starts_with("HTTP/1.0 200"));
    for (said, status, part) in [
        ("hi", "200", ""),
        ("cycle", "500", "the chat template ran out of stack; "),
        ("double", "500", "the chat template ran out of memory; "),
        ("no", "400", "refuses the conversation: no"),
        ("hi", "200", ""),
    ] {
        let (answered, body) = post(&server.address, said);
        assert_eq!(answered, status, "{said}: {body}");
        assert!(
            status == "200"
                || body["error"]["message"]
                    .as_str()
                    .is_some_and(|m| m.contains(part)),
            "{said}: {body}"
        );
        healthy();
    }
}
