//! `gristmill train`: trains an adapter, or a small model, on chats.

mod args;
mod data;
mod errors;
mod files;
mod output;
mod page;
mod replies;
mod setup;

pub use args::TrainArgs;

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::model::Model;
use crate::progress;
use data::Data;
use errors::failure;
use files::{Files, History};
use gristmill_llm::train::{Run, Stream, TrainingBatch};
use page::Page;
use setup::Start;
use std::io::{self, Write};
use std::time::Instant;

pub fn run(options: TrainArgs) -> Result {
    options.common.check_one_device()?;
    options.common.check_computes()?;
    if !options.common.lora.is_empty() {
        return Err(Failure::usage(
            "training does not apply other adapters",
            "--init ADAPTER continues with an adapter",
        ));
    }
    let model = options.open_model()?;
    let described = model.describe()?;
    let mut data = Data::read(&options, &model)?;
    let start = match (options.full, options.draft_block) {
        (true, _) => Start::Full,
        (_, true) => Start::DraftBlock(described.layers()),
        _ => Start::Adapter(options.adapter(described.as_ref(), &model)?),
    };
    options.check_output(&start, described.as_ref())?;
    let opened = options.common.open()?;
    let mut page = Page::begin(&options, &model, &opened, &data, &start)?;
    let shape = options.shape(described.as_ref());
    let stream = Stream::new(data.take_examples(), options.stream(&model, shape)?);
    let evaluation = match data.evaluation.is_empty() {
        true => Vec::new(),
        false => Stream::new(data.take_evaluation(), options.stream(&model, shape)?).all_once(),
    };
    let schedule = options.schedule(stream.rows_of_epoch());
    let (trainer, memory) = options.trainer(&model, opened, &start, shape)?;
    let mut run = Run::new(trainer, stream, schedule);
    let bound = options.description(&model, &data, &start, run.trainer().places(), shape)?;
    let mut files = Files::open(&options, bound)?;
    let mut history = History::default();
    if options.resume {
        let checkpoint = files.checkpoint()?;
        run.resume(&checkpoint).map_err(failure)?;
        history = files.continue_log(checkpoint.steps)?;
    }
    say!(
        "training {} numbers on {} lines: {} steps of {} tokens",
        run.trainer().places().count(),
        data.lines,
        schedule.steps,
        shape.tokens() * usize::from(options.accumulate)
    );
    if options.profile {
        return profile(&mut run);
    }
    if let Some(page) = &mut page {
        page.describe(&options, &data, &start, &run, (memory, shape, schedule.steps));
    }
    let ended = train(&options, &mut run, &mut files, &evaluation, &mut history);
    finish(&options, model, &start, run, (ended, page, history))
}

/// Writes the adapter or model of a run that is done, and the page of any.
fn finish(
    options: &TrainArgs,
    model: Model,
    start: &Start,
    run: Run,
    (ended, page, history): (Result, Option<Page>, History),
) -> Result {
    let written = match &ended {
        Ok(()) => options.write(&model, start, &run),
        Err(_) => Ok(()),
    };
    let Some(page) = page else {
        return ended.and(written);
    };
    let trained = match start {
        Start::Full | Start::DraftBlock(_) => None,
        Start::Adapter(adapter) => output::trained(adapter, &run).ok(),
    };
    // Weights of a stopped run are not in a file that could be loaded.
    if ended.is_err() && trained.is_none() {
        return ended.and(page.stopped(&history));
    }
    // The model is loaded again: its first copy goes first.
    drop((run, model));
    let shown = page.finish(options, &history, trained.as_ref());
    ended.and(written).and(shown)
}

/// Prints the kernels of a pass by time: share, milliseconds, launches, function and work.
fn profile(run: &mut Run) -> Result {
    run.profile().map_err(failure)?;
    let mut kernels: Vec<(String, f64, usize)> = Vec::new();
    for (name, seconds) in run.profile().map_err(failure)? {
        match kernels.iter_mut().find(|k| k.0 == name) {
            Some(kernel) => (kernel.1, kernel.2) = (kernel.1 + seconds, kernel.2 + 1),
            None => kernels.push((name, seconds, 1)),
        }
    }
    kernels.sort_by(|a, b| b.1.total_cmp(&a.1));
    let all: f64 = kernels.iter().map(|k| k.1).sum();
    let mut out = io::stdout().lock();
    for (name, seconds, launches) in kernels {
        let (share, ms) = (100.0 * seconds / all, 1e3 * seconds);
        writeln!(out, "{share:5.1} %  {ms:9.2} ms  {launches:5}  {name}")?;
    }
    Ok(())
}

/// Takes the steps that are left.
fn train(
    options: &TrainArgs,
    run: &mut Run,
    files: &mut Files,
    evaluation: &[(TrainingBatch, usize)],
    history: &mut History,
) -> Result {
    let interrupt = Interrupt::install(false)?;
    let bar = progress::steps(run.steps_planned());
    let mut evaluated = None;
    while !run.is_done() {
        interrupt.begin();
        let began = Instant::now();
        let report = run.step().map_err(failure)?;
        let seconds = began.elapsed().as_secs_f64();
        files.log(&report, seconds)?;
        history.add(&report, seconds);
        bar.set_position(report.step);
        let of_evaluation = evaluated.map_or(String::new(), |loss: f64| format!(", eval {loss:.4}"));
        bar.set_message(format!("loss {:.4}{of_evaluation}", report.loss));
        let is_due = report.step.is_multiple_of(options.save_every) || run.is_done();
        if is_due && !evaluation.is_empty() {
            let loss = run.evaluate(evaluation).map_err(failure)?;
            files.log_evaluation(report.step, loss)?;
            history.evaluations.push((report.step, loss));
            evaluated = Some(loss);
        }
        if is_due || interrupt.is_asked() {
            files.save(run)?;
        }
        if interrupt.is_asked() {
            bar.finish_and_clear();
            let hint = match &options.checkpoint {
                Some(folder) => format!("--checkpoint {} --resume continues", folder.display()),
                None => "with --checkpoint FOLDER a run can continue".into(),
            };
            return Err(Failure::new(format_args!("stopped after step {}", report.step), hint));
        }
    }
    interrupt.end();
    bar.finish_and_clear();
    if let Some(loss) = evaluated {
        say!("loss on the lines of --eval: {loss:.4}");
    }
    Ok(())
}
