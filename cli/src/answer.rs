//! A prompt read and an answer written, for `run` and `chat`.

use crate::failure::Result;
use crate::progress;
use crate::reader::Reader;
use crate::style::Screen;
use gristmill_llm::generation::{Finish, Generated};
use gristmill_llm::sampling::Sampler;
use gristmill_llm::session::{Fed, Session};
use std::io::{self, Write};
use std::ops::ControlFlow;

/// What an answer was, and what it took.
pub struct Answer {
    /// What was said.
    pub text: String,
    /// What was thought before, where that stands apart.
    pub thought: Option<String>,
    /// The prompt.
    pub fed: Fed,
    /// The answer; none if the prompt was broken off.
    pub generated: Option<Generated>,
}

/// Runs `prompt` and writes the answer to `out` as it comes, as `reader` reads it. `stop` breaks off.
pub fn answer(
    session: &mut Session,
    reader: &mut Reader<'_>,
    sampler: &Sampler,
    prompt: &[u32],
    limit: usize,
    out: &mut Screen<impl Write>,
    stop: &dyn Fn() -> bool,
) -> Result<Answer> {
    let flow = || if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let bar = progress::count("prompt", prompt.len() as u64);
    let fed = session.feed(prompt, &mut |done, total| {
        // Short prompts are faster than the eye.
        if total > 512 {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
        flow()
    });
    bar.finish_and_clear();
    let fed = fed?;
    if !fed.complete {
        return Ok(Answer { text: String::new(), thought: None, fed, generated: None });
    }
    let tokenizer = reader.tokenizer();
    let mut written: io::Result<()> = Ok(());
    let generated = session.generate(sampler, limit, &|id| tokenizer.is_eog(id), &mut |id| {
        written = out.text(&reader.push(id));
        if written.is_err() { ControlFlow::Break(()) } else { flow() }
    })?;
    written?;
    out.text(&reader.finish(generated.finish != Finish::EndOfText))?;
    let (text, thought) = (std::mem::take(&mut reader.said), reader.thought.take());
    Ok(Answer { text, thought, fed, generated: Some(generated) })
}

impl Answer {
    /// The closing line: tokens, speeds, and why it ended.
    pub fn summary(&self) -> String {
        let rate =
            |n: usize, time: std::time::Duration| format!("{:.1} tok/s", n as f64 / time.as_secs_f64().max(1e-9));
        let Fed { reused, run, time, .. } = self.fed;
        let cached = if reused > 0 { format!(" ({reused} more in the cache)") } else { String::new() };
        let prompt = format!("{run} prompt tokens{cached}, {}", rate(run, time));
        match self.generated {
            None => format!("[{prompt}; {}]", Finish::Stopped.describe()),
            Some(g) if g.steps > 0 => {
                format!("[{prompt}; {} tokens, {}; {}]", g.tokens, rate(g.steps, g.time), g.finish.describe())
            }
            Some(g) => format!("[{prompt}; {} tokens; {}]", g.tokens, g.finish.describe()),
        }
    }
}
