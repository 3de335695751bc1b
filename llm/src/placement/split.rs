//! Rewrites the plan of a step for a placement.

use super::layer_place::Placement;
use crate::arch::{Bind, BoundCall, CachedExperts, CutBind, ExpertBind, Functions, Plan};
use crate::error::Error;
use gristmill_tensor::partition::{Cut, PartSlot, Partition, partition};
use gristmill_uop::function::Function;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A part of a function that is on two devices.
struct SharedPart {
    function: Arc<Function>,
    is_away: bool,
    slots: Vec<PartSlot>,
}

/// A function in parts, and the kinds of the values between them.
struct SplitFunction {
    parts: Vec<SharedPart>,
    has_rows: Vec<bool>,
}

/// What a plan is made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlanFor {
    /// Device whose tiles of experts it has.
    pub device: usize,
    /// Where the experts of its steps are.
    pub cached: Option<CachedExperts>,
}

/// Plans of a step by what they are made for.
type Plans<'p> = dyn FnMut(PlanFor, &mut Functions) -> Plan + 'p;

/// Rewrites plans for a placement; equal functions are split once.
#[derive(Default)]
pub struct Splitter {
    placement: Placement,
    /// The placement of steps of at least so many tokens that copy experts to the main device.
    streamed: Option<(usize, Placement)>,
    /// Slots of the main device for experts of layers whose experts alone are on another one; 0 for
    /// none.
    slots: usize,
    /// By the function's address, which [`Functions`] keeps alive, and its slots on another device.
    known: FxHashMap<(usize, Vec<usize>), Arc<SplitFunction>>,
}

impl Splitter {
    /// Creates a splitter for a placement; steps whose largest size is at least `stream_from`
    /// tokens copy experts to the main device, and `slots` experts of a layer are cached there.
    pub fn new(placement: Placement, stream_from: Option<usize>, slots: usize) -> Splitter {
        Splitter {
            streamed: stream_from.map(|tokens| (tokens, placement.streamed())),
            placement,
            slots,
            known: FxHashMap::default(),
        }
    }
    /// Returns the plan of a step of at most `tokens` tokens, with the device of each call. A layer
    /// on two devices becomes several calls.
    ///
    /// `plan` returns the plan of the step as one device would compute it. Plans of all devices
    /// have the same calls; a layer is taken from that of its experts, whose tiles differ.
    ///
    /// # Errors
    /// When the weights of a layer cannot be separated.
    pub fn split(
        &mut self,
        tokens: usize,
        functions: &mut Functions,
        plan: &mut Plans,
    ) -> Result<Plan, Error> {
        let mut known: FxHashMap<PlanFor, Plan> = FxHashMap::default();
        let mut planned = |of: PlanFor, functions: &mut Functions| {
            let made = known.entry(of).or_insert_with(|| plan(of, functions));
            made.calls.clone()
        };
        let main = PlanFor {
            device: 0,
            cached: None,
        };
        let calls = planned(main, functions);
        let streams = self.streamed.as_ref().filter(|of| tokens >= of.0);
        let placement = streams.map_or(&self.placement, |of| &of.1).clone();
        if placement.is_whole() {
            return Ok(Plan { calls });
        }
        let mut split = Vec::with_capacity(calls.len());
        for (i, call) in calls.into_iter().enumerate() {
            let weights = call.binds.iter().filter_map(|bind| match bind {
                Bind::Weight(name) => Some(placement.weight(name)),
                _ => None,
            });
            let device = weights.max().unwrap_or(0);
            let is_cached = device > 0 && self.slots > 0 && placement.home(&call.binds) == 0;
            let mut of = |misses: Option<usize>, functions: &mut Functions| {
                let slots = self.slots;
                let cached = misses.map(|misses| CachedExperts { slots, misses });
                planned(PlanFor { device, cached }, functions)[i].clone()
            };
            let first = is_cached.then(|| of(Some(1), functions));
            match first.as_ref().and_then(chosen_experts) {
                Some(used) => {
                    let all = variants(used, tokens);
                    let calls = all
                        .iter()
                        .map(|&misses| (misses, of(Some(misses), functions)));
                    let calls: Vec<_> = calls.collect();
                    self.cached_call(&placement, calls, functions, &mut split)?;
                }
                None if device > 0 => {
                    let call = of(None, functions);
                    self.call(&placement, call, functions, &mut split)?;
                }
                None => self.call(&placement, call, functions, &mut split)?,
            }
        }
        Ok(Plan { calls: split })
    }
    /// Adds the calls of a layer with cached experts; `whole` has the layer by the experts of a
    /// token that its away part computes, ascending. They differ in that part alone, except that
    /// others may see what it hands over in other dims.
    fn cached_call(
        &mut self,
        placement: &Placement,
        whole: Vec<(usize, BoundCall)>,
        functions: &mut Functions,
        calls: &mut Vec<BoundCall>,
    ) -> Result<(), Error> {
        let mut away: Vec<BoundCall> = Vec::new();
        let mut parts = Vec::new();
        for (misses, call) in whole {
            parts.clear();
            self.call(placement, call, functions, &mut parts)?;
            let own = parts.iter().filter(|part| part.device != 0);
            away.extend(own.map(|part| BoundCall {
                misses: Some(misses),
                ..part.clone()
            }));
        }
        let widest = away.last().map(handed_over).unwrap_or_default();
        away.retain(|part| handed_over(part) == widest);
        for part in parts {
            match part.device {
                0 => calls.push(part),
                _ => calls.append(&mut away),
            }
        }
        Ok(())
    }
    fn call(
        &mut self,
        placement: &Placement,
        call: BoundCall,
        functions: &mut Functions,
        calls: &mut Vec<BoundCall>,
    ) -> Result<(), Error> {
        let home = placement.home(&call.binds);
        let experts = call.binds.iter().filter_map(|bind| match bind {
            Bind::Weight(name) => Some(placement.weight(name)),
            _ => None,
        });
        let experts = experts.max().unwrap_or(home);
        let device = |bind: &Bind| match bind {
            Bind::Weight(name) => placement.weight(name),
            Bind::Experts(of) if of.is_of_misses() => experts,
            _ => home,
        };
        let away: Vec<usize> = (0..call.binds.len())
            .filter(|&slot| device(&call.binds[slot]) != home)
            .collect();
        let Some(other) = away.first().map(|&slot| device(&call.binds[slot])) else {
            calls.push(BoundCall {
                device: home,
                ..call
            });
            return Ok(());
        };
        let early = call
            .binds
            .iter()
            .map(|bind| matches!(bind, Bind::Experts(_)));
        let split = self.function(&call.function, away, early.collect(), functions)?;
        for part in &split.parts {
            let bind = |slot: &PartSlot| match *slot {
                PartSlot::Whole(slot) => call.binds[slot as usize].clone(),
                PartSlot::Value(number) => Bind::Cut(CutBind {
                    number,
                    is_per_token: split.has_rows[number],
                }),
            };
            calls.push(BoundCall {
                device: if part.is_away { other } else { home },
                function: part.function.clone(),
                binds: part.slots.iter().map(bind).collect(),
                misses: None,
            });
        }
        Ok(())
    }
    fn function(
        &mut self,
        function: &Arc<Function>,
        away: Vec<usize>,
        early: Vec<bool>,
        functions: &mut Functions,
    ) -> Result<Arc<SplitFunction>, Error> {
        let key = (Arc::as_ptr(function).addr(), away);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let is_away = |slot: u32| key.1.contains(&(slot as usize));
        let by = Cut {
            is_away: &is_away,
            is_early: &|slot| early[slot as usize],
        };
        let Partition { parts, values } =
            partition(function, by).ok_or_else(|| Error::NotSeparable(function.name.clone()))?;
        let parts = parts.into_iter().map(|part| SharedPart {
            function: functions.share(part.function),
            is_away: part.is_away,
            slots: part.slots,
        });
        let split = Arc::new(SplitFunction {
            parts: parts.collect(),
            has_rows: values.iter().map(|value| value.has_rows).collect(),
        });
        self.known.insert(key, split.clone());
        Ok(split)
    }
}

/// Returns the number of experts that each token of a call chooses, if the call returns them.
fn chosen_experts(call: &BoundCall) -> Option<usize> {
    let is_chosen = |bind: &Bind| *bind == Bind::Experts(ExpertBind::Chosen);
    let slot = call.binds.iter().position(is_chosen)?;
    let used = *call.function.slots[slot].dims.last()?;
    Some(used as usize)
}

/// Returns the numbers of a token's misses, at most `used`, for which a layer has a function of its
/// own. Several tokens rarely miss few all together.
fn variants(used: usize, tokens: usize) -> Vec<usize> {
    match tokens {
        1 => (1..=used).collect(),
        _ if used == 1 => vec![1],
        _ => vec![used.div_ceil(2), used],
    }
}

/// Returns the values between parts that a call has, with their bytes.
fn handed_over(call: &BoundCall) -> Vec<(CutBind, usize)> {
    let slots = call.binds.iter().zip(&call.function.slots);
    let values = slots.filter_map(|(bind, slot)| match bind {
        Bind::Cut(cut) => Some((*cut, slot.storage.bytes(&slot.dims).unwrap_or(0))),
        _ => None,
    });
    let mut values: Vec<_> = values.collect();
    values.sort_by_key(|(cut, _)| cut.number);
    values
}
