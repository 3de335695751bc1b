//! The class `Model`.

use crate::error::{Failure, Result};
use crate::generation::{self, GenerateJob, Sampling};
use crate::model_thread::ModelThread;
use crate::pooled;
use crate::source;
use crate::stream::TextStream;
use gristmill_backend::{Options, Precision};
use gristmill_llm::arch;
use gristmill_llm::chat::markup::Markup;
use gristmill_llm::chat::reply::Begins;
use gristmill_llm::chat::{ChatTemplate, Helper, Isolation, Message, RenderOptions, TextSpan};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::file::ModelFile;
use gristmill_llm::language;
use gristmill_llm::pooling::{Pooling, PoolingKind};
use gristmill_llm::rerank::RerankPrompt;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::sched::Batcher;
use gristmill_llm::tokenizer::Tokenizer;
use pyo3::exceptions::PyTypeError;
use pyo3::types::{PyAnyMethods, PyBytes, PyDict, PyString};
use pyo3::{Bound, PyAny, PyResult, Python, pyclass, pymethods};
use serde_json::Value as Json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Each [`Precision`] with the name of the argument `precision`.
const PRECISIONS: [(&str, Precision); 4] = [
    ("fast", Precision::Fast),
    ("balanced", Precision::Balanced),
    ("half", Precision::Half),
    ("exact", Precision::Exact),
];

/// Program of the helper process that renders the chat templates of files.
const HELPER: &str = "import sys; sys.path.insert(0, sys.argv[1]); \
     from gristmill._gristmill import render_template; sys.exit(render_template())";

/// A model on a device.
#[pyclass(name = "Model", module = "gristmill", frozen)]
pub struct PyModel {
    thread: ModelThread,
    text: Arc<TextSettings>,
    template: ChatTemplate,
    pooling: Pooling,
    rerank: RerankPrompt,
    vocabulary: usize,
    width: usize,
    context: usize,
}

/// Text settings of the file, for all threads of a model.
struct TextSettings {
    tokenizer: Tokenizer,
    sampling: SamplingParams,
}

/// Arguments of the constructor.
struct ModelOptions {
    device: Option<String>,
    settings: Settings,
    backend: Options,
    pooling: Option<PoolingKind>,
    isolation: Isolation,
}

impl PyModel {
    fn open(name: &str, options: ModelOptions) -> Result<PyModel> {
        let file = source::open(name)?;
        file.check_weights()?;
        let metadata = file.metadata();
        let tokenizer = language::tokenizer(metadata)?;
        let (template, _) = language::template(metadata, &tokenizer, &options.isolation)?;
        let (sampling, _) = language::sampling(metadata);
        let pooling = Pooling::read(&file, options.pooling)?;
        let rerank = RerankPrompt::read(metadata);
        let (sizes, known) = channel();
        let thread = ModelThread::start(move || {
            let batcher = load(&file, options)?;
            let engine = batcher.engine();
            let model = engine.model();
            let _ = sizes.send([model.vocabulary(), model.width(), engine.context()]);
            Ok(batcher)
        })?;
        let [vocabulary, width, context] =
            known.recv().map_err(|_| crate::model_thread::ended())?;
        Ok(PyModel {
            thread,
            text: Arc::new(TextSettings {
                tokenizer,
                sampling,
            }),
            template,
            pooling,
            rerank,
            vocabulary,
            width,
            context,
        })
    }
    /// Queues a generation after the earlier calls.
    fn stream(&self, job: GenerateJob) -> Result<TextStream> {
        let (send, pieces) = channel();
        let text = self.text.clone();
        self.thread.submit(move |batcher| {
            if let Err(error) = generation::run(batcher, &text.tokenizer, job, &send) {
                let _ = send.send(Err(error));
            }
        })?;
        Ok(TextStream::new(pieces))
    }
    /// Renders a conversation; returns its tokens and the state of the reply after them.
    fn render(&self, messages: &[Message], thinking: Option<bool>) -> Result<(Vec<u32>, Begins)> {
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking: thinking,
            ..RenderOptions::default()
        };
        let spans = self.template.render(messages, &options)?;
        let [open, _] = self.markup().think;
        let last = spans.iter().rev().find(|span| !span.text.trim().is_empty());
        let begins = match last {
            Some(span) if span.trusted && span.text.trim_end().ends_with(open) => Begins::Reasoning,
            _ => Begins::Open,
        };
        let pairs = TextSpan::pairs(&spans);
        Ok((self.text.tokenizer.encode_spans(&pairs, true), begins))
    }
    fn markup(&self) -> &'static Markup {
        self.template.markup()
    }
    fn pooled(&self, texts: Vec<Vec<u32>>) -> Result<Vec<f32>> {
        let pooling = self.pooling.clone();
        self.thread
            .call(move |batcher| pooled::pooled(batcher, &pooling, &texts))
    }
    /// Refuses calls that the model's pooling does not serve.
    fn check_pooling(&self, ranks: bool) -> Result<()> {
        match (self.pooling.kind(), ranks) {
            (Some(PoolingKind::Rank), false) => Err(Failure::usage(
                "the model is a reranker and embeds no texts",
                "call rerank",
            )),
            (Some(PoolingKind::None), false) => Err(Failure::usage(
                "the model's file asks for no pooling",
                "give Model pooling=\"mean\", \"cls\" or \"last\"",
            )),
            (Some(PoolingKind::Rank), true) | (_, false) => Ok(()),
            (_, true) => Err(Failure::usage(
                "the model is no reranker: its file has no classifier",
                "open a reranker, such as Qwen3-Reranker",
            )),
        }
    }
}

/// Opens the device and loads the model on it, on the thread that will run it.
fn load(file: &ModelFile, options: ModelOptions) -> Result<Batcher> {
    arch::load(file.metadata(), file)?;
    let opened = match &options.device {
        Some(name) => gristmill_backend::open(name, &options.backend)?,
        None => gristmill_backend::best(&options.backend)?.0,
    };
    Ok(Batcher::new(Engine::load(
        file,
        opened,
        options.settings,
        &|_| (),
    )?))
}

/// Reads the constructor's arguments.
fn model_options(
    py: Python<'_>,
    device: Option<String>,
    context: Option<usize>,
    threads: Option<usize>,
    precision: &str,
    pooling: Option<&str>,
) -> PyResult<ModelOptions> {
    let found = PRECISIONS.iter().find(|row| row.0 == precision);
    let &(_, precision) = found.ok_or_else(|| {
        let hint = "fast, balanced, half or exact";
        Failure::usage(format_args!("there is no precision {precision}"), hint)
    })?;
    let pooling = pooling.map(|name| name.parse::<PoolingKind>());
    let pooling = pooling
        .transpose()
        .map_err(|hint| Failure::usage("there is no such pooling", hint))?;
    let python: PathBuf = py.import("sys")?.getattr("executable")?.extract()?;
    let packages: String = py.import("gristmill")?.getattr("_PACKAGES")?.extract()?;
    let arguments = ["-I", "-c", HELPER, &packages];
    Ok(ModelOptions {
        device,
        settings: Settings {
            context,
            ..Settings::default()
        },
        backend: Options {
            threads,
            precision,
            ..Options::default()
        },
        pooling,
        isolation: Isolation::Helper(Helper::new(python, arguments)),
    })
}

/// Reads a conversation: a text of the user, or a list of messages as dictionaries.
fn conversation(messages: &Bound<'_, PyAny>) -> PyResult<Vec<Message>> {
    if let Ok(text) = messages.cast::<PyString>() {
        return Ok(vec![Message::user(text.extract::<String>()?)]);
    }
    let json = messages
        .py()
        .import("json")?
        .call_method1("dumps", (messages,))?;
    let json: Json = serde_json::from_str(&json.extract::<String>()?)
        .map_err(|error| PyTypeError::new_err(error.to_string()))?;
    let messages = match json {
        Json::Array(messages) => messages
            .into_iter()
            .map(message)
            .collect::<Option<Vec<_>>>(),
        _ => None,
    };
    messages.ok_or_else(|| {
        PyTypeError::new_err(
            "messages is neither a text nor a list of messages\n\
             hint: [{\"role\": \"user\", \"content\": \"Hello\"}]",
        )
    })
}

/// Reads a message, which must have a role.
fn message(json: Json) -> Option<Message> {
    let Json::Object(mut fields) = json else {
        return None;
    };
    let mut text = |name: &str| match fields.remove(name) {
        Some(Json::String(text)) => Some(text),
        _ => None,
    };
    Some(Message {
        role: text("role")?,
        reasoning_content: text("reasoning_content"),
        tool_call_id: text("tool_call_id"),
        name: text("name"),
        content: fields.remove("content").unwrap_or_default(),
        tool_calls: fields.remove("tool_calls"),
        extra: fields,
    })
}

/// Reads the sampling parameters of a call.
fn sampling(options: Option<&Bound<'_, PyDict>>) -> PyResult<(Sampling, CallOptions)> {
    let (mut sampling, mut call) = (Sampling::default(), CallOptions::default());
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        match name.as_str() {
            "temperature" => sampling.temperature = value.extract()?,
            "top_k" => sampling.top_k = value.extract()?,
            "top_p" => sampling.top_p = value.extract()?,
            "min_p" => sampling.min_p = value.extract()?,
            "repeat_penalty" => sampling.repeat_penalty = value.extract()?,
            "seed" => sampling.seed = value.extract()?,
            "max_tokens" => call.max_tokens = value.extract()?,
            "stop" => call.stop = texts(&value)?.0,
            _ => {
                let message =
                    format!("there is no argument {name}\nhint: see help(gristmill.Model)");
                return Err(PyTypeError::new_err(message));
            }
        }
    }
    Ok((sampling, call))
}

/// Arguments of `generate` and `chat` besides sampling parameters.
#[derive(Default)]
struct CallOptions {
    max_tokens: Option<usize>,
    stop: Vec<String>,
}

/// Reads a text or a sequence of texts; returns whether it was one text.
fn texts(value: &Bound<'_, PyAny>) -> PyResult<(Vec<String>, bool)> {
    match value.cast::<PyString>() {
        Ok(text) => Ok((vec![text.extract()?], true)),
        Err(_) => Ok((value.extract()?, false)),
    }
}

/// Returns a NumPy array of this shape; one of its bytes, which no other object has.
fn array<'py>(py: Python<'py>, values: &[f32], shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let array = py
        .import("numpy")?
        .call_method1("frombuffer", (PyBytes::new(py, &bytes), "f4"))?;
    let shape = shape.to_vec();
    array
        .call_method1("reshape", (shape,))?
        .call_method0("copy")
}

#[pymethods]
impl PyModel {
    #[new]
    #[pyo3(signature = (path = PathBuf::from("demo"), *, device = None, context = None, threads = None, precision = "fast", pooling = None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        device: Option<String>,
        context: Option<usize>,
        threads: Option<usize>,
        precision: &str,
        pooling: Option<&str>,
    ) -> PyResult<PyModel> {
        let options = model_options(py, device, context, threads, precision, pooling)?;
        let name = path.to_string_lossy().into_owned();
        Ok(py.detach(|| PyModel::open(&name, options))?)
    }
    #[pyo3(signature = (prompt, **options))]
    fn generate(&self, prompt: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<TextStream> {
        let (sampling, call) = sampling(options)?;
        Ok(self.stream(GenerateJob {
            prompt: self.text.tokenizer.encode(prompt, true, true),
            sampler: sampling.sampler(&self.text.sampling)?,
            limit: call.max_tokens.unwrap_or(usize::MAX),
            stop: call.stop,
            markup: None,
        })?)
    }
    #[pyo3(signature = (messages, *, thinking = None, **options))]
    fn chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        thinking: Option<bool>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<TextStream> {
        let (sampling, call) = sampling(options)?;
        let messages = conversation(messages)?;
        let (prompt, begins) = py.detach(|| self.render(&messages, thinking))?;
        Ok(self.stream(GenerateJob {
            prompt,
            sampler: sampling.sampler(&self.text.sampling)?,
            limit: call.max_tokens.unwrap_or(usize::MAX),
            stop: call.stop,
            markup: Some((self.markup(), begins)),
        })?)
    }
    fn embed<'py>(&self, texts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.check_pooling(false)?;
        let py = texts.py();
        let (texts, is_one) = self::texts(texts)?;
        let tokenizer = &self.text.tokenizer;
        let count = texts.len();
        let values = py.detach(|| {
            let tokens = texts.iter().map(|text| tokenizer.encode(text, false, true));
            self.pooled(tokens.collect())
        })?;
        match is_one {
            true => array(py, &values, &[self.width]),
            false => array(py, &values, &[count, self.width]),
        }
    }
    fn rerank<'py>(
        &self,
        py: Python<'py>,
        query: &str,
        documents: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_pooling(true)?;
        let tokenizer = &self.text.tokenizer;
        let values = py.detach(|| {
            let encode = |document: &String| self.rerank.encode(tokenizer, query, document);
            self.pooled(documents.iter().map(encode).collect())
        })?;
        array(py, &values, &[documents.len()])
    }
    fn logits<'py>(&self, py: Python<'py>, tokens: Vec<u32>) -> PyResult<Bound<'py, PyAny>> {
        let count = tokens.len();
        let logits = move |batcher: &mut Batcher| pooled::logits(batcher, &tokens);
        let values = py.detach(|| self.thread.call(logits))?;
        array(py, &values, &[count, self.vocabulary])
    }
    #[pyo3(signature = (text, *, special = false, bos = false))]
    fn tokenize(&self, py: Python<'_>, text: &str, special: bool, bos: bool) -> Vec<u32> {
        let tokenizer = &self.text.tokenizer;
        py.detach(|| tokenizer.encode(text, special, bos))
    }
    #[pyo3(signature = (tokens, *, special = false))]
    fn detokenize(&self, py: Python<'_>, tokens: Vec<u32>, special: bool) -> String {
        py.detach(|| self.text.tokenizer.decode(&tokens, special))
    }
    #[getter]
    fn context(&self) -> usize {
        self.context
    }
    #[getter]
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }
    #[getter]
    fn width(&self) -> usize {
        self.width
    }
}
