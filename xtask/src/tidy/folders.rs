//! No dependency cycle between the top-level modules of a crate, so that its modules form layers.
//!
//! Nodes are the top-level modules of a crate, folders or files; the crate's root is excluded.
//! Edges are those of [`circles`](super::circles) between files of different modules.

use super::circles::{crates, edges, leads, shortest_circle};
use super::finding::Finding;
use super::tree::{File, Tree};
use std::collections::BTreeMap;

/// Reports each strongly connected component of top-level modules, with a shortest cycle in it.
pub fn folders(tree: &Tree) -> Vec<Finding> {
    crates(tree).into_iter().flat_map(|(name, files)| of_crate(name, &files)).collect()
}

/// Edge between top-level modules: file, line, and target file.
type Arrow<'t> = (&'t str, usize, &'t str);

fn of_crate(name: &str, files: &[&File]) -> Vec<Finding> {
    let of_files: Vec<Option<&str>> = files.iter().map(|file| module(name, file)).collect();
    let mut names: Vec<&str> = of_files.iter().copied().flatten().collect();
    names.sort_unstable();
    names.dedup();
    let node = |file: usize| of_files[file].and_then(|module| names.binary_search(&module).ok());
    let mut arrows: BTreeMap<(usize, usize), Arrow> = BTreeMap::new();
    for (from, targets) in edges(name, files).iter().enumerate() {
        for (&to, &line) in targets {
            if let (Some(a), Some(b)) = (node(from), node(to))
                && a != b
            {
                arrows.entry((a, b)).or_insert((&files[from].path, line, &files[to].path));
            }
        }
    }
    let mut graph = vec![BTreeMap::new(); names.len()];
    arrows.iter().for_each(|(&(from, to), arrow)| _ = graph[from].insert(to, arrow.1));
    let mut found = vec![];
    let mut reported = vec![false; names.len()];
    for start in 0..names.len() {
        if reported[start] || shortest_circle(&graph, start).is_none() {
            continue;
        }
        let together = |&other: &usize| leads(&graph, start, other) && leads(&graph, other, start);
        let component: Vec<usize> = (0..names.len()).filter(together).collect();
        component.iter().for_each(|&member| reported[member] = true);
        let members: Vec<&str> = component.iter().map(|&member| names[member]).collect();
        let circles = component.iter().filter_map(|&member| shortest_circle(&graph, member));
        found.extend(circles.min_by_key(Vec::len).map(|circle| finding(&arrows, &members, &circle)));
    }
    found
}

/// Returns the top-level module of a file; `None` for the crate's root.
fn module<'t>(name: &str, file: &'t File) -> Option<&'t str> {
    let inside = &file.path[name.len() + "/src/".len()..];
    let module = inside.split_once('/').map_or_else(|| inside.strip_suffix(".rs").unwrap_or(inside), |path| path.0);
    Some(module).filter(|module| !["lib", "main"].contains(module))
}

fn finding(arrows: &BTreeMap<(usize, usize), Arrow>, members: &[&str], circle: &[usize]) -> Finding {
    let of_circle = circle.iter().zip(circle.iter().cycle().skip(1));
    let of_circle: Vec<&Arrow> = of_circle.map(|(&from, &to)| &arrows[&(from, to)]).collect();
    let shown: Vec<String> = of_circle.iter().map(|(from, line, to)| format!("{from}:{line} to {to}")).collect();
    let mut message = format!("a circle of folders: {}", shown.join(", "));
    if members.len() > circle.len() {
        message += &format!("; it is in a knot of {}: {}", members.len(), members.join(", "));
    }
    let &&(path, line, _) = &of_circle[0];
    Finding { path: path.to_owned(), line, message, hint: "move the shared items into a folder that both import" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        folders(&Tree::from_files(files)).into_iter().map(|f| format!("{}:{}: {}", f.path, f.line, f.message)).collect()
    }

    /// Folders without a cycle: `a/high` imports `b`, which imports nothing.
    const FILES: [(&str, &str); 5] = [
        ("x/src/lib.rs", "mod a; mod b;"),
        ("x/src/a/mod.rs", "pub mod low; pub mod high;"),
        ("x/src/a/low.rs", "pub fn low() {}"),
        ("x/src/a/high.rs", "use crate::b::f;\npub fn high() { f() }"),
        ("x/src/b.rs", "pub fn f() {}"),
    ];

    #[test]
    fn folders_that_lead_to_each_other_are_a_circle_though_no_files_do() {
        assert!(found(&FILES).is_empty());
        let mut files = FILES;
        files[4].1 = "\nuse crate::a::low::low; pub fn f() { low() }";
        assert!(super::super::circles::circles(&Tree::from_files(&files)).is_empty());
        let said =
            "x/src/a/high.rs:1: a circle of folders: x/src/a/high.rs:1 to x/src/b.rs, x/src/b.rs:2 to x/src/a/low.rs";
        assert_eq!(found(&files), [said]);
    }

    #[test]
    fn a_folder_within_itself_and_the_root_are_no_circle() {
        let mut files = FILES;
        files[2].1 = "use super::high::high; pub fn low() {}";
        files[0].1 = "mod a; mod b; use b::f; pub fn root() {}";
        assert!(found(&files).is_empty());
        files[4].1 = "use crate::root; pub fn f() {}";
        assert!(found(&files).is_empty());
    }
}
