//! Fusion state: which candidates are fused into which kernels, and the resulting buffer
//! reads and critical path.

use super::candidates::Candidates;
use crate::decompose::int8::Derived;
use gristmill_uop::{Graph, Id};
use rustc_hash::{FxHashMap, FxHashSet};

/// Which nodes are fused into the kernels that read them.
#[derive(Clone, Debug, Default)]
pub struct Fusion {
    /// Candidates without a buffer: every kernel that reads one recomputes it.
    pub everywhere: FxHashSet<Id>,
    /// Materialised candidates that a kernel recomputes nevertheless, so as not to wait for them,
    /// by the kernel's root.
    pub recomputed: FxHashMap<Id, FxHashSet<Id>>,
}

impl Fusion {
    /// Whether the kernel of `root` computes `node` itself if it reads it.
    pub fn is_inside(&self, root: Id, node: Id) -> bool {
        self.everywhere.contains(&node)
            || self
                .recomputed
                .get(&root)
                .is_some_and(|nodes| nodes.contains(&node))
    }
    /// Whether `node` is both materialised and recomputed by some kernels.
    pub fn is_reused(&self, node: Id) -> bool {
        self.recomputed.values().any(|nodes| nodes.contains(&node))
    }
    /// Materialises the fused `node`, while the kernels of `first` continue to recompute it. The
    /// new kernel also recomputes everything that those kernels recompute.
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
    /// Fuses `node` into all kernels that need it. Its buffer has no readers.
    pub fn fuse(&mut self, node: Id) {
        self.everywhere.insert(node);
        self.recomputed.remove(&node);
        for nodes in self.recomputed.values_mut() {
            nodes.remove(&node);
        }
        self.recomputed.retain(|_, nodes| !nodes.is_empty());
    }
}

/// Dependencies between candidates, through nodes that are not candidates.
pub struct Reads {
    /// Candidates in topological order.
    nodes: Vec<Id>,
    of: FxHashMap<Id, Vec<Id>>,
    /// The same by indices into `nodes`.
    below: Vec<Vec<usize>>,
    place: FxHashMap<Id, usize>,
    /// Transitive dependencies of each candidate, as a bit set.
    depends: Vec<Vec<u64>>,
}

impl Reads {
    /// Collects the dependencies between these candidates.
    pub fn new(g: &Graph, candidates: &Candidates, derived: &Derived) -> Reads {
        let nodes = candidates.nodes.clone();
        let place: FxHashMap<Id, usize> = nodes.iter().enumerate().map(|(i, &n)| (n, i)).collect();
        let of: FxHashMap<Id, Vec<Id>> = nodes
            .iter()
            .map(|&n| (n, direct(g, n, &place, derived)))
            .collect();
        let below: Vec<Vec<usize>> = nodes
            .iter()
            .map(|n| of[n].iter().map(|r| place[r]).collect())
            .collect();
        let mut depends: Vec<Vec<u64>> = Vec::with_capacity(nodes.len());
        for reads in &below {
            let mut bits = vec![0; nodes.len().div_ceil(64)];
            for &read in reads {
                bits.iter_mut()
                    .zip(&depends[read])
                    .for_each(|(bits, known)| *bits |= known);
                bits[read / 64] |= 1 << (read % 64);
            }
            depends.push(bits);
        }
        Reads {
            nodes,
            of,
            below,
            place,
            depends,
        }
    }
    /// Whether `node` is a candidate.
    pub fn knows(&self, node: Id) -> bool {
        self.place.contains_key(&node)
    }
    /// Whether the candidate `reader` depends on `read`, directly or indirectly.
    pub fn depends(&self, reader: Id, read: Id) -> bool {
        let read = self.place[&read];
        self.depends[self.place[&reader]][read / 64] >> (read % 64) & 1 == 1
    }
    /// Candidates fused into the kernel of `root`, and candidates whose buffers
    /// it reads; both sorted.
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
    /// Candidates fused into the kernel of `root`, sorted.
    pub fn inside(&self, root: Id, fusion: &Fusion) -> Vec<Id> {
        self.cut(root, fusion).0
    }
    /// Roots of the kernels that the kernel of `root` depends on, directly or indirectly.
    pub fn awaited(&self, root: Id, fusion: &Fusion) -> FxHashSet<Id> {
        let mut out = FxHashSet::default();
        let mut stack = vec![root];
        while let Some(n) = stack.pop() {
            stack.extend(
                self.cut(n, fusion)
                    .1
                    .into_iter()
                    .filter(|&read| out.insert(read)),
            );
        }
        out
    }
    /// Roots of the kernels that read `node`, from its buffer or by recomputing it,
    /// including through fused nodes.
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
            // Readers of a node that is both stored and recomputed may read its buffer only, and
            // then do not read its sources.
            out.retain(|&root| {
                let (inside, outside) = self.cut(root, fusion);
                inside.contains(&node) || outside.contains(&node)
            });
        }
        out
    }
    /// A stored and recomputed candidate with a buffer that no kernel reads, if any. A later
    /// `store` may have taken its readers.
    pub fn unread(&self, fusion: &Fusion) -> Option<Id> {
        let roots = self.nodes.iter().filter(|n| !fusion.everywhere.contains(n));
        let read: FxHashSet<Id> = roots
            .clone()
            .flat_map(|&root| self.cut(root, fusion).1)
            .collect();
        roots
            .copied()
            .find(|&n| fusion.is_reused(n) && !read.contains(&n))
    }
    /// Kernels on the critical path.
    pub fn depth(&self, fusion: &Fusion) -> usize {
        let mut levels: Vec<usize> = Vec::with_capacity(self.below.len());
        for (node, below) in self.nodes.iter().zip(&self.below) {
            let last = |places: &mut dyn Iterator<Item = usize>| {
                places.map(|i| levels[i]).max().unwrap_or(0)
            };
            let level = match fusion.recomputed.contains_key(node) {
                true => last(&mut self.cut(*node, fusion).1.iter().map(|n| self.place[n])),
                false => last(&mut below.iter().copied()),
            };
            levels.push(level + usize::from(!fusion.everywhere.contains(node)));
        }
        levels.into_iter().max().unwrap_or(0)
    }
}

/// The candidates that `node` reads directly, sorted.
fn direct(g: &Graph, node: Id, candidates: &FxHashMap<Id, usize>, derived: &Derived) -> Vec<Id> {
    let mut found = Vec::new();
    let mut seen = FxHashSet::default();
    let mut stack: Vec<Id> = derived.sources(g, node).collect();
    while let Some(n) = stack.pop() {
        if !seen.insert(n) {
            continue;
        }
        if candidates.contains_key(&n) {
            found.push(n)
        } else {
            stack.extend(derived.sources(g, n))
        }
    }
    found.sort();
    found
}
