//! Text rendering of a [`Report`]: tables for a terminal.

use crate::recording::Recording;
use crate::report::{KernelCost, Report, WHY_ABOVE};
use std::fmt::Write;

/// Rows of the kernel table unless `all` is set.
const MAX_ROWS: usize = 20;
/// Timer overhead, as a fraction of a step, below which no figure is printed.
const MIN_SHARE: f64 = 0.005;

/// Formats the summary, the tables of layers and kernels, and the timer overhead.
pub fn tables(recording: &Recording, report: &Report, all: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, recording, report, all);
    out
}

fn write(out: &mut String, recording: &Recording, report: &Report, all: bool) -> std::fmt::Result {
    step(out, recording, report)?;
    layers(out, report)?;
    places(out, report)?;
    kernels(
        out,
        recording,
        report,
        if all { usize::MAX } else { MAX_ROWS },
    )?;
    report
        .plain
        .map_or(Ok(()), |plain| timers(out, recording, report.wall, plain))
}

fn percent(x: f64) -> String {
    format!("{:.1} %", 100.0 * x)
}

/// Writes the time of a step, its throughput and its bytes.
fn step(out: &mut String, recording: &Recording, report: &Report) -> std::fmt::Result {
    writeln!(
        out,
        "{}, {}: {}, {} runs",
        recording.model,
        recording.device_names(),
        recording.what,
        recording.steps.len()
    )?;
    let of_limit = match recording.main().limits.bandwidth {
        _ if recording.is_placed() => "by device below".into(),
        None => "read bandwidth unknown".into(),
        Some(b) => format!(
            "{} of the {:.1} GB/s that memory delivers when it is only read",
            percent(report.bytes / report.wall / b),
            b / 1e9
        ),
    };
    writeln!(
        out,
        "{} a step, {:.1} tokens a second; {:.1} MB must be read, {:.2} GB/s: {of_limit}",
        time(report.wall),
        recording.tokens as f64 / report.wall,
        report.bytes / 1e6,
        report.bytes / report.wall / 1e9,
    )
}

/// Writes the table of kinds of layer, and the time between kernels.
fn layers(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<28} {:>6} {:>8} {:>10} {:>9} {:>8} {:>7}",
        "layers", "calls", "launches", "time", "MB", "GB/s", "share"
    )?;
    for kind in &report.kinds {
        writeln!(
            out,
            "{:<28} {:>6} {:>8} {:>10} {:>9.2} {:>8.2} {:>7}",
            kind.function,
            kind.calls,
            kind.launches,
            time(kind.seconds),
            kind.bytes / 1e6,
            kind.bytes / kind.seconds.max(1e-12) / 1e9,
            percent(kind.share)
        )?;
    }
    let (gap, share) = (report.between(), report.between() / report.wall);
    writeln!(
        out,
        "{:<28} {:>6} {:>8} {:>10} {:>9} {:>8} {:>7}",
        "between kernels",
        "",
        "",
        time(gap),
        "",
        "",
        percent(share)
    )
}

/// Writes the table of devices and of copies between them, if there are several.
fn places(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.places.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<28} {:>15} {:>10} {:>9} {:>8} {:>7} {:>7}",
        "devices and copies", "number", "time", "MB", "GB/s", "limit", "share"
    )?;
    for place in &report.places {
        let rate = place.bytes / place.seconds.max(1e-12);
        let limit = place
            .bandwidth
            .map_or(String::new(), |b| format!("{:.0} %", 100.0 * rate / b));
        writeln!(
            out,
            "{:<28} {:>15} {:>10} {:>9.3} {:>8.2} {limit:>7} {:>7}",
            cut(&place.name, 28),
            place.count,
            time(place.seconds),
            place.bytes / 1e6,
            rate / 1e9,
            percent(place.share)
        )?;
    }
    writeln!(
        out,
        "With timers, parts on several devices run one after the other; without them they overlap."
    )
}

/// Writes the table of the first `most` kernels, and the total of the others.
fn kernels(
    out: &mut String,
    recording: &Recording,
    report: &Report,
    most: usize,
) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<21} {:<24} {:>5} {:>10} {:>10} {:>9} {:>8} {:>7} {:>7}  computes",
        "kernel", "of", "calls", "time", "each", "MB", "GB/s", "limit", "share"
    )?;
    for row in report.rows.iter().take(most) {
        kernel(out, recording, row)?;
    }
    let rest: Vec<&KernelCost> = report.rows.iter().skip(most).collect();
    if !rest.is_empty() {
        let (seconds, share) = rest
            .iter()
            .fold((0.0, 0.0), |(s, h), r| (s + r.seconds, h + r.share));
        let what = format!("and {} more (--all)", rest.len());
        writeln!(
            out,
            "{what:<52} {:>10} {:>10} {:>9} {:>8} {:>7} {:>7}",
            time(seconds),
            "",
            "",
            "",
            "",
            percent(share)
        )?;
    }
    if report.rows.iter().take(most).any(KernelCost::is_above) {
        writeln!(out, "\n* faster than its limit: {WHY_ABOVE}")?;
    }
    Ok(())
}

/// Writes the overhead of the timers: a step takes `plain` seconds without them
/// and `wall` with them.
fn timers(out: &mut String, recording: &Recording, wall: f64, plain: f64) -> std::fmt::Result {
    let cost = (wall - plain).max(0.0);
    let rate = recording.tokens as f64 / plain;
    let took = format!("{}, {rate:.1} tokens a second", time(plain));
    let taken = match cost > MIN_SHARE * plain {
        true => format!("{} of the step, most of it between kernels", time(cost)),
        false => "next to nothing".into(),
    };
    writeln!(
        out,
        "\nThe timers themselves take {taken}: without them it takes {took}."
    )
}

fn kernel(out: &mut String, recording: &Recording, row: &KernelCost) -> std::fmt::Result {
    let kernel = &recording.kernels[row.kernel];
    writeln!(
        out,
        "{:<21} {:<24} {:>5} {:>10} {:>10} {:>9.2} {:>8.2} {:>7} {:>7}  {}",
        kernel.name,
        format!("{} {}", kernel.function, kernel.place),
        row.calls,
        time(row.seconds),
        time(row.seconds / row.calls.max(1) as f64),
        row.bytes / 1e6,
        row.rate() / 1e9,
        row.fraction.map_or("?".into(), |f| format!(
            "{:.0} %{}",
            100.0 * f,
            if row.is_above() { "*" } else { "" }
        )),
        format!("{:.1} %", 100.0 * row.share),
        shortened(&kernel.about)
    )
}

/// Formats seconds in s, ms or us, by magnitude.
pub fn time(seconds: f64) -> String {
    match seconds.abs() {
        s if s >= 1.0 => format!("{seconds:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{:.1} us", seconds * 1e6),
    }
}

/// Truncates a name to `most` characters.
fn cut(name: &str, most: usize) -> String {
    match name.char_indices().nth(most - 1) {
        Some((at, _)) if name.chars().count() > most => format!("{}…", &name[..at]),
        _ => name.into(),
    }
}

/// Truncates a `; `-separated list to the parts that fit; the first part is kept whole.
fn shortened(text: &str) -> String {
    const MAX_WIDTH: usize = 60;
    let fits = |at: &usize| text[..*at].chars().count() < MAX_WIDTH;
    let first = text.find("; ");
    match text
        .match_indices("; ")
        .map(|(at, _)| at)
        .filter(fits)
        .last()
        .or(first)
    {
        Some(at) if text.chars().count() > MAX_WIDTH => format!("{}; …", &text[..at]),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::recording;

    #[test]
    fn the_tables_say_what_the_sums_are() {
        let mut recording = recording();
        let text = tables(&recording, &Report::new(&recording), false);
        for part in [
            "9.50 s a step, 0.1 tokens a second",
            "between kernels",
            "5.00 s",
            "52.6 %",
            "r_1",
            "67 %",
            "Reduce [64]",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(
            text.contains("take 1.50 s of the step")
                && text.contains("takes 8.00 s, 0.1 tokens a second"),
            "{text}"
        );
        assert!(!text.contains('*'), "{text}");
        let mut fast = recording.clone();
        fast.devices[0].limits.bandwidth = Some(5e9);
        let text = tables(&fast, &Report::new(&fast), false);
        assert!(
            text.contains("133 %*") && text.contains("* faster than its limit"),
            "{text}"
        );
        let one = recording.kernels[1].clone();
        recording
            .kernels
            .extend((0..30).map(|i| crate::ProfiledKernel {
                name: format!("r_more{i}"),
                ..one.clone()
            }));
        let report = Report::new(&recording);
        assert!(tables(&recording, &report, false).contains("and 12 more"));
        let all = tables(&recording, &report, true);
        assert!(
            all.contains("r_more29") && !all.contains(" more ("),
            "{all}"
        );
    }

    #[test]
    fn devices_and_copies_are_a_table() {
        let recording = crate::report::tests::placed();
        let text = tables(&recording, &Report::new(&recording), false);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.unwrap_or_else(|| panic!("{text}"))
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert!(
            text.starts_with("a model, gpu (some) + cpu (avx2): one token"),
            "{text}"
        );
        assert_eq!(
            row("gpu (some)"),
            "gpu (some) 2 3.00 s 20000.000 6.67 67 % 31.6 %"
        );
        assert_eq!(
            row("gpu to cpu"),
            "gpu to cpu 1 500.00 ms 500.000 1.00 5.3 %"
        );
        assert_eq!(
            row("host memory to gpu"),
            "host memory to gpu 2 1.00 s 1000.000 1.00 10.5 %"
        );
    }

    #[test]
    fn names_have_a_width() {
        assert_eq!(["cpu", "äöü"].map(|name| cut(name, 3)), ["cpu", "äöü"]);
        assert_eq!(cut("wgpu (llvmpipe)", 8), "wgpu (l…");
    }

    #[test]
    fn labels_are_whole() {
        let parts = "ffn_up · SwiGLU: Reduce [64, 7168]; Mul [64, 2560]; Add [64]; Cast [64, 2048]";
        assert_eq!(
            shortened(parts),
            "ffn_up · SwiGLU: Reduce [64, 7168]; Mul [64, 2560]; …"
        );
        let long = "a".repeat(80);
        assert_eq!(
            (shortened("short; one").as_str(), shortened(&long)),
            ("short; one", long.clone())
        );
        assert_eq!(shortened(&format!("{long}; b")), format!("{long}; …"));
    }

    #[test]
    fn times_have_units_that_suit_them() {
        assert_eq!(
            [2.0, 0.0123, 4.56e-6, -0.001].map(time),
            ["2.00 s", "12.30 ms", "4.6 us", "-1.00 ms"]
        );
    }
}
