//! Minimal Rust lexer that separates code from comments, strings, attributes and tests.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenKind {
    Ident,
    Lifetime,
    Number,
    /// String, byte string or C string literal, raw or not, with its quotes.
    Text,
    /// Character or byte literal.
    Char,
    Punct,
}

/// A token that is not a comment.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    pub kind: TokenKind,
    pub start: usize,
    pub end: usize,
    /// Line number, from 1.
    pub line: usize,
    /// Whether the token is inside `#[…]`.
    pub attribute: bool,
    /// Whether the token is inside an item under `#[cfg(test)]` or `#[test]`.
    pub test: bool,
}

/// Tokens of a file, and its `#[cfg(test)]` modules that have files of their own.
pub struct Lexed {
    pub tokens: Vec<Token>,
    pub test_modules: Vec<String>,
}

/// Splits a file into tokens. Never fails: text that is
/// not Rust yields tokens that no check matches.
pub fn lex(text: &str) -> Lexed {
    let mut tokens = tokens(text);
    let mut test_modules = vec![];
    mark(text, &mut tokens, &mut test_modules);
    Lexed { tokens, test_modules }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut out: Vec<Token> = vec![];
    let (mut at, mut line) = (0, 1);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let (kind, len) = if c.is_whitespace() {
            (None, c.len_utf8())
        } else if rest.starts_with("//") {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (None, block_comment(rest))
        } else if let Some(len) = string(rest) {
            (Some(TokenKind::Text), len)
        } else if let Some(len) = character(rest) {
            (Some(TokenKind::Char), len)
        } else if c == '\'' {
            (Some(TokenKind::Lifetime), 1 + word(&rest[1..]))
        } else if let Some(raw) = rest.strip_prefix("r#").filter(|r| word(r) > 0) {
            (Some(TokenKind::Ident), 2 + word(raw))
        } else if c.is_ascii_digit() {
            (Some(TokenKind::Number), number(rest))
        } else if word(rest) > 0 {
            (Some(TokenKind::Ident), word(rest))
        } else {
            (Some(TokenKind::Punct), c.len_utf8())
        };
        if let Some(kind) = kind {
            out.push(Token { kind, start: at, end: at + len, line, attribute: false, test: false });
        }
        line += rest[..len].matches('\n').count();
        at += len;
    }
    out
}

/// Returns the length in bytes of the identifier at the start, digits included.
fn word(text: &str) -> usize {
    text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())
}

fn number(text: &str) -> usize {
    let whole = word(text);
    match text[whole..].strip_prefix('.') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => whole + 1 + word(rest),
        _ => whole,
    }
}

/// Returns the length of a block comment, nested comments included.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn string(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|p| {
        let rest = text.strip_prefix(p).map(|rest| if p.ends_with('r') { rest.trim_start_matches('#') } else { rest });
        rest.is_some_and(|rest| rest.starts_with('"'))
    })?;
    let body = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        let close = format!("\"{}", "#".repeat(hashes));
        let inner = &body[hashes + 1..];
        return Some(inner.find(&close).map_or(text.len(), |end| prefix.len() + hashes + 1 + end + close.len()));
    }
    Some(quoted(body, '"').map_or(text.len(), |len| prefix.len() + len))
}

/// Returns the length of a character literal (`'a'`, `'\n'`, `b'x'`); `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let prefix = usize::from(text.starts_with("b'"));
    let mut inner = text[prefix..].strip_prefix('\'')?.chars();
    match inner.next()? {
        '\\' => quoted(&text[prefix..], '\'').map(|len| prefix + len),
        c if inner.next() == Some('\'') => Some(prefix + 2 + c.len_utf8()),
        _ => None,
    }
}

/// Returns the length of the literal at the start, up to the first quote without a backslash.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

/// Sets `attribute` and `test` of the tokens, and collects modules for tests.
fn mark(text: &str, tokens: &mut [Token], test_modules: &mut Vec<String>) {
    let word = |t: &Token| &text[t.start..t.end];
    let mut at = 0;
    while at < tokens.len() {
        let inner = tokens.get(at + 1).is_some_and(|t| word(t) == "!");
        let open = at + 1 + usize::from(inner);
        if word(&tokens[at]) != "#" || tokens.get(open).is_none_or(|t| word(t) != "[") {
            at += 1;
            continue;
        }
        let end = close(text, tokens, open);
        tokens[at..end].iter_mut().for_each(|t| t.attribute = true);
        if !is_test(text, &tokens[open + 1..end]) {
            at = end;
        } else if inner {
            // `#![cfg(test)]` applies to the whole file; only
            // other inner attributes may precede it.
            tokens.iter_mut().for_each(|t| t.test = true);
            at = end;
        } else {
            let item = item_end(text, tokens, end);
            // Continue at the item rather than after it, since its own attributes need marking too.
            tokens[at..item].iter_mut().for_each(|t| t.test = true);
            let body: Vec<&str> = tokens[end..item].iter().map(word).collect();
            if let [.., "mod", name, ";"] = body[..] {
                test_modules.push(name.to_owned());
            }
            at = end;
        }
    }
}

/// Whether the tokens inside an attribute make its item
/// a test: `test`, `tokio::test`, `cfg(test)`, `cfg(any(test, …))`.
fn is_test(text: &str, attribute: &[Token]) -> bool {
    let words: Vec<&str> = attribute.iter().map(|t| &text[t.start..t.end]).collect();
    match words[..] {
        ["cfg", ..] => words.contains(&"test") && !words.contains(&"not"),
        ["test", "]"] | [.., ":", "test", "]"] => true,
        _ => false,
    }
}

/// Returns the index after the bracket that closes the one at `open`.
pub fn close(text: &str, tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match &text[token.start..token.end] {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

const ITEMS: &[&str] = &[
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "macro_rules",
    "mod",
    "static",
    "struct",
    "trait",
    "type",
    "union",
    "unsafe",
    "use",
];

/// Returns the index after the item, field or variant at `from`, which may have further attributes.
fn item_end(text: &str, tokens: &[Token], from: usize) -> usize {
    let word = |at: usize| tokens.get(at).map_or("", |t| &text[t.start..t.end]);
    let mut at = from;
    while word(at) == "#" && word(at + 1) == "[" {
        at = close(text, tokens, at + 1);
    }
    // A comma ends a field or a variant, but also separates the parameters of a generic function.
    if word(at) == "pub" {
        at += 1;
        if word(at) == "(" {
            at = close(text, tokens, at);
        }
    }
    let item = ITEMS.contains(&word(at));
    while at < tokens.len() {
        match word(at) {
            "{" => return close(text, tokens, at),
            "(" | "[" => at = close(text, tokens, at),
            ";" => return at + 1,
            "," if !item => return at + 1,
            "}" => return at,
            _ => at += 1,
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        lex(text).tokens.iter().map(|t| &text[t.start..t.end]).collect()
    }

    fn shipped(text: &str) -> Vec<&str> {
        lex(text).tokens.iter().filter(|t| !t.test).map(|t| &text[t.start..t.end]).collect()
    }

    #[test]
    fn comments_vanish() {
        assert_eq!(words("a // b\n/* c /* d */ e */ f /// g"), ["a", "f"]);
        assert_eq!(words("\"// not a comment\" x"), ["\"// not a comment\"", "x"]);
    }

    #[test]
    fn strings_of_every_kind() {
        assert_eq!(words(r#"x "a\"b" b"c" c"d" y"#), ["x", r#""a\"b""#, "b\"c\"", "c\"d\"", "y"]);
        assert_eq!(words("r\"a\\\" r##\"b\"# \"## br#\"c\"# z"), ["r\"a\\\"", "r##\"b\"# \"##", "br#\"c\"#", "z"]);
    }

    #[test]
    fn characters_are_not_lifetimes() {
        let kinds: Vec<TokenKind> = lex(r"'a' '\'' 'a b'\\' 'é' '_ r#type").tokens.iter().map(|t| t.kind).collect();
        use TokenKind::{Char, Ident, Lifetime};
        assert_eq!(kinds, [Char, Char, Lifetime, Char, Char, Lifetime, Ident]);
    }

    #[test]
    fn numbers_and_ranges() {
        assert_eq!(words("0..n 1.5f32 0xff_u8 t.0.1"), ["0", ".", ".", "n", "1.5f32", "0xff_u8", "t", ".", "0.1"]);
    }

    #[test]
    fn lines_count_through_strings() {
        let text = "a\n\"x\ny\"\n/* \n */ b";
        assert_eq!(lex(text).tokens.iter().map(|t| t.line).collect::<Vec<_>>(), [1, 2, 5]);
    }

    #[test]
    fn test_items_are_marked() {
        assert_eq!(
            shipped("fn a() {} #[cfg(test)] mod tests { fn b() { {} } } c"),
            ["fn", "a", "(", ")", "{", "}", "c"]
        );
        assert_eq!(shipped("#[test] #[should_panic] fn f<A, B>(a: A) { x; } y"), ["y"]);
        assert_eq!(shipped("#[tokio::test] async fn f() {} y"), ["y"]);
        assert_eq!(
            shipped("struct S { #[cfg(test)] pub(crate) a: Vec<u8>, b: u8 }"),
            ["struct", "S", "{", "b", ":", "u8", "}"]
        );
        assert_eq!(shipped("#[cfg(any(test, feature = \"x\"))] use a::b; y"), ["y"]);
        assert!(shipped("#[cfg(not(test))] fn f() {}").contains(&"fn"));
        assert!(shipped("#[expect(dead_code, reason = \"test\")] fn f() {}").contains(&"fn"));
        assert!(shipped("#![cfg(test)] fn f() {}").is_empty());
    }

    #[test]
    fn test_modules_in_their_own_files_are_named() {
        assert_eq!(lex("mod a; #[cfg(test)] mod b; #[cfg(test)] mod c {}").test_modules, ["b"]);
    }

    #[test]
    fn text_that_is_not_rust_does_no_harm() {
        for text in ["\"open", "r#\"open", "/* open", "'", "b'", "#[", "#[cfg(test)]", "} ) ]", "é'", "r#"] {
            lex(text);
        }
    }
}
