//! MODEL of a command: a positional argument, `-m` or `-hf`.

use crate::failure::{Failure, Result};
use crate::model::HELP;
use clap::{Args, ValueHint};

/// MODEL as a flag.
#[derive(Args, Clone, Debug, Default)]
pub struct ModelFlags {
    /// MODEL as a flag
    #[arg(
        id = "model_flag", short = 'm', long = "model", value_name = "MODEL",
        value_hint = ValueHint::FilePath
    )]
    flag: Option<String>,
    /// -hf REPO[:QUANT]: MODEL as a repository on the Hugging Face hub
    #[arg(
        id = "hf_repo", long = "hf-repo", value_name = "REPO[:QUANT]", value_parser = hf_repo,
        conflicts_with = "model_flag"
    )]
    hf_repo: Option<String>,
}

/// Required MODEL of a command without another positional argument.
#[derive(Args, Clone, Debug)]
pub struct ModelArg {
    #[arg(
        value_hint = ValueHint::FilePath, help = HELP,
        required_unless_present_any = ["model_flag", "hf_repo"],
        conflicts_with_all = ["model_flag", "hf_repo"]
    )]
    model: Option<String>,
    #[command(flatten)]
    flags: ModelFlags,
}

impl ModelArg {
    /// The model's name as given.
    pub fn name(&self) -> Option<&str> {
        self.model.as_deref().or(self.flags.name())
    }
}

impl ModelFlags {
    /// The model's name as given by a flag.
    pub fn name(&self) -> Option<&str> {
        self.flag.as_deref().or(self.hf_repo.as_deref())
    }
    /// MODEL and the argument after it: with a flag, the first positional argument is the second.
    pub fn with_next<'a>(
        &'a self,
        model: Option<&'a str>,
        next: Option<&'a str>,
    ) -> Result<(Option<&'a str>, Option<&'a str>)> {
        match (self.name(), model, next) {
            (None, model, next) => Ok((model, next)),
            (flag, first, None) => Ok((flag, first)),
            (Some(_), _, Some(_)) => Err(Failure::usage(
                "MODEL is given twice",
                "give it with -m, with -hf or as an argument",
            )),
        }
    }
}

/// A repository in the form that other commands take.
fn hf_repo(text: &str) -> std::result::Result<String, String> {
    match text.contains('/') {
        true if text.starts_with("hf:") => Ok(text.into()),
        true => Ok(format!("hf:{text}")),
        false => Err("a repository is ORG/REPO or ORG/REPO:QUANT".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_leaves_the_arguments_to_what_follows_the_model() {
        let flags = ModelFlags {
            flag: Some("m".into()),
            hf_repo: None,
        };
        assert_eq!(
            flags.with_next(Some("text"), None).unwrap(),
            (Some("m"), Some("text"))
        );
        assert_eq!(flags.with_next(None, None).unwrap(), (Some("m"), None));
        assert!(flags.with_next(Some("a"), Some("b")).is_err());
        let none = ModelFlags::default();
        assert_eq!(
            none.with_next(Some("a"), Some("b")).unwrap(),
            (Some("a"), Some("b"))
        );
        assert_eq!(hf_repo("a/b:q4_0").unwrap(), "hf:a/b:q4_0");
        assert!(hf_repo("b").is_err());
    }
}
