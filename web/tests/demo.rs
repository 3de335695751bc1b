//! The page's program on this machine's processor: the demo's answer, its statistics, a stop.

use gristmill_backend::Options;
use gristmill_llm::file::ModelFile;
use gristmill_web::event::{Ask, PageEvent};
use gristmill_web::model::OpenModel;
use std::cell::RefCell;

static DEMO: &[u8] = include_bytes!("../../assets/demo-glm-Q4_0.gguf");

fn asked(text: &str, limit: usize) -> Ask {
    let json = serde_json::json!({
        "messages": [{"role": "user", "content": text}],
        "limit": limit, "temperature": 0.0, "top_p": null, "seed": 1, "now": 0,
    });
    serde_json::from_value(json).expect("a request of the page")
}

fn text(events: &[PageEvent]) -> String {
    let part = |event: &PageEvent| match event {
        PageEvent::Text { text, .. } => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(part).collect()
}

#[test]
fn the_demo_answers_and_stops() {
    let file = ModelFile::from_bytes(DEMO).expect("the demo");
    let opened = gristmill_backend::open("cpu", &Options::default()).expect("a device");
    let told = RefCell::new(Vec::new());
    let mut model = OpenModel::open(&file, opened, &|event| told.borrow_mut().push(event))
        .expect("an open model");
    let told = told.into_inner();
    assert!(matches!(told.last(), Some(PageEvent::Ready { name, .. }) if name == "demo-glm"));
    assert!(told.iter().any(|event| matches!(
        event,
        PageEvent::Progress {
            stage: "loading",
            ..
        }
    )));

    let clock = || 0.0;
    let run = |model: &mut OpenModel| {
        let mut all = Vec::new();
        loop {
            let (events, more) = model.step(clock).expect("a step");
            all.extend(events);
            if !more {
                return all;
            }
        }
    };
    model.ask(&asked("Hello", 32)).expect("an answer");
    let events = run(&mut model);
    assert!(text(&events).starts_with("Hello"), "{events:?}");
    let Some(PageEvent::End { why, stats }) = events.last() else {
        panic!("no end: {events:?}");
    };
    assert_eq!(why, "end of text");
    assert!(stats.prompt > 0 && stats.tokens > 2 && stats.steps + 1 >= stats.tokens);

    // A limit ends an answer, and so does a stop; without an answer a step does nothing.
    model.ask(&asked("Tell me a story.", 3)).expect("an answer");
    let events = run(&mut model);
    assert!(matches!(events.last(), Some(PageEvent::End { stats, .. }) if stats.tokens == 3));
    model
        .ask(&asked("Tell me a story.", 100))
        .expect("an answer");
    model.step(clock).expect("a step");
    assert!(matches!(model.stop().last(), Some(PageEvent::End { .. })));
    assert_eq!(model.step(clock).expect("a step"), (vec![], false));
    assert!(
        model
            .ask(&Ask {
                top_p: Some(-1.0),
                ..asked("Hello", 1)
            })
            .is_err()
    );
}
