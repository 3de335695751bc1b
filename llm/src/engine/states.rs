//! Rows of states in a pool: how many there are, and copies of them, which the device makes.

use super::error::Error;
use super::executor::Engine;
use super::inputs::bytes;
use super::pages::{Pages, StateCopy};
use super::pool::Copying;
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::Call;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// The function `states.copy`: of a state `[rows, width]` f32 one row becomes what another is. Its second slot says which, `[2]` i32: from, to.
fn copy_function(rows: usize, width: usize) -> Function {
    let c = Capture::new("states.copy");
    let state = c.state("state", dims![rows, width], Scalar::F32);
    let ends = c.input("rows", dims![2], Scalar::I32).clamp_index(rows - 1).cast(Scalar::I64);
    let [from, to] = [0, 1].map(|end| ends.slice(0, end, 1));
    c.output_state(state.scatter(state.gather(from), to));
    c.finish()
}

impl Engine {
    /// Rows of states in its pool; 0 where the model keeps none, or its cache is one sequence's.
    pub fn state_rows(&self) -> usize {
        self.cache.pages.map_or(0, |pools| pools.states)
    }
    /// Makes a row of states what another one is, in all layers.
    ///
    /// # Errors
    /// When there is no pool, one of them is no row of it, or the device fails.
    pub fn copy_state(&mut self, copy: &StateCopy) -> Result<(), Error> {
        self.finish()?;
        let pools = self.cache.pages.ok_or(Error::NoPool)?;
        for state in [copy.from, copy.to] {
            Pages { state, ..Pages::default() }.check(pools, 0)?;
        }
        if self.pool()?.copying.is_none() {
            let copying = self.prepare_copying(pools.states)?;
            self.pool()?.copying = Some(copying);
        }
        let device = self.device().clone();
        let Some(copying) = &mut self.pool()?.copying else { unreachable!("it was prepared") };
        device.write(&copying.rows, 0, &bytes([copy.from, copy.to].into_iter()))?;
        Ok(copying.captured.replay.replay(&[])?)
    }
    fn prepare_copying(&mut self, rows: usize) -> Result<Copying, Error> {
        let ends = self.device().alloc(2 * size_of::<i32>(), Memory::Scratch)?;
        let (buffers, widths): (Vec<Buffer>, Vec<usize>) =
            self.states().map(|(buffer, plane)| (buffer.clone(), plane.width)).unzip();
        let functions: Vec<_> = widths.iter().map(|&width| self.functions.share(copy_function(rows, width))).collect();
        let ready = self.ready(&functions.iter().collect::<Vec<_>>(), &|_| ())?;
        let call = |(function, buffer)| Call { function, args: vec![buffer, ends.clone()] };
        let calls: Vec<Call> = ready.into_iter().zip(buffers).map(call).collect();
        Ok(Copying { captured: self.capture(&calls)?, rows: ends })
    }
}
