//! Rewrites the plan of a step for a placement.

use super::layer_place::Placement;
use crate::arch::{Bind, BoundCall, CutBind, Functions, Plan};
use crate::error::Error;
use gristmill_tensor::partition::{PartSlot, Partition, partition};
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

/// Rewrites plans for a placement; equal functions are split once.
#[derive(Default)]
pub struct Splitter {
    placement: Placement,
    /// The placement of steps of at least so many tokens that copy experts to the main device.
    streamed: Option<(usize, Placement)>,
    /// By the function's address, which [`Functions`] keeps alive, and its slots on another device.
    known: FxHashMap<(usize, Vec<usize>), Arc<SplitFunction>>,
}

impl Splitter {
    /// Creates a splitter for a placement; steps whose largest size is at least `stream_from`
    /// tokens copy experts to the main device.
    pub fn new(placement: Placement, stream_from: Option<usize>) -> Splitter {
        Splitter {
            streamed: stream_from.map(|tokens| (tokens, placement.streamed())),
            placement,
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
        plan: &mut dyn FnMut(usize, &mut Functions) -> Plan,
    ) -> Result<Plan, Error> {
        let main = plan(0, functions);
        let streams = self.streamed.as_ref().filter(|of| tokens >= of.0);
        let placement = streams.map_or(&self.placement, |of| &of.1).clone();
        if placement.is_whole() {
            return Ok(main);
        }
        let mut others: FxHashMap<usize, Plan> = FxHashMap::default();
        let mut calls = Vec::with_capacity(main.calls.len());
        for (i, call) in main.calls.into_iter().enumerate() {
            let weights = call.binds.iter().filter_map(|bind| match bind {
                Bind::Weight(name) => Some(placement.weight(name)),
                _ => None,
            });
            let device = weights.max().unwrap_or(0);
            if device > 0 && !others.contains_key(&device) {
                let plan = plan(device, functions);
                others.insert(device, plan);
            }
            let call = others
                .get(&device)
                .map_or(call, |plan| plan.calls[i].clone());
            self.call(&placement, call, functions, &mut calls)?;
        }
        Ok(Plan { calls })
    }
    fn call(
        &mut self,
        placement: &Placement,
        call: BoundCall,
        functions: &mut Functions,
        calls: &mut Vec<BoundCall>,
    ) -> Result<(), Error> {
        let home = placement.home(&call.binds);
        let device = |bind: &Bind| match bind {
            Bind::Weight(name) => placement.weight(name),
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
        let split = self.function(&call.function, away, functions)?;
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
            });
        }
        Ok(())
    }
    fn function(
        &mut self,
        function: &Arc<Function>,
        away: Vec<usize>,
        functions: &mut Functions,
    ) -> Result<Arc<SplitFunction>, Error> {
        let key = (Arc::as_ptr(function).addr(), away);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let is_away = |slot: u32| key.1.contains(&(slot as usize));
        let Partition { parts, values } = partition(function, &is_away)
            .ok_or_else(|| Error::NotSeparable(function.name.clone()))?;
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
