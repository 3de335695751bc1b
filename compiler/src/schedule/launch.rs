//! Launches: the output of scheduling, read by mapping and emission.

use crate::cost::Cost;
use crate::plan::KernelPlan;
use gristmill_uop::Id;
use gristmill_uop::custom::CustomRef;
use gristmill_uop::program::When;

/// One kernel's part of a launch.
#[derive(Clone, Debug)]
pub struct Body {
    /// Nests, in execution order.
    pub nests: Vec<Id>,
    /// Conditions on its workgroups.
    pub when: When,
    /// Tensor-level node that it computes; `None` in a prepack kernel.
    pub root: Option<Id>,
    /// Custom kernel that it runs, if any.
    pub kernel: Option<CustomRef>,
    /// Human-readable description of its work.
    pub title: String,
    /// Modelled seconds without the launch.
    pub seconds: f64,
}

/// One launch of independent bodies.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Bodies that share the grid.
    pub bodies: Vec<Body>,
    /// Dependency level; launches of one level are independent.
    pub level: usize,
    /// Modelled cost, launch included.
    pub cost: Cost,
    /// How it is computed.
    pub plan: KernelPlan,
}
