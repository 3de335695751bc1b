//! Variables of a captured step: their bounds, and the workgroup counts that depend on them.

use gristmill_runtime::index::Index;
use gristmill_runtime::{Error, Launch};
use gristmill_uop::program::Program;
use gristmill_uop::{Arg, Id, Op};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

struct Variable {
    name: Arc<str>,
    /// Inclusive bounds that all kernels reading it were compiled for.
    min: i64,
    max: i64,
}

/// Variables of a step and the workgroup counts of its kernels.
#[derive(Default)]
pub struct Variables {
    list: Vec<Variable>,
    /// Values of `list` in this replay.
    current: Vec<i64>,
    counts: Vec<(Index, String)>,
    /// Counts by address of the kernel: several launches may share a kernel.
    known: HashMap<usize, Groups>,
}

/// Indices of a kernel's workgroup counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Groups {
    /// Count of the whole launch.
    pub all: usize,
    /// Counts of the bodies, if there are several.
    pub bodies: Range<usize>,
}

impl Variables {
    /// Adds the variables and counts of a launch. Returns the indices of both, variables in order.
    pub fn bind(&mut self, launch: &Launch) -> Result<(Groups, Vec<usize>), Error> {
        let program = launch.kernel.program();
        let identity = Arc::as_ptr(&launch.kernel).addr();
        let groups = match self.known.get(&identity) {
            Some(groups) => groups.clone(),
            None => {
                self.learn_bounds(program);
                let all = self.learn_count(program, program.groups)?;
                for body in &program.bodies {
                    self.learn_count(program, body.groups)?;
                }
                let groups = Groups {
                    all,
                    bodies: all + 1..self.counts.len(),
                };
                self.known.insert(identity, groups.clone());
                groups
            }
        };
        // A buffer may be smaller than the kernel's bounds assume.
        for (name, most) in launch.limits() {
            let slot = self.slot(name);
            self.list[slot].max = self.list[slot].max.min(most);
        }
        Ok((groups, program.vars.iter().map(|v| self.slot(v)).collect()))
    }

    /// Adds a count and returns its index.
    fn learn_count(&mut self, program: &Program, groups: Id) -> Result<usize, Error> {
        let index =
            Index::compile(&program.graph, groups, &mut |v| self.slot(v)).ok_or_else(|| {
                Error::invalid(
                    &program.name,
                    "its count of workgroups is not an index expression",
                )
            })?;
        self.counts.push((index, program.name.clone()));
        Ok(self.counts.len() - 1)
    }

    /// Narrows bounds to those of this program, as kernels access memory without checks.
    fn learn_bounds(&mut self, program: &Program) {
        for id in program.graph.toposort(&[program.root, program.groups]) {
            let node = &program.graph[id];
            if let (Op::Var, Arg::Var(name, min, max)) = (node.op, &node.arg) {
                let slot = self.slot(name);
                let variable = &mut self.list[slot];
                variable.min = variable.min.max(*min);
                variable.max = variable.max.min(*max);
            }
        }
    }

    /// Returns the index of a variable, adding it if it is new.
    fn slot(&mut self, name: &Arc<str>) -> usize {
        self.list
            .iter()
            .position(|v| v.name == *name)
            .unwrap_or_else(|| {
                self.list.push(Variable {
                    name: name.clone(),
                    min: i64::MIN,
                    max: i64::MAX,
                });
                self.current.push(0);
                self.list.len() - 1
            })
    }

    /// Sets values by name; a missing value or one out of bounds is an error.
    pub fn set(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        for (value, variable) in self.current.iter_mut().zip(&self.list) {
            let name = &*variable.name;
            let given = vars.iter().find(|v| v.0 == name);
            *value = given
                .ok_or_else(|| {
                    Error::invalid(format!("variable {name}"), "the step ran without it")
                })?
                .1;
            if !(variable.min..=variable.max).contains(value) {
                let message = format!("{value} is not in {}..={}", variable.min, variable.max);
                return Err(Error::invalid(format!("variable {name}"), message));
            }
        }
        Ok(())
    }

    /// Returns the values in the order of their indices.
    pub fn values(&self) -> &[i64] {
        &self.current
    }

    /// Evaluates all counts for the current values into `out`.
    pub fn count(&mut self, out: &mut Vec<i64>) -> Result<(), Error> {
        out.clear();
        for (index, name) in &mut self.counts {
            let count = index.evaluate(&self.current);
            out.push(
                count
                    .ok_or_else(|| Error::invalid(&*name, "its workgroups cannot be counted"))?
                    .max(0),
            );
        }
        Ok(())
    }

    /// Evaluates all counts with each variable at its upper bound; `None` if that overflows.
    pub fn most(&mut self) -> Vec<Option<i64>> {
        let largest: Vec<i64> = self.list.iter().map(|v| v.max).collect();
        self.counts
            .iter_mut()
            .map(|(index, _)| index.evaluate(&largest))
            .collect()
    }
}

/// Returns the indices of launches, sorted by level.
pub fn by_level(launches: &[Launch]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..launches.len()).collect();
    order.sort_by_key(|&i| launches[i].level);
    order
}
