//! Finds the pre-tokeniser of the table that splits text as that of a `tokenizer.json` does.
//!
//! Patterns are compared by what they do to a text, since equal ones are written in many forms.

use super::pre::{PRE_TYPES, SplitStep};
use super::split::PreTokenizer;

/// Text that all rows of the table split differently, unless their steps are equal.
const PROBE: &str = concat!(
    "I'll say HE'S they'RE we'Ve didn't 'Tis O'Neil's \u{2019}s rock'n'roll ",
    "7 42 365 2024 31415 271828 1234567 12345678901 1.25 3,000,000 0x1F 9th 1000km ",
    "\u{663}\u{664}\u{665}\u{666} \u{bd}\u{b2} \u{2167} ",
    "camelCase HTTPServer McDonald iPhone \u{c9}cole\u{301} na\u{ef}ve \u{1c5}ungla \u{2b0}x ",
    "_snake_case __init__ foo.bar() /usr/bin/env #tag @user $5.00 50% a+b=c <tag> `code` ~x~ |y|^2 ",
    "a.b?c!d,e;f:g-h(i)j[k]l{m}n\"o\"p ...!!!??? ======= ''''''``````\"\"\"\"......!!!!!!?????? ",
    "path/\n/next //\r\n\r\n end.\n\n\nline \t\ttab\t x   y    z  \n   \n  \t\n",
    "\u{6211}\u{60f3}\u{5728}apple\u{5de5}\u{4f5c}1314151\u{5929}\u{ff5e} ",
    "\u{3042}\u{30ab}\u{30bf}\u{30ca}\u{6f22}\u{5b57}\u{ff0c}\u{3002}\u{300c}\u{5f15}\u{300d} ",
    "\u{3400}\u{20000}\u{2e80}\u{3005} \u{c548}\u{b155} \u{ac00}abc \u{1100} \u{3105}\u{3106}\u{ff01}\u{2026} ",
    "\u{e2a}\u{e27}\u{e31}\u{e2a}\u{e14}\u{e35} \u{1780}\u{17b6}\u{1793}\u{17cb}\u{178f}\u{17c2} ",
    "\u{915}\u{94d}\u{937}\u{924}\u{94d}\u{930}\u{93f}\u{92f} \u{5e9}\u{5c1}\u{5b8} \u{643}\u{62a}\u{627}\u{628}\u{60c} ",
    "\u{43d}\u{435}\u{449}\u{43e} \u{43d}\u{430} \u{411}\u{44a}\u{43b}\u{433}\u{430}\u{440}\u{441}\u{43a}\u{438} ",
    "\u{1f680} (normal) \u{1f636}\u{200d}\u{1f32b}\u{fe0f} \u{2705}\u{1f999}\u{1f999} \u{20ac}\u{a3} \u{2211}\u{2260} ",
    "<sentinel:12> IMGIMGABZ \u{1791}\u{1792} \u{ff21}\u{ff42} \u{3000}x\u{a0}y\u{2003}z \u{964} \u{6d4} ",
    "a1b2c3 x86_64 v1.2.3-rc4 \u{411}1 1\u{411} 12\u{5929}34 !important ;;foo :bar ,baz\u{301} e\u{301}1 \u{301}",
    "end \n",
);

/// Pattern of `ByteLevel` steps, GPT-2's.
pub(crate) const BYTE_LEVEL: &str = super::pre::GPT2;

/// Returns the name of the pre-tokeniser whose steps split into the matches of these patterns and
/// the gaps between them; of two that differ in it alone, the one
/// that looks up whole pieces as `ignore_merges` says. `preferred` names win among equal ones.
///
/// # Errors
/// When a pattern is no regular expression of the supported kind.
pub(crate) fn pre_type(
    steps: &[String],
    ignore_merges: bool,
    preferred: &[&str],
) -> Result<Option<&'static str>, String> {
    let own = PreTokenizer::from_patterns(steps).map_err(|error| error.to_string())?;
    let pieces = own.split(PROBE);
    let splits_alike = |name: &str| {
        let pre = PreTokenizer::new(name);
        pre.is_ok_and(|pre| pre.split(PROBE) == pieces)
    };
    let alike = PRE_TYPES.iter().filter(|row| splits_alike(row.names[0]));
    let alike: Vec<_> = alike.collect();
    let exact = alike.iter().find(|row| row.ignore_merges == ignore_merges);
    let Some(row) = exact.or(alike.first()) else {
        return Ok(None);
    };
    let named = row.names.iter().find(|name| preferred.contains(name));
    Ok(Some(named.unwrap_or(&row.names[0])))
}

/// Patterns of a named pre-tokeniser; `None` if one of its steps is no pattern.
pub(crate) fn patterns(name: &str) -> Option<Vec<String>> {
    let row = PRE_TYPES.iter().find(|row| row.names.contains(&name))?;
    let pattern = |step: &SplitStep| match step {
        SplitStep::Match(pattern) => Some((*pattern).to_owned()),
        SplitStep::Thousands(_) => None,
    };
    row.steps.iter().map(pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_patterns() {
        for row in PRE_TYPES {
            let Some(steps) = patterns(row.names[0]) else {
                continue;
            };
            let found = pre_type(&steps, row.ignore_merges, &[]).unwrap();
            // The first of several rows that split alike.
            let found = found.unwrap_or_else(|| panic!("{:?}", row.names));
            let other = PRE_TYPES.iter().find(|other| other.names.contains(&found));
            let pieces = |name: &str| PreTokenizer::new(name).unwrap().split(PROBE);
            assert_eq!(pieces(found), pieces(row.names[0]), "{:?}", row.names);
            let ignores = other.map(|other| other.ignore_merges);
            assert_eq!(ignores, Some(row.ignore_merges), "{:?}", row.names);
        }
    }

    #[test]
    fn patterns_as_published_are_found() {
        let llama = concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        let found = |pattern: &str, ignore_merges, preferred: &[&str]| {
            pre_type(&[pattern.into()], ignore_merges, preferred).unwrap()
        };
        assert_eq!(found(llama, true, &[]), Some("llama-bpe"));
        assert_eq!(found(llama, false, &[]), Some("glm4"));
        assert_eq!(found(llama, false, &["dbrx"]), Some("dbrx"));
        let qwen = llama.replace(r"\p{N}{1,3}", r"\p{N}");
        assert_eq!(found(&qwen, false, &[]), Some("qwen2"));
        assert_eq!(found(r"\w+|\s+", false, &[]), None);
        assert!(pre_type(&["(".into()], false, &[]).is_err());
    }
}
