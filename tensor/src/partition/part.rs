//! Builds one part of a partition as a function of its own.

use super::nodes::{is_free, is_storable, slot_of, viewed};
use super::sides::{Side, Sides};
use gristmill_uop::function::{Function, Slot, SlotKind, Storage};
use gristmill_uop::{Arg, Graph, Id, Op, Sources};
use rustc_hash::FxHashMap;

/// Origin of a part's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartSlot {
    /// Slot of the whole function.
    Whole(u32),
    /// Index into [`Partition::values`].
    Value(usize),
}

/// One part of a function.
#[derive(Clone, Debug)]
pub struct Part {
    /// The part as a function of its own.
    pub function: Function,
    /// Whether it runs where the separated weights are.
    pub is_away: bool,
    /// Origin of each slot.
    pub slots: Vec<PartSlot>,
}

pub(super) struct PartBuilder<'a> {
    whole: &'a Function,
    sides: &'a Sides,
    side: Side,
    /// Values that parts hand over, to which those that this part reads are added.
    values: &'a mut Vec<Id>,
    graph: Graph,
    /// Nodes of the whole function that this part has.
    map: FxHashMap<Id, Id>,
    slots: Vec<Slot>,
    origins: Vec<PartSlot>,
}

impl<'a> PartBuilder<'a> {
    pub(super) fn new(
        whole: &'a Function,
        sides: &'a Sides,
        side: Side,
        values: &'a mut Vec<Id>,
    ) -> PartBuilder<'a> {
        PartBuilder {
            whole,
            sides,
            side,
            values,
            graph: Graph::new(),
            map: FxHashMap::default(),
            slots: Vec::new(),
            origins: Vec::new(),
        }
    }
    /// Builds the part with these results; `None` if it reads a value that no slot can hold.
    pub(super) fn build(mut self, outputs: &[(PartSlot, Id)]) -> Option<Part> {
        let mut new = Vec::new();
        for &(origin, id) in outputs {
            let result = self.node(id)?;
            let known = self.origins.iter().position(|o| *o == origin);
            // A state has its slot already.
            let slot = match (known, origin) {
                (Some(slot), _) => slot as u32,
                (None, PartSlot::Whole(slot)) => {
                    self.slot(self.whole.slots[slot as usize].clone(), origin)
                }
                (None, PartSlot::Value(number)) => {
                    let slot = self.value_slot(id, number, SlotKind::Output);
                    self.slot(slot, origin)
                }
            };
            new.push((slot, result));
        }
        let suffix = match self.side {
            Side::Away => ".away",
            Side::Before => ".before",
            Side::Beside => ".beside",
            Side::After => ".after",
            Side::Anywhere => "",
        };
        Some(Part {
            function: Function {
                name: format!("{}{suffix}", self.whole.name),
                graph: self.graph,
                slots: self.slots,
                outputs: new,
            },
            is_away: self.side == Side::Away,
            slots: self.origins,
        })
    }
    fn slot(&mut self, slot: Slot, origin: PartSlot) -> u32 {
        self.slots.push(slot);
        self.origins.push(origin);
        self.slots.len() as u32 - 1
    }
    fn value_slot(&self, id: Id, number: usize, kind: SlotKind) -> Slot {
        let g = &self.whole.graph;
        Slot {
            name: format!("cut{number}"),
            kind,
            dims: g.dims(id).iter().map(|&d| g.max_of(d)).collect(),
            storage: Storage::Plain(g.scalar(id)),
        }
    }
    /// Returns a node of the whole function as one of this part, with all that it needs.
    fn node(&mut self, root: Id) -> Option<Id> {
        let g = &self.whole.graph;
        let mut stack = vec![root];
        while let Some(&id) = stack.last() {
            if self.map.contains_key(&id) {
                stack.pop();
                continue;
            }
            let read = self.reads(id);
            // A value that is read has its dims as sources, like a slot.
            let sources = if read { g.dims(id) } else { &g[id].src };
            let missing: Vec<Id> = sources
                .iter()
                .copied()
                .filter(|s| !self.map.contains_key(s))
                .collect();
            if !missing.is_empty() {
                stack.extend(missing.into_iter().rev());
                continue;
            }
            let new = match slot_of(g, id) {
                _ if read => self.read(id)?,
                Some(slot) => self.param(id, slot),
                None => {
                    let node = &g[id];
                    let src = node.src.iter().map(|s| self.map[s]).collect::<Sources>();
                    self.graph.build(node.op, node.dtype, src, node.arg.clone())
                }
            };
            self.map.insert(id, new);
            stack.pop();
        }
        Some(self.map[&root])
    }
    /// Returns whether another part computes the node for this one. Inputs are bound on both sides.
    fn reads(&self, id: Id) -> bool {
        let side = self.sides.at(id);
        let input = |slot: u32| self.whole.slots[slot as usize].kind == SlotKind::Input;
        if slot_of(&self.whole.graph, id).is_some_and(input) {
            return false;
        }
        if viewed(&self.whole.graph, id).is_some() {
            return false;
        }
        let at_home = side != Side::Away && self.side != Side::Away;
        side != self.side && side != Side::Anywhere && !(at_home && is_free(self.whole, id))
    }
    fn read(&mut self, id: Id) -> Option<Id> {
        let g = &self.whole.graph;
        let is_weight = g[id].op == Op::Decode || slot_of(g, id).is_some();
        if is_weight || !is_storable(g.scalar(id)) || g[id].op.is_version() {
            return None;
        }
        let number = self
            .values
            .iter()
            .position(|&v| v == id)
            .unwrap_or_else(|| {
                self.values.push(id);
                self.values.len() - 1
            });
        let slot = self.value_slot(id, number, SlotKind::Input);
        let slot = self.slot(slot, PartSlot::Value(number));
        let dims: Vec<Id> = g.dims(id).iter().map(|d| self.map[d]).collect();
        Some(self.graph.param(slot, &dims, g.scalar(id)))
    }
    fn param(&mut self, id: Id, slot: u32) -> Id {
        let node = &self.whole.graph[id];
        let new = self.slot(
            self.whole.slots[slot as usize].clone(),
            PartSlot::Whole(slot),
        );
        let arg = match node.arg {
            Arg::Packed(_, encoding) => Arg::Packed(new, encoding),
            _ => Arg::Param(new),
        };
        let src = node.src.iter().map(|s| self.map[s]).collect::<Sources>();
        self.graph.build(node.op, node.dtype, src, arg)
    }
}
