//! Passes re-exported by name for their tests (`compiler/tests/passes.rs`), which
//! run each pass alone.
//!
//! Not an interface of the crate. The names here are those of the folders that hold the test cases,
//! and stay when a pass moves.

pub use crate::alternatives::rules::{Rule, all as rules_of_tensors};
pub use crate::alternatives::saturate::Budget;
pub use crate::alternatives::{considered, every_form};
pub use crate::cost::kernel as price;
pub use crate::cost::occupancy::resident_workgroups;
pub use crate::decision::{Cheapest, Decider, Decision, Policy};
pub use crate::decompose::attention::{encode as encode_queries, expand as attention};
pub use crate::decompose::defer_norm_scale::defer_norm_scale as factors;
pub use crate::decompose::dequantise_rows::dequantised;
pub use crate::decompose::f16_split::{are_halves, parts as f16_split, rounded};
pub use crate::decompose::int8::{Derived, derive as int8, layouts_of};
pub use crate::decompose::matmul_variant::MatmulVariants;
pub use crate::decompose::meaning;
pub use crate::decompose::scan::expand as scan;
pub use crate::decompose::scatter::expand as scatter;
pub use crate::ir::hints::Hint;
pub use crate::ir::layout::{Layout, Packing};
pub use crate::ir::mma::product::MmaProduct;
pub use crate::ir::nest::{Ranges, flatten, global_ranges, identity, outermost_reductions};
pub use crate::kernel::rangeify::Expander;
pub use crate::kernel::workgroup::split as workgroup;
pub use crate::kernel::{Draft, DraftContext, draft as cut};
pub use crate::lower::legalise::loads::loads as legalise;
pub use crate::lower::legalise::types::legalise_types as words;
pub use crate::lower::linear_ir::print::{print as print_linear, print_kernel, renumbered};
pub use crate::lower::linear_ir::threads::count as count_threads;
pub use crate::lower::linearise::dot2_accumulate::dot2_accumulate as pairs;
pub use crate::lower::linearise::vector::vectorise;
pub use crate::lower::loops::full_unroll::full_unroll as written_out;
pub use crate::lower::loops::unroll::unroll;
pub use crate::lower::memory::coalesce::loads as coalesce;
pub use crate::lower::memory::early_loads::early_loads as hoist;
pub use crate::lower::memory::pipeline::async_copies::async_copies;
pub use crate::lower::memory::pipeline::multistage::multistage as copies_ahead;
pub use crate::lower::memory::pipeline::reload::reload as streamed;
pub use crate::lower::memory::prefetch::{prefetch_lines, prefetch_spans};
pub use crate::lower::mma::f16::products as mma_f16;
pub use crate::lower::mma::int8::products as mma;
pub use crate::lower::pressure::Pressure;
pub use crate::lower::spec::check as check_linear;
pub use crate::lower::sync::barriers::barriers;
pub use crate::lower::sync::dependent_launch::{Turn, wait_for_predecessors};
pub use crate::lower::sync::shared_memory_reduce::shared_memory_reduce as meetings;
pub use crate::lower::{Code, KernelCode, Statement, finish, lower_body as linear, lower_program};
pub use crate::map::fragment_tiling::nest as fragment_tiling;
pub use crate::map::fuse_reductions::fuse_reductions;
pub use crate::map::simd::nest as simd;
pub use crate::map::simt::{fused, nest as simt};
pub use crate::pipeline::compile;
pub use crate::plan::warps::warps as propose_warps;
pub use crate::plan::{NestPlan, TilePlan, Workgroup};
pub use crate::prepack::{PackedRows, prepack};
pub use crate::propose::launch::{Launched, launch as propose_launch, resident};
pub use crate::propose::nest::ThreadNest;
pub use crate::propose::{ProposalContext, first as propose_workgroup};
pub use crate::schedule::candidates::find as candidates;
pub use crate::schedule::materialise::materialise;
pub use crate::schedule::memory::{Lifetime, plan as memory};
pub use crate::schedule::{Decomposed, FusionContext, TEMP, schedule, sites};
