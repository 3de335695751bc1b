//! Fill-in-the-middle (FIM) prompts.

use gristmill_llm::tokenizer::{TokenKind, Tokenizer};

/// FIM tokens of a family of models.
struct FimFamily {
    /// Tokens before the prefix, before the suffix and before the middle; no text for none.
    tokens: [&'static str; 3],
    /// True if the suffix comes before the prefix.
    suffix_first: bool,
    /// True if vocabularies list these tokens as normal ones.
    normal: bool,
}

const fn family(tokens: [&'static str; 3]) -> FimFamily {
    FimFamily {
        tokens,
        suffix_first: false,
        normal: false,
    }
}

/// Families by their tokens. Sources: model cards, and llama.cpp's `llama-vocab.cpp`.
const FAMILIES: &[FimFamily] = &[
    // DeepSeek.
    family(["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"]),
    // Qwen-Coder, CodeGemma.
    family(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]),
    // StarCoder, Granite.
    family(["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]),
    // SantaCoder, Refact, Granite.
    family(["<fim-prefix>", "<fim-suffix>", "<fim-middle>"]),
    // GLM.
    family(["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"]),
    // CodeLlama; as normal tokens they have a space.
    family(["▁<PRE>", "▁<SUF>", "▁<MID>"]),
    FimFamily {
        normal: true,
        ..family([" <PRE>", " <SUF>", " <MID>"])
    },
    family(["<PRE>", "<SUF>", "<MID>"]),
    // Codestral.
    FimFamily {
        suffix_first: true,
        ..family(["[PREFIX]", "[SUFFIX]", ""])
    },
];

/// Tokens before a repository's name.
const REPOSITORY: &[&str] = &[
    "<|repo_name|>",
    "<|fim_repo|>",
    "<fim-repo>",
    "<fim_repo>",
    "<repo_name>",
    "<reponame>",
    "<REPO>",
];

/// Tokens before a file's name.
const FILE: &[&str] = &[
    "<|file_sep|>",
    "<|file_separator|>",
    "<file_sep>",
    "<filename>",
];

/// Name of the repository and of the file in prompts with other files, as in llama.cpp.
const NAMES: [&str; 2] = ["myproject", "filename"];

/// Bytes per token beyond which a text certainly has more tokens than that.
const MAX_TOKEN_BYTES: usize = 64;

/// FIM tokens of a model.
pub struct Fim {
    prefix: u32,
    suffix: u32,
    /// Token after prefix and suffix, if the family has one.
    middle: Option<u32>,
    suffix_first: bool,
    repository: Option<u32>,
    file: Option<u32>,
}

impl Fim {
    /// Returns the FIM tokens of a vocabulary, if it has any.
    pub fn new(tokenizer: &Tokenizer) -> Option<Fim> {
        let id = |text: &str, normal: bool| {
            let id = tokenizer.token_id(text)?;
            let kind = tokenizer.token_kind(id)?;
            (normal || kind != TokenKind::Normal).then_some(id)
        };
        let first = |texts: &[&str]| texts.iter().find_map(|text| id(text, false));
        FAMILIES.iter().find_map(|family| {
            let [prefix, suffix, middle] = family.tokens;
            Some(Fim {
                prefix: id(prefix, family.normal)?,
                suffix: id(suffix, family.normal)?,
                middle: match middle {
                    "" => None,
                    text => Some(id(text, family.normal)?),
                },
                suffix_first: family.suffix_first,
                repository: first(REPOSITORY),
                file: first(FILE),
            })
        })
    }
    /// Returns the prompt for the text between two others.
    pub fn tokens(&self, tokenizer: &Tokenizer, before: &str, after: &str) -> Vec<u32> {
        self.tokens_with_files(tokenizer, &[], [before, after], 0)
    }
    /// Returns the prompt for the text between two others, after other files of the repository
    /// (names and texts).
    ///
    /// The files' beginnings are cut off so that the prompt has at most `most` tokens, as in
    /// llama.cpp.
    pub fn tokens_with_files(
        &self,
        tokenizer: &Tokenizer,
        files: &[(&str, &str)],
        [before, after]: [&str; 2],
        most: usize,
    ) -> Vec<u32> {
        let text = |text: &str| tokenizer.encode(text, false, false);
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let prefix = [vec![self.prefix], text(before)].concat();
        let suffix = [vec![self.suffix], text(after)].concat();
        let parts = match self.suffix_first {
            true => [suffix, prefix],
            false => [prefix, suffix],
        };
        let mut own = parts.concat();
        own.extend(self.middle);
        let room = most.saturating_sub(own.len() + usize::from(bos.is_some()));
        let mut others = self.files(tokenizer, files, room);
        others.drain(..others.len().saturating_sub(room));
        bos.into_iter().chain(others).chain(own).collect()
    }
    /// Returns the tokens of other files and of the name of the file that is completed. First files
    /// that exceed `room` tokens in any case are left out.
    fn files(&self, tokenizer: &Tokenizer, files: &[(&str, &str)], room: usize) -> Vec<u32> {
        let mut bytes = room.saturating_mul(MAX_TOKEN_BYTES);
        let fits = |file: &&(&str, &str)| {
            let fits = bytes > 0;
            bytes = bytes.saturating_sub(file.1.len());
            fits
        };
        let kept = files.iter().rev().take_while(fits).count();
        let files = &files[files.len() - kept..];
        if files.is_empty() {
            return Vec::new();
        }
        let mut tokens = Vec::new();
        let mut push = |mark: Option<u32>, text: &str| {
            tokens.extend(mark);
            tokens.extend(tokenizer.encode(text, false, false));
        };
        let [repository, file] = NAMES;
        if self.repository.is_some() {
            push(self.repository, &format!("{repository}\n"));
        }
        for (name, text) in files {
            match self.file {
                Some(_) => push(self.file, &format!("{name}\n{text}\n")),
                None => push(None, &format!("--- {name} ---\n{text}\n\n")),
            }
        }
        if self.file.is_some() {
            push(self.file, &format!("{file}\n"));
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_llm::tokenizer::TokenizerSpec;

    /// Tokens of a prompt with these special tokens, after the letters a, b and others.
    fn prompt(specials: &[&str], files: &[(&str, &str)], most: usize) -> Option<String> {
        let letters: Vec<String> = ('!'..='~').chain(['Ċ']).map(String::from).collect();
        let kinds = [vec![1; letters.len()], vec![3; specials.len()]].concat();
        let texts = letters
            .iter()
            .map(String::as_str)
            .chain(specials.iter().copied());
        let spec = TokenizerSpec {
            model: "gpt2".into(),
            pre: "qwen2".into(),
            tokens: texts.map(|text| text.as_bytes().to_vec()).collect(),
            token_types: Some(kinds),
            ..TokenizerSpec::default()
        };
        let tokenizer = Tokenizer::new(spec).unwrap();
        let tokens = Fim::new(&tokenizer)?.tokens_with_files(&tokenizer, files, ["a", "b"], most);
        Some(tokenizer.decode(&tokens, true))
    }

    #[test]
    fn prompts_have_the_order_of_their_family() {
        let qwen = [
            "<|fim_prefix|>",
            "<|fim_middle|>",
            "<|fim_suffix|>",
            "<|repo_name|>",
            "<|file_sep|>",
        ];
        let plain = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>";
        assert_eq!(prompt(&qwen, &[], 0).unwrap(), plain);
        let files = "<|repo_name|>myproject\n<|file_sep|>x.c\ny\n<|file_sep|>filename\n";
        assert_eq!(
            prompt(&qwen, &[("x.c", "y")], 99).unwrap(),
            format!("{files}{plain}")
        );
        let cut = prompt(&qwen, &[("z", "z"), ("x.c", "y")], 16).unwrap();
        assert_eq!(cut, format!("\n<|file_sep|>filename\n{plain}"));
        let codestral = prompt(&["[SUFFIX]", "[PREFIX]"], &[], 0);
        assert_eq!(codestral.unwrap(), "[SUFFIX]b[PREFIX]a");
        assert_eq!(prompt(&["<fim_prefix>"], &[], 0), None);
    }
}
