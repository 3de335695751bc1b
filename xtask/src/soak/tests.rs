//! Tests against a correct fake server, and against servers with a single fault.

use super::cases::{Moment, SoakCase, request};
use super::load::{Outcome, SoakClient};
use super::report::{LatencySpread, SoakReport, table};
use crate::serving::fake::{self, Asked, UnderWay};
use crate::serving::http::Site;
use serde_json::json;
use std::io::Result;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// Long prompts are answered differently while other requests are in flight.
    Confuse,
    /// Each disconnected client leaks a page.
    Leak,
    /// Six of every 70 requests are refused.
    Refuse,
    /// The page of `/metrics` is empty.
    Silent,
}

#[derive(Default)]
struct Server {
    under_way: AtomicUsize,
    asked: AtomicUsize,
    leaked: AtomicUsize,
}

impl Server {
    fn answer(&self, asked: &Asked, stream: &mut TcpStream, wrong: Wrong) -> Result<()> {
        if asked.is("POST /tokenize") {
            return fake::tokenize(asked, stream);
        }
        if asked.is("GET /v1/models") {
            return fake::whole(stream, r#"{"data":[{"id":"m"}]}"#);
        }
        if asked.is("GET /metrics") {
            return fake::whole(
                stream,
                &if wrong == Wrong::Silent {
                    String::new()
                } else {
                    self.counters()
                },
            );
        }
        assert!(asked.is("POST /v1/completions"), "{}", asked.head);
        let (under_way, now) = UnderWay::new(&self.under_way);
        if wrong == Wrong::Refuse && self.asked.fetch_add(1, Ordering::SeqCst) % 70 > 63 {
            return fake::refuse(stream);
        }
        let confused = wrong == Wrong::Confuse && now > 1;
        let told = tell(asked, stream, confused, under_way);
        self.leaked.fetch_add(
            usize::from(told.is_err() && wrong == Wrong::Leak),
            Ordering::SeqCst,
        );
        told
    }
    fn counters(&self) -> String {
        let (running, leaked) = (
            self.under_way.load(Ordering::SeqCst),
            self.leaked.load(Ordering::SeqCst),
        );
        format!(
            "gristmill_requests_running{{model=\"m\"}} {running}\ngristmill_requests_waiting{{model=\"m\"}} 0\ngristmill_connections 1\ngristmill_cache_tokens{{model=\"m\"}} 0\n\
             gristmill_cache_pages_used{{model=\"m\"}} {leaked}\ngristmill_cache_pages_leaked{{model=\"m\"}} {leaked}\n"
        )
    }
}

/// Streams `max_tokens` chunks; their words depend on prompt and seed.
fn tell(asked: &Asked, stream: &mut TcpStream, confused: bool, under_way: UnderWay) -> Result<()> {
    let tokens: Vec<u64> = serde_json::from_value(asked.body["prompt"].clone()).unwrap();
    let count = asked.body["max_tokens"].as_u64().unwrap();
    let begin = tokens.iter().sum::<u64>() + asked.body["seed"].as_u64().unwrap_or(0);
    fake::begin(stream)?;
    for nth in 0..count {
        // Changes the last word of answers to long prompts.
        let other = u64::from(confused && tokens.len() > 10 && nth + 1 == count);
        std::thread::sleep(Duration::from_millis(1));
        let finish = (nth + 1 == count).then_some("length");
        fake::event(
            stream,
            &json!({ "choices": [{ "text": format!("{} ", begin * 7 + nth + other), "finish_reason": finish }] }),
        )?;
    }
    drop(under_way);
    fake::end(stream, json!({ "completion_tokens": count }))
}

fn options(line: &str) -> super::Options {
    fake::options(line)
}

/// Runs the soak test against a server with this fault.
fn soaked(wrong: Wrong, more: &str) -> SoakReport {
    let server = Server::default();
    let url = fake::serve(move |asked, stream| server.answer(asked, stream, wrong));
    let line = format!(
        "x|--url|fake={url}|--requests|200|--clients|8|--prompts|12|--prompt|20|--max-tokens|8|--idle|1{more}"
    );
    let mut report = SoakReport::default();
    super::soak(&options(&line), &mut report).unwrap();
    report
}

#[test]
fn of_a_server_that_is_right_nothing_is_found() {
    let report = soaked(Wrong::Nothing, "");
    assert_eq!(report.findings, [""; 0]);
    let left: usize = report.answers.hung_up.values().sum();
    assert!(
        (40..100).contains(&left) && report.answers.finished == 200 - left,
        "{:?}",
        report.answers
    );
    assert_eq!(report.answers.hung_up.len(), 3, "{:?}", report.answers);
    // Seven other clients send requests as well.
    assert!(
        (1.0..200.0).contains(&report.others.longest),
        "{:?}",
        report.others
    );
    assert!(report.wait.quantiles.p50 >= 0.001 && report.wait.longest >= report.wait.quantiles.p99);
    let table = table(&report);
    assert!(
        table.starts_with("fake\n  requests  200 of 8 clients, ")
            && table.contains("failed    0\n"),
        "{table}"
    );
}

#[test]
fn an_answer_that_is_another_among_others_is_found() {
    let report = soaked(Wrong::Confuse, "");
    assert!(
        report.answers.different > 0 && report.answers.different < 200,
        "{:?}",
        report.answers
    );
    assert_eq!(report.answers.examples.len(), 5);
    assert!(
        report.findings[0].contains("answers are not the ones given alone"),
        "{:?}",
        report.findings
    );
    assert!(
        report
            .answers
            .examples
            .iter()
            .all(|example| example.prompt_tokens > 10),
        "{:?}",
        report.answers
    );
    assert!(
        report.findings[1].contains("among others") && report.findings.len() == 6,
        "{:?}",
        report.findings
    );
}

#[test]
fn a_page_that_is_left_behind_is_found() {
    let findings = soaked(Wrong::Leak, "").findings;
    let names: Vec<&str> = findings
        .iter()
        .filter_map(|finding| finding.split(' ').next())
        .collect();
    assert_eq!(
        names,
        ["gristmill_cache_pages_used", "gristmill_cache_pages_leaked"],
        "{findings:?}"
    );
    assert!(
        findings[0].contains("though nobody asks, and was 0"),
        "{findings:?}"
    );
}

#[test]
fn requests_that_fail_are_found_by_their_cause() {
    let report = soaked(Wrong::Refuse, "|--hang-up|0");
    let failed = report.answers.failed["status 429: busy"];
    // The last six of every 70 requests fail; the first twelve were sent alone.
    assert_eq!(
        (failed, report.findings.len()),
        (18, 1),
        "{:?}",
        report.findings
    );
    assert!(
        report.findings[0].starts_with("18 requests failed: status 429"),
        "{:?}",
        report.findings
    );
}

#[test]
fn counters_that_are_not_told_are_found() {
    let findings = soaked(Wrong::Silent, "").findings;
    assert_eq!(
        findings.len(),
        super::watch::RESOURCE_GAUGES.len(),
        "{findings:?}"
    );
    assert!(
        findings
            .iter()
            .all(|finding| finding.starts_with("/metrics does not tell ")),
        "{findings:?}"
    );
}

#[test]
fn waiting_has_to_be_fair_where_that_is_asked_for() {
    let found = |fair, waits: &[f64]| {
        let mut report = SoakReport {
            fair,
            wait: LatencySpread::from_samples(waits.to_vec()),
            ..SoakReport::default()
        };
        report.find(false);
        report
            .findings
            .retain(|finding| finding.contains("longest wait"));
        report.findings
    };
    assert_eq!(found(true, &[1.0, 2.0, 6.0]), [""; 0]);
    assert_eq!(found(false, &[1.0, 2.0, 6.5]), [""; 0]);
    let unfair = found(true, &[1.0, 2.0, 6.5]);
    assert!(
        unfair[0].starts_with("the longest wait of 6.500 s is 3.2 times the median of 2.000 s"),
        "{unfair:?}"
    );
}

#[test]
fn a_planned_disconnect_is_not_a_failure() {
    let url = fake::serve(|_, _| {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    });
    let asking = SoakClient::new(
        Site::parse(&url, false, None).unwrap(),
        Duration::from_secs(30),
    );
    let case = SoakCase {
        body: "{}".into(),
        prompt_tokens: 1,
        most: 1,
        drawn: false,
    };
    for nth in 0..100 {
        // System ticks are 1, 4 or 10 ms: these times lie on
        // both sides of one and of several ticks.
        let time = Duration::from_micros(3_000 + 90 * nth);
        let (moment, begun) = (Moment::After(time), Instant::now());
        assert_eq!(
            asking.ask(&case, Some(moment)),
            Outcome::HungUp {
                moment,
                text: String::new()
            }
        );
        assert!(begun.elapsed() >= time);
    }
}

#[test]
fn requests_follow_from_the_seed() {
    let cases: Vec<SoakCase> = (0..5)
        .map(|_| SoakCase {
            body: String::new(),
            prompt_tokens: 1,
            most: 9,
            drawn: false,
        })
        .collect();
    let all = |part, seed| {
        (0..3000)
            .map(|nth| request(nth, &cases, part, seed))
            .collect::<Vec<_>>()
    };
    let one = all(0.33, 4);
    assert_eq!(one, all(0.33, 4));
    assert_ne!(one, all(0.33, 5));
    let moments: Vec<Moment> = one.iter().filter_map(|(_, moment)| *moment).collect();
    assert!((900..1080).contains(&moments.len()), "{}", moments.len());
    for name in ["before the answer", "within the answer", "after a while"] {
        let count = moments
            .iter()
            .filter(|moment| moment.name() == name)
            .count();
        assert!((260..400).contains(&count), "{name}: {count}");
    }
    let within = |moment: &Moment| match *moment {
        Moment::Sent => true,
        Moment::Pieces(pieces) => (1..=9).contains(&pieces),
        Moment::After(time) => (0.001..8.2).contains(&time.as_secs_f64()),
    };
    assert!(moments.iter().all(within), "{moments:?}");
    assert!((0..5).all(|case| one.iter().any(|(of, _)| *of == case)));
    assert!(
        all(0.0, 4).iter().all(|(_, moment)| moment.is_none())
            && all(1.0, 4).iter().all(|(_, m)| m.is_some())
    );
}

#[test]
fn the_command_names_no_folder_and_no_key() {
    let said = super::command(&options(
        "x|--start|ours=/home/me/serve {port}|--api-key|sesame|--clients|2|--fair",
    ));
    assert!(
        said.contains(" --start ours=… --requests 10000 --clients 2 ")
            && said.ends_with("--seed 1 --fair"),
        "{said}"
    );
    assert!(
        !said.contains("/home") && !said.contains("sesame"),
        "{said}"
    );
}
