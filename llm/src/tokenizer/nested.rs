//! Texts that begin with one another.

/// Of texts in ascending order, the place of the longest other that each begins with.
pub(crate) fn longest_prefixes<T: AsRef<[u8]>>(texts: &[T]) -> Vec<Option<usize>> {
    // Those that the text before begins with, and it. A text comes after those, and nothing that does not begin with them in between.
    let mut open: Vec<usize> = Vec::new();
    let prefix = |(at, text): (usize, &T)| {
        while open.pop_if(|other| !text.as_ref().starts_with(texts[*other].as_ref())).is_some() {}
        let longest = open.last().copied();
        open.push(at);
        longest
    };
    texts.iter().enumerate().map(prefix).collect()
}

#[cfg(test)]
mod tests {
    use super::longest_prefixes;

    #[test]
    fn a_text_begins_with_the_nearest_before_it() {
        let texts = ["a", "ab", "abc", "abd", "ac", "b", "ba"];
        let prefixes = [None, Some(0), Some(1), Some(1), Some(0), None, Some(5)];
        assert_eq!(longest_prefixes(&texts), prefixes);
    }
}
