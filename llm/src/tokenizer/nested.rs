//! Prefix relations within a set of texts.

/// For each text in ascending order, returns the index of its longest proper prefix in the set.
pub(crate) fn longest_prefixes<T: AsRef<[u8]>>(texts: &[T]) -> Vec<Option<usize>> {
    // Stack of the previous text and its prefixes. In ascending order a text comes after its
    // prefixes, and all texts in between start with them too.
    let mut open: Vec<usize> = Vec::new();
    let prefix = |(at, text): (usize, &T)| {
        while open
            .pop_if(|other| !text.as_ref().starts_with(texts[*other].as_ref()))
            .is_some()
        {}
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
