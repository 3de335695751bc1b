//! Sites: parts of a body where extracts differ, each decided on separately.

use super::extract::{Picks, Space};

/// A connected set of classes in which extracts differ, given by its outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// Indices of the classes that are read from outside the site.
    pub outputs: Vec<usize>,
}

/// Returns the sites where these extracts differ from the first.
pub fn sites(space: &Space, roots: &[usize], extracts: &[&Picks]) -> Vec<Site> {
    let n = space.classes.len();
    let Some(all) = extracts
        .iter()
        .map(|p| chosen(space, roots, p))
        .collect::<Option<Vec<_>>>()
    else {
        return vec![];
    };
    let differs: Vec<bool> = (0..n)
        .map(|c| all.iter().any(|p| p[c] != all[0][c]))
        .collect();
    let mut part: Vec<usize> = (0..n).collect();
    let mut read_outside = vec![false; n];
    roots.iter().for_each(|&r| read_outside[r] = true);
    for picks in &all {
        for class in 0..n {
            let Some(pick) = picks[class] else { continue };
            for &child in &space.choices[class][pick].children {
                match differs[class] {
                    true if differs[child] => join(&mut part, class, child),
                    true => {}
                    false => read_outside[child] = true,
                }
            }
        }
    }
    let mut sites: Vec<(usize, Site)> = Vec::new();
    for class in (0..n).filter(|&c| differs[c] && read_outside[c]) {
        let of = find(&part, class);
        match sites.iter_mut().find(|s| s.0 == of) {
            Some((_, site)) => site.outputs.push(class),
            None => sites.push((
                of,
                Site {
                    outputs: vec![class],
                },
            )),
        }
    }
    sites.into_iter().map(|s| s.1).collect()
}

/// Choices of the classes that `roots` need.
fn chosen(space: &Space, roots: &[usize], picks: &Picks) -> Option<Picks> {
    let mut out = vec![None; space.classes.len()];
    for class in space.needed(picks, roots)? {
        out[class] = picks[class];
    }
    Some(out)
}

/// Marks the classes that all extracts need and compute by the same term.
pub fn settled(space: &Space, roots: &[usize], extracts: &[&Picks]) -> Vec<bool> {
    let all: Option<Vec<Picks>> = extracts.iter().map(|p| chosen(space, roots, p)).collect();
    let Some(all) = all else {
        return vec![false; space.classes.len()];
    };
    let alike = |class: usize| {
        all.iter()
            .all(|p| p[class].is_some() && p[class] == all[0][class])
    };
    (0..space.classes.len()).map(alike).collect()
}

fn find(part: &[usize], mut class: usize) -> usize {
    while part[class] != class {
        class = part[class];
    }
    class
}

fn join(part: &mut [usize], a: usize, b: usize) {
    let (a, b) = (find(part, a), find(part, b));
    part[a.max(b)] = a.min(b);
}

impl Space {
    /// Marks the classes that `roots` need on paths that avoid the site's outputs.
    ///
    /// They are needed in every form of the site.
    pub fn around(&self, picks: &Picks, roots: &[usize], site: &Site) -> Vec<bool> {
        let mut there = vec![false; self.classes.len()];
        let mut stack: Vec<usize> = roots.to_vec();
        while let Some(class) = stack.pop() {
            if site.outputs.contains(&class) || std::mem::replace(&mut there[class], true) {
                continue;
            }
            if let Some(pick) = picks[class] {
                stack.extend(&self.choices[class][pick].children);
            }
        }
        there
    }
}
