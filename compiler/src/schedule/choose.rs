//! Choose: what the workgroups of each kernel compute. While places are tried every kernel has the shape that is proposed first; the kernels that are
//! really built are cut in each of the shapes proposed, priced, and decided on.

use super::kernel::Draft;
use super::materialise::{Again, Shape};
use super::merge::Share;
use crate::decision::{Alternative, Decider, Decision};
use crate::price::Price;
use crate::title::title_of_nests;
use gristmill_uop::Graph;
use gristmill_uop::function::Function;

/// The part of a shape's price that another must save. The price knows workgroups, stages and bytes, but neither threads nor registers nor what the L1 cache
/// holds, and says of kernels that were measured up to half too much or too little.
const MARGIN: f64 = 0.5;

/// What shapes are decided by.
pub struct Choose<'a> {
    /// Whose kernels they are.
    pub function: &'a Function,
    /// Cuts a kernel in another shape.
    pub again: &'a Again<'a>,
    /// Workgroups that each kernel should have at most, by kernel.
    pub rooms: &'a [i64],
}

impl Choose<'_> {
    /// Decides on the shape of each kernel.
    pub fn workgroups(
        &self,
        g: &mut Graph,
        shares: &mut [Share],
        kernels: &mut [(Draft, Price)],
        decider: &mut Decider,
    ) {
        // What is only tried leaves no nodes behind.
        let mut tried: Option<Graph> = None;
        for share in shares {
            for &i in &share.kernels {
                let kernel = &kernels[i];
                let (root, title) = (kernel.0.root, title_of_nests(g, self.function, &kernel.0.nests));
                let site = format!("{} {title} {}", self.function.name, g.show_dims(&g.shape(root)));
                let of = Decision { margin: MARGIN, ..Decision::new("workgroup", site, vec![]) };
                let options = self.options(g, &mut tried, i, kernel, decider.explores(&of));
                let (legal, options): (Vec<usize>, Vec<Alternative>) = options.into_iter().unzip();
                let chosen = decider.choose(Decision { options, ..of });
                let shape = Shape { room: self.rooms[i], plan: Some(&kernel.0.proposals[legal[chosen]].plan) };
                if chosen > 0
                    && let Some(new) = self.again.cut(g, root, shape)
                {
                    share.price.seconds += new.1.seconds - kernel.1.seconds;
                    kernels[i] = new;
                }
            }
        }
    }
    /// The shapes of kernel `i` that are legal, by their places among the proposals. One that no shape could make so much cheaper is not cut again, unless
    /// all are wanted.
    fn options(
        &self,
        g: &Graph,
        tried: &mut Option<Graph>,
        i: usize,
        (draft, price): &(Draft, Price),
        all: bool,
    ) -> Vec<(usize, Alternative)> {
        let worthwhile = all || price.floor < price.seconds * (1.0 - MARGIN);
        let mut options = vec![];
        for (n, proposal) in draft.proposals.iter().enumerate().filter(|p| p.0 == 0 || worthwhile) {
            let seconds = if n == 0 {
                price.seconds
            } else {
                let shape = Shape { room: self.rooms[i], plan: Some(&proposal.plan) };
                let graph = tried.get_or_insert_with(|| g.clone());
                let Some(new) = self.again.cut(graph, draft.root, shape) else { continue };
                new.1.seconds
            };
            options.push((n, Alternative { name: proposal.name, plan: proposal.plan.to_string(), seconds }));
        }
        options
    }
}
