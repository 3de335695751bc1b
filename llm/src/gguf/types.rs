//! Tables of GGUF: tensor type ids, and the tensor types of each file type.
//!
//! The only place outside the crate `encodings` that names formats. Block layouts
//! are not known here.

use gristmill_encodings::by_name;
use gristmill_uop::encoding::EncodingRef;

/// Method to make blocks of valid, bounded random weights.
///
/// A block is random bytes with its scale fields overwritten. The factors give the decoded weights
/// mean zero and standard deviation `sigma` if every other byte is uniform; they follow from the
/// moments of the format's integers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    /// This type cannot be generated.
    None,
    /// One element per block, written as an f32.
    F32,
    /// As `F32`, rounded to binary16.
    F16,
    /// As `F32`, rounded to bfloat16.
    BF16,
    /// Scale fields of a block of integers.
    Scales(&'static [Scale]),
}

/// A scale field of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    /// A binary16 at byte `.0`, of value `sigma · .1`.
    Half(usize, f32),
    /// A power of two as a byte at `.0`: 2^(e−128) is nearest to `sigma · .1`.
    Exponent(usize, f32),
    /// An unsigned e4m3 at byte `.0`, nearest to `sigma · .1`.
    Float8(usize, f32),
    /// Four bits of a binary16 of value `sigma · .2`, from bit 4·`.1`, as the upper
    /// half of byte `.0`.
    Part(usize, u8, f32),
}

/// One tensor type of GGUF.
#[derive(Debug)]
pub(crate) struct TensorType {
    /// Type id in the file.
    pub id: i32,
    /// Name in `encodings`, or of an unsupported type.
    pub name: &'static str,
    /// Type used instead if a row is not a whole number of blocks.
    pub narrower: &'static str,
    /// Method to generate blocks of this type.
    pub fill: Fill,
}

macro_rules! types { ($($id:literal $name:literal $narrower:literal $fill:expr;)*) => {
    &[$(TensorType { id: $id, name: $name, narrower: $narrower, fill: $fill }),*]
} }
use Scale::{Exponent, Float8, Half, Part};

/// Every type id that a file may hold. 4, 5, 31–33 and 36–38 were removed from the format.
///
/// Factors: for integers q uniform over n values, var q = (n²−1)/12. A symmetric code has factor
/// 1/√(E q²). A code with a minimum gets min = mean·d, so that weights are centred on zero. Integer
/// sub-scales multiply by E s².
#[rustfmt::skip]
static TYPES: &[TensorType] = types! {
    0  "f32"     ""       Fill::F32;
    1  "f16"     ""       Fill::F16;
    2  "q4_0"    "f16"    Fill::Scales(&[Half(0, 0.215)]);
    3  "q4_1"    "f16"    Fill::Scales(&[Half(0, 0.217), Half(2, -1.627)]);
    6  "q5_0"    "f16"    Fill::Scales(&[Half(0, 0.1082)]);
    7  "q5_1"    "f16"    Fill::Scales(&[Half(0, 0.1083), Half(2, -1.679)]);
    8  "q8_0"    "f16"    Fill::Scales(&[Half(0, 0.01353)]);
    9  "q8_1"    ""       Fill::None;
    10 "q2_k"    "q4_0"   Fill::Scales(&[Half(80, 0.0721), Half(82, 0.1081)]);
    11 "q3_k"    "q4_0"   Fill::Scales(&[Half(108, 0.02307)]);
    12 "q4_k"    "q5_0"   Fill::Scales(&[Half(0, 0.003871), Half(2, 0.02903)]);
    13 "q5_k"    "q5_1"   Fill::Scales(&[Half(0, 0.001898), Half(2, 0.02942)]);
    14 "q6_k"    "q8_0"   Fill::Scales(&[Half(208, 0.0007322)]);
    15 "q8_k"    ""       Fill::None;
    16 "iq2_xxs"   "iq4_nl" Fill::Scales(&[Half(0, 0.01871)]);
    17 "iq2_xs"    "iq4_nl" Fill::Scales(&[Half(0, 0.01786)]);
    18 "iq3_xxs"   "iq4_nl" Fill::Scales(&[Half(0, 0.00701)]);
    19 "iq1_s"     "iq4_nl" Fill::Scales(&[Half(0, 0.139)]);
    20 "iq4_nl"  "f16"    Fill::Scales(&[Half(0, 0.01483)]);
    21 "iq3_s"     "iq4_nl" Fill::Scales(&[Half(0, 0.007141)]);
    22 "iq2_s"     "iq4_nl" Fill::Scales(&[Half(0, 0.0178)]);
    23 "iq4_xs"  "iq4_nl" Fill::Scales(&[Half(0, 0.0008024)]);
    24 "i8"      ""       Fill::None;
    25 "i16"     ""       Fill::None;
    26 "i32"     ""       Fill::None;
    27 "i64"     ""       Fill::None;
    28 "f64"     ""       Fill::None;
    29 "iq1_m"     "iq4_nl" Fill::Scales(&[Part(49, 0, 0.1389), Part(51, 1, 0.1389), Part(53, 2, 0.1389), Part(55, 3, 0.1389)]);
    30 "bf16"    ""       Fill::BF16;
    34 "tq1_0"     "q4_0"   Fill::Scales(&[Half(52, 1.224)]);
    35 "tq2_0"     "q4_0"   Fill::Scales(&[Half(64, 0.8162)]);
    39 "mxfp4"   "f16"    Fill::Scales(&[Exponent(0, 0.1709)]);
    40 "nvfp4"     "f16"    Fill::Scales(&[Float8(0, 0.3422), Float8(1, 0.3422), Float8(2, 0.3422), Float8(3, 0.3422)]);
    41 "q1_0"    ""       Fill::None;
    42 "q2_0"    ""       Fill::None;
};

/// Meaning of a tensor type id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeId {
    /// Type with a supported encoding.
    Known(EncodingRef),
    /// A type of GGUF without a supported encoding.
    Unsupported(&'static str),
    /// Negative, removed or unknown id.
    Invalid,
}

/// Looks up a tensor type id.
pub fn encoding(id: i32) -> TypeId {
    match TYPES.iter().find(|t| t.id == id) {
        Some(t) => by_name(t.name).map_or(TypeId::Unsupported(t.name), TypeId::Known),
        None => TypeId::Invalid,
    }
}

/// Returns the tensor type id of an encoding, if GGUF has one for it.
pub fn type_id(encoding: EncodingRef) -> Option<i32> {
    row(encoding.name).map(|t| t.id)
}

/// Returns the `general.file_type` of models whose matrices are mostly of this encoding, if one is
/// known.
pub(crate) fn file_type(encoding: EncodingRef) -> Option<u32> {
    let of_type = FILE_TYPES.iter().find(|t| t.base == encoding.name);
    of_type.map(|t| t.id)
}

fn row(name: &str) -> Option<&'static TensorType> {
    TYPES.iter().find(|t| t.name == name)
}

/// Returns the method to generate blocks of `encoding`.
pub(crate) fn fill(encoding: EncodingRef) -> Fill {
    row(encoding.name).map_or(Fill::None, |t| t.fill)
}

/// Returns the encoding that a quantiser uses for rows of `row_len` elements if
/// type `name` is requested.
pub(crate) fn fitting(name: &'static str, row_len: u64) -> Option<EncodingRef> {
    let mut name = name;
    loop {
        let encoding = by_name(name)?;
        // The chain of narrower types is acyclic and ends in a type with one element per block.
        if row_len.is_multiple_of(encoding.elements as u64) {
            return Some(encoding);
        }
        name = row(name)?.narrower;
    }
}

/// Purpose of a tensor, which decides its type in a file and the scale of random values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Factors around 1 in f32: norms, frequency divisors.
    Norm,
    /// Additive terms around 0 in f32.
    Bias,
    /// Router matrix, in f32.
    Router,
    /// `output.weight`, or `token_embd.weight` if the embedding is tied.
    Output,
    /// Down projection of the block with that index, or a value projection of attention.
    /// Quantisers treat them alike.
    Down(u64),
    /// Down projection of stacked experts of the block with that index.
    ExpertsDown(u64),
    /// Gate and up projections of stacked experts.
    Experts,
    /// A matrix with none of the other roles.
    Matrix,
}

/// Blocks with a better type for their down projections.
#[derive(Clone, Copy, Debug)]
enum Better {
    No,
    /// The first eighth of the blocks.
    Early(&'static str),
    /// The first and last eighths, and every third block between.
    More(&'static str),
}

/// A file type: the tensor types that a quantiser assigns without an importance matrix.
#[derive(Debug)]
pub(crate) struct FileType {
    /// Lower-case name on the command line.
    pub name: &'static str,
    /// Value of `general.file_type`.
    pub id: u32,
    base: &'static str,
    output: &'static str,
    experts: &'static str,
    down: Better,
}

macro_rules! files { ($($name:literal $id:literal $base:literal $output:literal $experts:literal $down:expr;)*) => {
    &[$(FileType { name: $name, id: $id, base: $base, output: $output, experts: $experts, down: $down }),*]
} }
/// File types that can be generated.
#[rustfmt::skip]
pub(crate) static FILE_TYPES: &[FileType] = files! {
    // name      id base   output experts down projections
    "f32"        0  "f32"  "f32"  "f32"   Better::No;
    "f16"        1  "f16"  "f16"  "f16"   Better::No;
    "bf16"       32 "bf16" "bf16" "bf16"  Better::No;
    "q8_0"       7  "q8_0" "q8_0" "q8_0"  Better::No;
    "q4_0"       2  "q4_0" "q6_k" "q4_0"  Better::No;
    "q4_k_s"     14 "q4_k" "q6_k" "q4_k"  Better::Early("q5_k");
    "q4_k_m"     15 "q4_k" "q6_k" "q4_k"  Better::More("q6_k");
    "q5_k_m"     17 "q5_k" "q6_k" "q5_k"  Better::More("q6_k");
    "q6_k"       18 "q6_k" "q6_k" "q6_k"  Better::No;
    "mxfp4_moe"  38 "q8_0" "q8_0" "mxfp4" Better::No;
    "nvfp4"      39 "nvfp4" "q6_k" "nvfp4" Better::No;
    "iq1_s"      24 "iq1_s" "q5_k" "iq1_s" Better::Early("q2_k");
    "iq1_m"      31 "iq1_m" "q5_k" "iq1_m" Better::Early("q2_k");
    "iq2_xxs"    19 "iq2_xxs" "q5_k" "iq2_xxs" Better::Early("q2_k");
    "iq2_xs"     20 "iq2_xs" "q5_k" "iq2_xs" Better::Early("q2_k");
    "iq2_s"      28 "iq2_xs" "q5_k" "iq2_xs" Better::Early("iq3_s");
    "iq2_m"      29 "iq2_s" "q5_k" "iq2_s" Better::Early("iq3_s");
    "iq3_xxs"    23 "iq3_xxs" "q5_k" "iq3_xxs" Better::No;
    "iq3_s"      26 "iq3_s" "q6_k" "iq3_s" Better::No;
    "iq3_m"      27 "iq3_s" "q6_k" "iq3_s" Better::Early("q4_k");
    "tq1_0"      36 "tq1_0" "q6_k" "tq1_0" Better::No;
    "tq2_0"      37 "tq2_0" "q6_k" "tq2_0" Better::No;
};

impl FileType {
    /// Returns the encoding of a tensor of this role with rows of `row_len` elements, in a
    /// model of `blocks` blocks.
    pub fn choose(&self, role: Role, row_len: u64, blocks: u64) -> Option<EncodingRef> {
        let eighth = blocks / 8;
        let better = |i: u64, base| match self.down {
            Better::Early(name) if i < eighth => name,
            Better::More(name) if i < eighth || i >= 7 * blocks / 8 || (i - eighth) % 3 == 2 => {
                name
            }
            _ => base,
        };
        let name = match role {
            Role::Norm | Role::Bias | Role::Router => "f32",
            Role::Output => self.output,
            Role::Experts => self.experts,
            Role::Matrix => self.base,
            Role::Down(i) => better(i, self.base),
            Role::ExpertsDown(i) => better(i, self.experts),
        };
        fitting(name, row_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_has_an_id_and_a_fill() {
        for e in gristmill_encodings::TABLE {
            let id = type_id(e).unwrap_or_else(|| panic!("{e:?} has no GGUF id"));
            assert_eq!(encoding(id), TypeId::Known(e));
            assert!(!matches!(fill(e), Fill::None), "{e:?} cannot be generated");
        }
    }

    #[test]
    fn ids_outside_the_table_are_invalid() {
        for id in [
            -1,
            i32::MIN,
            4,
            5,
            31,
            32,
            33,
            36,
            37,
            38,
            43,
            1000,
            i32::MAX,
        ] {
            assert_eq!(encoding(id), TypeId::Invalid, "{id}");
        }
        assert_eq!(encoding(41), TypeId::Unsupported("q1_0"));
    }

    #[test]
    fn scale_fields_lie_inside_their_block() {
        for e in gristmill_encodings::TABLE {
            let Fill::Scales(scales) = fill(e) else {
                continue;
            };
            for s in scales {
                let end = match *s {
                    Half(at, _) => at + 2,
                    Exponent(at, _) | Float8(at, _) | Part(at, ..) => at + 1,
                };
                assert!(end <= e.bytes, "{e:?}");
            }
        }
    }
}
