//! Tests against a fake server with known answers, delays and faults.

use super::load::{Pace, ServeClient, run};
use super::report::ServeRow;
use crate::serving::fake::{self, Asked, UnderWay, chunk};
use crate::serving::http::Site;
use crate::serving::workload::Prompts;
use serde_json::json;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Observations of the fake server.
#[derive(Default)]
struct Seen {
    prompts: Mutex<Vec<Vec<u64>>>,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
    asked: AtomicUsize,
}

/// Delay before each chunk, in seconds.
const PAUSE: f64 = 0.02;
const PIECES: usize = 3;

/// Starts a server that sends [`PIECES`] chunks of two tokens, [`PAUSE`] apart. `wrong` maps a
/// request number to a fault.
fn server(wrong: fn(usize) -> Option<Wrong>) -> (Site, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let all = seen.clone();
    let url = fake::serve(move |asked, stream| answer(asked, stream, &all, wrong));
    (
        Site::parse(&url, false, Some("sesame".into())).unwrap(),
        seen,
    )
}

#[derive(Clone, Copy)]
enum Wrong {
    Refuse,
    BreakOff,
    Fail,
    Stall,
}

fn answer(
    asked: &Asked,
    stream: &mut TcpStream,
    seen: &Seen,
    wrong: fn(usize) -> Option<Wrong>,
) -> std::io::Result<()> {
    let Asked { head, body } = asked;
    assert!(head.contains("Authorization: Bearer sesame\r\n"), "{head}");
    if asked.is("POST /tokenize") {
        return fake::tokenize(asked, stream);
    }
    assert!(asked.is("POST /v1/completions"), "{head}");
    assert_eq!(
        (&body["temperature"], &body["top_p"]),
        (&json!(0.7), &json!(0.9))
    );
    seen.prompts
        .lock()
        .unwrap()
        .push(serde_json::from_value(body["prompt"].clone()).unwrap());
    let (under_way, now) = UnderWay::new(&seen.under_way);
    seen.most_under_way.fetch_max(now, Ordering::SeqCst);
    tell(
        stream,
        wrong(seen.asked.fetch_add(1, Ordering::SeqCst)),
        under_way,
    )
}

/// Sends a stream with the given fault, which occurs after the first chunk unless it is a refusal.
fn tell(stream: &mut TcpStream, wrong: Option<Wrong>, under_way: UnderWay) -> std::io::Result<()> {
    if matches!(wrong, Some(Wrong::Refuse)) {
        return fake::refuse(stream);
    }
    fake::begin(stream)?;
    chunk(stream, ": a comment\n\n")?;
    for _ in 0..PIECES {
        std::thread::sleep(Duration::from_secs_f64(PAUSE));
        fake::event(stream, &json!({ "choices": [{ "text": "ab" }] }))?;
        match wrong {
            Some(Wrong::BreakOff) => return Ok(()),
            Some(Wrong::Fail) => chunk(stream, "data: {\"error\":{\"message\":\"no more\"}}\n\n")?,
            Some(Wrong::Stall) => std::thread::sleep(Duration::from_secs(3)),
            _ => {}
        }
    }
    // Dropped before the end of the stream, since the client then sends its next request at once.
    drop(under_way);
    fake::end(
        stream,
        json!({ "prompt_tokens": 8, "completion_tokens": 2 * PIECES }),
    )
}

fn asking(site: &Site) -> ServeClient {
    ServeClient {
        site: site.clone(),
        model: "m".into(),
        max_tokens: 6,
        temperature: 0.7,
        parameters: [("top_p".to_owned(), 0.9.into())].into_iter().collect(),
        timeout: Duration::from_secs(30),
        seed: 3,
    }
}

#[test]
fn a_closed_loop_keeps_its_clients_busy_and_measures_what_they_wait_for() {
    let (site, seen) = server(|_| None);
    let prompts = Prompts {
        length: 8,
        common: 3,
        seed: 5,
    }
    .make(&site, 0, 12)
    .unwrap();
    let row = ServeRow::new(
        "fake",
        Pace::Clients(4),
        1,
        run(&asking(&site), &prompts, Pace::Clients(4)),
    );
    assert_eq!(
        (
            row.requests,
            row.errors.len(),
            row.prompt_tokens,
            row.answer_tokens
        ),
        (12, 0, 96, 72)
    );
    assert_eq!(seen.most_under_way.load(Ordering::SeqCst), 4);
    assert!(
        row.first.p50 >= PAUSE && row.gap.p50 >= PAUSE * 0.5,
        "{:?} {:?}",
        row.first,
        row.gap
    );
    // Two gaps for the five tokens after the first.
    assert!(
        row.token.p50 >= PAUSE * 2.0 / 5.0 * 0.9 && row.whole.p50 >= PAUSE * PIECES as f64,
        "{:?}",
        row.token
    );
    assert!(
        row.seconds >= 3.0 * PAUSE * PIECES as f64,
        "three for each client"
    );
    let mut told = seen.prompts.lock().unwrap().clone();
    assert!(
        told.iter()
            .all(|prompt| prompt.len() == 8 && prompt[..3] == told[0][..3]),
        "{told:?}"
    );
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 12, "beyond the common part they differ");
}

#[test]
fn an_open_loop_does_not_wait() {
    let (site, seen) = server(|_| None);
    let prompts = vec![json!([1, 2]); 30];
    // Thirty requests arrive within about 0.06 s, and each takes that long.
    let row = ServeRow::new(
        "fake",
        Pace::Rate(500.0),
        1,
        run(&asking(&site), &prompts, Pace::Rate(500.0)),
    );
    assert_eq!(
        (row.requests, row.errors.len()),
        (30, 0),
        "{:?}",
        row.errors
    );
    assert!(
        seen.most_under_way.load(Ordering::SeqCst) > 4,
        "{}",
        seen.most_under_way.load(Ordering::SeqCst)
    );
}

#[test]
fn failures_are_counted_by_cause() {
    let (site, _) = server(|nth| {
        [
            None,
            Some(Wrong::Refuse),
            Some(Wrong::BreakOff),
            Some(Wrong::Fail),
        ][nth % 4]
    });
    let prompts = vec![json!([1, 2]); 8];
    let row = ServeRow::new(
        "fake",
        Pace::Clients(1),
        1,
        run(&asking(&site), &prompts, Pace::Clients(1)),
    );
    let counts: Vec<(&str, usize)> = row
        .errors
        .iter()
        .map(|(error, &count)| (error.as_str(), count))
        .collect();
    let expected = [
        ("an error in the stream: no more", 2),
        ("status 429: busy", 2),
        ("the answer broke off", 2),
    ];
    assert_eq!(counts, expected);
    assert_eq!(row.answer_tokens, 2 * 2 * PIECES);
}

#[test]
fn a_server_that_stalls_is_not_waited_for() {
    let (site, _) = server(|_| Some(Wrong::Stall));
    let asking = ServeClient {
        timeout: Duration::from_secs(1),
        ..asking(&site)
    };
    let outcomes = run(&asking, &[json!([1])], Pace::Clients(1));
    assert_eq!(outcomes.each, [Err("no answer in time".to_owned())]);
    assert!(outcomes.seconds < 2.5, "{}", outcomes.seconds);
}

#[test]
fn only_this_machine_is_loaded_unless_said() {
    let error = Site::parse("http://192.0.2.1:80", false, None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("hint: --anywhere"), "{error}");
    assert!(Site::parse("http://192.0.2.1:80", true, None).is_ok());
    assert!(
        Site::parse("https://127.0.0.1", false, None)
            .unwrap_err()
            .to_string()
            .contains("hint:")
    );
}

fn options(line: &str) -> super::Options {
    fake::options(line)
}

#[test]
fn loops_are_those_that_were_asked_for() {
    assert_eq!(super::paces(&options("x")), [1, 4, 16].map(Pace::Clients));
    assert_eq!(super::paces(&options("x|--rate|0.5")), [Pace::Rate(0.5)]);
    assert_eq!(
        super::paces(&options("x|--rate|2|--clients|3")),
        [Pace::Clients(3), Pace::Rate(2.0)]
    );
}

#[test]
fn the_command_names_no_folder_and_no_key() {
    let said = super::command(&options(
        "x|--start|ours=/home/me/serve {port}|--api-key|sesame|--common|8|--clients|2",
    ));
    assert!(
        said.contains(" --start ours=… --clients 2 --requests 64 --prompt 128 --common 8 "),
        "{said}"
    );
    assert!(
        !said.contains("/home") && !said.contains("sesame"),
        "{said}"
    );
}
