//! No dependency cycle between files of a crate: each file can be read, tested and moved without
//! the files that depend on it.
//!
//! Nodes are the `.rs` files under a crate's `src`, tests excluded. An edge leads from a path (in a
//! `use` or in code) to the file that defines the first item on it; imports and re-exports are
//! resolved to the definition. A module declaration is no edge.

use super::finding::Finding;
use super::lexer::{Token, TokenKind};
use super::tree::{File, Tree};
use std::collections::{BTreeMap, VecDeque};

/// Reports each strongly connected component of files, with a shortest cycle in it.
pub fn circles(tree: &Tree) -> Vec<Finding> {
    crates(tree)
        .into_iter()
        .flat_map(|(folder, files)| of_crate(folder, &files))
        .collect()
}

/// Returns the `.rs` files under each crate's `src`, tests excluded.
pub fn crates(tree: &Tree) -> BTreeMap<&str, Vec<&File>> {
    let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in tree
        .files
        .iter()
        .filter(|file| !file.test && file.path.ends_with(".rs"))
    {
        if let Some((folder, _)) = file.path.split_once("/src/") {
            crates.entry(folder).or_default().push(file);
        }
    }
    crates
}

fn of_crate(folder: &str, files: &[&File]) -> Vec<Finding> {
    let edges = edges(folder, files);
    let circle_of: Vec<Option<Vec<usize>>> = (0..files.len())
        .map(|file| shortest_circle(&edges, file))
        .collect();
    let mut found = vec![];
    let mut reported = vec![false; files.len()];
    for file in 0..files.len() {
        if circle_of[file].is_none() || reported[file] {
            continue;
        }
        let component: Vec<usize> = (0..files.len())
            .filter(|&other| leads(&edges, file, other) && leads(&edges, other, file))
            .collect();
        component.iter().for_each(|&member| reported[member] = true);
        let shortest = component
            .iter()
            .filter_map(|&member| circle_of[member].as_ref())
            .min_by_key(|c| c.len());
        let circle = shortest.unwrap_or_else(|| unreachable!("{file} is in a circle"));
        found.push(finding(files, &edges, &component, circle));
    }
    found
}

fn finding(files: &[&File], edges: &Edges, component: &[usize], circle: &[usize]) -> Finding {
    let arrows = circle
        .iter()
        .zip(circle.iter().cycle().skip(1))
        .map(|(&from, &to)| {
            let path = |file: usize| &files[file].path;
            (
                edges[from][&to],
                format!("{}:{} to {}", path(from), edges[from][&to], path(to)),
            )
        });
    let arrows: Vec<(usize, String)> = arrows.collect();
    let shown: Vec<&str> = arrows.iter().map(|(_, text)| text.as_str()).collect();
    let members: Vec<&str> = component
        .iter()
        .map(|&file| files[file].path.as_str())
        .collect();
    let mut message = format!("a circle of files: {}", shown.join(", "));
    if component.len() > circle.len() {
        message += &format!(
            "; it is in a knot of {}: {}",
            component.len(),
            members.join(", ")
        );
    }
    Finding {
        path: files[circle[0]].path.clone(),
        line: arrows[0].0,
        message,
        hint: "move the shared items into a file that both import, named by its content",
    }
}

/// For each file, the files that its paths lead to, with the first line of such a path.
pub type Edges = Vec<BTreeMap<usize, usize>>;

/// Returns the files of a shortest cycle through `start`, beginning with it.
pub fn shortest_circle(edges: &Edges, start: usize) -> Option<Vec<usize>> {
    let mut before: BTreeMap<usize, usize> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(file) = queue.pop_front() {
        for &next in edges[file].keys() {
            if next == start {
                let mut circle = vec![file];
                while circle[circle.len() - 1] != start {
                    circle.push(before[&circle[circle.len() - 1]]);
                }
                circle.reverse();
                return Some(circle);
            }
            before.entry(next).or_insert_with(|| {
                queue.push_back(next);
                file
            });
        }
    }
    None
}

/// Whether `to` is reachable from `from`; each node reaches itself.
pub fn leads(edges: &Edges, from: usize, to: usize) -> bool {
    let mut seen = vec![false; edges.len()];
    let mut stack = vec![from];
    while let Some(file) = stack.pop() {
        if file == to {
            return true;
        }
        if !std::mem::replace(&mut seen[file], true) {
            stack.extend(edges[file].keys());
        }
    }
    false
}

/// Returns the edges between the files of a crate.
pub fn edges(folder: &str, files: &[&File]) -> Edges {
    let has_library = files
        .iter()
        .any(|file| file.path == format!("{folder}/src/lib.rs"));
    let mut modules = Modules::default();
    let mut paths = vec![];
    for (at, file) in files.iter().enumerate() {
        let inside = &file.path[folder.len() + "/src/".len()..];
        modules.read(at, file, &module_of(inside, has_library), &mut paths);
    }
    let mut edges = vec![BTreeMap::new(); files.len()];
    for Path {
        file,
        module,
        line,
        names,
    } in &paths
    {
        if let Some(to) = modules.file_of(module, names)
            && to != *file
        {
            let first: &mut usize = edges[*file].entry(to).or_insert(*line);
            *first = (*first).min(*line);
        }
    }
    edges
}

/// Returns the module path of a file, from its crate's root. Library
/// and binary of a package are separate crates.
fn module_of(inside: &str, has_library: bool) -> Vec<String> {
    let base = inside.strip_suffix(".rs").unwrap_or(inside);
    if base == "lib" || base == "main" {
        return vec![base.to_owned()];
    }
    let base = base.strip_suffix("/mod").unwrap_or(base);
    let root = if has_library { "lib" } else { "main" };
    std::iter::once(root)
        .chain(base.split('/'))
        .map(str::to_owned)
        .collect()
}

/// A path in code, with the module that contains it.
struct Path {
    file: usize,
    module: Vec<String>,
    line: usize,
    names: Vec<String>,
}

#[derive(Default)]
struct Modules {
    by_path: BTreeMap<Vec<String>, Module>,
}

struct Module {
    file: usize,
    /// Names that the module defines itself, child modules excluded.
    items: Vec<String>,
    /// Imported names, and the paths that they stand for.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Child modules that are declared in files of their own.
    declared: Vec<String>,
}

/// Keywords that precede the name of an item.
const DEFINING: &[&str] = &[
    "fn", "struct", "enum", "union", "trait", "type", "const", "static",
];

impl Modules {
    fn module(&mut self, path: &[String], file: usize) -> &mut Module {
        let new = || Module {
            file,
            items: vec![],
            imports: BTreeMap::new(),
            globs: vec![],
            declared: vec![],
        };
        self.by_path.entry(path.to_vec()).or_insert_with(new)
    }

    /// Reads a file's items and imports, and appends all its paths to `paths`.
    fn read(&mut self, at: usize, file: &File, root: &[String], paths: &mut Vec<Path>) {
        let code: Vec<(&Token, &str)> = file
            .shipped()
            .filter(|(token, _)| !token.attribute)
            .collect();
        let word = |i: usize| code.get(i).map_or("", |(_, word)| *word);
        let mut module = root.to_vec();
        self.module(&module, at);
        // Number of open braces, and that number inside each enclosing inline module.
        let (mut depth, mut outside) = (0usize, vec![0usize]);
        let mut i = 0;
        while let Some((token, text)) = code.get(i) {
            let top = outside.last() == Some(&depth);
            match *text {
                "use" if word(i + 1) != "<" => {
                    let mut imports = vec![];
                    i = import(&code, i + 1, &[], &mut imports);
                    for Import { line, names, name } in imports {
                        let here = self.module(&module, at);
                        match name {
                            Some(name) if top => _ = here.imports.insert(name, names.clone()),
                            // An import inside a function does not replace one of the module.
                            Some(name) => {
                                _ = here.imports.entry(name).or_insert_with(|| names.clone())
                            }
                            None => here.globs.push(names.clone()),
                        }
                        paths.push(Path {
                            file: at,
                            module: module.clone(),
                            line,
                            names,
                        });
                    }
                    continue;
                }
                "mod" if word(i + 2) == "{" => {
                    module.push(word(i + 1).to_owned());
                    self.module(&module, at);
                    i += 2;
                    depth += 1;
                    outside.push(depth);
                }
                "mod" if word(i + 2) == ";" => self
                    .module(&module, at)
                    .declared
                    .push(word(i + 1).to_owned()),
                "{" => depth += 1,
                "}" => {
                    if top && outside.len() > 1 {
                        outside.pop();
                        module.pop();
                    }
                    depth = depth.saturating_sub(1);
                }
                "macro_rules" if top => self.module(&module, at).items.push(word(i + 2).to_owned()),
                keyword if top && DEFINING.contains(&keyword) => {
                    self.module(&module, at).items.push(word(i + 1).to_owned());
                }
                _ => {}
            }
            if token.kind == TokenKind::Ident && begins_path(&code, i) && joined(&code, i + 1) {
                let (names, end) = path(&code, i);
                paths.push(Path {
                    file: at,
                    module: module.clone(),
                    line: token.line,
                    names,
                });
                i = end;
            } else {
                i += 1;
            }
        }
    }

    /// Returns the file that defines the first item on a path; `None` for modules and other crates.
    fn file_of(&self, module: &[String], names: &[String]) -> Option<usize> {
        match self.resolve(module, names, 0) {
            Some(Target::Item(file)) => Some(file),
            _ => None,
        }
    }

    fn resolve(&self, from: &[String], names: &[String], depth: usize) -> Option<Target> {
        // Bounds the recursion through imports that refer to each other; real chains are shorter.
        if depth > 32 {
            return None;
        }
        let mut at = from.to_vec();
        for (i, name) in names.iter().enumerate() {
            match name.as_str() {
                "crate" => at.truncate(1),
                "self" => {}
                "super" => _ = at.pop(),
                name => {
                    let module = self.by_path.get(&at)?;
                    let child: Vec<String> = at.iter().cloned().chain([name.to_owned()]).collect();
                    if self.by_path.contains_key(&child) {
                        at = child;
                    } else if module.items.iter().any(|item| item == name) {
                        return Some(Target::Item(module.file));
                    } else if module.declared.iter().any(|declared| declared == name) {
                        // Its file has another location: `#[path]` names a file of another crate.
                        return None;
                    } else {
                        let imported = module
                            .imports
                            .get(name)
                            .filter(|path| path[..] != names[..=i]);
                        let elsewhere = imported
                            .and_then(|path| self.resolve(&at, path, depth + 1))
                            .or_else(|| {
                                let with =
                                    |glob: &Vec<String>| [&glob[..], &[name.to_owned()]].concat();
                                module
                                    .globs
                                    .iter()
                                    .find_map(|glob| self.resolve(&at, &with(glob), depth + 1))
                            });
                        match elsewhere {
                            Some(Target::Module(path)) => at = path,
                            Some(item) => return Some(item),
                            // The name belongs to another crate or, after a module of this crate, a
                            // macro defines it there.
                            None if i == 0 || imported.is_some() => return None,
                            None => return Some(Target::Item(module.file)),
                        }
                    }
                }
            }
        }
        Some(Target::Module(at))
    }
}

enum Target {
    Module(Vec<String>),
    Item(usize),
}

/// Returns true if a path may begin at `at`: not after `::`, nor as a field or method.
fn begins_path(code: &[(&Token, &str)], at: usize) -> bool {
    let Some(before) = at.checked_sub(1) else {
        return true;
    };
    match code[before].1 {
        "." => false,
        ":" => before == 0 || !joined(code, before - 1),
        _ => true,
    }
}

/// Whether the tokens at `at` are `::`.
fn joined(code: &[(&Token, &str)], at: usize) -> bool {
    match (code.get(at), code.get(at + 1)) {
        (Some((a, ":")), Some((b, ":"))) => a.end == b.start,
        _ => false,
    }
}

/// Returns the names of the path that begins at `at`, and the index after it.
fn path(code: &[(&Token, &str)], mut at: usize) -> (Vec<String>, usize) {
    let mut names = vec![name(code[at].1)];
    while joined(code, at + 1)
        && code
            .get(at + 3)
            .is_some_and(|(token, _)| token.kind == TokenKind::Ident)
    {
        at += 3;
        names.push(name(code[at].1));
    }
    (names, at + 1)
}

fn name(word: &str) -> String {
    word.strip_prefix("r#").unwrap_or(word).to_owned()
}

/// One name of a `use`.
struct Import {
    line: usize,
    names: Vec<String>,
    /// Local name; `None` for `*`.
    name: Option<String>,
}

/// Reads a tree of imports below the path `above`, from `at` on; returns the index after it.
fn import(
    code: &[(&Token, &str)],
    mut at: usize,
    above: &[String],
    out: &mut Vec<Import>,
) -> usize {
    let mut names = above.to_vec();
    let word = |i: usize| code.get(i).map_or("", |(_, word)| *word);
    let line = code.get(at).map_or(0, |(token, _)| token.line);
    // `::name` is a name of another crate.
    if joined(code, at) {
        names.push(String::new());
        at += 2;
    }
    loop {
        match word(at) {
            "{" => {
                at += 1;
                while !["}", ""].contains(&word(at)) {
                    at = import(code, at, &names, out);
                    at += usize::from(word(at) == ",");
                }
                return at + 1;
            }
            "*" => {
                out.push(Import {
                    line,
                    names,
                    name: None,
                });
                return at + 1;
            }
            "," | ";" | "}" | "" => return at + usize::from(word(at) == ";"),
            _ => names.push(name(word(at))),
        }
        at += 1;
        if joined(code, at) {
            at += 2;
            continue;
        }
        // `self` in a list stands for the module of the list.
        if names.len() > 1 && names.last().is_some_and(|name| name == "self") {
            names.pop();
        }
        let mut called = names.last().cloned();
        if word(at) == "as" {
            called = Some(name(word(at + 1)));
            at += 2;
        }
        out.push(Import {
            line,
            names,
            name: called,
        });
        return at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        circles(&Tree::from_files(files))
            .into_iter()
            .map(|f| format!("{}:{}: {}", f.path, f.line, f.message))
            .collect()
    }

    /// Whether `a` depends on a `b` that depends on `a`.
    fn is_edge(root: &str, a: &str) -> bool {
        let b = "use crate::a::A; pub struct B; pub mod inner { pub struct Deep; }";
        let lib = format!("mod a; mod b; {root}");
        let a = format!("pub struct A; {a}");
        !found(&[
            ("x/src/lib.rs", &lib),
            ("x/src/a.rs", &a),
            ("x/src/b.rs", b),
        ])
        .is_empty()
    }

    #[test]
    fn two_files_that_import_each_other_are_named_with_both_lines() {
        let files = [
            ("x/src/lib.rs", "mod a; mod b;"),
            ("x/src/a.rs", "\nuse crate::b::B; pub fn f() {}"),
        ];
        let back = ("x/src/b.rs", "pub struct B;\n\nfn g() { crate::a::f() }");
        let all = [files[0], files[1], back];
        let said = "x/src/a.rs:2: a circle of files: x/src/a.rs:2 to x/src/b.rs, x/src/b.rs:3 to x/src/a.rs";
        assert_eq!(found(&all), [said]);
        assert!(found(&all[..2]).is_empty());
    }

    #[test]
    fn a_knot_is_one_finding_that_shows_its_shortest_circle() {
        let files = [
            ("x/src/lib.rs", "mod a; mod b; mod c; mod d;"),
            ("x/src/a.rs", "use crate::b; pub fn a() { b::b() }"),
            ("x/src/b.rs", "use super::c; pub fn b() { c::c() }"),
            ("x/src/c.rs", "use crate::{a, d::d}; pub fn c() { a::a() }"),
            ("x/src/d.rs", "use crate::c::c; pub fn d() {}"),
        ];
        let found = found(&files);
        let [said] = &found[..] else {
            panic!("{found:?}")
        };
        assert!(
            said.contains(
                "circle of files: x/src/c.rs:1 to x/src/d.rs, x/src/d.rs:1 to x/src/c.rs; "
            ),
            "{said}"
        );
        assert!(
            said.ends_with("a knot of 4: x/src/a.rs, x/src/b.rs, x/src/c.rs, x/src/d.rs"),
            "{said}"
        );
    }

    #[test]
    fn every_way_of_naming_an_item_is_an_edge() {
        let ways = [
            "use crate::b::B;",
            "use super::b::{B as Other};",
            "use crate::{b::{self, inner::Deep}};",
            "fn f() { crate::b::B }",
            "use crate::b; fn f() -> b::B {}",
            "fn f() { use super::b as other; let x: other::inner::Deep; }",
            "use crate::b::*;\nfn f() -> crate::b::inner::Deep {}",
            "mod own { use super::super::b::B; }",
            "fn f() { say!(\"{}\", $crate::b::B) }",
            "fn f(x: &mut dyn Fn(crate::b::B)) {}",
        ];
        for way in ways {
            assert!(is_edge("", way), "{way}");
        }
        let none = [
            "",
            "use crate::b;",
            "use b::B;",
            "use ::b::B;",
            "// crate::b::B",
            "const TEXT: &str = \"crate::b::B\";",
            "#[cfg(test)] mod tests { use crate::b::B; }",
            "#[test] fn f() { crate::b::B; }",
            "mod b { pub struct B; } use b::B;",
        ];
        for none in none {
            assert!(!is_edge("", none), "{none}");
        }
    }

    #[test]
    fn names_lead_to_where_they_come_from() {
        // A re-export, a private import of the parent, and a chain of both.
        for root in [
            "pub use b::B;",
            "use crate::b::B;",
            "use self::b::B as C; pub use C as B;",
            "use b::*;",
        ] {
            assert!(is_edge(root, "use crate::B;"), "{root}");
        }
        // An item that the parent defines itself adds no edge to `b`.
        assert!(!is_edge("pub struct B;", "use super::B;"));
        assert!(!is_edge("pub use std::b::B;", "use super::B;"));
    }

    #[test]
    fn a_parent_that_names_its_children_is_a_circle_only_with_what_it_defines_itself() {
        let with = |parent: &str| {
            let child = "use super::Shared; pub fn f() {}";
            !found(&[
                ("x/src/main.rs", "mod p;"),
                ("x/src/p/mod.rs", parent),
                ("x/src/p/child.rs", child),
            ])
            .is_empty()
        };
        assert!(with("mod child; pub struct Shared; fn g() { child::f() }"));
        assert!(!with("mod child; pub struct Shared;"));
        assert!(!with("mod child; use other::Shared; fn g() { child::f() }"));
        // A module with a `#[path]` is not part of its parent.
        assert!(!with(
            "mod child; #[path = \"../Shared.rs\"] mod Shared; fn g() { child::f() }"
        ));
        // A macro's items belong to the module that invokes it.
        assert!(with("mod child; make! { Shared } fn g() { child::f() }"));
    }

    #[test]
    fn crates_and_tests_are_apart() {
        let files = [
            ("x/src/lib.rs", "pub struct A; mod tests;"),
            ("x/src/main.rs", "use crate::B; fn main() {} pub struct B;"),
            ("y/src/lib.rs", "use x::A; mod b;"),
            ("y/src/b.rs", "use x::A;"),
            ("x/src/tests.rs", "use crate::A;"),
            ("x/tests/it.rs", "use crate::A;"),
        ];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn imports_that_run_in_a_circle_do_no_harm() {
        let files = [
            ("x/src/lib.rs", "mod a; mod b;"),
            ("x/src/a.rs", "use crate::b::X;"),
            ("x/src/b.rs", "use crate::a::X;"),
        ];
        assert!(found(&files).is_empty());
        let files = [("x/src/lib.rs", "use {{{; use a::{b; mod { } } } use")];
        assert!(found(&files).is_empty());
    }
}
