//! Aggregation by launch, kernel and kind of layer: means over the faster half of the runs.

use crate::recording::{Limits, ProfiledDevice, ProfiledKernel, Recording, StepRun};
use gristmill_runtime::Span;

/// Explanation shown for kernels that are faster than their limit.
pub const WHY_ABOVE: &str =
    "its inputs come from a cache, or the cost model underestimates the processor";

/// Cost of a kernel in a step.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelCost {
    /// Index into [`Recording::kernels`].
    pub kernel: usize,
    /// Number of launches per step.
    pub calls: usize,
    /// Total seconds of these launches.
    pub seconds: f64,
    /// Total bytes that they must read.
    pub bytes: f64,
    /// Total operations of these launches.
    pub operations: f64,
    /// Fraction of the step's wall time.
    pub share: f64,
    /// Roofline time (memory or arithmetic) divided by measured time; `None` if no limit is known.
    pub fraction: Option<f64>,
}

impl KernelCost {
    /// Achieved read rate, bytes per second.
    pub fn rate(&self) -> f64 {
        self.bytes / self.seconds.max(1e-12)
    }
    /// Returns whether it ran faster than its limit permits. [`WHY_ABOVE`] explains
    /// how that is possible.
    pub fn is_above(&self) -> bool {
        self.fraction.is_some_and(|fraction| fraction > 1.005)
    }
}

/// Cost of a kind of layer in a step.
#[derive(Clone, PartialEq, Debug)]
pub struct FunctionCost {
    /// Name of the function.
    pub function: String,
    /// Calls of the function per step.
    pub calls: usize,
    /// Launches of all calls.
    pub launches: usize,
    /// Total seconds of these launches.
    pub seconds: f64,
    /// Total bytes that they must read.
    pub bytes: f64,
    /// Fraction of the step's wall time.
    pub share: f64,
}

/// Cost of a device's kernels, or of the copies between two devices, in a step.
#[derive(Clone, PartialEq, Debug)]
pub struct PlaceCost {
    /// Name of the device, or of both.
    pub name: String,
    /// Launches of a step on the device, or copies of a step between both.
    pub count: usize,
    /// Total seconds of these.
    pub seconds: f64,
    /// Total bytes that they must read, or that they copy.
    pub bytes: f64,
    /// Fraction of the step's wall time.
    pub share: f64,
    /// Bytes per second that the device's memory delivers; `None` for copies, or if unknown.
    pub bandwidth: Option<f64>,
}

/// Aggregated costs of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Mean wall seconds of a step.
    pub wall: f64,
    /// Mean wall seconds of a step without timers; `None` if not measured.
    pub plain: Option<f64>,
    /// Seconds of a step during which at least one worker runs a kernel.
    pub covered: f64,
    /// Seconds attributed to each launch. While several launches run, time is divided equally among
    /// them, so that the sum is `covered` however late the system schedules a worker.
    pub launches: Vec<f64>,
    /// Costs by kernel, the most expensive first.
    pub rows: Vec<KernelCost>,
    /// Costs by kind of layer, in the order of the step.
    pub kinds: Vec<FunctionCost>,
    /// Costs by device, then those of copies by pair of devices; empty for one device.
    pub places: Vec<PlaceCost>,
    /// Bytes that a step must read.
    pub bytes: f64,
    /// Index of the run nearest to the mean: the one to display.
    pub typical: usize,
}

impl Report {
    /// Aggregates the runs of a recording.
    pub fn new(recording: &Recording) -> Report {
        // The slower half contains interference by other processes. Means, unlike medians, add up.
        let mut order: Vec<usize> = (0..recording.steps.len()).collect();
        order.sort_by(|&a, &b| recording.steps[a].wall.total_cmp(&recording.steps[b].wall));
        order.truncate(order.len().div_ceil(2));
        let chosen: Vec<&StepRun> = order.iter().map(|&i| &recording.steps[i]).collect();
        let wall = mean(chosen.iter().map(|s| s.wall));
        let mut plain = recording.plain.clone();
        plain.sort_by(f64::total_cmp);
        plain.truncate(plain.len().div_ceil(2));
        let plain = (!plain.is_empty()).then(|| mean(plain.iter().copied()));
        let far = |i: &usize| (recording.steps[*i].wall - wall).abs();
        let typical = order
            .into_iter()
            .min_by(|a, b| far(a).total_cmp(&far(b)))
            .unwrap_or(0);
        let runs: Vec<Vec<f64>> = chosen
            .iter()
            .map(|s| divided(&s.spans, recording.launches.len()))
            .collect();
        let launches: Vec<f64> = (0..recording.launches.len())
            .map(|i| mean(runs.iter().map(|r| r[i])))
            .collect();
        let covered = launches.iter().sum();
        let mut rows: Vec<KernelCost> = Vec::new();
        let ran = ran(&chosen, recording.launches.len());
        for (number, kernel) in recording.kernels.iter().enumerate() {
            let all = recording.launches.iter().zip(&launches).zip(&ran);
            let mine = all.filter(|((l, _), ran)| l.kernel == number && **ran);
            let (calls, seconds) = mine.fold((0, 0.0), |(n, sum), ((_, s), _)| (n + 1, sum + s));
            if calls == 0 && recording.launches.iter().any(|l| l.kernel == number) {
                continue;
            }
            let (bytes, operations) = (
                kernel.bytes * calls as f64,
                kernel.operations * calls as f64,
            );
            let least =
                limit(kernel, &recording.devices[kernel.device].limits).map(|s| s * calls as f64);
            let fraction = least.map(|least| least / seconds.max(1e-12));
            rows.push(KernelCost {
                kernel: number,
                calls,
                seconds,
                bytes,
                operations,
                share: seconds / wall,
                fraction,
            });
        }
        let kinds = kinds(recording, &rows, wall);
        let places = places(recording, &rows, &chosen, wall);
        let bytes = rows.iter().map(|r| r.bytes).sum();
        rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Report {
            wall,
            plain,
            covered,
            launches,
            rows,
            kinds,
            places,
            bytes,
            typical,
        }
    }
    /// Seconds of a step during which no worker runs a kernel.
    pub fn between(&self) -> f64 {
        self.wall - self.covered
    }
}

/// Returns which launches ran: a step on several devices passes some over.
fn ran(runs: &[&StepRun], launches: usize) -> Vec<bool> {
    let mut ran = vec![false; launches];
    for span in runs.iter().flat_map(|run| &run.spans) {
        ran[span.launch] = true;
    }
    ran
}

/// Lower bound on the seconds of a launch (roofline); `None` if the bandwidth is unknown.
fn limit(kernel: &ProfiledKernel, limits: &Limits) -> Option<f64> {
    Some((kernel.bytes / limits.bandwidth?).max(kernel.operations / limits.operations))
}

fn kinds(recording: &Recording, rows: &[KernelCost], wall: f64) -> Vec<FunctionCost> {
    let mut kinds: Vec<FunctionCost> = Vec::new();
    let mut last = None;
    for launch in &recording.launches {
        let function = &recording.kernels[launch.kernel].function;
        let at = kinds
            .iter()
            .position(|k| k.function == *function)
            .unwrap_or_else(|| {
                let mine = || {
                    rows.iter()
                        .filter(|r| recording.kernels[r.kernel].function == *function)
                };
                let seconds = mine().map(|r| r.seconds).sum();
                let (launches, bytes) =
                    (mine().map(|r| r.calls).sum(), mine().map(|r| r.bytes).sum());
                kinds.push(FunctionCost {
                    function: function.clone(),
                    calls: 0,
                    launches,
                    seconds,
                    bytes,
                    share: seconds / wall,
                });
                kinds.len() - 1
            });
        if last != Some(launch.call) {
            kinds[at].calls += 1;
            last = Some(launch.call);
        }
    }
    kinds
}

/// Returns the costs by device and by pair of devices, of a step on several.
fn places(
    recording: &Recording,
    rows: &[KernelCost],
    runs: &[&StepRun],
    wall: f64,
) -> Vec<PlaceCost> {
    if !recording.is_placed() {
        return Vec::new();
    }
    let of_device = |(number, device): (usize, &ProfiledDevice)| {
        let own = rows
            .iter()
            .filter(|r| recording.kernels[r.kernel].device == number);
        let seconds = own.clone().map(|r| r.seconds).sum();
        PlaceCost {
            name: device.name.clone(),
            count: own.clone().map(|r| r.calls).sum(),
            seconds,
            bytes: own.map(|r| r.bytes).sum(),
            share: seconds / wall,
            bandwidth: device.limits.bandwidth,
        }
    };
    let of_route = |route: (Option<usize>, usize)| {
        let copies = runs.iter().flat_map(|run| &run.copies);
        let own = copies.filter(|copy| (copy.from, copy.to) == route);
        let each = |sum: f64| sum / runs.len().max(1) as f64;
        let seconds = each(own.clone().map(|copy| copy.end - copy.start).sum());
        PlaceCost {
            name: recording.route_name(route),
            count: own.clone().count() / runs.len().max(1),
            seconds,
            bytes: each(own.map(|copy| copy.bytes as f64).sum()),
            share: seconds / wall,
            bandwidth: None,
        }
    };
    let devices = recording.devices.iter().enumerate().map(of_device);
    devices
        .chain(recording.routes().into_iter().map(of_route))
        .collect()
}

/// Divides the time covered by spans among the launches that are running at each moment.
fn divided(spans: &[Span], launches: usize) -> Vec<f64> {
    let mut events: Vec<(f64, usize, bool)> = Vec::with_capacity(2 * spans.len());
    for span in spans.iter().filter(|span| span.end > span.start) {
        events.extend([
            (span.start, span.launch, true),
            (span.end, span.launch, false),
        ]);
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut out, mut open) = (vec![0.0; launches], Vec::<(usize, usize)>::new());
    let mut before = 0.0;
    for (at, launch, begins) in events {
        for &(running, _) in &open {
            out[running] += (at - before) / open.len() as f64;
        }
        before = at;
        match open.iter_mut().find(|of| of.0 == launch) {
            Some(of) if begins => of.1 += 1,
            Some(of) => of.1 -= 1,
            None => open.push((launch, 1)),
        }
        open.retain(|of| of.1 > 0);
    }
    out
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len().max(1);
    values.sum::<f64>() / n as f64
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::recording::{KernelLaunch, StageText};
    use gristmill_runtime::CopySpan;

    pub fn span(launch: usize, worker: usize, start: f64, end: f64) -> Span {
        Span {
            launch,
            worker,
            start,
            end,
        }
    }

    /// Two kernels in three launches, two calls of one function, on two workers.
    pub fn recording() -> Recording {
        let kernel = |name: &str, function: &str, place, bytes| ProfiledKernel {
            name: name.into(),
            function: function.into(),
            place,
            device: 0,
            about: "Reduce [64]".into(),
            bytes,
            operations: 4e9,
            modelled: 0.5,
            stages: vec![
                StageText {
                    name: "kernel",
                    text: "%0 = Range".into(),
                },
                StageText {
                    name: "source",
                    text: "if (a < b) x(\"</script><!--\");".into(),
                },
            ],
        };
        let step = |wall, late: f64| StepRun {
            wall,
            copies: vec![],
            spans: vec![
                span(0, 0, 0.0, 1.0),
                span(0, 1, 0.0, 2.0),
                span(1, 0, 3.0, 4.0),
                span(1, 1, 3.5, 4.0 + late),
                span(2, 0, 7.0, 8.0),
            ],
        };
        Recording {
            model: "a model".into(),
            devices: vec![ProfiledDevice {
                name: "cpu".into(),
                limits: Limits {
                    bandwidth: Some(10e9),
                    operations: 8e9,
                    workers: 2,
                },
            }],
            what: "one token".into(),
            tokens: 1,
            kernels: vec![
                kernel("r_1", "layer", 0, 10e9),
                kernel("r_2", "layer", 1, 0.0),
            ],
            launches: vec![
                KernelLaunch { kernel: 0, call: 0 },
                KernelLaunch { kernel: 1, call: 0 },
                KernelLaunch { kernel: 0, call: 1 },
            ],
            decisions: vec![(
                "layer".into(),
                vec!["place x: *fuse 1.00 us, keep 2.00 us".into()],
            )],
            steps: vec![step(10.0, 0.0), step(9.0, 1.0), step(20.0, 0.5)],
            plain: vec![8.5, 7.5, 30.0],
        }
    }

    /// The same, with the second kernel on another device and copies between both.
    pub fn placed() -> Recording {
        let mut recording = recording();
        recording.devices[0].name = "gpu (some)".into();
        recording.devices.push(ProfiledDevice {
            name: "cpu (avx2)".into(),
            limits: Limits {
                bandwidth: Some(1e9),
                ..recording.devices[0].limits
            },
        });
        recording.kernels[1].device = 1;
        let copy = |from, to, start: f64| CopySpan {
            from,
            to,
            bytes: 500_000_000,
            start,
            end: start + 0.5,
        };
        for step in &mut recording.steps {
            step.copies = vec![
                copy(Some(0), 1, 2.0),
                copy(Some(1), 0, 5.0),
                copy(None, 0, 5.5),
                copy(None, 0, 6.0),
            ];
        }
        recording
    }

    #[test]
    fn devices_and_copies_are_accounted_for() {
        assert_eq!(Report::new(&recording()).places, []);
        let report = Report::new(&placed());
        let places: Vec<_> = report
            .places
            .iter()
            .map(|of| (of.name.as_str(), of.count, of.seconds, of.bytes))
            .collect();
        assert_eq!(
            places,
            [
                ("gpu (some)", 2, 3.0, 20e9),
                ("cpu (avx2)", 1, 1.5, 0.0),
                ("gpu to cpu", 1, 0.5, 5e8),
                ("cpu to gpu", 1, 0.5, 5e8),
                ("host memory to gpu", 2, 1.0, 1e9),
            ]
        );
    }

    #[test]
    fn launches_that_are_passed_over_have_no_cost() {
        let mut recording = recording();
        for step in &mut recording.steps {
            step.spans.retain(|span| span.launch != 1);
        }
        let report = Report::new(&recording);
        let rows: Vec<_> = report.rows.iter().map(|r| (r.kernel, r.calls)).collect();
        assert_eq!(rows, [(0, 2)]);
        assert_eq!(report.bytes, 20e9);
    }

    #[test]
    fn the_faster_half_makes_the_sums() {
        let report = Report::new(&recording());
        assert_eq!(
            (report.wall, report.launches.as_slice()),
            (9.5, &[2.0, 1.5, 1.0][..])
        );
        // Covered: 0 to 2, 3 to 4 or 5, 7 to 8.
        assert_eq!(
            (report.covered, report.between(), report.typical),
            (4.5, 5.0, 1)
        );
        assert_eq!(report.plain, Some(8.0));
        let rows: Vec<_> = report
            .rows
            .iter()
            .map(|r| (r.kernel, r.calls, r.seconds, r.share))
            .collect();
        assert_eq!(rows, [(0, 2, 3.0, 3.0 / 9.5), (1, 1, 1.5, 1.5 / 9.5)]);
        assert_eq!(
            (report.rows[0].bytes, report.rows[0].rate(), report.bytes),
            (20e9, 20e9 / 3.0, 20e9)
        );
        // Memory bounds the first kernel: two of three seconds. Arithmetic bounds the second: 0.5
        // of 1.5 seconds.
        assert_eq!(
            (report.rows[0].fraction, report.rows[1].fraction),
            (Some(2.0 / 3.0), Some(1.0 / 3.0))
        );
        let kind = &report.kinds[..];
        assert_eq!(
            (kind.len(), kind[0].calls, kind[0].launches, kind[0].seconds),
            (1, 2, 3, 4.5)
        );
    }

    #[test]
    fn shares_add_up_however_workers_are_held_up() {
        // The second worker lags by one launch; both run launch 0 from 1 to 2.
        let spans = [
            span(0, 0, 0.0, 2.0),
            span(0, 1, 1.0, 4.0),
            span(1, 0, 2.0, 3.0),
            span(1, 1, 4.0, 5.0),
            span(2, 0, 6.0, 7.0),
        ];
        assert_eq!(divided(&spans, 4), [3.5, 1.5, 1.0, 0.0]);
        assert_eq!(divided(&[], 1), [0.0]);
        let mut recording = recording();
        for (i, step) in recording.steps.iter_mut().enumerate() {
            step.spans = spans
                .iter()
                .map(|s| Span {
                    end: s.end + 0.3 * i as f64 * s.worker as f64,
                    ..*s
                })
                .collect();
        }
        let report = Report::new(&recording);
        let of = |parts: &mut dyn Iterator<Item = f64>| {
            parts.sum::<f64>() + report.between() / report.wall
        };
        assert!(
            (of(&mut report.rows.iter().map(|r| r.share)) - 1.0).abs() < 1e-12,
            "{report:?}"
        );
        assert!(
            (of(&mut report.kinds.iter().map(|k| k.share)) - 1.0).abs() < 1e-12,
            "{report:?}"
        );
    }

    #[test]
    fn without_a_limit_there_is_no_fraction_of_it() {
        let mut recording = recording();
        recording.devices[0].limits.bandwidth = None;
        assert!(
            Report::new(&recording)
                .rows
                .iter()
                .all(|r| r.fraction.is_none())
        );
    }
}
