//! What an engine has on one of its devices, in addition to the KV cache and captured graphs.

use super::activations::Activations;
use super::expert_cache::ExpertBuffers;
use super::inputs::{IN_FLIGHT, StepInputs};
use crate::arch::{Bind, CutBind};
use crate::error::Error;
use crate::load::Weights;
use gristmill_runtime::{Buffer, Device, Memory};

/// Buffers of the values between parts of a layer. Steps keep those that they were captured with.
#[derive(Default)]
pub(super) struct CutBuffers {
    /// By number of the value.
    pub buffers: Vec<Buffer>,
    /// The buffer that all of them are parts of, if they are small: it is copied as a whole.
    pub span: Option<Buffer>,
    /// The part of it for the experts that a step chooses, if layers have cached ones.
    pub chosen: Option<Buffer>,
}

/// Most bytes of values that are copied as a whole: one copy of so many bytes takes no longer than
/// a copy of a few.
const SPAN_BYTES: usize = 64 << 10;
/// Alignment of values in a span, bytes: that of buffer bindings on all devices.
const SPAN_ALIGNMENT: usize = 256;

impl CutBuffers {
    /// Allocates buffers of these sizes on a device, and `chosen` bytes for chosen experts.
    ///
    /// # Errors
    /// When the device lacks the memory.
    pub fn new(device: &dyn Device, sizes: &[usize], chosen: usize) -> Result<CutBuffers, Error> {
        let padded = |bytes: usize| bytes.next_multiple_of(SPAN_ALIGNMENT);
        let all = sizes.iter().chain([&chosen]);
        let total: usize = all.map(|&bytes| padded(bytes)).sum();
        if total > SPAN_BYTES {
            let all = sizes.iter().map(|&n| device.alloc(n, Memory::Scratch));
            return Ok(CutBuffers {
                buffers: all.collect::<Result<_, _>>()?,
                span: None,
                chosen: None,
            });
        }
        let span = device.alloc(total.max(1), Memory::Scratch)?;
        let mut begin = 0;
        let mut part = |bytes: usize| {
            let buffer = span.slice(begin, bytes);
            begin += padded(bytes);
            buffer
        };
        let buffers = sizes.iter().map(|&n| part(n)).collect::<Result<_, _>>()?;
        let chosen = (chosen > 0).then(|| part(chosen)).transpose()?;
        Ok(CutBuffers {
            buffers,
            chosen,
            span: Some(span),
        })
    }
}

/// Weights, activations and step inputs on one device.
pub(super) struct DeviceBuffers {
    pub weights: Weights,
    pub activations: Activations,
    pub inputs: [StepInputs; IN_FLIGHT],
    /// Values between parts of a layer.
    pub cuts: CutBuffers,
    /// Experts of a step, where layers have cached ones.
    pub experts: Option<ExpertBuffers>,
    /// Input of the state copy: source and destination row, `[2]` i32.
    pub state_copy: Option<Buffer>,
}

impl DeviceBuffers {
    /// Returns the buffer of a binding that is no weight and no cache, for the input set `set`.
    pub fn bound(&self, bind: &Bind, set: usize) -> Buffer {
        match bind {
            Bind::Experts(of) => {
                let experts = self.experts.as_ref();
                experts.expect("allocated for all plans").bound(*of)
            }
            Bind::Cut(CutBind { number, .. }) => self.cuts.buffers[*number].clone(),
            bind => self
                .activations
                .bound(bind)
                .unwrap_or_else(|| self.inputs[set].bound(bind)),
        }
    }
    /// Returns all buffers but those of weights.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let inputs = self.inputs.iter().flat_map(StepInputs::buffers);
        self.activations
            .buffers()
            .chain(inputs)
            .chain(&self.cuts.buffers)
            .chain(self.experts.iter().flat_map(ExpertBuffers::buffers))
    }
}
