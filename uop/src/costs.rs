//! Calibrated costs of a machine, measured by a short microbenchmark: rounded, range-checked, with
//! a text form for storage and display.

use crate::machine::{Machine, NAMED};

/// Measured costs; a field is `None` if the measurement failed or was implausible.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Costs {
    /// Memory read bandwidth of the whole machine, bytes per second.
    pub bandwidth: Option<f64>,
    /// Seconds per kernel in a chain of nearly empty kernels; on a CPU,
    /// per barrier between workers.
    pub launch: Option<f64>,
    /// Seconds of a barrier between the threads of a workgroup.
    pub barrier: Option<f64>,
    /// Load latency, seconds, from a pointer chase through memory.
    pub latency: Option<f64>,
    /// Additional seconds for a CPU worker to read a block that does not follow the previous one.
    pub jump: Option<f64>,
    /// f32 operations per second of a GPU, a multiply-add counting as two; for GPUs with an
    /// interface that does not report units.
    pub operations: Option<f64>,
}

/// A cost: its text form, plausible range, and fields.
struct Quantity {
    name: &'static str,
    unit: &'static str,
    /// One unit in bytes per second, seconds, or operations per second.
    scale: f64,
    /// Smallest and largest plausible value, in the unit: 100 times below the slowest and above
    /// the fastest current machine.
    bounds: [f64; 2],
    field: fn(&mut Costs) -> &mut Option<f64>,
    /// Field of the machine description that plans use.
    of: fn(&mut Machine) -> &mut f64,
}

const QUANTITIES: &[Quantity] = &[
    Quantity {
        name: "bandwidth",
        unit: "GB/s",
        scale: 1e9,
        bounds: [0.1, 1e6],
        field: |c| &mut c.bandwidth,
        of: |m| &mut m.bandwidth,
    },
    Quantity {
        name: "launch",
        unit: "us",
        scale: 1e-6,
        bounds: [0.01, 1e3],
        field: |c| &mut c.launch,
        of: |m| &mut m.launch,
    },
    Quantity {
        name: "barrier",
        unit: "ns",
        scale: 1e-9,
        bounds: [0.1, 1e4],
        field: |c| &mut c.barrier,
        of: |m| &mut m.barrier,
    },
    Quantity {
        name: "latency",
        unit: "ns",
        scale: 1e-9,
        bounds: [1.0, 1e5],
        field: |c| &mut c.latency,
        of: |m| &mut m.latency,
    },
    Quantity {
        name: "jump",
        unit: "ns",
        scale: 1e-9,
        bounds: [1.0, 1e5],
        field: |c| &mut c.jump,
        of: |m| &mut m.jump,
    },
    Quantity {
        name: "operations",
        unit: "Gop/s",
        scale: 1e9,
        bounds: [0.1, 1e7],
        field: |c| &mut c.operations,
        of: |m| &mut m.operations,
    },
];

/// Microbenchmark results on an H200 (driver 580). The costs used in GPU plans were fitted to
/// its whole steps and are higher (a launch includes fill and drain); other GPUs scale them by
/// the ratio of measurements.
const H200_COSTS: Costs = Costs {
    bandwidth: Some(4.6e12),
    launch: Some(0.93e-6),
    barrier: Some(14e-9),
    latency: Some(350e-9),
    ..Costs::NONE
};

/// Maximum length of the text form, bytes.
pub const MAX_TEXT_BYTES: usize = 512;

impl Costs {
    /// Costs before any measurement.
    pub const NONE: Costs = Costs {
        bandwidth: None,
        launch: None,
        barrier: None,
        latency: None,
        jump: None,
        operations: None,
    };

    /// Rounds to two significant digits, so that repeated measurements mostly agree,
    /// and drops implausible values.
    pub fn rounded(mut self) -> Costs {
        for quantity in QUANTITIES {
            let field = (quantity.field)(&mut self);
            *field = field.and_then(|value| quantity.believed(value / quantity.scale));
        }
        self
    }

    /// Formats as `bandwidth 4600 GB/s, launch 1.4 us`; empty if nothing was measured.
    pub fn text(mut self) -> String {
        let of = |quantity: &Quantity| {
            let value = (*(quantity.field)(&mut self))? / quantity.scale;
            Some(format!(
                "{} {} {}",
                quantity.name,
                two_digits(value),
                quantity.unit
            ))
        };
        QUANTITIES
            .iter()
            .filter_map(of)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Parses the output of [`Costs::text`] for rounded costs; rejects anything else.
    pub fn parse(text: &str) -> Option<Costs> {
        let mut costs = Costs::default();
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        for part in text.split(", ") {
            let mut words = part.split(' ');
            let (name, value, unit) = (words.next()?, words.next()?, words.next()?);
            let quantity = QUANTITIES
                .iter()
                .find(|quantity| quantity.name == name && quantity.unit == unit)?;
            let value = quantity.believed(value.parse().ok()?)?;
            if words.next().is_some() || (quantity.field)(&mut costs).replace(value).is_some() {
                return None;
            }
        }
        Some(costs)
    }

    /// Returns the costs that plans for `machine` use, in the same form.
    pub fn for_machine(machine: &Machine) -> Costs {
        let (mut costs, mut machine) = (Costs::default(), machine.clone());
        for quantity in QUANTITIES {
            *(quantity.field)(&mut costs) =
                Some(*(quantity.of)(&mut machine)).filter(|&cost| cost > 0.0);
        }
        costs
    }

    /// Returns whether plans use measured costs: for NVIDIA GPUs without a row in the table. Plans
    /// for known machines keep their tabulated costs.
    pub fn can_plan(machine: &Machine) -> bool {
        machine.sm.is_some() && NAMED.iter().all(|row| row.name != machine.name)
    }

    /// Returns the machine with the H200's tabulated costs, scaled by the ratios of measured costs,
    /// if plans use these.
    pub fn plan(mut self, mut machine: Machine) -> Machine {
        if !Costs::can_plan(&machine) {
            return machine;
        }
        let mut reference = H200_COSTS;
        let Some(mut table) = Machine::named("h200") else {
            return machine;
        };
        for quantity in QUANTITIES {
            let of = quantity.field;
            if let (Some(measured), Some(there)) = (*of(&mut self), *of(&mut reference)) {
                *(quantity.of)(&mut machine) = *(quantity.of)(&mut table) * (measured / there);
            }
        }
        machine
    }
}

impl Quantity {
    /// Rounds a value in its unit and converts it; `None` if it is implausible.
    fn believed(&self, value: f64) -> Option<f64> {
        let [least, most] = self.bounds;
        let value: f64 = two_digits(value).parse().ok()?;
        (least..=most)
            .contains(&value)
            .then_some(value * self.scale)
    }
}

/// Formats with two significant digits, as a decimal without an exponent.
fn two_digits(value: f64) -> String {
    // Converts through decimal text, so that equal digits give equal values.
    format!("{value:.1e}")
        .parse::<f64>()
        .map_or_else(|_| String::new(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: Costs = Costs {
        bandwidth: Some(1.2345e12),
        launch: Some(1.26e-6),
        latency: Some(0.613e-6),
        ..Costs::NONE
    };

    #[test]
    fn text_and_back_is_the_same() {
        let costs = MEASURED.rounded();
        assert_eq!(
            costs.text(),
            "bandwidth 1200 GB/s, launch 1.3 us, latency 610 ns"
        );
        assert_eq!(Costs::parse(&costs.text()), Some(costs));
        assert_eq!(costs.rounded(), costs);
        for digits in 10..100 {
            let launch = Costs {
                launch: Some(digits as f64 * 1e-7),
                ..Costs::default()
            }
            .rounded();
            assert_eq!(Costs::parse(&launch.text()), Some(launch), "{digits}");
        }
    }

    #[test]
    fn noise_is_not_seen() {
        let again = Costs {
            bandwidth: Some(1.2401e12),
            launch: Some(1.31e-6),
            latency: Some(0.609e-6),
            ..MEASURED
        };
        assert_eq!(again.rounded(), MEASURED.rounded());
    }

    #[test]
    fn implausible_costs_are_rejected() {
        for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1.0, 1e-30, 1e300] {
            let strange = Costs {
                launch: Some(value),
                ..MEASURED
            };
            assert_eq!(
                strange.rounded(),
                Costs {
                    launch: None,
                    ..MEASURED
                }
                .rounded(),
                "{value}"
            );
        }
        let long = format!("{}launch 1 us", "launch 1 us, ".repeat(100));
        for text in [
            "",
            "launch",
            "launch 1",
            "launch 1 ns",
            "launch 0 us",
            "launch -1 us",
            "launch NaN us",
            "launch inf us",
            "launch 1e9 us",
            "launch 1 us more",
            "launch 1 us, launch 2 us",
            "launch 1 us,",
            "speed 1 us",
            &long,
        ] {
            assert_eq!(Costs::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_machines_without_a_row_are_planned_with_them() {
        let h200 = Machine::named("h200").unwrap();
        let slow = Costs {
            launch: Some(1.86e-6),
            bandwidth: Some(2.3e12),
            ..Costs::default()
        };
        assert_eq!(slow.plan(h200.clone()), h200);
        let cpu = Machine::cpu("avx2", 8, 2);
        assert_eq!(slow.plan(cpu.clone()), cpu);
        let other = Machine {
            name: "sm_100".into(),
            ..h200.clone()
        };
        let planned = slow.plan(other.clone());
        let twice = |a: f64, b: f64| (a / b - 2.0).abs() < 1e-9;
        assert!(
            twice(planned.launch, other.launch) && twice(other.bandwidth, planned.bandwidth),
            "{planned:?}"
        );
        assert_eq!(
            (planned.latency, planned.barrier, planned.jump),
            (other.latency, other.barrier, other.jump)
        );
    }
}
