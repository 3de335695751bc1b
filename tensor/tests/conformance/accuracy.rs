//! What devices promise of arithmetic of floats: most IEEE 754's, each result the nearest float. WGSL promises less, and a device whose kernels it is the language of is held to that and no looser.

use super::{Case, Env, HostArray, Run, Want, Way, truth, wrong};
use gristmill_uop::function::Storage;
use gristmill_uop::{Graph, Id, Node, Op, Scalar};

/// What a device promises of arithmetic in f32.
#[derive(Clone, Copy)]
pub struct Accuracy {
    /// Units in the last place that the result of an operation may be off the nearest float.
    units: fn(Op) -> f64,
    /// May what an operation reads or gives be zero where it is subnormal?
    flushes: bool,
    /// May operations be joined where that is as accurate: a product and a sum, or two products with a factor in common?
    fuses: bool,
}

/// IEEE 754, operation by operation.
pub const NEAREST: Accuracy = Accuracy { units: |_| 0.0, flushes: false, fuses: false };

/// "WebGPU Shading Language" of the W3C, 15.7.4.1 (accuracy of concrete expressions), 15.7.2 (subnormal numbers) and 15.7.5 (reassociation and fusion).
pub const WGSL: Accuracy = Accuracy { units: units_of_wgsl, flushes: true, fuses: true };

/// The table of 15.7.4.1 for f32. It counts from the exact result, and the nearest float is half a unit off that. "Correctly rounded" is either of the two floats beside it. A square root inherits its
/// accuracy from 1.0 / inverseSqrt(x): 2 units, and then 2.5. A whole number is converted to either float beside it (15.7.6). Exponentials and logarithms are written out in kernels
/// (`dialect/prelude.rs`), and may be off by what every device's may.
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
    let of = of.abs().clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)) as f32;
    f64::from(f32::from_bits(of.to_bits() & 0x7f80_0000)) * f64::from(f32::EPSILON)
}

/// Is it a number that may be flushed?
fn is_subnormal(v: f64) -> bool {
    v.abs() < f64::from(f32::MIN_POSITIVE)
}

/// Units that the operations of f32 in a graph may be off by together.
fn sum(g: &Graph, roots: &[Id], units: fn(Op) -> f64) -> f64 {
    let of = |n: &Node| {
        let narrows = n.op == Op::Cast && g.scalar(n.src[0]).is_float();
        if n.dtype.scalar == Scalar::F32 && !narrows { units(n.op) } else { 0.0 }
    };
    g.toposort(roots).into_iter().map(|n| of(&g[n])).sum()
}

impl Accuracy {
    /// That of a way's device.
    pub fn for_way(way: &Way) -> Accuracy {
        match way.device.device.name().starts_with("wgpu") {
            true => WGSL,
            false => NEAREST,
        }
    }
    /// Units in the last place that the outputs of a case may be off by: by its operations, and by those that decode its weights.
    fn units(&self, case: &Case) -> f64 {
        let f = &case.function;
        let roots: Vec<Id> = f.outputs.iter().map(|o| o.1).collect();
        let of_weights = f.slots.iter().map(|slot| {
            let Storage::Packed(e) = slot.storage else { return 0.0 };
            let mut g = Graph::new();
            let (block, base) = (g.packed(0, &[e.elements as i64], e), g.int(0));
            let k = g.var("k", 0, e.elements as i64 - 1);
            let value = e.decode(&mut g, block, base, k);
            sum(&g, &[value], self.units)
        });
        sum(&f.graph, &roots, self.units) + of_weights.sum::<f64>()
    }
    /// Is that, where this is wanted, within so many units, or flushed?
    fn allows(&self, units: f64, want: f64, got: f64) -> bool {
        (want - got).abs() <= units * unit(want) || self.flushes && is_subnormal(want) && got == 0.0
    }
    /// What else the outputs of a run may be.
    pub fn others(&self, case: &Case, run: &Run) -> Vec<Want> {
        let of = |values: &[Vec<f64>], env| truth(&case.function, &run.vars, &run.before, values, env);
        let flushed = self.flushes.then(|| {
            let zero = |&v: &f64| if is_subnormal(v) { 0.0f64.copysign(v) } else { v };
            let mut values = run.values.clone();
            for (data, slot) in values.iter_mut().zip(&case.function.slots) {
                if matches!(slot.storage, Storage::Plain(Scalar::F32)) {
                    *data = data.iter().map(zero).collect();
                }
            }
            of(&values, Env::new())
        });
        let fused = self.fuses.then(|| of(&run.values, Env::new().decoded_exactly()));
        flushed.into_iter().chain(fused).collect()
    }
    /// What is wrong with an output of a run beyond what is promised.
    pub fn wrong(&self, case: &Case, run: &Run, output: usize, got: &[f64], scalar: Scalar) -> Option<String> {
        let slack = run.slack.get(output).map_or(&[][..], Vec::as_slice);
        let off = |wants: &[&HostArray], units: Option<f64>| {
            let allows = |w: f64, g: f64| units.is_some_and(|units| scalar == Scalar::F32 && self.allows(units, w, g));
            wrong(wants, got, scalar, case.within, slack, &allows)
        };
        let want = &run.want[output].1;
        let nearest = off(&[want], None)?;
        if !self.flushes && !self.fuses {
            return Some(nearest);
        }
        let others = self.others(case, run);
        let wants: Vec<&HostArray> = std::iter::once(want).chain(others.iter().map(|other| &other[output].1)).collect();
        off(&wants, Some(self.units(case)))
    }
}

#[test]
fn a_device_is_held_to_its_language() {
    use gristmill_uop::{Arg, Sources};
    let case = |op: Op| {
        let build = |g: &mut Graph, x: &[Id]| vec![g.build(op, Scalar::F32.one(), Sources::from_slice(x), Arg::None)];
        Case::raw("", &[(&[1], Scalar::F32)], build)
    };
    let [root, quotient] = [Op::Sqrt, Op::Recip].map(|op| WGSL.units(&case(op)));
    assert_eq!((root, quotient, NEAREST.units(&case(Op::Sqrt))), (5.0, 3.0, 0.0));
    let off = |units: u32| f64::from(f32::from_bits(1.5f32.to_bits() + units));
    for units in 0..9 {
        assert_eq!(WGSL.allows(root, 1.5, off(units)), units <= 5);
        assert_eq!(WGSL.allows(quotient, 1.5, off(units)), units <= 3);
    }
    assert!(WGSL.allows(0.0, 1e-40, 0.0) && !WGSL.allows(0.0, 1e-37, 0.0) && !WGSL.allows(0.0, 1e-40, 2e-38));
    assert!(!NEAREST.allows(0.0, 1e-40, 0.0) && !NEAREST.allows(0.0, 1.5, off(1)));
}
