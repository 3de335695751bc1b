//! The commands: one file and one line of the table each.

use crate::failure::Result;
use clap::Subcommand;

/// Declares the modules and the enum from one table.
macro_rules! commands { ($($(#[$about:meta])* $module:ident $Name:ident $Args:ident;)*) => {
    $(mod $module;)*

    #[derive(Subcommand)]
    pub enum Command { $($(#[$about])* $Name($module::$Args)),* }

    impl Command {
        /// Runs the command with its flags.
        pub fn run(self) -> Result {
            match self { $(Command::$Name(options) => $module::run(options)),* }
        }
    }
} }

commands! {
    /// Complete a prompt; only the completion goes to standard output
    run Run RunArgs;
    /// Chat with a model in the terminal
    chat Chat ChatArgs;
    /// Start an HTTP server: OpenAI, Anthropic and Ollama APIs and a chat page
    serve Serve ServeArgs;
    /// Download a model
    pull Pull PullArgs;
    /// List downloaded models and short names
    #[command(visible_alias = "ls")]
    list List ListArgs;
    /// Remove downloaded models
    rm Rm RmArgs;
    /// List the models that a running server has loaded
    ps Ps PsArgs;
    /// Benchmark prefill and decode
    bench Bench BenchArgs;
    /// Autotune kernel parameters and plans for this machine
    tune Tune TuneArgs;
    /// Profile a step kernel by kernel
    profile Profile ProfileArgs;
    /// Show the compiled kernels of a model and the decisions that led to them
    kernels Kernels KernelsArgs;
    /// Show the metadata, tensors and memory needs of a model
    #[command(visible_alias = "show")]
    inspect Inspect InspectArgs;
    /// List devices, and why others are unavailable
    devices Devices DevicesArgs;
    /// Check the results and the speed of a device, as a report
    doctor Doctor DoctorArgs;
    /// Tokenise a text: token ids on one line
    tokenize Tokenize TokenizeArgs;
    /// Train an adapter on chats
    train Train TrainArgs;
    /// Add adapters to the weights of a model, and write it
    merge Merge MergeArgs;
    /// Write a checkpoint of transformers as a GGUF file
    convert Convert ConvertArgs;
    /// Write a model with its matrices in a type of fewer bits
    #[command(visible_alias = "quantise")]
    quantize Quantize QuantizeArgs;
    /// Measure which columns of a model's matrices matter, for quantize
    imatrix Imatrix ImatrixArgs;
    /// Write the logits of given tokens to a .npy file
    logits Logits LogitsArgs;
    /// Compute the perplexity of a text
    perplexity Perplexity PerplexityArgs;
    /// Write a model with the shape of a real one and random weights
    synth Synth SynthArgs;
    /// Generate shell completions
    completions Completions CompletionsArgs;
    /// Show or install the manual pages
    man Man ManArgs;
}
