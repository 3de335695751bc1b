//! Translates llama.cpp's GBNF into llguidance's variant of Lark.
//!
//! The notations differ mainly in syntax: `name ::= …` becomes `name: …`, and a character class
//! becomes a regular expression. The caller limits the size of the grammar.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Translates a grammar into Lark.
///
/// # Errors
/// A description of the first syntax error with its line, or of a missing rule.
pub fn to_lark(text: &str) -> Result<String, String> {
    let mut parser = Parser {
        rest: text,
        line: 1,
        out: String::new(),
        defined: BTreeSet::new(),
        used: BTreeSet::new(),
    };
    parser
        .grammar()
        .map_err(|why| format!("line {}: {why}", parser.line))?;
    if !parser.defined.contains("root") {
        return Err("there is no rule `root`".into());
    }
    if let Some(name) = parser.used.difference(&parser.defined).next() {
        return Err(format!("there is no rule `{name}`"));
    }
    Ok(format!("start: r_root\n{}", parser.out))
}

/// Maximum nesting of groups.
const MAX_DEPTH: usize = 64;
/// Maximum count in a repetition.
const MAX_REPETITIONS: usize = 10_000;

struct Parser<'t> {
    rest: &'t str,
    line: usize,
    out: String,
    defined: BTreeSet<String>,
    used: BTreeSet<String>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }
    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.line += usize::from(c == '\n');
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }
    fn take(&mut self, text: &str) -> bool {
        let found = self.rest.starts_with(text);
        if found {
            self.rest = &self.rest[text.len()..];
        }
        found
    }
    /// Skips spaces and comments; also line ends if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => while self.peek().is_some_and(|c| c != '\n') && self.next().is_some() {},
                '\n' | '\r' if !lines => return,
                c if c.is_whitespace() => {
                    self.next();
                }
                _ => return,
            }
        }
    }
    /// Parses a rule's name as GBNF writes it.
    fn name(&mut self) -> Option<String> {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
            .unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }
    fn grammar(&mut self) -> Result<(), String> {
        loop {
            self.space(true);
            if self.rest.is_empty() {
                return Ok(());
            }
            let name = self.name().ok_or("a rule begins with its name")?;
            self.space(true);
            if !self.take("::=") {
                return Err(format!("`::=` is missing after `{name}`"));
            }
            if !self.defined.insert(name.clone()) {
                return Err(format!("the rule `{name}` is there twice"));
            }
            let body = self.alternatives(0)?;
            // Writing to a String does not fail.
            let _ = writeln!(self.out, "{}: {body}", lark_name(&name));
            self.space(false);
            if self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                return Err(format!(
                    "`{}` is not expected here",
                    self.peek().unwrap_or_default()
                ));
            }
        }
    }
    fn alternatives(&mut self, depth: usize) -> Result<String, String> {
        if depth > MAX_DEPTH {
            return Err(format!(
                "there are more than {MAX_DEPTH} groups within each other"
            ));
        }
        let mut out = self.sequence(depth)?;
        loop {
            self.space(depth > 0);
            if depth == 0 && !self.continues() || !self.take("|") {
                return Ok(out);
            }
            self.space(true);
            out += " | ";
            out += &self.sequence(depth)?;
        }
    }
    /// At the end of a line: returns whether the next line continues the rule with an alternative,
    /// and skips to it.
    fn continues(&mut self) -> bool {
        let (rest, line) = (self.rest, self.line);
        self.space(true);
        if self.peek() == Some('|') {
            return true;
        }
        (self.rest, self.line) = (rest, line);
        false
    }
    fn sequence(&mut self, depth: usize) -> Result<String, String> {
        let mut terms = Vec::new();
        self.space(depth > 0 || terms.is_empty());
        while let Some(term) = self.term(depth)? {
            let suffix = self.suffix()?;
            terms.push(term + &suffix);
            self.space(depth > 0);
        }
        Ok(if terms.is_empty() {
            "\"\"".into()
        } else {
            terms.join(" ")
        })
    }
    fn term(&mut self, depth: usize) -> Result<Option<String>, String> {
        Ok(match self.peek() {
            Some('"') => Some(self.literal()?),
            Some('[') => Some(self.class()?),
            Some('.') => {
                self.next();
                Some("/(.|\\n)/".into())
            }
            Some('(') => {
                self.next();
                let inner = self.alternatives(depth + 1)?;
                if !self.take(")") {
                    return Err("a group is not closed".into());
                }
                Some(format!("({inner})"))
            }
            Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                let (rest, line) = (self.rest, self.line);
                let name = self.name().unwrap_or_default();
                self.space(false);
                if self.rest.starts_with("::=") {
                    // The name starts the next rule, which follows without an empty line.
                    (self.rest, self.line) = (rest, line);
                    return Ok(None);
                }
                let lark = lark_name(&name);
                self.used.insert(name);
                Some(lark)
            }
            _ => None,
        })
    }
    fn suffix(&mut self) -> Result<String, String> {
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.next();
                Ok(c.into())
            }
            Some('{') => {
                let end = self.rest.find('}').ok_or("a count is not closed")?;
                let count = self.rest[1..end].replace(' ', "");
                self.rest = &self.rest[end + 1..];
                let (least, most) = count.split_once(',').unwrap_or((&count, &count));
                let number =
                    |text: &str| text.parse::<usize>().ok().filter(|&n| n <= MAX_REPETITIONS);
                let wrong = || format!("{{{count}}} is no count up to {MAX_REPETITIONS}");
                let least = number(least).ok_or_else(wrong)?;
                let most = if most.is_empty() {
                    None
                } else {
                    Some(number(most).filter(|&m| m >= least).ok_or_else(wrong)?)
                };
                Ok(match most {
                    Some(most) => format!("{{{least},{most}}}"),
                    None => format!("{{{least},}}"),
                })
            }
            _ => Ok(String::new()),
        }
    }
    fn literal(&mut self) -> Result<String, String> {
        self.next();
        let mut text = String::new();
        loop {
            match self.character()? {
                ('"', false) => return Ok(serde_json::Value::from(text).to_string()),
                (c, _) => text.push(c),
            }
        }
    }
    /// Parses a character of a literal or a class; returns whether it was escaped.
    fn character(&mut self) -> Result<(char, bool), String> {
        let open = "a text or a class of characters is not closed";
        let c = self.next().filter(|&c| c != '\n').ok_or(open)?;
        if c != '\\' {
            return Ok((c, false));
        }
        let c = self.next().ok_or(open)?;
        let digits = match c {
            'n' => return Ok(('\n', true)),
            'r' => return Ok(('\r', true)),
            't' => return Ok(('\t', true)),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c => return Ok((c, true)),
        };
        let code = self
            .rest
            .get(..digits)
            .and_then(|hex| u32::from_str_radix(hex, 16).ok())
            .and_then(char::from_u32);
        let code = code.ok_or_else(|| format!("\\{c} needs {digits} digits of a character"))?;
        self.rest = &self.rest[digits..];
        Ok((code, true))
    }
    fn class(&mut self) -> Result<String, String> {
        self.next();
        let mut out = String::from("/[");
        if self.peek() == Some('^') {
            self.next();
            out.push('^');
        }
        let empty = out.len();
        loop {
            match self.character()? {
                (']', false) if out.len() > empty => return Ok(out + "]/"),
                (']', false) => return Err("a class has no characters".into()),
                ('-', false) if out.len() > empty && self.peek() != Some(']') => out.push('-'),
                // Written as its code point, so that no character has a special meaning in the
                // regular expression.
                (c, _) => {
                    let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
                }
            }
        }
    }
}

/// Returns a rule's name in Lark, which allows only small letters: hyphens and capitals are escaped
/// injectively.
fn lark_name(name: &str) -> String {
    let mut out = String::from("r_");
    for c in name.chars() {
        match c {
            '-' => out.push_str("_h"),
            '_' => out.push_str("__"),
            c if c.is_ascii_uppercase() => {
                out.push_str("_u");
                out.push(c.to_ascii_lowercase());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::to_lark;

    #[test]
    fn rules_literals_classes_and_counts() {
        let text = "# An answer\nroot ::= yes-no | Number{2,3}\n  | \"\\\"x\\\\\\n\"\nyes-no ::= (\"yes\" | # or\n  \"no\")\nNumber ::= [^0-9\\]-]+ .? [a-z]{2} \"\"\n";
        let lark = "start: r_root\nr_root: r_yes_hno | r__unumber{2,3} | \"\\\"x\\\\\\n\"\nr_yes_hno: (\"yes\" | \"no\")\n\
            r__unumber: /[^\\u{30}-\\u{39}\\u{5d}\\u{2d}]/+ /(.|\\n)/? /[\\u{61}-\\u{7a}]/{2,2} \"\"\n";
        assert_eq!(to_lark(text).unwrap(), lark);
    }

    #[test]
    fn names_may_begin_with_digits() {
        let lark = to_lark("root ::= 1a\n1a ::= \"x\"").unwrap();
        assert_eq!(lark, "start: r_root\nr_root: r_1a\nr_1a: \"x\"\n");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, why) in [
            ("", "there is no rule `root`"),
            ("root ::= other", "there is no rule `other`"),
            (
                "root ::= \"a\"\nroot ::= \"b\"",
                "line 2: the rule `root` is there twice",
            ),
            ("root = \"a\"", "line 1: `::=` is missing after `root`"),
            (
                "root ::= \"a",
                "line 1: a text or a class of characters is not closed",
            ),
            ("root ::= []", "line 1: a class has no characters"),
            ("root ::= (\"a\"", "line 1: a group is not closed"),
            (
                "root ::= \"a\"{5,2}",
                "line 1: {5,2} is no count up to 10000",
            ),
            ("root ::= \"a\" )", "line 1: `)` is not expected here"),
        ] {
            assert_eq!(to_lark(text).unwrap_err(), why, "{text}");
        }
        assert!(
            to_lark(&format!("root ::= {}", "(".repeat(100_000)))
                .unwrap_err()
                .contains("groups")
        );
    }
}
