//! Floating-point accuracy that devices guarantee.
//!
//! Most guarantee IEEE 754, each result rounded to nearest. WGSL guarantees less, and devices with
//! WGSL kernels are tested against exactly that.

use super::{Case, Env, HostArray, Run, Want, Way, truth, wrong};
use gristmill_uop::function::Storage;
use gristmill_uop::{Graph, Id, Node, Op, Scalar};

/// Accuracy of f32 arithmetic on a device.
#[derive(Clone, Copy)]
pub struct Accuracy {
    /// Error of an operation's result relative to the nearest float, in units in the last place.
    units: fn(Op) -> f64,
    /// True if subnormal operands and results may be flushed to zero.
    flushes: bool,
    /// True if ops may be contracted: a product and a sum, or products with a common factor.
    fuses: bool,
}

/// IEEE 754 for each operation.
pub const NEAREST: Accuracy = Accuracy {
    units: |_| 0.0,
    flushes: false,
    fuses: false,
};

/// Accuracy of WGSL, from the W3C's "WebGPU Shading Language".
///
/// Sections 15.7.4.1 (accuracy of concrete expressions), 15.7.2 (subnormal numbers) and 15.7.5
/// (reassociation and fusion).
pub const WGSL: Accuracy = Accuracy {
    units: units_of_wgsl,
    flushes: true,
    fuses: true,
};

/// The f32 table of 15.7.4.1, converted to distance from the nearest float.
///
/// The table counts from the exact result, and the nearest float is up to half a unit from it.
/// "Correctly rounded" permits either adjacent float. A square root inherits the accuracy of 1.0 /
/// inverseSqrt(x): 2 units, then 2.5. Integers convert to either adjacent float (15.7.6).
/// Exponentials and logarithms are implemented in kernels (`dialect/prelude.rs`), with the
/// tolerance of all devices.
fn units_of_wgsl(op: Op) -> f64 {
    const OF_NEAREST: f64 = 0.5;
    match op {
        Op::Add | Op::Sub | Op::Mul | Op::Cast => 1.0,
        Op::Fma => 2.0,
        Op::Div | Op::Recip => 2.5 + OF_NEAREST,
        Op::Sqrt => 2.0 + 2.5 + OF_NEAREST,
        _ => 0.0,
    }
}

/// The unit in the last place of an f32.
pub fn unit(of: f64) -> f64 {
    let of = of
        .abs()
        .clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)) as f32;
    f64::from(f32::from_bits(of.to_bits() & 0x7f80_0000)) * f64::from(f32::EPSILON)
}

/// True for a value that may be flushed to zero.
fn is_subnormal(v: f64) -> bool {
    v.abs() < f64::from(f32::MIN_POSITIVE)
}

/// Sum of the permitted errors of the f32 operations in a graph, in units.
fn sum(g: &Graph, roots: &[Id], units: fn(Op) -> f64) -> f64 {
    let of = |n: &Node| {
        let narrows = n.op == Op::Cast && g.scalar(n.src[0]).is_float();
        if n.dtype.scalar == Scalar::F32 && !narrows {
            units(n.op)
        } else {
            0.0
        }
    };
    g.toposort(roots).into_iter().map(|n| of(&g[n])).sum()
}

impl Accuracy {
    /// The accuracy of a way's device.
    pub fn for_way(way: &Way) -> Accuracy {
        match way.device.device.name().starts_with("wgpu") {
            true => WGSL,
            false => NEAREST,
        }
    }
    /// Permitted error of a case's outputs in units: its operations, and those that decode its
    /// weights.
    fn units(&self, case: &Case) -> f64 {
        let f = &case.function;
        let roots: Vec<Id> = f.outputs.iter().map(|o| o.1).collect();
        let of_weights = f.slots.iter().map(|slot| {
            let Storage::Packed(e) = slot.storage else {
                return 0.0;
            };
            let mut g = Graph::new();
            let (block, base) = (g.packed(0, &[e.elements as i64], e), g.int(0));
            let k = g.var("k", 0, e.elements as i64 - 1);
            let value = e.decode(&mut g, block, base, k);
            sum(&g, &[value], self.units)
        });
        sum(&f.graph, &roots, self.units) + of_weights.sum::<f64>()
    }
    /// True if `got` is within `units` of `want`, or is a permitted flush to zero.
    fn allows(&self, units: f64, want: f64, got: f64) -> bool {
        (want - got).abs() <= units * unit(want) || self.flushes && is_subnormal(want) && got == 0.0
    }
    /// Alternative outputs of a run: with flushed inputs, and with contracted decoding.
    pub fn others(&self, case: &Case, run: &Run) -> Vec<Want> {
        let of =
            |values: &[Vec<f64>], env| truth(&case.function, &run.vars, &run.before, values, env);
        let flushed = self.flushes.then(|| {
            let zero = |&v: &f64| {
                if is_subnormal(v) {
                    0.0f64.copysign(v)
                } else {
                    v
                }
            };
            let mut values = run.values.clone();
            for (data, slot) in values.iter_mut().zip(&case.function.slots) {
                if matches!(slot.storage, Storage::Plain(Scalar::F32)) {
                    *data = data.iter().map(zero).collect();
                }
            }
            of(&values, Env::new())
        });
        let fused = self
            .fuses
            .then(|| of(&run.values, Env::new().decoded_exactly()));
        flushed.into_iter().chain(fused).collect()
    }
    /// Describes an error in an output of a run that the accuracy does not permit.
    pub fn wrong(
        &self,
        case: &Case,
        run: &Run,
        output: usize,
        got: &[f64],
        scalar: Scalar,
    ) -> Option<String> {
        let slack = run.slack.get(output).map_or(&[][..], Vec::as_slice);
        let off = |wants: &[&HostArray], units: Option<f64>| {
            let allows = |w: f64, g: f64| {
                units.is_some_and(|units| scalar == Scalar::F32 && self.allows(units, w, g))
            };
            wrong(wants, got, scalar, case.within, slack, &allows)
        };
        let want = &run.want[output].1;
        let nearest = off(&[want], None)?;
        if !self.flushes && !self.fuses {
            return Some(nearest);
        }
        let others = self.others(case, run);
        let wants: Vec<&HostArray> = std::iter::once(want)
            .chain(others.iter().map(|other| &other[output].1))
            .collect();
        off(&wants, Some(self.units(case)))
    }
}

#[test]
fn a_device_is_held_to_its_language() {
    use gristmill_uop::{Arg, Sources};
    let case = |op: Op| {
        let build = |g: &mut Graph, x: &[Id]| {
            vec![g.build(op, Scalar::F32.one(), Sources::from_slice(x), Arg::None)]
        };
        Case::raw("", &[(&[1], Scalar::F32)], build)
    };
    let [root, quotient] = [Op::Sqrt, Op::Recip].map(|op| WGSL.units(&case(op)));
    assert_eq!(
        (root, quotient, NEAREST.units(&case(Op::Sqrt))),
        (5.0, 3.0, 0.0)
    );
    let off = |units: u32| f64::from(f32::from_bits(1.5f32.to_bits() + units));
    for units in 0..9 {
        assert_eq!(WGSL.allows(root, 1.5, off(units)), units <= 5);
        assert_eq!(WGSL.allows(quotient, 1.5, off(units)), units <= 3);
    }
    assert!(
        WGSL.allows(0.0, 1e-40, 0.0)
            && !WGSL.allows(0.0, 1e-37, 0.0)
            && !WGSL.allows(0.0, 1e-40, 2e-38)
    );
    assert!(!NEAREST.allows(0.0, 1e-40, 0.0) && !NEAREST.allows(0.0, 1.5, off(1)));
}
