//! `gristmill quantize`: writes a model in a type of fewer bits, as llama.cpp's `llama-quantize`.

use super::run::read_file;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::model::{HELP, Model};
use crate::output;
use crate::size::size;
use clap::{Args, ValueHint};
use gristmill_llm::quantise::{
    Mix, Importance, Quantise, QuantiseError, QuantiseOptions, QuantisedTensor, writable_type,
    writable_types,
};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const NOTES: &str = "\
TYPE names a mix: most matrices get its type, those on which more depends one of more bits. The mixes are
llama.cpp's: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_0, Q5_1, Q4_K_M, Q4_K_S, Q4_0, Q4_1, IQ4_NL,
IQ4_XS, MXFP4_MOE, Q3_K_L, Q3_K_M, Q3_K_S, IQ3_M, IQ3_S, IQ3_XS, IQ3_XXS, Q2_K, Q2_K_S, IQ2_M, IQ2_S, IQ2_XS,
IQ2_XXS, IQ1_M, IQ1_S, TQ2_0, TQ1_0; COPY changes no tensor.

Examples:
  gristmill quantize MODEL-F16.gguf -o MODEL-Q4_K_M.gguf --type Q4_K_M
  gristmill quantize MODEL-F16.gguf MODEL-Q4_K_M.gguf Q4_K_M 8              as llama-quantize
  gristmill quantize MODEL-F16.gguf -o OUT.gguf --type IQ2_S --imatrix imatrix.gguf
  gristmill quantize MODEL-F16.gguf --type Q5_K_M --dry-run                 types and sizes alone
  gristmill quantize MODEL-F16.gguf -o OUT.gguf --type Q4_K_M --tensor-type 'ffn_down=q6_k'";

#[derive(Args)]
#[command(
    after_help = NOTES,
    override_usage = "gristmill quantize [OPTIONS] <MODEL> -o <OUT.gguf> --type <TYPE>\n       \
                      gristmill quantize [OPTIONS] <MODEL> [OUT.gguf] <TYPE> [THREADS]"
)]
pub struct QuantizeArgs {
    #[arg(value_hint = ValueHint::FilePath, help = HELP)]
    model: String,
    /// OUT.gguf, TYPE and number of threads, instead of flags
    #[arg(value_name = "OUT.gguf TYPE THREADS", num_args = 0..=3, value_hint = ValueHint::FilePath)]
    rest: Vec<String>,
    /// Model to write
    #[arg(short, long, value_name = "OUT.gguf", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Mix of types, such as Q4_K_M
    #[arg(long = "type", value_name = "TYPE")]
    file_type: Option<String>,
    /// Importance matrix of `gristmill imatrix` or llama-imatrix, by which errors are weighed
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    imatrix: Option<PathBuf>,
    /// Use the importance matrix only for tensors whose names contain this
    #[arg(long, value_name = "TEXT", conflicts_with = "exclude_weights")]
    include_weights: Vec<String>,
    /// Do not use the importance matrix for tensors whose names contain this
    #[arg(long, value_name = "TEXT")]
    exclude_weights: Vec<String>,
    /// Give all matrices the same type instead of a mix
    #[arg(long)]
    pure: bool,
    /// Type of the output head, also where the embedding is the output
    #[arg(long, value_name = "TYPE")]
    output_tensor_type: Option<String>,
    /// Type of the token embedding
    #[arg(long, value_name = "TYPE")]
    token_embedding_type: Option<String>,
    /// Type of tensors whose names match a regular expression; the first that matches decides
    #[arg(long, value_name = "REGEX=TYPE")]
    tensor_type: Vec<String>,
    /// File with several REGEX=TYPE, between spaces or on lines
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tensor_type_file: Option<PathBuf>,
    /// Keep the type of the output head
    #[arg(long)]
    leave_output_tensor: bool,
    /// Quantise tensors that are quantised already; their errors add up
    #[arg(long)]
    allow_requantize: bool,
    /// Show types and sizes, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Threads [default: all cores]
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Replace an existing OUT.gguf
    #[arg(long)]
    force: bool,
}

/// What the arguments without flags say.
#[derive(Default, Debug, PartialEq)]
struct Rest {
    output: Option<PathBuf>,
    file_type: Option<String>,
    threads: Option<usize>,
}

impl Rest {
    /// Tells OUT.gguf, TYPE and THREADS apart, of which any may be missing.
    fn parse(arguments: &[String], is_typed: bool) -> Result<Rest> {
        let mut rest = Rest::default();
        for argument in arguments {
            let is_first = rest.file_type.is_none() && rest.threads.is_none();
            if is_first && !is_typed && Mix::parse(argument).is_some() {
                rest.file_type = Some(argument.clone());
            } else if let (false, Ok(threads)) = (is_first && !is_typed, argument.parse()) {
                rest.threads = Some(threads);
            } else if is_first && rest.output.is_none() {
                rest.output = Some(argument.into());
            } else {
                return Err(unknown_type(argument));
            }
        }
        Ok(rest)
    }
}

pub(super) fn unknown_type(text: &str) -> Failure {
    let names: Vec<&str> = Mix::all().iter().map(|of| of.name).collect();
    Failure::usage(format!("{text} is no type of a file"), format!("choose one of: {}", names.join(", ")))
}

/// Parses the type of a tensor.
fn tensor_type(text: &str) -> Result<gristmill_llm::quantise::TensorType> {
    let unknown = || {
        let message = format!("{text} is no type that can be written");
        Failure::usage(message, format!("choose one of: {}", writable_types().join(", ")))
    };
    writable_type(text).ok_or_else(unknown)
}

impl QuantizeArgs {
    /// Types of tensors by patterns, from flags and file.
    fn patterns(&self) -> Result<Vec<(String, gristmill_llm::quantise::TensorType)>> {
        let text = self.tensor_type_file.as_deref().map(read_file).transpose()?;
        let of_file = text.iter().flat_map(|text| text.split_whitespace());
        let all = self.tensor_type.iter().map(String::as_str).chain(of_file);
        let pattern = |text: &str| {
            let malformed = || {
                let message = format!("{text} is no pattern and type");
                Failure::usage(message, "give REGEX=TYPE, such as ffn_down=q6_k")
            };
            let (pattern, of) = text.rsplit_once('=').ok_or_else(malformed)?;
            match pattern.is_empty() {
                true => Err(malformed()),
                false => Ok((pattern.to_owned(), tensor_type(of)?)),
            }
        };
        all.map(pattern).collect()
    }
    /// The importance matrix, without the entries that are not wanted.
    fn importance(&self) -> Result<Option<Importance>> {
        let Some(path) = &self.imatrix else {
            return Ok(None);
        };
        let read = Importance::open(path).map_err(QuantiseError::from);
        let mut importance = read?;
        let (include, exclude) = (&self.include_weights, &self.exclude_weights);
        importance.entries.retain(|name, _| {
            let has = |all: &[String]| all.iter().any(|text| name.contains(text.as_str()));
            (include.is_empty() || has(include)) && !has(exclude)
        });
        Ok(Some(importance))
    }
}

pub fn run(options: QuantizeArgs) -> Result {
    let rest = Rest::parse(&options.rest, options.file_type.is_some())?;
    let file_type = options.file_type.as_deref().or(rest.file_type.as_deref());
    let file_type = file_type.ok_or_else(|| {
        Failure::usage("there is no type", "give one with --type, such as --type Q4_K_M")
    })?;
    let file_type = Mix::parse(file_type).ok_or_else(|| unknown_type(file_type))?;
    let output = options.output.as_deref().or(rest.output.as_deref());
    if let (Some(output), false) = (output, options.dry_run) {
        output::check_new(output, options.force)?;
    }
    let tensor = |name: &Option<String>| name.as_deref().map(tensor_type).transpose();
    let threads = options.threads.or(rest.threads);
    let importance = options.importance()?;
    let settings = QuantiseOptions {
        file_type,
        pure: options.pure,
        output: tensor(&options.output_tensor_type)?,
        embedding: tensor(&options.token_embedding_type)?,
        tensors: options.patterns()?,
        keep_output: options.leave_output_tensor,
        requantise: options.allow_requantize,
        keep_quantised: false,
        importance: importance.as_ref(),
        importance_path: options.imatrix.as_ref().map(|path| path.display().to_string()),
        threads: threads.filter(|n| *n > 0).unwrap_or_else(gristmill_backend::parallel::cores),
    };
    let model = Model::open(Some(&options.model))?;
    let quantise = Quantise::new(&model.file, &settings)?;
    if options.dry_run {
        return show(&quantise);
    }
    let Some(output) = output else {
        return Err(Failure::usage("there is no OUT.gguf", "give it with -o, or see --dry-run"));
    };
    write(&quantise, output, "quantising", importance.is_some())
}

/// Writes a model; `verb` is that of the progress bar.
pub(super) fn write(
    quantise: &Quantise<'_>,
    output: &Path,
    verb: &'static str,
    is_weighted: bool,
) -> Result {
    quantise.check()?;
    let tensors = quantise.tensors();
    let replaced = tensors.iter().filter(|t| t.instead_of().is_some()).count();
    if replaced > 0 {
        say!("note: {replaced} tensors have rows that are no whole blocks of their type, and get another one");
    }
    let unweighted = tensors.iter().filter(|t| t.is_unweighted()).count();
    if is_weighted && unweighted > 0 {
        say!("note: {unweighted} tensors are not in the importance matrix");
    }
    let [_, after] = quantise.bytes();
    let interrupt = Interrupt::install(false)?;
    output::write_whole(output, &interrupt, (verb, after), |out, goes_on| {
        Ok(quantise.write(out, goes_on)?)
    })?;
    say!("wrote {}: {}", output.display(), summary(quantise));
    Ok(())
}

/// Sizes before and after, and bits of a weight.
fn summary(quantise: &Quantise<'_>) -> String {
    let [before, after] = quantise.bytes();
    let bits = |bytes: u64| bytes as f64 * 8.0 / quantise.elements() as f64;
    format!(
        "{} instead of {}, {:.2} bits a weight instead of {:.2}",
        size(after),
        size(before),
        bits(after),
        bits(before)
    )
}

/// Writes the types and sizes of all tensors to standard output.
pub(super) fn show(quantise: &Quantise<'_>) -> Result {
    let mut out = io::stdout().lock();
    let tensors = quantise.tensors();
    let widest = tensors.iter().map(|tensor| tensor.name().len()).max().unwrap_or(0);
    for tensor in tensors {
        let dims: Vec<String> = tensor.dims().iter().map(u64::to_string).collect();
        let ([from, to], [before, after]) = (tensor.types(), tensor.bytes());
        let note = notes(tensor);
        let (name, dims) = (tensor.name(), dims.join("x"));
        writeln!(
            out,
            "{name:widest$}  {dims:>16}  {from:>7} -> {to:<7}  {:>10} -> {:>10}{note}",
            size(before),
            size(after)
        )?;
    }
    writeln!(out, "{}", summary(quantise))?;
    Ok(())
}

fn notes(tensor: &QuantisedTensor<'_>) -> String {
    let instead = tensor.instead_of().map(|of| format!("  instead of {of}: rows are no whole blocks"));
    let lacking = tensor.lacks_importance().then(|| "  needs --imatrix".to_owned());
    [instead, lacking].into_iter().flatten().collect()
}

impl From<QuantiseError> for Failure {
    fn from(error: QuantiseError) -> Failure {
        match error {
            QuantiseError::File(error) => error.into(),
            error => {
                let hint = error.hint().unwrap_or_else(|| "begin again".into());
                Failure::new(error, hint)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_without_flags_are_those_of_llama_quantize() {
        let parse = |text: &str, is_typed| {
            let all: Vec<String> = text.split_whitespace().map(String::from).collect();
            Rest::parse(&all, is_typed).ok()
        };
        let rest = |output: Option<&str>, of: Option<&str>, threads| {
            Some(Rest {
                output: output.map(PathBuf::from),
                file_type: of.map(String::from),
                threads,
            })
        };
        assert_eq!(parse("", false), rest(None, None, None));
        assert_eq!(parse("out.gguf Q4_K_M 8", false), rest(Some("out.gguf"), Some("Q4_K_M"), Some(8)));
        assert_eq!(parse("q8_0", false), rest(None, Some("q8_0"), None));
        assert_eq!(parse("out.gguf 15 2", false), rest(Some("out.gguf"), Some("15"), Some(2)));
        assert_eq!(parse("out.gguf", true), rest(Some("out.gguf"), None, None));
        assert_eq!(parse("out.gguf Q9_K", false), None);
    }
}
