//! Model files by path or name.

use crate::error::{Failure, Result};
use gristmill_hub::{Client, FileFormat, Name, Store};
use gristmill_llm::file::ModelFile;
use gristmill_llm::synth;
use std::path::Path;

/// The demo model, embedded in the module.
static DEMO: &[u8] = include_bytes!("../../assets/demo-glm-Q4_0.gguf");

/// Opens a file, `demo`, `synth:PRESET:QUANT` or a model by name, which is fetched unless it is
/// stored.
pub fn open(name: &str) -> Result<ModelFile> {
    if name == "demo" {
        return Ok(ModelFile::from_bytes(DEMO)?);
    }
    if name.starts_with("synth:") {
        let (preset, quant) = synth::parse_name(name).ok_or_else(|| {
            let presets: Vec<_> = synth::presets().collect();
            Failure::usage(
                format_args!("{name} is not synth:PRESET:QUANT"),
                format_args!("the presets are {}", presets.join(", ")),
            )
        })?;
        return Ok(ModelFile::synth(preset, quant)?);
    }
    let path = Path::new(name);
    if path.exists() {
        return Ok(ModelFile::open(path)?);
    }
    match Name::parse(name)? {
        Some(of) => Ok(ModelFile::open(fetched(&of)?)?),
        None => Err(Failure::new(
            format_args!("there is no file {name}, and no model of that name"),
            "give a .gguf file, a hub repository ORG/REPO[:QUANT], or a short name of `gristmill list`",
        )),
    }
}

/// Returns the stored file of a name, fetched first if it is missing.
fn fetched(name: &Name) -> Result<std::path::PathBuf> {
    let store = Store::user()?;
    if let Some(path) = store.find(name, &mut |_| ())? {
        return Ok(path);
    }
    let check = |file| ModelFile::check(file).map_err(|error| error.to_string());
    let form = FileFormat {
        begins: ModelFile::MAGIC,
        check: &check,
    };
    let client = Client::from_environment();
    Ok(gristmill_hub::pull(&client, &store, name, form, &mut |_| ())?.file)
}
