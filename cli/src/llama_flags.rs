//! Flags of llama.cpp: its short flags of several letters, which clap lacks, and its flags that
//! have no effect here.

use clap::{Args, Command, ValueEnum};
use std::ffi::{OsStr, OsString};

/// Short flags of several letters, and the long flags that replace them.
const SHORT: &[(&str, &str)] = &[
    ("-ngl", "--gpu-layers"),
    ("-fa", "--flash-attn"),
    ("-ot", "--override-tensor"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-cmoe", "--cpu-moe"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-np", "--parallel"),
    ("-sys", "--system"),
    ("-ub", "--ubatch-size"),
    ("-tb", "--threads-batch"),
    ("-cb", "--cont-batching"),
    ("-pg", "--prompt-gen"),
];

/// Flags with a value of free text, which may look like a flag.
const TEXT: &[&str] = &["-p", "--prompt", "--system", "--system-prompt", "-sys"];

/// Flag with an optional value, and the values that it takes.
const FLASH: (&str, &[&str]) = (
    "--flash-attn",
    &["on", "off", "auto", "1", "0", "true", "false"],
);

/// Replaces llama.cpp's short flags by long ones where the subcommand has these.
///
/// Only whole arguments count, not values of text flags and no arguments after `--`.
pub fn translate(
    arguments: impl IntoIterator<Item = OsString>,
    program: &Command,
) -> Vec<OsString> {
    let mut arguments = arguments.into_iter().peekable();
    let mut out: Vec<OsString> = arguments.by_ref().take(2).collect();
    let name = out.get(1).and_then(|name| name.to_str());
    let Some(command) = name.and_then(|name| program.find_subcommand(name)) else {
        out.extend(arguments);
        return out;
    };
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            out.push(argument);
            break;
        }
        let (text, long) = (is_one_of(&argument, TEXT), long(&argument, command));
        match long {
            Some(long) if long == FLASH.0 => {
                let value = arguments.next_if(|value| is_one_of(value, FLASH.1));
                let value = value.unwrap_or_else(|| "on".into());
                out.push(
                    [OsStr::new(long), OsStr::new("="), &value]
                        .into_iter()
                        .collect(),
                );
            }
            Some(long) => out.push(long.into()),
            None => out.push(argument),
        }
        if text {
            out.extend(arguments.next());
        }
    }
    out.extend(arguments);
    out
}

fn is_one_of(argument: &OsStr, list: &[&str]) -> bool {
    list.iter().any(|one| argument == *one)
}

/// The long flag of an argument in the table, if the subcommand has it.
fn long(argument: &OsStr, command: &Command) -> Option<&'static str> {
    let row = SHORT
        .iter()
        .find(|row| argument == row.0 || row.1 == FLASH.0 && argument == row.1)?;
    let has = |arg: &clap::Arg| {
        let name = row.1.trim_start_matches('-');
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    };
    command.get_arguments().any(has).then_some(row.1)
}

/// State of llama.cpp's flash attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FlashAttention {
    #[value(aliases = ["1", "true"])]
    On,
    #[value(aliases = ["0", "false"])]
    Off,
    Auto,
}

/// Flags that are accepted and have no effect.
#[derive(Args, Clone, Debug, Default)]
pub struct IgnoredFlags {
    #[arg(long, hide = true, require_equals = true, value_name = "STATE")]
    flash_attn: Option<FlashAttention>,
    #[arg(short, long, hide = true, value_name = "N")]
    batch_size: Option<u32>,
    #[arg(long, hide = true, value_name = "N")]
    ubatch_size: Option<u32>,
    #[arg(long, hide = true, value_name = "N")]
    threads_batch: Option<u32>,
    #[arg(long, hide = true)]
    no_mmap: bool,
    #[arg(long, hide = true)]
    mmap: bool,
    #[arg(long, hide = true)]
    mlock: bool,
    #[arg(long, hide = true)]
    jinja: bool,
    #[arg(long, hide = true)]
    cont_batching: bool,
    #[arg(long, hide = true)]
    no_warmup: bool,
}

impl IgnoredFlags {
    /// Reports on standard error each given flag that asks for something else than is done.
    pub fn note(&self) {
        const LOADED: &str = "weights are read into memory when the model is loaded";
        const CHUNKS: &str = "prefill chunks are sized for the device";
        let off = self.flash_attn == Some(FlashAttention::Off);
        for (given, flag, why) in [
            (off, "--flash-attn off", "attention is always fused"),
            (self.batch_size.is_some(), "--batch-size", CHUNKS),
            (self.ubatch_size.is_some(), "--ubatch-size", CHUNKS),
            (
                self.threads_batch.is_some(),
                "--threads-batch",
                "prefill uses --threads too",
            ),
            (self.no_mmap, "--no-mmap", LOADED),
            (self.mmap, "--mmap", LOADED),
            (self.mlock, "--mlock", LOADED),
        ] {
            if given {
                say!("note: {flag} is ignored: {why}");
            }
        }
    }
}

/// Flags of llama.cpp, vLLM and Ollama that have no counterpart of a similar name, and the flag to
/// suggest for each.
const NEAR: &[(&str, &str)] = &[
    ("--max-tokens", "--n-predict"),
    ("--num-predict", "--n-predict"),
    ("--max-new-tokens", "--n-predict"),
    ("--max-model-len", "--ctx"),
    ("--max-seq-len", "--ctx"),
    ("--num-ctx", "--ctx"),
    ("--context", "--ctx"),
    ("--ctx-length", "--ctx"),
    ("--context-length", "--ctx"),
    ("--kv-cache-dtype", "--kv"),
    ("--cache-type", "--kv"),
    ("--max-num-seqs", "--parallel"),
    ("--n-parallel", "--parallel"),
    ("--served-model-name", "--name"),
    ("--num-gpu-layers", "--gpu-layers"),
    ("--num-gpu", "--gpu-layers"),
    ("--gpu", "--device"),
    ("--nothink", "--no-think"),
    ("--hf", "--hf-repo"),
    ("--repo", "--hf-repo"),
    ("--tokens", "--n-predict"),
];

/// Former names of flags, which clap may suggest, and their names.
const FORMER: &[(&str, &str)] = &[
    ("--no", "--disable"),
    ("--drain", "--shutdown-timeout"),
    ("--keep", "--host-cache-mb"),
    ("--models-loaded", "--max-loaded-models"),
];

/// The flag of `command` to suggest for an unknown one, instead of clap's suggestion.
pub fn nearest(unknown: &str, suggested: Option<&str>, command: &Command) -> Option<&'static str> {
    let name = unknown.split('=').next().unwrap_or(unknown);
    let former = suggested.and_then(|flag| FORMER.iter().find(|row| row.0 == flag));
    let long = NEAR.iter().find(|row| row.0 == name).or(former)?.1;
    let has = |arg: &clap::Arg| {
        let bare = long.trim_start_matches('-');
        arg.get_long() == Some(bare) || arg.get_all_aliases().unwrap_or_default().contains(&bare)
    };
    command.get_arguments().any(has).then_some(long)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn translated(arguments: &str) -> String {
        let all = std::iter::once("gristmill")
            .chain(arguments.split(' '))
            .map(OsString::from);
        let out = translate(all, &crate::Arguments::command());
        out.iter()
            .skip(1)
            .map(|a| a.to_str().unwrap())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn short_flags_of_several_letters_become_long() {
        for (arguments, expected) in [
            (
                "run -m x -ngl 99 -ctk q8_0",
                "run -m x --gpu-layers 99 --cache-type-k q8_0",
            ),
            (
                "run -ctv f16 -hf a/b:q4_0",
                "run --cache-type-v f16 --hf-repo a/b:q4_0",
            ),
            (
                "chat -sys Hi -b 512 -ub 64",
                "chat --system Hi -b 512 --ubatch-size 64",
            ),
            (
                "serve x -np 4 -tb 2 -cb",
                "serve x --parallel 4 --threads-batch 2 --cont-batching",
            ),
            ("bench x -pg 8,8 -p 8", "bench x --prompt-gen 8,8 -p 8"),
        ] {
            assert_eq!(translated(arguments), expected);
        }
    }

    #[test]
    fn the_value_of_flash_attention_may_be_missing() {
        for (arguments, expected) in [
            ("run -fa demo", "run --flash-attn=on demo"),
            ("run -fa off demo", "run --flash-attn=off demo"),
            ("run demo -fa", "run demo --flash-attn=on"),
            ("run --flash-attn auto demo", "run --flash-attn=auto demo"),
        ] {
            assert_eq!(translated(arguments), expected);
        }
    }

    #[test]
    fn text_and_other_commands_stay() {
        for same in [
            "run -p -ngl",
            "run demo -- -ngl",
            "run demo -ngl99 -nglx",
            "tokenize demo -ngl",
            "run -np 4",
            "-ngl 4",
            "list",
        ] {
            assert_eq!(translated(same), same);
        }
    }

    #[test]
    fn suggestions_are_flags_of_the_command() {
        let program = crate::Arguments::command();
        let of = |command: &str, flag, suggested| {
            nearest(flag, suggested, program.find_subcommand(command).unwrap())
        };
        assert_eq!(
            of("run", "--max-model-len=4096", Some("--model")),
            Some("--ctx")
        );
        assert_eq!(of("serve", "--max-num-seqs", None), Some("--parallel"));
        assert_eq!(
            of("serve", "--drains", Some("--drain")),
            Some("--shutdown-timeout")
        );
        assert_eq!(
            (
                of("run", "--max-num-seqs", None),
                of("run", "--none-such", None)
            ),
            (None, None)
        );
    }
}
