//! Prompts of rerankers: a query and a document.

use crate::gguf::Metadata;
use crate::tokenizer::Tokenizer;

/// Form in which a reranker reads a query and a document.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RerankPrompt {
    /// Parts of the file's template; empty without one.
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    Query,
    Document,
}

impl RerankPrompt {
    /// Reads the form of a file: its template `tokenizer.chat_template.rerank`, if it has one.
    pub fn read(metadata: &Metadata) -> RerankPrompt {
        let template = metadata.str("tokenizer.chat_template.rerank");
        let template = template.unwrap_or(None).unwrap_or_default();
        RerankPrompt::parse(template)
    }
    /// Parses a template with the placeholders `{query}` and `{document}`.
    pub fn parse(template: &str) -> RerankPrompt {
        const PLACES: [(&str, Part); 2] =
            [("{query}", Part::Query), ("{document}", Part::Document)];
        let (mut parts, mut rest) = (Vec::new(), template);
        let next = |rest: &str| {
            let found = PLACES
                .iter()
                .filter_map(|place| Some((rest.find(place.0)?, place)));
            found.min_by_key(|(at, _)| *at)
        };
        while let Some((at, (name, place))) = next(rest) {
            if at > 0 {
                parts.push(Part::Text(rest[..at].to_owned()));
            }
            parts.push(place.clone());
            rest = &rest[at + name.len()..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        RerankPrompt { parts }
    }
    /// Returns the bytes of a prompt's text, for a query and a document of these bytes.
    pub fn bytes(&self, query: usize, document: usize) -> usize {
        let part = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Query => query,
            Part::Document => document,
        };
        match self.parts.is_empty() {
            true => query + document,
            false => self.parts.iter().map(part).fold(0, usize::saturating_add),
        }
    }
    /// Tokenises a query and a document. Texts in them that spell special tokens are plain text.
    ///
    /// Without a template: both one after the other, each with the end-of-sequence token where the
    /// file adds one, and BOS only before the first.
    pub fn encode(&self, tokenizer: &Tokenizer, query: &str, document: &str) -> Vec<u32> {
        if self.parts.is_empty() {
            let [mut ids, second] =
                [query, document].map(|text| tokenizer.encode(text, false, true));
            let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
            let skipped = usize::from(bos.is_some() && second.first().copied() == bos);
            ids.extend(&second[skipped..]);
            return ids;
        }
        let spans = self.parts.iter().map(|part| match part {
            Part::Text(text) => (text.as_str(), true),
            Part::Query => (query, false),
            Part::Document => (document, false),
        });
        tokenizer.encode_spans(&spans.collect::<Vec<_>>(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_its_places_wherever_they_are() {
        let text = |text: &str| Part::Text(text.into());
        let all = |template| RerankPrompt::parse(template).parts;
        assert_eq!(
            all("Q: {query}\nD: {document}!"),
            [
                text("Q: "),
                Part::Query,
                text("\nD: "),
                Part::Document,
                text("!")
            ]
        );
        assert_eq!(
            all("{document}{query}{query}"),
            [Part::Document, Part::Query, Part::Query]
        );
        assert_eq!(all("{doc}"), [text("{doc}")]);
        assert!(all("").is_empty());
        assert_eq!(
            RerankPrompt::parse("Q: {query}\nD: {document}!").bytes(10, 100),
            118
        );
        assert_eq!(RerankPrompt::default().bytes(10, 100), 110);
    }
}
