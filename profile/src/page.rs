//! HTML rendering of a [`Report`]: one self-contained file with style, script and data inlined.

use crate::html::{self, COMMON_SCRIPT, COMMON_STYLE, PageParts};
use crate::recording::Recording;
use crate::report::{Report, WHY_ABOVE};
use serde_json::{Value, json};

/// Renders the report of a recording as an HTML page.
pub fn html(recording: &Recording, report: &Report) -> String {
    html::render_page(&PageParts {
        body: include_str!("page/body.html"),
        title: &format!("{}: {}", recording.model, recording.what),
        styles: &[COMMON_STYLE, include_str!("page/style.css")],
        data: &data(recording, report),
        scripts: &[COMMON_SCRIPT, include_str!("page/script.js")],
    })
}

fn data(recording: &Recording, report: &Report) -> Value {
    let limits = &recording.main().limits;
    let step = recording.steps.get(report.typical);
    let spans = step.map_or(&[][..], |s| &s.spans);
    let copies = step.map_or(&[][..], |s| &s.copies);
    let routes = recording.routes();
    let kernels: Vec<Value> = recording
        .kernels
        .iter()
        .map(|k| {
            let stages: Vec<Value> = k.stages.iter().map(|s| json!({ "name": s.name, "text": s.text })).collect();
            json!({
                "name": k.name, "function": k.function, "place": k.place, "device": k.device, "about": k.about, "bytes": k.bytes,
                "operations": k.operations, "modelled": k.modelled, "stages": stages,
            })
        })
        .collect();
    let rows: Vec<Value> = report
        .rows
        .iter()
        .map(|r| {
            json!({
                "kernel": r.kernel, "calls": r.calls, "seconds": r.seconds, "bytes": r.bytes, "operations": r.operations,
                "share": r.share, "fraction": r.fraction, "above": r.is_above(),
            })
        })
        .collect();
    let kinds: Vec<Value> = report
        .kinds
        .iter()
        .map(|k| {
            json!({
                "function": k.function, "calls": k.calls, "launches": k.launches, "seconds": k.seconds, "bytes": k.bytes,
                "share": k.share,
            })
        })
        .collect();
    json!({
        "model": recording.model,
        "device": recording.device_names(),
        "devices": recording.devices.iter().map(|of| json!({ "name": of.name, "workers": of.limits.workers })).collect::<Vec<_>>(),
        "routes": routes.iter().map(|&route| recording.route_name(route)).collect::<Vec<_>>(),
        "what": recording.what,
        "tokens": recording.tokens,
        "runs": recording.steps.len(),
        "limits": { "bandwidth": limits.bandwidth, "operations": limits.operations, "workers": limits.workers },
        "above": WHY_ABOVE,
        "wall": report.wall,
        "covered": report.covered,
        "bytes": report.bytes,
        "kernels": kernels,
        "rows": rows,
        "kinds": kinds,
        "decisions": recording.decisions.iter().map(|d| json!({ "function": d.0, "lines": d.1 })).collect::<Vec<_>>(),
        "launches": recording.launches.iter().map(|l| [l.kernel, l.call]).collect::<Vec<_>>(),
        // Launch, worker, start and end; times in microseconds.
        "spans": spans
            .iter()
            .map(|s| json!([s.launch, s.worker, rounded(s.start), rounded(s.end)]))
            .collect::<Vec<_>>(),
        // Route, bytes, start and end.
        "copies": copies
            .iter()
            .map(|c| {
                let route = routes.iter().position(|&route| route == (c.from, c.to));
                json!([route, c.bytes, rounded(c.start), rounded(c.end)])
            })
            .collect::<Vec<_>>(),
    })
}

/// Converts seconds to microseconds, rounded to a nanosecond.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::recording;

    #[test]
    fn the_page_is_whole_and_fetches_nothing() {
        let mut recording = recording();
        recording.model = "<b>@DATA@</b>".into();
        let page = html(&recording, &Report::new(&recording));
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        // One script element for the data and one for the code: kernel text closes neither.
        assert_eq!(
            (
                page.matches("</script").count(),
                page.matches("<script").count()
            ),
            (2, 2)
        );
        assert!(page.contains("\\u003c/script>\\u003c!--"));
        // The page refers to nothing outside itself.
        assert_eq!(html::outside(&page), [""; 0]);
        let (_, rest) = page.split_once("type=\"application/json\">").unwrap();
        let data: Value = serde_json::from_str(rest.split_once("</script").unwrap().0).unwrap();
        assert_eq!(
            (data["model"].as_str(), data["wall"].as_f64()),
            (Some("<b>@DATA@</b>"), Some(9.5))
        );
        assert_eq!(
            (data["spans"].as_array().unwrap().len(), &data["spans"][4]),
            (5, &json!([2, 0, 7e6, 8e6]))
        );
    }

    #[test]
    fn the_page_has_the_timeline_of_all_devices() {
        let recording = crate::report::tests::placed();
        let data = data(&recording, &Report::new(&recording));
        assert_eq!(data["devices"][1]["name"], json!("cpu (avx2)"));
        assert_eq!(data["kernels"][1]["device"], json!(1));
        assert_eq!(
            data["routes"],
            json!(["gpu to cpu", "cpu to gpu", "host memory to gpu"])
        );
        assert_eq!(data["copies"][1], json!([1, 500_000_000, 5e6, 5.5e6]));
    }
}
