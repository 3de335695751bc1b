//! MODEL on the command line: a file, `synth:PRESET:QUANT`, or nothing.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::progress::Bars;
use gristmill_llm::arch;
use gristmill_llm::engine::Engine;
use gristmill_llm::file::ModelFile;
use gristmill_llm::tokenizer::Tokenizer;
use gristmill_llm::{language, synth};
use std::path::Path;

/// The model that ships inside the program.
static DEMO: &[u8] = include_bytes!("../../assets/demo-glm-Q4_0.gguf");

/// A model file, open: its metadata read, its weights not.
pub struct Model {
    /// What to call it: the file's name, or what was asked for.
    pub name: String,
    /// The file.
    pub file: ModelFile,
}

impl Model {
    /// The one named, or the demo model.
    pub fn open(name: Option<&str>) -> Result<Model> {
        let Some(name) = name else {
            return Ok(Model { name: "demo".into(), file: ModelFile::from_bytes(DEMO)? });
        };
        if name.starts_with("synth:") {
            let (preset, quant) = synth::parse_name(name).ok_or_else(|| {
                let presets: Vec<_> = synth::presets().collect();
                Failure::new(
                    format_args!("{name} is not synth:PRESET:QUANT"),
                    format!("for example synth:{}:q4_0; presets: {}", presets[0], presets.join(", ")),
                )
            })?;
            return Ok(Model { name: name.into(), file: ModelFile::synth(preset, quant)? });
        }
        let path = Path::new(name);
        let shown = path.file_name().map_or(name.into(), |n| n.to_string_lossy().into_owned());
        // The commonest mistake deserves its own words.
        match std::fs::metadata(path) {
            Err(error) => Err(match error.kind() {
                std::io::ErrorKind::NotFound => Failure::new(
                    format_args!("there is no file {name}"),
                    "MODEL is the path of a .gguf file, or synth:PRESET:QUANT; run and chat without one use the demo model",
                ),
                _ => Failure::file("open", path, error),
            }),
            Ok(_) => Ok(Model { name: shown, file: ModelFile::open(path)? }),
        }
    }
    /// Its tokenizer. Remarks go to standard error.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let tokenizer = language::tokenizer(self.file.metadata())?;
        warn(tokenizer.warnings());
        Ok(tokenizer)
    }
    /// What it computes, from metadata alone.
    pub fn describe(&self) -> Result<Box<dyn arch::Model>> {
        self.file.architecture()?;
        Ok(arch::load(self.file.metadata(), &self.file)?)
    }
    /// On its device, compiled. `context` stands in for --ctx.
    pub fn load(&self, common: &Common, context: Option<usize>) -> Result<Engine> {
        self.load_on(common.open()?, common, context)
    }
    /// The same on a device that is open already.
    pub fn load_on(
        &self,
        opened: gristmill_backend::Opened,
        common: &Common,
        context: Option<usize>,
    ) -> Result<Engine> {
        let settings = common.settings(context);
        self.file.architecture()?;
        let bars = Bars::new();
        let engine = Engine::load(&self.file, opened, settings, &|p| bars.show(p))?;
        drop(bars);
        warn(engine.model().warnings());
        Ok(engine)
    }
}

/// Remarks on standard error.
pub fn warn(warnings: &[String]) {
    for warning in warnings {
        say!("warning: {}", printable(warning));
    }
}
