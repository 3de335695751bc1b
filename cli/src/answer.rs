//! A prompt read and an answer written, for `run` and `chat`.

use crate::failure::Result;
use crate::progress;
use crate::reader::Reader;
use crate::style::Screen;
use gristmill_llm::generation::{Finish, Generation};
use gristmill_llm::sampling::Sampler;
use gristmill_llm::sched::{Batcher, Generated, PrefillStats, SequenceOptions, generate};
use std::io::{self, Write};
use std::ops::ControlFlow;

/// An answer, and its speeds.
pub struct Answer {
    /// What was said.
    pub text: String,
    /// What was thought before, where that stands apart.
    pub thought: Option<String>,
    /// Tokens, times, and why it ended.
    pub generated: Generated,
}

/// Runs `prompt` and writes the answer to `out` as it comes, as `reader` reads it. `stop` breaks off.
pub fn answer(
    batcher: &mut Batcher,
    reader: &mut Reader<'_>,
    sampler: &Sampler,
    prompt: &[u32],
    limit: usize,
    out: &mut Screen<impl Write>,
    stop: &dyn Fn() -> bool,
) -> Result<Answer> {
    let flow = || if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let bar = progress::count("prompt", prompt.len() as u64);
    let mut progress = |done, total| {
        // Short prompts are faster than the eye.
        if total > 512 {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
        flow()
    };
    let tokenizer = reader.tokenizer();
    let generation = Generation::new(sampler.clone(), limit, |id| tokenizer.is_eog(id));
    let mut written: io::Result<()> = Ok(());
    let mut each = |id| {
        bar.finish_and_clear();
        written = out.text(&reader.push(id));
        if written.is_err() { ControlFlow::Break(()) } else { flow() }
    };
    let generated = generate(batcher, prompt, SequenceOptions::default(), generation, &mut progress, &mut each);
    bar.finish_and_clear();
    let generated = generated?;
    written?;
    if generated.prefill.complete {
        out.text(&reader.finish(generated.finish != Finish::EndOfText))?;
    }
    let (text, thought) = (std::mem::take(&mut reader.said), reader.thought.take());
    Ok(Answer { text, thought, generated })
}

impl Answer {
    /// The closing line: tokens, speeds, and why it ended.
    pub fn summary(&self) -> String {
        let rate =
            |n: usize, time: std::time::Duration| format!("{:.1} tok/s", n as f64 / time.as_secs_f64().max(1e-9));
        let Generated { prefill, tokens, time, steps, finish } = self.generated;
        let PrefillStats { reused, run, .. } = prefill;
        let cached = if reused > 0 { format!(" ({reused} more in the cache)") } else { String::new() };
        let prompt = format!("{run} prompt tokens{cached}, {}", rate(run, prefill.time));
        match (prefill.complete, steps) {
            (false, _) => format!("[{prompt}; {}]", finish.describe()),
            (true, 0) => format!("[{prompt}; {tokens} tokens; {}]", finish.describe()),
            (true, _) => format!("[{prompt}; {tokens} tokens, {}; {}]", rate(steps, time), finish.describe()),
        }
    }
}
