//! Launches: what scheduling makes, and mapping and emitting read.

use crate::cost::Cost;
use crate::plan::TilePlan;
use gristmill_uop::Id;
use gristmill_uop::custom::CustomRef;
use gristmill_uop::program::When;

/// What one kernel computes of a launch.
#[derive(Clone, Debug)]
pub struct Body {
    /// Its nests.
    pub nests: Vec<Id>,
    /// What holds for its workgroups.
    pub when: When,
    /// The tensor-level node that it computes, if it is a function's.
    pub root: Option<Id>,
    /// The user's kernel whose text it runs, if it has one.
    pub kernel: Option<CustomRef>,
    /// What it computes, in words.
    pub title: String,
    /// How it is computed; nests are planned when they are mapped.
    pub plan: TilePlan,
    /// Seconds by the cost model, without its launch.
    pub seconds: f64,
}

/// One launch: bodies without a path between them, side by side.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The bodies.
    pub bodies: Vec<Body>,
    /// Launches of one level are independent.
    pub level: usize,
    /// Modelled cost.
    pub cost: Cost,
}
