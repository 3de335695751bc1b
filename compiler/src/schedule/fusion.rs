//! Fusion: which candidates are computed inside which kernels, and what follows from it: who reads whose buffer, and how long the longest path is.

use super::candidates::Candidates;
use crate::decompose::int8::Derived;
use gristmill_uop::{Graph, Id};
use rustc_hash::{FxHashMap, FxHashSet};

/// What is computed inside the kernels that read it.
#[derive(Clone, Debug, Default)]
pub struct Fusion {
    /// Candidates without a buffer: every kernel that reads one computes it.
    pub everywhere: FxHashSet<Id>,
    /// Candidates that have a buffer, and that a kernel computes all the same so as not to wait for it, by the kernel's root.
    pub recomputed: FxHashMap<Id, FxHashSet<Id>>,
}

impl Fusion {
    /// Does the kernel of `root` compute `node`, where it reads it?
    pub fn is_inside(&self, root: Id, node: Id) -> bool {
        self.everywhere.contains(&node) || self.recomputed.get(&root).is_some_and(|nodes| nodes.contains(&node))
    }
    /// Has `node` a buffer beside kernels that compute it too?
    pub fn is_reused(&self, node: Id) -> bool {
        self.recomputed.values().any(|nodes| nodes.contains(&node))
    }
    /// Gives `node`, which was fused, a buffer that the kernels of `first` do not wait for: they compute it themselves. Nor does its own kernel wait for what they compute themselves.
    pub fn store(&mut self, node: Id, first: &[Id]) {
        self.everywhere.remove(&node);
        let mut own = FxHashSet::default();
        for &root in first {
            let nodes = self.recomputed.entry(root).or_default();
            own.extend(nodes.iter().copied());
            nodes.insert(node);
        }
        if !own.is_empty() {
            self.recomputed.insert(node, own);
        }
    }
    /// Takes its buffer from `node` again, which no kernel reads: those that need it compute it.
    pub fn fuse(&mut self, node: Id) {
        self.everywhere.insert(node);
        self.recomputed.remove(&node);
        for nodes in self.recomputed.values_mut() {
            nodes.remove(&node);
        }
        self.recomputed.retain(|_, nodes| !nodes.is_empty());
    }
}

/// Which candidates read which others, directly: through nodes that are none.
pub struct Reads {
    /// The candidates, sources first.
    nodes: Vec<Id>,
    of: FxHashMap<Id, Vec<Id>>,
    /// The same by their places among the candidates.
    below: Vec<Vec<usize>>,
    place: FxHashMap<Id, usize>,
    /// Which of them each reads, directly or through others, as bits.
    depends: Vec<Vec<u64>>,
}

impl Reads {
    /// Of these candidates.
    pub fn new(g: &Graph, candidates: &Candidates, derived: &Derived) -> Reads {
        let nodes = candidates.nodes.clone();
        let place: FxHashMap<Id, usize> = nodes.iter().enumerate().map(|(i, &n)| (n, i)).collect();
        let of: FxHashMap<Id, Vec<Id>> = nodes.iter().map(|&n| (n, direct(g, n, &place, derived))).collect();
        let below: Vec<Vec<usize>> = nodes.iter().map(|n| of[n].iter().map(|r| place[r]).collect()).collect();
        let mut depends: Vec<Vec<u64>> = Vec::with_capacity(nodes.len());
        for reads in &below {
            let mut bits = vec![0; nodes.len().div_ceil(64)];
            for &read in reads {
                bits.iter_mut().zip(&depends[read]).for_each(|(bits, known)| *bits |= known);
                bits[read / 64] |= 1 << (read % 64);
            }
            depends.push(bits);
        }
        Reads { nodes, of, below, place, depends }
    }
    /// Is it a candidate?
    pub fn knows(&self, node: Id) -> bool {
        self.place.contains_key(&node)
    }
    /// Does the candidate `reader` read `read`, directly or through others?
    pub fn depends(&self, reader: Id, read: Id) -> bool {
        let read = self.place[&read];
        self.depends[self.place[&reader]][read / 64] >> (read % 64) & 1 == 1
    }
    /// What the kernel of `root` computes besides, and whose buffers it reads; both sorted.
    pub fn cut(&self, root: Id, fusion: &Fusion) -> (Vec<Id>, Vec<Id>) {
        let (mut inside, mut outside) = (FxHashSet::default(), FxHashSet::default());
        let mut stack = vec![root];
        while let Some(n) = stack.pop() {
            for &read in &self.of[&n] {
                if !fusion.is_inside(root, read) {
                    outside.insert(read);
                } else if inside.insert(read) {
                    stack.push(read);
                }
            }
        }
        let sorted = |set: FxHashSet<Id>| {
            let mut all: Vec<Id> = set.into_iter().collect();
            all.sort();
            all
        };
        (sorted(inside), sorted(outside))
    }
    /// What the kernel of `root` computes besides, sorted.
    pub fn inside(&self, root: Id, fusion: &Fusion) -> Vec<Id> {
        self.cut(root, fusion).0
    }
    /// Roots of the kernels that the kernel of `root` waits for, directly or through others.
    pub fn awaited(&self, root: Id, fusion: &Fusion) -> FxHashSet<Id> {
        let mut out = FxHashSet::default();
        let mut stack = vec![root];
        while let Some(n) = stack.pop() {
            stack.extend(self.cut(n, fusion).1.into_iter().filter(|&read| out.insert(read)));
        }
        out
    }
    /// Roots of the kernels that read `node`, as a buffer or computing it, directly or through what is fused into them.
    pub fn readers(&self, node: Id, fusion: &Fusion) -> Vec<Id> {
        let mut out = Vec::new();
        let mut seen = FxHashSet::default();
        let mut stack = vec![node];
        while let Some(n) = stack.pop() {
            for &reader in self.nodes.iter().filter(|c| self.of[c].contains(&n)) {
                if !seen.insert(reader) {
                    continue;
                }
                let is_fused = fusion.everywhere.contains(&reader);
                if !is_fused {
                    out.push(reader);
                }
                if is_fused || fusion.is_reused(reader) {
                    stack.push(reader);
                }
            }
        }
        if !fusion.recomputed.is_empty() {
            // Behind one that is reused stand kernels that compute it, which read what it reads, and those that read its buffer, which do not.
            out.retain(|&root| {
                let (inside, outside) = self.cut(root, fusion);
                inside.contains(&node) || outside.contains(&node)
            });
        }
        out
    }
    /// A candidate that is reused, and whose buffer no kernel reads, if there is one: what is stored behind it may have taken its readers.
    pub fn unread(&self, fusion: &Fusion) -> Option<Id> {
        let roots = self.nodes.iter().filter(|n| !fusion.everywhere.contains(n));
        let read: FxHashSet<Id> = roots.clone().flat_map(|&root| self.cut(root, fusion).1).collect();
        roots.copied().find(|&n| fusion.is_reused(n) && !read.contains(&n))
    }
    /// Kernels on the longest path.
    pub fn depth(&self, fusion: &Fusion) -> usize {
        let mut levels: Vec<usize> = Vec::with_capacity(self.below.len());
        for (node, below) in self.nodes.iter().zip(&self.below) {
            let last = |places: &mut dyn Iterator<Item = usize>| places.map(|i| levels[i]).max().unwrap_or(0);
            let level = match fusion.recomputed.contains_key(node) {
                true => last(&mut self.cut(*node, fusion).1.iter().map(|n| self.place[n])),
                false => last(&mut below.iter().copied()),
            };
            levels.push(level + usize::from(!fusion.everywhere.contains(node)));
        }
        levels.into_iter().max().unwrap_or(0)
    }
}

/// The candidates that one of them reads, sorted.
fn direct(g: &Graph, node: Id, candidates: &FxHashMap<Id, usize>, derived: &Derived) -> Vec<Id> {
    let mut found = Vec::new();
    let mut seen = FxHashSet::default();
    let mut stack: Vec<Id> = derived.sources(g, node).collect();
    while let Some(n) = stack.pop() {
        if !seen.insert(n) {
            continue;
        }
        if candidates.contains_key(&n) { found.push(n) } else { stack.extend(derived.sources(g, n)) }
    }
    found.sort();
    found
}
