//! A prompt read and an answer written, for `run` and `chat`.

use crate::failure::Result;
use crate::progress;
use crate::style::Screen;
use gristmill_llm::generation::{Finish, Generated};
use gristmill_llm::sampling::Sampler;
use gristmill_llm::session::{Fed, Session};
use gristmill_llm::tokenizer::{Decoder, Tokenizer};
use std::io::{self, Write};
use std::ops::ControlFlow;

/// What an answer was, and what it took.
pub struct Answer {
    /// Its text.
    pub text: String,
    /// The prompt.
    pub fed: Fed,
    /// The answer; none if the prompt was broken off.
    pub generated: Option<Generated>,
}

/// Runs `prompt` and writes the answer to `out` as it comes. `stop` breaks off.
pub fn answer(
    session: &mut Session,
    tokenizer: &Tokenizer,
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
        return Ok(Answer { text: String::new(), fed, generated: None });
    }
    let mut text = String::new();
    let mut decoder = Decoder::new(tokenizer);
    let mut written: io::Result<()> = Ok(());
    let generated = session.generate(sampler, limit, &|id| tokenizer.is_eog(id), &mut |id| {
        let piece = decoder.push(id);
        text.push_str(&piece);
        written = out.text(&piece);
        if written.is_err() { ControlFlow::Break(()) } else { flow() }
    })?;
    written?;
    let rest = decoder.finish();
    text.push_str(&rest);
    out.text(&rest)?;
    Ok(Answer { text, fed, generated: Some(generated) })
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
