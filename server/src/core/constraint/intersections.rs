//! Bounds the intersections and complements of regular expressions in a client's Lark grammar.
//!
//! A step of an intersection takes time that grows with the product of its operands' branches, and
//! cannot be interrupted. A lexeme may reach it only in the middle of an answer, so a check of the
//! grammar's beginning does not find it: the product is bounded by the grammar's text.

use std::collections::BTreeMap;

/// Maximum product of the weights of the operands that are intersected. The grammars that ran for
/// more than 15 s are far above it; it was not calibrated otherwise.
const MAX_PRODUCT: f64 = 1e5;
/// Maximum depth of terminals within terminals; it also ends terminals that name each other.
const MAX_DEPTH: usize = 32;

/// Branches and operators of a terminal, with those of the terminals that it names.
#[derive(Clone, Copy, Default)]
struct Weight {
    /// Alternatives, options and repeats; a counted repeat counts as its maximum.
    branches: f64,
    /// Number of intersections (`&`) and complements (`~`); a float, as terminals that name others
    /// twice overflow an integer.
    operators: f64,
    /// Depth of the terminals that it names; the same from whichever terminal the walk began.
    depth: usize,
}

/// Checks the intersections of a grammar.
///
/// # Errors
/// When one of its terminals may take too long.
pub fn check(text: &str) -> Result<(), String> {
    if !text.contains(['&', '~']) {
        return Ok(());
    }
    let definitions = definitions(text);
    let mut known = BTreeMap::new();
    for name in definitions.keys() {
        let Weight {
            branches,
            operators,
            ..
        } = weigh(name, &definitions, &mut known, 0)?;
        // The product of operands with a given sum is largest if they are equal.
        let operands = operators + 1.0;
        if operators > 0.0 && (branches / operands).max(1.0).powf(operands) > MAX_PRODUCT {
            return Err(format!(
                "the terminal {name} has {operators} operators `&` and `~` over expressions with \
                 {branches} alternatives and repeats; use fewer or shorter ones"
            ));
        }
    }
    Ok(())
}

/// Returns the bodies of a grammar's rules and terminals by name.
fn definitions(text: &str) -> BTreeMap<&str, String> {
    let mut definitions: BTreeMap<&str, String> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        let head = line
            .split_once(':')
            .map(|(head, body)| (head.trim(), body))
            .and_then(|(head, body)| Some((head.split(['[', '.', '{']).next()?.trim(), body)))
            .filter(|(head, _)| !head.is_empty() && head.chars().all(is_name));
        let body = head.map_or(line, |(head, body)| {
            name = head;
            body
        });
        let all = definitions.entry(name).or_default();
        all.push_str(body);
        all.push('\n');
    }
    definitions
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '?' || c == '!'
}

fn weigh<'t>(
    name: &'t str,
    definitions: &'t BTreeMap<&'t str, String>,
    known: &mut BTreeMap<&'t str, Weight>,
    outer: usize,
) -> Result<Weight, String> {
    if let Some(weight) = known.get(name) {
        return Ok(*weight);
    }
    let Some(body) = definitions.get(name) else {
        return Ok(Weight::default());
    };
    let too_deep = || {
        format!(
            "the terminal {name} names terminals to a depth of more than {MAX_DEPTH}; with              operators `&` and `~`, use fewer levels"
        )
    };
    if outer > MAX_DEPTH {
        return Err(too_deep());
    }
    let mut weight = own(body);
    let words = body.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    let terminal = |word: &&str| {
        *word != name
            && word.trim_start_matches('_').starts_with(char::is_uppercase)
            && definitions.contains_key(word)
    };
    for word in words.filter(terminal) {
        let inner = weigh(word, definitions, known, outer + 1)?;
        weight.branches += inner.branches;
        weight.operators += inner.operators;
        weight.depth = weight.depth.max(inner.depth + 1);
    }
    if weight.depth > MAX_DEPTH {
        return Err(too_deep());
    }
    known.insert(name, weight);
    Ok(weight)
}

/// Returns the weight of a body without the terminals that it names.
fn own(body: &str) -> Weight {
    let mut weight = Weight {
        branches: 1.0,
        ..Weight::default()
    };
    let mut number: Option<f64> = None;
    for c in body.chars() {
        match (c, number) {
            ('{', _) => number = Some(0.0),
            (c, Some(n)) if c.is_ascii_digit() => {
                number = Some(n * 10.0 + f64::from(c.to_digit(10).unwrap_or(0)));
            }
            (',' | '}', Some(n)) => {
                weight.branches += n;
                number = (c == ',').then_some(0.0);
            }
            ('|' | '*' | '+' | '?', _) => {
                weight.branches += 1.0;
                number = None;
            }
            ('&' | '~', _) => {
                weight.operators += 1.0;
                number = None;
            }
            _ => number = None,
        }
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn products_of_branches_are_bounded() {
        for text in [
            "start: /a|b/",
            "start: A\nA: /[a-z]+/ & ~/(if|else|while)/",
            "start: A\nA: B & C & ~D\nB: /.{1,20}/\nC: /[^x]*/\nD: \"end\"",
            // Rules without intersections may be of any length.
            "start: A b\nA: /a*/ & /b?/\nb: \"x\"{1,100000} | /(a|b){5000}/",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        let terminals: String = (0..40)
            .map(|i| format!("T{i}: T{} T{}\n", i + 1, i + 1))
            .collect();
        let chain = |levels: usize| -> String {
            let links: String = (0..levels).map(|i| format!("T{i}: T{}\n", i + 1)).collect();
            format!("start: T0\n{links}T{levels}: /a/ & /b/")
        };
        assert_eq!(check(&chain(super::MAX_DEPTH - 1)), Ok(()));
        for text in [
            "start: A\nA: /.*a.{1000}/ & /.*b.{1000}/",
            "start: A\nA: /x/ | (/y/ (B & /c.{9}/ & B /d/))\nB: /(.*a|.*b).{100}/",
            "start: A\nA: ~(~/.*a.{300}/ & ~/.*b.{300}/)",
            &format!("start: T0\n{terminals}T40: /a|b/ & /c|d/"),
            &chain(super::MAX_DEPTH + 1),
            &chain(10_000),
            "start: A\nA: B & /x/\nB: A",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
