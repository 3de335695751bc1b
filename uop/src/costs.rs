//! What things cost on a machine as a short microbenchmark of its device finds them: rounded, in bounds, with a text form to keep and to show.

use crate::machine::{Machine, NAMED};

/// What was measured; none where that failed, or gave what no machine has.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Costs {
    /// Bytes a second that the whole machine reads from its memory.
    pub bandwidth: Option<f64>,
    /// Seconds of one more kernel in a chain of kernels that do almost nothing; of a CPU, of a barrier between its workers.
    pub launch: Option<f64>,
    /// Seconds of a barrier between the threads of a workgroup.
    pub barrier: Option<f64>,
    /// Seconds from one load from memory to the next where the second's address is the first's value.
    pub latency: Option<f64>,
    /// Seconds more that a CPU's worker takes to read a block that lies elsewhere than behind the one before.
    pub jump: Option<f64>,
    /// Operations of f32 that a GPU computes a second, a product with its addition being two: of GPUs whose interface tells of no units.
    pub operations: Option<f64>,
}

/// One of them: how it is written, and what is believed.
struct Quantity {
    name: &'static str,
    unit: &'static str,
    /// One of the unit, in bytes a second, seconds, or operations a second.
    scale: f64,
    /// The least and the most that is believed, in the unit: a hundredth of what the slowest machine of today has, and a hundred times the fastest.
    bounds: [f64; 2],
    field: fn(&mut Costs) -> &mut Option<f64>,
    /// Where the machine's plans have it.
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
    Quantity { name: "jump", unit: "ns", scale: 1e-9, bounds: [1.0, 1e5], field: |c| &mut c.jump, of: |m| &mut m.jump },
    Quantity {
        name: "operations",
        unit: "Gop/s",
        scale: 1e9,
        bounds: [0.1, 1e7],
        field: |c| &mut c.operations,
        of: |m| &mut m.operations,
    },
];

/// What the microbenchmark of CUDA finds on an H200 (driver 580), from whose whole steps the costs of every GPU's plan come: plans count with more than
/// these (a launch with what it fills and drains), and on another GPU with as many times more.
const OF_AN_H200: Costs = Costs {
    bandwidth: Some(4.6e12),
    launch: Some(0.93e-6),
    barrier: Some(14e-9),
    latency: Some(350e-9),
    ..Costs::NONE
};

/// Longest text of costs, bytes.
pub const LONGEST: usize = 512;

impl Costs {
    /// Before anything is measured.
    pub const NONE: Costs =
        Costs { bandwidth: None, launch: None, barrier: None, latency: None, jump: None, operations: None };

    /// With two significant digits each, so that what differs by less than a tenth or so is mostly the same; without what cannot be.
    pub fn rounded(mut self) -> Costs {
        for quantity in QUANTITIES {
            let field = (quantity.field)(&mut self);
            *field = field.and_then(|value| quantity.believed(value / quantity.scale));
        }
        self
    }

    /// `bandwidth 4600 GB/s, launch 1.4 us`; empty if nothing was measured.
    pub fn text(mut self) -> String {
        let of = |quantity: &Quantity| {
            let value = (*(quantity.field)(&mut self))? / quantity.scale;
            Some(format!("{} {} {}", quantity.name, two_digits(value), quantity.unit))
        };
        QUANTITIES.iter().filter_map(of).collect::<Vec<_>>().join(", ")
    }

    /// What [`Costs::text`] writes of rounded costs, and nothing else.
    pub fn parse(text: &str) -> Option<Costs> {
        let mut costs = Costs::default();
        if text.len() > LONGEST {
            return None;
        }
        for part in text.split(", ") {
            let mut words = part.split(' ');
            let (name, value, unit) = (words.next()?, words.next()?, words.next()?);
            let quantity = QUANTITIES.iter().find(|quantity| quantity.name == name && quantity.unit == unit)?;
            let value = quantity.believed(value.parse().ok()?)?;
            if words.next().is_some() || (quantity.field)(&mut costs).replace(value).is_some() {
                return None;
            }
        }
        Some(costs)
    }

    /// The costs that plans for a machine count with, in the same form.
    pub fn of(machine: &Machine) -> Costs {
        let (mut costs, mut machine) = (Costs::default(), machine.clone());
        for quantity in QUANTITIES {
            *(quantity.field)(&mut costs) = Some(*(quantity.of)(&mut machine)).filter(|&cost| cost > 0.0);
        }
        costs
    }

    /// Are plans for the machine made with what is measured? Where it is a GPU of which the table has no row: what was chosen on one that is known stays.
    pub fn can_plan(machine: &Machine) -> bool {
        machine.sm.is_some() && NAMED.iter().all(|row| row.name != machine.name)
    }

    /// The machine with these costs, if plans are made with them.
    pub fn plan(mut self, mut machine: Machine) -> Machine {
        if !Costs::can_plan(&machine) {
            return machine;
        }
        let mut reference = OF_AN_H200;
        let Some(mut table) = Machine::named("h200") else { return machine };
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
    /// A value in its unit, rounded, as a cost, if it is one that a machine may have.
    fn believed(&self, value: f64) -> Option<f64> {
        let [least, most] = self.bounds;
        let value: f64 = two_digits(value).parse().ok()?;
        (least..=most).contains(&value).then_some(value * self.scale)
    }
}

/// The number with two significant digits, as a decimal without an exponent.
fn two_digits(value: f64) -> String {
    // By way of the decimal, so that the same digits are the same number.
    format!("{value:.1e}").parse::<f64>().map_or_else(|_| String::new(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: Costs =
        Costs { bandwidth: Some(1.2345e12), launch: Some(1.26e-6), latency: Some(0.613e-6), ..Costs::NONE };

    #[test]
    fn text_and_back_is_the_same() {
        let costs = MEASURED.rounded();
        assert_eq!(costs.text(), "bandwidth 1200 GB/s, launch 1.3 us, latency 610 ns");
        assert_eq!(Costs::parse(&costs.text()), Some(costs));
        assert_eq!(costs.rounded(), costs);
        for digits in 10..100 {
            let launch = Costs { launch: Some(digits as f64 * 1e-7), ..Costs::default() }.rounded();
            assert_eq!(Costs::parse(&launch.text()), Some(launch), "{digits}");
        }
    }

    #[test]
    fn noise_is_not_seen() {
        let again = Costs { bandwidth: Some(1.2401e12), launch: Some(1.31e-6), latency: Some(0.609e-6), ..MEASURED };
        assert_eq!(again.rounded(), MEASURED.rounded());
    }

    #[test]
    fn what_no_machine_has_is_not_taken() {
        for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1.0, 1e-30, 1e300] {
            let strange = Costs { launch: Some(value), ..MEASURED };
            assert_eq!(strange.rounded(), Costs { launch: None, ..MEASURED }.rounded(), "{value}");
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
        let slow = Costs { launch: Some(1.86e-6), bandwidth: Some(2.3e12), ..Costs::default() };
        assert_eq!(slow.plan(h200.clone()), h200);
        let cpu = Machine::cpu("avx2", 8, 2);
        assert_eq!(slow.plan(cpu.clone()), cpu);
        let other = Machine { name: "sm_100".into(), ..h200.clone() };
        let planned = slow.plan(other.clone());
        let twice = |a: f64, b: f64| (a / b - 2.0).abs() < 1e-9;
        assert!(twice(planned.launch, other.launch) && twice(other.bandwidth, planned.bandwidth), "{planned:?}");
        assert_eq!((planned.latency, planned.barrier, planned.jump), (other.latency, other.barrier, other.jump));
    }
}
