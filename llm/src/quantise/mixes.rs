//! File types of llama.cpp: which tensor of a model gets which type.
//!
//! The rules are those of llama.cpp's `llama-quantize` (`src/llama-quant.cpp`), so that a file has
//! the same types from either program.

use super::part::Part;
use gristmill_encodings::by_name;
use gristmill_uop::encoding::EncodingRef;

/// What decides the type of a tensor within a file type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Number of the tensor among those of its part, and how many there are: layers, mostly.
    pub index: usize,
    pub count: usize,
    /// Query heads of a key head.
    pub shared_heads: usize,
    pub experts: usize,
    pub has_importance: bool,
    /// Whether it is a stack of matrices.
    pub is_stacked: bool,
    /// Whether the model is a Llama of 80 layers with shared heads, whose value projections are
    /// small.
    pub has_small_values: bool,
}

/// Whether a rule applies to a place.
type When = fn(&Place) -> bool;

impl Place {
    fn always(&self) -> bool {
        true
    }
    fn first_two(&self) -> bool {
        self.index < 2
    }
    fn first_four(&self) -> bool {
        self.index < 4
    }
    fn first_sixteenth(&self) -> bool {
        self.index < self.count / 16
    }
    fn first_eighth(&self) -> bool {
        self.index < self.count / 8
    }
    fn first_eighth_unweighted(&self) -> bool {
        self.first_eighth() && !self.has_importance
    }
    fn first_eighth_weighted(&self) -> bool {
        self.first_eighth() && self.has_importance
    }
    fn unweighted(&self) -> bool {
        !self.has_importance
    }
    fn middle(&self) -> bool {
        (self.count / 8..7 * self.count / 8).contains(&self.index)
    }
    /// The first and last eighths, and every third between.
    fn more(&self) -> bool {
        let eighth = self.count / 8;
        self.index < eighth || self.index >= 7 * self.count / 8 || (self.index - eighth) % 3 == 2
    }
    fn first_eighth_or_more_of_eight(&self) -> bool {
        self.first_eighth() || self.of_eight() && self.more()
    }
    /// Four or more query heads share a key head.
    fn shares_heads(&self) -> bool {
        self.shared_heads >= 4
    }
    fn shares_heads_or_has_experts(&self) -> bool {
        self.shares_heads() || self.experts >= 4
    }
    fn of_eight(&self) -> bool {
        self.experts == 8
    }
    fn not_of_eight(&self) -> bool {
        self.experts != 8
    }
    fn stacked(&self) -> bool {
        self.is_stacked
    }
}

/// A named choice of the types of a model's tensors.
#[derive(Debug)]
pub struct Mix {
    /// Name on the command line.
    pub name: &'static str,
    /// Value of `general.file_type`.
    pub id: u32,
    /// Type of most tensors; none to copy them all.
    base: Option<&'static str>,
    /// Type of the output, and of an embedding that is the output too.
    output: &'static str,
    /// The first rule that applies decides.
    rules: &'static [(Part, When, &'static str)],
}

/// Names of file types that stand for others.
const ALIASES: &[(&str, &str)] = &[
    ("Q3_K", "Q3_K_M"),
    ("Q4_K", "Q4_K_M"),
    ("Q5_K", "Q5_K_M"),
    ("MXFP4", "MXFP4_MOE"),
];

/// Value of `general.file_type` of the type that copies, which keeps the file's own.
const COPY: u32 = u32::MAX;

macro_rules! file_types { ($(
    $name:literal $id:tt $base:expr, $output:literal: $($part:ident $when:ident $to:literal),*;
)*) => {
    &[$(Mix {
        name: $name, id: $id, base: $base, output: $output,
        rules: &[$((Part::$part, Place::$when, $to)),*],
    }),*]
} }

/// All file types, in the order of bits.
#[rustfmt::skip]
static FILE_TYPES: &[Mix] = file_types! {
    // name     id  most tensors      output   others
    "IQ1_S"     24  Some("iq1_s"),    "q5_k":
        Embedding always "q2_k", V shares_heads_or_has_experts "q4_k", V always "q2_k",
        K of_eight "q4_k", Down first_eighth "q2_k", AttentionOutput of_eight "q5_k",
        AttentionOutput always "iq2_xxs";
    "IQ1_M"     31  Some("iq1_m"),    "q5_k":
        Embedding always "q2_k", V shares_heads_or_has_experts "q4_k", V always "q2_k",
        K of_eight "q4_k", Down first_eighth "q2_k", AttentionOutput of_eight "q5_k",
        AttentionOutput always "iq2_xxs";
    "TQ1_0"     36  Some("tq1_0"),    "q6_k":
        Embedding always "q4_k";
    "TQ2_0"     37  Some("tq2_0"),    "q6_k":
        Embedding always "q4_k";
    "IQ2_XXS"   19  Some("iq2_xxs"),  "q5_k":
        Embedding always "q2_k", V shares_heads_or_has_experts "q4_k", V always "q2_k",
        K of_eight "q4_k", Down first_eighth "q2_k", AttentionOutput of_eight "q5_k";
    "IQ2_XS"    20  Some("iq2_xs"),   "q5_k":
        Embedding always "q2_k", V shares_heads_or_has_experts "q4_k", V always "q2_k",
        K of_eight "q4_k", Down first_eighth "q2_k", AttentionOutput of_eight "q5_k";
    "IQ2_S"     28  Some("iq2_xs"),   "q5_k":
        Embedding always "iq3_s", V shares_heads_or_has_experts "q4_k", V always "iq3_s",
        K of_eight "q4_k", Down first_eighth "iq3_s", AttentionOutput of_eight "q5_k",
        AttentionOutput always "iq3_s";
    "IQ2_M"     29  Some("iq2_s"),    "q5_k":
        Embedding always "iq3_s", V shares_heads_or_has_experts "q4_k", V always "iq3_s",
        K of_eight "q4_k", Down first_eighth "iq3_s", AttentionOutput of_eight "q5_k",
        AttentionOutput always "iq3_s";
    "Q2_K_S"    21  Some("q2_k"),     "q6_k":
        V of_eight "q8_0", V shares_heads "q4_k", K of_eight "q8_0", Down first_eighth "q4_k";
    "Q2_K"      10  Some("q2_k"),     "q6_k":
        V of_eight "q8_0", V shares_heads "q4_k", V always "q3_k", K of_eight "q8_0",
        Down always "q3_k", AttentionOutput of_eight "q5_k", AttentionOutput always "q3_k";
    "IQ3_XXS"   23  Some("iq3_xxs"),  "q5_k":
        Embedding always "iq3_s", V of_eight "q8_0", V shares_heads "q4_k", V unweighted "iq3_s",
        K of_eight "q8_0", K always "iq2_s", Q always "iq2_s", Down first_eighth_unweighted "q4_k",
        Down unweighted "q3_k", AttentionOutput of_eight "q5_k", AttentionOutput always "iq3_s";
    "IQ3_XS"    22  Some("iq3_s"),    "q6_k":
        V of_eight "q8_0", V shares_heads "q4_k", K of_eight "q8_0", K always "iq3_xxs",
        Q always "iq3_xxs", Gate middle "iq3_xxs", Up middle "iq3_xxs",
        AttentionOutput of_eight "q5_k";
    "IQ3_S"     26  Some("iq3_s"),    "q6_k":
        V of_eight "q8_0", V shares_heads "q4_k", K of_eight "q8_0",
        AttentionOutput of_eight "q5_k";
    "IQ3_M"     27  Some("iq3_s"),    "q6_k":
        V of_eight "q8_0", V always "q4_k", K of_eight "q8_0",
        Down first_eighth_or_more_of_eight "q4_k", AttentionOutput of_eight "q5_k",
        AttentionOutput always "q4_k";
    "Q3_K_S"    11  Some("q3_k"),     "q6_k":
        V of_eight "q8_0", K of_eight "q8_0", AttentionOutput of_eight "q5_k";
    "Q3_K_M"    12  Some("q3_k"),     "q6_k":
        V of_eight "q8_0", V first_two "q5_k", V always "q4_k", K of_eight "q8_0",
        Down first_sixteenth "q5_k", Down always "q4_k", AttentionOutput of_eight "q5_k",
        AttentionOutput always "q4_k";
    "Q3_K_L"    13  Some("q3_k"),     "q6_k":
        V of_eight "q8_0", V always "q5_k", K of_eight "q8_0", Down always "q5_k",
        AttentionOutput not_of_eight "q5_k";
    "IQ4_XS"    30  Some("iq4_xs"),   "q6_k":
        V of_eight "q8_0", V shares_heads "q5_k", K of_eight "q8_0",
        Down first_eighth_unweighted "q5_k", AttentionOutput of_eight "q5_k";
    "IQ4_NL"    25  Some("iq4_nl"),   "q6_k":
        V of_eight "q8_0", V shares_heads "q5_k", K of_eight "q8_0",
        Down first_eighth_unweighted "q5_k", AttentionOutput of_eight "q5_k";
    "MXFP4_MOE" 38  Some("mxfp4"),    "q8_0":
        Embedding stacked "mxfp4", Embedding always "q8_0", Q stacked "mxfp4", Q always "q8_0",
        K stacked "mxfp4", K always "q8_0", V stacked "mxfp4", V always "q8_0",
        AttentionOutput stacked "mxfp4", AttentionOutput always "q8_0", Gate stacked "mxfp4",
        Gate always "q8_0", Up stacked "mxfp4", Up always "q8_0", Down stacked "mxfp4",
        Down always "q8_0", Other stacked "mxfp4", Other always "q8_0";
    "Q4_0"      2   Some("q4_0"),     "q6_k":
        V of_eight "q8_0", K of_eight "q8_0", Down first_eighth_weighted "q4_1";
    "Q4_1"      3   Some("q4_1"),     "q6_k":
        V of_eight "q8_0", K of_eight "q8_0";
    "Q4_K_S"    14  Some("q4_k"),     "q6_k":
        V of_eight "q8_0", V first_four "q5_k", K of_eight "q8_0", Down first_eighth "q5_k",
        AttentionOutput of_eight "q5_k";
    "Q4_K_M"    15  Some("q4_k"),     "q6_k":
        V of_eight "q8_0", V more "q6_k", K of_eight "q8_0", Down more "q6_k",
        AttentionOutput of_eight "q5_k";
    "Q5_0"      8   Some("q5_0"),     "q6_k":
        V of_eight "q8_0", K of_eight "q8_0", Down first_eighth_weighted "q5_1";
    "Q5_1"      9   Some("q5_1"),     "q6_k":
        V of_eight "q8_0", K of_eight "q8_0";
    "Q5_K_S"    16  Some("q5_k"),     "q6_k":
        V of_eight "q8_0", K of_eight "q8_0";
    "Q5_K_M"    17  Some("q5_k"),     "q6_k":
        V of_eight "q8_0", V more "q6_k", K of_eight "q8_0", Down more "q6_k";
    "Q6_K"      18  Some("q6_k"),     "q6_k":
        V of_eight "q8_0", K of_eight "q8_0";
    "Q8_0"      7   Some("q8_0"),     "q8_0": ;
    "F16"       1   Some("f16"),      "f16": ;
    "BF16"      32  Some("bf16"),     "bf16": ;
    "F32"       0   Some("f32"),      "f32": ;
    "COPY"      COPY None,            "": ;
};

/// Type of an output whose rows are no whole blocks of most tensors' type.
const NARROW_OUTPUT: &str = "q8_0";
/// Types of small value projections, and the type instead.
const SHARED_VALUES: (&[&str], &str) = (&["q3_k", "q4_k"], "q5_k");
/// Types that lose too much without an importance matrix.
const NEED_IMPORTANCE: &[&str] = &["iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s"];

/// Types for rows that are no whole blocks of a type.
const NARROWER: &[(&[&str], &str)] = &[
    (
        &[
            "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs",
        ],
        "iq4_nl",
    ),
    (&["q2_k", "q3_k", "tq1_0", "tq2_0"], "q4_0"),
    (&["q4_k"], "q5_0"),
    (&["q5_k"], "q5_1"),
    (&["q6_k"], "q8_0"),
];

/// Type for rows that are no whole blocks of any other.
const NARROWEST: &str = "f16";

fn encoding(name: &str) -> EncodingRef {
    by_name(name).expect("the table names formats")
}

/// Returns the type that replaces `encoding` for rows of `width` elements: itself, if these are
/// whole blocks.
pub(super) fn fitting(encoding: EncodingRef, width: u64) -> EncodingRef {
    let fits = |e: &EncodingRef| width.is_multiple_of(e.elements as u64);
    let row = NARROWER.iter().find(|row| row.0.contains(&encoding.name));
    let narrower = row.map(|row| by_name(row.1).expect("the table names formats"));
    let all = [Some(encoding), narrower].into_iter().flatten();
    all.into_iter()
        .find(fits)
        .unwrap_or_else(|| by_name(NARROWEST).expect("the table names formats"))
}

impl Mix {
    /// Returns all mixes, the smallest types first.
    pub fn all() -> &'static [Mix] {
        FILE_TYPES
    }
    /// Looks up a file type by its name, in any case of letters, or its number.
    pub fn parse(text: &str) -> Option<&'static Mix> {
        let is_named = |name: &str, of: &str| name.eq_ignore_ascii_case(of);
        let alias = ALIASES.iter().find(|row| is_named(text, row.0));
        let name = alias.map_or(text, |row| row.1);
        let number = text.parse().ok().filter(|&id: &u32| id != COPY);
        let is_it = |of: &&Mix| is_named(name, of.name) || number == Some(of.id);
        FILE_TYPES.iter().find(is_it)
    }
    /// Whether rules count the tensors of experts instead of layers, and leave small value
    /// projections: those of the smallest types.
    pub(super) fn counts_tensors(&self) -> bool {
        ["IQ1", "IQ2"]
            .iter()
            .any(|begin| self.name.starts_with(begin))
    }
    /// Value of `general.file_type`; none for a copy.
    pub(super) fn id(&self) -> Option<u32> {
        (self.id != COPY).then_some(self.id)
    }
    /// Type of most tensors; none for a copy.
    pub(super) fn base(&self) -> Option<EncodingRef> {
        self.base.map(encoding)
    }
    /// Type of a tensor with rows of `width` elements.
    pub(super) fn choose(&self, part: Part, place: &Place, width: u64) -> Option<EncodingRef> {
        let base = self.base()?;
        if part == Part::Output {
            let fits = width.is_multiple_of(base.elements as u64);
            return Some(encoding(if fits { self.output } else { NARROW_OUTPUT }));
        }
        let rule = self
            .rules
            .iter()
            .find(|(of, when, _)| *of == part && when(place));
        let name = rule.map_or(base.name, |rule| rule.2);
        let is_small = part == Part::V && place.has_small_values && !self.counts_tensors();
        let is_raised = is_small && SHARED_VALUES.0.contains(&name);
        Some(encoding(if is_raised { SHARED_VALUES.1 } else { name }))
    }
    /// Whether a tensor of this type needs an importance matrix.
    pub(super) fn needs_importance(&self, part: Part, of: EncodingRef) -> bool {
        let is_exempt = matches!(part, Part::Output | Part::Embedding);
        let is_small = self.name == "Q2_K_S" && Some(of.name) == self.base;
        !is_exempt && (NEED_IMPORTANCE.contains(&of.name) || is_small)
    }
}
