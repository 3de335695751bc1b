//! The commands: a file each, and a line here.

use crate::failure::Result;
use clap::Subcommand;

/// Declares the modules and the enum from one table.
macro_rules! commands { ($($(#[$about:meta])* $module:ident $Name:ident;)*) => {
    $(mod $module;)*

    /// What to do.
    #[derive(Subcommand)]
    pub enum Command { $($(#[$about])* $Name($module::Options)),* }

    impl Command {
        /// Does it.
        pub fn run(self) -> Result {
            match self { $(Command::$Name(options) => $module::run(options)),* }
        }
    }
} }

commands! {
    /// Complete a prompt: the completion, alone, on standard output
    run Run;
    /// Hold a conversation; without MODEL, with the demo model
    chat Chat;
    /// Fetch a model by its name
    pull Pull;
    /// Show the models that are kept here, and the short names
    list List;
    /// Remove models that were fetched
    rm Rm;
    /// Serve OpenAI's interface and a chat page; without MODEL, with the demo model
    serve Serve;
    /// Measure tokens per second of prompts and of generation
    bench Bench;
    /// Try what suits this machine best, and remember it
    tune Tune;
    /// Show what a token costs, kernel by kernel
    profile Profile;
    /// Show what is compiled for a model, and why it looks so
    kernels Kernels;
    /// Show a file's metadata and tensors, and whether it can be run
    inspect Inspect;
    /// Show what there is to run on, and what is missing for the rest
    devices Devices;
    /// Check what a device computes and how fast, for a report
    doctor Doctor;
    /// Print the token ids of a text, on one line
    tokenize Tokenize;
    /// Write the logits after each of some tokens to a .npy file
    logits Logits;
    /// Measure how well a model predicts a text
    perplexity Perplexity;
    /// Write a model of real shape with random weights
    synth Synth;
    /// Print what a shell needs to complete commands and flags
    completions Completions;
    /// Print the manual page
    man Man;
}
