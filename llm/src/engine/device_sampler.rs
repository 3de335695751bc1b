//! Candidates of batched sampling, computed by a separate graph after a step.
//!
//! A row's parameters depend on its grammar mask, which the host computes while the step runs.

use super::executor::Engine;
use super::graphs::CaptureKey;
use crate::error::Error;
use crate::sampling::{self, Candidates, DeviceSampler, RowParams};
use gristmill_runtime::Buffer;
use gristmill_tensor::jit::Call;

impl Engine {
    /// Compiles and captures the graph that computes candidates of up to `most` rows.
    pub(super) fn prepare_candidates(&mut self, most: usize) -> Result<(), Error> {
        let (vocabulary, device) = (self.model.vocabulary(), self.device().clone());
        if self.candidates.is_none() {
            self.candidates = Some(DeviceSampler::new(
                &*device,
                vocabulary,
                self.settings.rows(),
            )?);
        }
        let key = CaptureKey::Candidates(most);
        let Some(rows) = self.candidates.as_ref().filter(|_| !self.graphs.has(&key)) else {
            return Ok(());
        };
        let buffers: Vec<Buffer> = rows.buffers().into_iter().cloned().collect();
        let function = self
            .graphs
            .functions
            .share(sampling::candidates_function(vocabulary, most));
        let function = self.graphs.compile(&[(0, function)], &|_| ())?.remove(0);
        let args = std::iter::once(self.main().activations.logits.clone())
            .chain(buffers)
            .collect();
        self.graphs.capture(key, 0, &[Call { function, args }])
    }
    /// Starts computing the candidates of the step in flight.
    pub(super) fn start_candidates(
        &mut self,
        most: usize,
        row_params: &[Option<RowParams>],
    ) -> Result<(), Error> {
        let device = self.device().clone();
        let Some(rows) = self
            .candidates
            .as_mut()
            .filter(|_| row_params.iter().any(Option::is_some))
        else {
            return Ok(());
        };
        rows.write(&*device, row_params)?;
        let captured = self.graphs.prepared(&CaptureKey::Candidates(most));
        Ok(captured.replay.start(&[("n", row_params.len() as i64)])?)
    }
    /// Waits for the candidates and reads them.
    pub(super) fn wait_for_candidates(
        &mut self,
        most: usize,
        row_params: &[Option<RowParams>],
    ) -> Result<Vec<Option<Candidates>>, Error> {
        let device = self.device().clone();
        let Some(rows) = self
            .candidates
            .as_ref()
            .filter(|_| row_params.iter().any(Option::is_some))
        else {
            return Ok(row_params.iter().map(|_| None).collect());
        };
        self.graphs
            .prepared(&CaptureKey::Candidates(most))
            .replay
            .wait()?;
        Ok(rows.read(&*device, row_params)?)
    }
}
