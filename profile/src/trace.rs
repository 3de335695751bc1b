//! Chrome trace of the typical run, for `chrome://tracing` or Perfetto.

use crate::recording::Recording;
use crate::report::Report;
use gristmill_runtime::{CopySpan, Span};
use serde_json::{Value, json};

/// Builds the trace: a process per device with a thread per worker, and one with a thread per pair
/// of devices for copies; a complete event (`X`) per span.
pub fn chrome(recording: &Recording, report: &Report) -> Value {
    let Some(step) = recording.steps.get(report.typical) else {
        return json!({ "traceEvents": [], "displayTimeUnit": "ms" });
    };
    let mut events = Vec::new();
    for (device, of) in recording.devices.iter().enumerate() {
        let name = match device {
            0 => format!("{} on {}: {}", recording.model, of.name, recording.what),
            _ => of.name.clone(),
        };
        events.push(named("process_name", process(device), 0, &name));
        let own = step
            .spans
            .iter()
            .filter(|s| recording.device_of(s.launch) == device);
        let workers = own.map(|s| s.worker + 1).max().unwrap_or(0);
        let worker = |w| named("thread_name", process(device), w, &format!("worker {w}"));
        events.extend((0..workers).map(worker));
    }
    events.extend(step.spans.iter().map(|span| launch(recording, span)));
    let (routes, copies) = (recording.routes(), process(recording.devices.len()));
    if !routes.is_empty() {
        events.push(named("process_name", copies, 0, "copies"));
    }
    for (number, &route) in routes.iter().enumerate() {
        let name = recording.route_name(route);
        events.push(named("thread_name", copies, number, &name));
        let own = step
            .copies
            .iter()
            .filter(|copy| (copy.from, copy.to) == route);
        events.extend(own.map(|copy| copied(copy, &name, copies, number)));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}

/// Process of a device; the one after the last device has the copies.
fn process(device: usize) -> usize {
    device + 1
}

fn micro(seconds: f64) -> f64 {
    seconds * 1e6
}

fn launch(recording: &Recording, span: &Span) -> Value {
    let launch = recording.launches[span.launch];
    let kernel = &recording.kernels[launch.kernel];
    json!({
        "name": format!("{} {}", kernel.function, kernel.place),
        "cat": kernel.function,
        "ph": "X",
        "ts": micro(span.start),
        "dur": micro(span.end - span.start),
        "pid": process(kernel.device),
        "tid": span.worker,
        "args": {
            "kernel": kernel.name,
            "computes": kernel.about,
            "launch": span.launch,
            "call": launch.call,
            "bytes": kernel.bytes,
            "modelled_us": micro(kernel.modelled),
        },
    })
}

fn copied(copy: &CopySpan, name: &str, process: usize, thread: usize) -> Value {
    let seconds = copy.end - copy.start;
    json!({
        "name": name,
        "cat": "copy",
        "ph": "X",
        "ts": micro(copy.start),
        "dur": micro(seconds),
        "pid": process,
        "tid": thread,
        "args": {
            "bytes": copy.bytes,
            "gb_per_second": copy.bytes as f64 / seconds.max(1e-12) / 1e9,
        },
    })
}

fn named(what: &str, process: usize, thread: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": process, "tid": thread, "args": { "name": name } })
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

    #[test]
    fn devices_and_copies_are_processes() {
        let recording = crate::report::tests::placed();
        let trace = chrome(&recording, &Report::new(&recording));
        let events = trace["traceEvents"].as_array().unwrap();
        let processes: Vec<_> = events
            .iter()
            .filter(|e| e["name"] == "process_name")
            .map(|e| (e["pid"].as_u64(), e["args"]["name"].as_str().unwrap()))
            .collect();
        assert_eq!(
            processes,
            [
                (Some(1), "a model on gpu (some): one token"),
                (Some(2), "cpu (avx2)"),
                (Some(3), "copies")
            ]
        );
        let of = |process: u64| {
            events
                .iter()
                .filter(move |e| e["ph"] == "X" && e["pid"] == process)
        };
        assert!(of(2).all(|e| e["args"]["kernel"] == "r_2") && of(2).count() == 2);
        let copy = of(3).next().unwrap();
        assert_eq!(
            (&copy["name"], &copy["args"]["gb_per_second"], &copy["tid"]),
            (&json!("gpu to cpu"), &json!(1.0), &json!(0))
        );
        assert_eq!(of(3).count(), 4);
    }
}
