//! Chrome trace of the typical run, for `chrome://tracing` or Perfetto.

use crate::recording::Recording;
use crate::report::Report;
use serde_json::{Value, json};

/// Builds the trace: one process, a thread per worker, a complete event (`X`) per span.
pub fn chrome(recording: &Recording, report: &Report) -> Value {
    let micro = |seconds: f64| seconds * 1e6;
    let mut events = vec![named(
        "process_name",
        0,
        &format!(
            "{} on {}: {}",
            recording.model, recording.device, recording.what
        ),
    )];
    let spans = recording
        .steps
        .get(report.typical)
        .map_or(&[][..], |s| &s.spans);
    let workers = spans.iter().map(|s| s.worker + 1).max().unwrap_or(0);
    events.extend((0..workers).map(|w| named("thread_name", w, &format!("worker {w}"))));
    for span in spans {
        let launch = recording.launches[span.launch];
        let kernel = &recording.kernels[launch.kernel];
        events.push(json!({
            "name": format!("{} {}", kernel.function, kernel.place),
            "cat": kernel.function,
            "ph": "X",
            "ts": micro(span.start),
            "dur": micro(span.end - span.start),
            "pid": 1,
            "tid": span.worker,
            "args": {
                "kernel": kernel.name,
                "computes": kernel.about,
                "launch": span.launch,
                "call": launch.call,
                "bytes": kernel.bytes,
                "modelled_us": micro(kernel.modelled),
            },
        }));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}

fn named(what: &str, thread: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": 1, "tid": thread, "args": { "name": name } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::recording;

    #[test]
    fn every_span_of_the_typical_run_is_an_event() {
        let recording = recording();
        let trace = chrome(&recording, &Report::new(&recording));
        let events: Vec<&Value> = trace["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|e| e["ph"] == "X")
            .collect();
        let found: Vec<_> = events
            .iter()
            .map(|e| {
                (
                    e["ts"].as_f64().unwrap(),
                    e["dur"].as_f64().unwrap(),
                    e["tid"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                (0.0, 1e6, 0),
                (0.0, 2e6, 1),
                (3e6, 1e6, 0),
                (3.5e6, 1.5e6, 1),
                (7e6, 1e6, 0)
            ]
        );
        assert_eq!(
            (&events[2]["args"]["kernel"], &events[4]["args"]["call"]),
            (&json!("r_2"), &json!(1))
        );
    }
}
