//! Copies of recurrent-state rows on the device.

use super::executor::Engine;
use super::graphs::CaptureKey;
use super::inputs::bytes;
use super::pages::{Pages, StateCopy};
use crate::error::Error;
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::Call;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// Returns the function `states.copy`, which copies one row of a state `[rows, width]` f32 to
/// another. Its second slot holds source and destination, `[2]` i32.
fn copy_function(rows: usize, width: usize) -> Function {
    let c = Capture::new("states.copy");
    let state = c.state("state", dims![rows, width], Scalar::F32);
    let ends = c
        .input("rows", dims![2], Scalar::I32)
        .clamp_index(rows - 1)
        .cast(Scalar::I64);
    let [from, to] = [0, 1].map(|end| ends.slice(0, end, 1));
    c.output_state(state.scatter(state.gather(from), to));
    c.finish()
}

impl Engine {
    /// Copies a row of recurrent states while no step runs.
    pub(super) fn copy_state_row(&mut self, copy: &StateCopy) -> Result<(), Error> {
        for state in [copy.from, copy.to] {
            self.cache.check(Pages {
                state,
                ..Pages::default()
            })?;
        }
        let rows = bytes([copy.from, copy.to].into_iter());
        for device in 0..self.on.len() {
            self.prepare_copy(device)?;
            if let Some(ends) = &self.on[device].state_copy {
                self.graphs.on(device).write(ends, 0, &rows)?;
                let key = CaptureKey::CopyState(device);
                self.graphs.prepared(&key).replay.replay(&[])?;
            }
        }
        Ok(())
    }
    /// Captures the copy of the states on one device, if there are any.
    fn prepare_copy(&mut self, number: usize) -> Result<(), Error> {
        let key = CaptureKey::CopyState(number);
        let device = self.graphs.on(number).clone();
        let rows = self.cache.state_rows().max(1);
        let states = self.cache.tensors();
        let (buffers, widths): (Vec<Buffer>, Vec<usize>) = states
            .filter(|of| of.plane.is_state() && of.device.id() == device.id())
            .map(|of| (of.buffer.clone(), of.plane.width))
            .unzip();
        if buffers.is_empty() || self.graphs.has(&key) {
            return Ok(());
        }
        let on = &mut self.on[number];
        let ends = match &on.state_copy {
            Some(ends) => ends.clone(),
            None => device.alloc(2 * size_of::<i32>(), Memory::Scratch)?,
        };
        on.state_copy = Some(ends.clone());
        let shared = widths.iter().map(|&width| {
            let copy = self.graphs.functions.share(copy_function(rows, width));
            (number, copy)
        });
        let functions: Vec<_> = shared.collect();
        let ready = self.graphs.compile(&functions, &|_| ())?;
        let call = |(function, buffer)| Call {
            function,
            args: vec![buffer, ends.clone()],
        };
        let calls: Vec<Call> = ready.into_iter().zip(buffers).map(call).collect();
        self.graphs.capture(key, number, &calls)
    }
}
