//! Calibrated costs of a machine, measured by a short microbenchmark.

use crate::facts::OF_GPUS;
use crate::machine::{Machine, NAMED};
use crate::measured::{Measured, Quantity};

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

impl Measured for Costs {
    const VERSION: &'static str = "costs 1";
    const QUANTITIES: &'static [Quantity<Costs>] = &[
        Quantity {
            name: "bandwidth",
            unit: "GB/s",
            scale: 1e9,
            bounds: [0.1, 1e6],
            field: |c| &mut c.bandwidth,
        },
        Quantity {
            name: "launch",
            unit: "us",
            scale: 1e-6,
            bounds: [0.01, 1e3],
            field: |c| &mut c.launch,
        },
        Quantity {
            name: "barrier",
            unit: "ns",
            scale: 1e-9,
            bounds: [0.1, 1e4],
            field: |c| &mut c.barrier,
        },
        Quantity {
            name: "latency",
            unit: "ns",
            scale: 1e-9,
            bounds: [1.0, 1e5],
            field: |c| &mut c.latency,
        },
        Quantity {
            name: "jump",
            unit: "ns",
            scale: 1e-9,
            bounds: [1.0, 1e5],
            field: |c| &mut c.jump,
        },
        Quantity {
            name: "operations",
            unit: "Gop/s",
            scale: 1e9,
            bounds: [0.1, 1e7],
            field: |c| &mut c.operations,
        },
    ];
}

/// Fields of the machine description that plans use, in the order of [`Costs::QUANTITIES`].
const PLANNED: &[fn(&mut Machine) -> &mut f64] = &[
    |m| &mut m.bandwidth,
    |m| &mut m.launch,
    |m| &mut m.barrier,
    |m| &mut m.latency,
    |m| &mut m.jump,
    |m| &mut m.operations,
];

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

    /// Costs by microbenchmark of the GPU whose planned costs are in the table. Those were fitted
    /// to its whole steps and are higher (a launch includes fill and drain); other GPUs scale them
    /// by the ratio of measurements.
    fn of_reference() -> Costs {
        let facts = &OF_GPUS;
        Costs {
            bandwidth: Some(facts.measured_bandwidth),
            launch: Some(facts.measured_launch_seconds),
            barrier: Some(facts.measured_barrier_seconds),
            latency: Some(facts.measured_latency_seconds),
            ..Costs::NONE
        }
    }
    /// Returns the costs that plans for `machine` use, in the same form.
    pub fn for_machine(machine: &Machine) -> Costs {
        let (mut costs, mut machine) = (Costs::default(), machine.clone());
        for (quantity, of) in Costs::QUANTITIES.iter().zip(PLANNED) {
            *(quantity.field)(&mut costs) = Some(*of(&mut machine)).filter(|&cost| cost > 0.0);
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
        let mut reference = Costs::of_reference();
        let Some(mut table) = Machine::named("h200") else {
            return machine;
        };
        for (quantity, planned) in Costs::QUANTITIES.iter().zip(PLANNED) {
            let of = quantity.field;
            if let (Some(measured), Some(there)) = (*of(&mut self), *of(&mut reference)) {
                *planned(&mut machine) = *planned(&mut table) * (measured / there);
            }
        }
        machine
    }
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
