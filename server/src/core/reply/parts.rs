//! The parts that a reply is taken apart into, and how its markers are found.

/// A piece of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Reasoning.
    Reasoning(String),
    /// Text.
    Content(String),
    /// A call begins: the tool's name.
    Call(String),
    /// More of the current call's arguments, JSON.
    Arguments(String),
}

/// Takes what stands before the first of these markers, and the marker, out of `held`; or, where there is none, what cannot be part of
/// one: all but the beginning of a marker at its end and, if `space` is to be kept, the white space there.
pub fn take_until(held: &mut String, markers: &[&'static str], space: bool) -> (String, Option<&'static str>) {
    let found = markers.iter().filter_map(|marker| Some((held.find(marker)?, *marker))).min();
    if let Some((at, marker)) = found {
        let rest = held.split_off(at + marker.len());
        let mut before = std::mem::replace(held, rest);
        before.truncate(at);
        return (before, Some(marker));
    }
    let begun = |marker: &&'static str| (1..marker.len()).rev().find(|&n| held.ends_with(&marker[..n])).unwrap_or(0);
    let keep = markers.iter().map(begun).max().unwrap_or(0);
    let mut end = held.len() - keep;
    if space {
        end = held[..end].trim_end().len();
    }
    let rest = held.split_off(end);
    (std::mem::replace(held, rest), None)
}
