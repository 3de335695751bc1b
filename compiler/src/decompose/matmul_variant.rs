//! Chooses how a packed weight is multiplied: the decision `product`, such as `product: integers`.
//!
//! A variant is legal if its module can compute the contraction, and preferred if measurements
//! favour it. Variants round activations, and some of them weights, differently, so results depend
//! on the decision; `decompose.rs` derives a function's meaning from its decisions.
//!
//! The cost counts operations and bytes, but neither stages nor latency. It orders the candidates
//! of a tuner and never overrides the preferred variant.

use super::f16_mma;
use super::operands::{Operands, Suits, repeats};
use crate::decision::{Alternative, Decider, Decision};
use crate::ir::parse::{ParseError, bad};
use crate::ir::size_estimate::typical;
use crate::plan::FIRST;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::features::Feature;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::rows::{FINE_GROUP, GROUP};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Scalar};
use rustc_hash::FxHashMap;
use std::fmt;
use std::str::FromStr;

/// Computation of a contraction with a packed weight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MatmulVariant {
    /// bf16 tiles of a CPU core, with the weight dequantised for all tokens of
    /// a workgroup (`bf16.rs`).
    Tiles,
    /// Cooperative matrices of a subgroup, with the f16 weight in a stage (`cooperative.rs`).
    Staged,
    /// MMA fragments of a warp, with the weight dequantised to f16 in registers (`f16_mma.rs`).
    Fragments,
    /// Integer dot products with activations quantised to int8 (`int8.rs`).
    Integers,
    /// Integer dot products with a scale per fewer activations (`FINE_GROUP`).
    FineIntegers,
    /// f16 products with a weight dequantised once per step (`dequantise_transposed.rs`).
    Unpacked,
    /// f32 products, with the weight dequantised on load.
    Floats,
}

impl MatmulVariant {
    const ALL: [MatmulVariant; 7] = [
        MatmulVariant::Tiles,
        MatmulVariant::Staged,
        MatmulVariant::Fragments,
        MatmulVariant::Integers,
        MatmulVariant::FineIntegers,
        MatmulVariant::Unpacked,
        MatmulVariant::Floats,
    ];
    fn name(self) -> &'static str {
        match self {
            MatmulVariant::Tiles => "tiles",
            MatmulVariant::Staged => "staged",
            MatmulVariant::Fragments => "fragments",
            MatmulVariant::Integers => "integers",
            MatmulVariant::FineIntegers => "fine integers",
            MatmulVariant::Unpacked => "unpacked",
            MatmulVariant::Floats => "floats",
        }
    }
    /// Bits of precision kept of an activation's magnitude.
    ///
    /// For integers those of the largest value in a group. A variant with at least as many
    /// bits rounds no more.
    pub fn bits(self) -> u32 {
        match self {
            MatmulVariant::Integers => 7,
            // Their error is half of that of integers.
            MatmulVariant::FineIntegers | MatmulVariant::Tiles => 8,
            MatmulVariant::Staged | MatmulVariant::Fragments | MatmulVariant::Unpacked => 11,
            MatmulVariant::Floats => 24,
        }
    }
}

impl fmt::Display for MatmulVariant {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "product: {}", self.name())
    }
}

impl FromStr for MatmulVariant {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<MatmulVariant, ParseError> {
        MatmulVariant::ALL
            .into_iter()
            .find(|form| form.to_string() == text.trim())
            .map_or_else(|| bad(text), Ok)
    }
}

/// Decides on the variants of a function's contractions.
///
/// Contractions of the same format and shape get the same variant, such as gate and up,
/// which share their activations.
pub struct MatmulVariants<'a, 'd> {
    function: &'a str,
    target: &'a Target,
    decider: &'a mut Decider<'d>,
    known: FxHashMap<String, MatmulVariant>,
}

impl<'a, 'd> MatmulVariants<'a, 'd> {
    /// Creates the chooser for the function with that full name.
    pub fn new(
        function: &'a str,
        target: &'a Target,
        decider: &'a mut Decider<'d>,
    ) -> MatmulVariants<'a, 'd> {
        MatmulVariants {
            function,
            target,
            decider,
            known: FxHashMap::default(),
        }
    }
    /// Target of the kernels.
    pub fn target(&self) -> &'a Target {
        self.target
    }
    /// Chooses a variant among those that suit; the default is the first preferred one.
    ///
    /// An output of the function is a separate site, since code outside the kernels reads it: it
    /// may have fewer legal variants.
    pub fn decide(
        &mut self,
        g: &Graph,
        of: Operands,
        suits: &[(MatmulVariant, Suits)],
        is_output: bool,
    ) -> MatmulVariant {
        let legal = || suits.iter().filter(|s| s.1 != Suits::Not);
        let first = legal()
            .find(|s| s.1 == Suits::Preferred)
            .or_else(|| legal().next());
        let Some(&(first, _)) = first else {
            unreachable!("a contraction that no form suits: {suits:?}")
        };
        let forms: Vec<MatmulVariant> = std::iter::once(first)
            .chain(legal().map(|s| s.0).filter(|&f| f != first))
            .collect();
        let sizes = Sizes::from_operands(g, of);
        let shape = g.show_dims(g.dims(of.x));
        let site = format!(
            "{} {} {shape}{}",
            self.function,
            sizes.name(),
            if is_output { " as an output" } else { "" }
        );
        if let Some(&known) = self.known.get(&site).filter(|known| forms.contains(known)) {
            return known;
        }
        let option = |&form: &MatmulVariant| Alternative {
            name: if form == first { FIRST } else { form.name() },
            plan: form.to_string(),
            seconds: sizes.seconds(form, self.target),
        };
        let options = forms.iter().map(option).collect();
        let decision = Decision::new("product", site.clone(), options);
        let chosen = forms[self.decider.choose(decision)];
        self.known.insert(site, chosen);
        chosen
    }
}

/// f32 operations to dequantise an element on a GPU, where it is an f16 half of a word: three
/// instructions for two elements, without latency. Not measured alone.
const OF_AN_ELEMENT_OF_A_WORD: f64 = 3.0;
/// f32 operations of a byte product, including its share of the per-group work: 8,192 products take
/// 45 ns of the same core.
const OF_A_BYTE: f64 = 0.5;
/// f32 operations per scale of activations: a conversion, two products and a sum. Counted, not
/// measured.
const OF_A_SCALE: f64 = 4.0;
/// f32 operations of a multiply-add.
const OF_A_FLOAT: f64 = 2.0;
/// Tokens that share a dequantised element, at most: on a CPU (a tile) and in a
/// warp (`propose/contraction.rs`).
const SHARING: [f64; 2] = [16.0, 32.0];

/// Sizes of a contraction, as inputs of the cost model.
struct Sizes {
    encoding: Option<EncodingRef>,
    /// Weight elements that are read: rows × terms.
    elements: f64,
    /// Tokens that share the weight.
    tokens: f64,
    /// Number of activation elements.
    activations: f64,
}

impl Sizes {
    fn from_operands(g: &Graph, of: Operands) -> Sizes {
        let dims = g.dims(of.x);
        let size = |axis: usize| typical(g, dims[axis]);
        let last = dims.len() - 1;
        let (shared, own): (Vec<usize>, Vec<usize>) =
            (0..last).partition(|&axis| repeats(g, of.weight, axis));
        let packed = g
            .toposort(&[of.weight])
            .into_iter()
            .find_map(|n: Id| match g[n].arg {
                Arg::Packed(_, encoding) => Some(encoding),
                _ => None,
            });
        Sizes {
            encoding: packed,
            elements: own.into_iter().chain([last]).map(size).product(),
            tokens: shared.into_iter().map(size).product(),
            activations: g.dims(of.base).iter().map(|&dim| typical(g, dim)).product(),
        }
    }
    /// Name of the weight's format.
    fn name(&self) -> &'static str {
        self.encoding.map_or("plain", |e| e.name)
    }
    /// f32 operations per term of a sum.
    fn of_a_term(&self, form: MatmulVariant, target: &Target) -> f64 {
        let machine = &target.machine;
        let gpu = machine.kind == MachineKind::Gpu;
        let of = |operand| machine.fragment(operand).map(|f| machine.term_of(f));
        let tile = || machine.tile_fragment().map(|f| machine.term_of(f));
        let of_a_scale = OF_A_SCALE / FINE_GROUP as f64;
        let known = match form {
            MatmulVariant::Tiles | MatmulVariant::Staged => tile(),
            MatmulVariant::Fragments => of(Scalar::F16).or_else(|| of(Scalar::BF16)),
            MatmulVariant::Unpacked => of(Scalar::F16),
            MatmulVariant::Integers if gpu => Some(
                of(Scalar::I8)
                    .filter(|_| self.tokens > 1.0)
                    .unwrap_or(OF_A_BYTE)
                    + f16_mma::GROUP_OF_A_TERM,
            ),
            MatmulVariant::Integers => Some(OF_A_BYTE),
            MatmulVariant::FineIntegers => Some(OF_A_BYTE + of_a_scale),
            MatmulVariant::Floats if gpu => {
                let by = target.machine.coefficients();
                Some(by.get(Feature::LoneTerm) / by.get(Feature::Operation))
            }
            MatmulVariant::Floats => None,
        };
        known.unwrap_or(OF_A_FLOAT)
    }
    /// f32 operations per weight element for dequantisation, over all its repetitions.
    fn of_unpacking(&self, form: MatmulVariant, target: &Target) -> f64 {
        let [of_core, of_warp] = SHARING;
        let (once, sharing) = match target.machine.kind {
            MachineKind::Cpu => (target.machine.cpu_facts().dequantise_operations, of_core),
            MachineKind::Gpu => (OF_AN_ELEMENT_OF_A_WORD, of_warp),
        };
        match form {
            // The codes are multiplied directly.
            MatmulVariant::Integers | MatmulVariant::FineIntegers => 0.0,
            MatmulVariant::Unpacked => once,
            _ => once * (self.tokens / sharing).ceil(),
        }
    }
    /// Estimated seconds of the variant. Converted activations are written and read again.
    fn seconds(&self, form: MatmulVariant, target: &Target) -> f64 {
        let machine = &target.machine;
        let terms = self.elements * self.tokens;
        let operations =
            self.of_a_term(form, target) * terms + self.of_unpacking(form, target) * self.elements;
        let of_activation = match form {
            MatmulVariant::Floats => 4.0,
            MatmulVariant::Integers => 1.0 + 4.0 / GROUP as f64,
            MatmulVariant::FineIntegers => 1.0 + 4.0 / FINE_GROUP as f64,
            _ => 2.0,
        };
        let halves = if form == MatmulVariant::Unpacked {
            2.0 * self.elements
        } else {
            0.0
        };
        let cached = 2.0 * (of_activation * self.activations + halves);
        let weight = self
            .encoding
            .map_or(0.0, |e| e.bytes as f64 / e.elements as f64)
            * self.elements;
        (weight / machine.bandwidth)
            .max(operations / machine.operations)
            .max(cached / machine.cache_bandwidth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_a_text_that_parses() {
        for form in MatmulVariant::ALL {
            assert_eq!(form.to_string().parse(), Ok(form));
        }
        for text in ["", "product:", "product: integer", "scatter: compared"] {
            assert!(text.parse::<MatmulVariant>().is_err(), "{text}");
        }
    }

    /// A weight of 4,096 × 4,096 without a format, and `tokens` tokens.
    fn sizes(tokens: f64) -> Sizes {
        Sizes {
            encoding: None,
            elements: 4096.0 * 4096.0,
            tokens,
            activations: 4096.0 * tokens,
        }
    }

    #[test]
    fn prices_follow_what_the_machine_multiplies() {
        let h200 = Target::named("h200");
        let on = |form, tokens, target: &Target| sizes(tokens).seconds(form, target);
        // With many tokens f16 MMA wins, as measured; without fragments integers win.
        assert!(
            on(MatmulVariant::Fragments, 512.0, &h200) < on(MatmulVariant::Integers, 512.0, &h200)
        );
        let m3 = Target::named("m3-max");
        assert!(on(MatmulVariant::Integers, 512.0, &m3) < on(MatmulVariant::Floats, 512.0, &m3));
        // One token on a CPU shares the dequantised weight with no other.
        let cpu = Target::cpu("avx512vnni", 16, 2);
        assert!(on(MatmulVariant::Integers, 1.0, &cpu) < on(MatmulVariant::Floats, 1.0, &cpu));
    }
}
