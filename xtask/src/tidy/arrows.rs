//! Dependency rules between crates, checked in manifests and paths.

use super::finding::Finding;
use super::tree::{File, Tree};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A crate of the workspace, and the crates that it may depend on.
struct Crate {
    package: &'static str,
    /// Crates that it may import.
    imports: &'static [&'static str],
    /// Crates that its tests may import in addition.
    tests: &'static [&'static str],
}

const UOP: &str = "gristmill-uop";
const ENCODINGS: &str = "gristmill-encodings";
const COMPILER: &str = "gristmill-compiler";
const RUNTIME: &str = "gristmill-runtime";
const BACKEND: &str = "gristmill-backend";
const TENSOR: &str = "gristmill-tensor";
const LLM: &str = "gristmill-llm";
const PROFILE: &str = "gristmill-profile";
const HUB: &str = "gristmill-hub";
const SERVER: &str = "gristmill-server";
const GRPC: &str = "gristmill-grpc";

/// The crate table of ARCHITECTURE.md, bottom to top. Every other dependency is forbidden.
const CRATES: &[Crate] = &[
    Crate {
        package: UOP,
        imports: &[],
        tests: &[],
    },
    Crate {
        package: ENCODINGS,
        imports: &[UOP],
        tests: &[],
    },
    // Siblings: compiler and runtime do not depend on each other; shared types are in uop. Passes
    // are tested on the table of formats, the evaluator of tensor and the interpreters of backend.
    Crate {
        package: COMPILER,
        imports: &[UOP],
        tests: &[ENCODINGS, RUNTIME, BACKEND, TENSOR],
    },
    Crate {
        package: RUNTIME,
        imports: &[UOP],
        tests: &[],
    },
    Crate {
        package: BACKEND,
        imports: &[UOP, ENCODINGS, COMPILER, RUNTIME],
        tests: &[],
    },
    Crate {
        package: TENSOR,
        imports: &[UOP, ENCODINGS, COMPILER, RUNTIME, BACKEND],
        tests: &[],
    },
    Crate {
        package: LLM,
        imports: &[UOP, ENCODINGS, COMPILER, RUNTIME, BACKEND, TENSOR],
        tests: &[],
    },
    Crate {
        package: PROFILE,
        imports: &[UOP, RUNTIME],
        tests: &[],
    },
    // Outside the layers: it downloads files and does not read their contents.
    Crate {
        package: HUB,
        imports: &[],
        tests: &[],
    },
    Crate {
        package: SERVER,
        imports: &[
            UOP, ENCODINGS, COMPILER, RUNTIME, BACKEND, TENSOR, LLM, PROFILE,
        ],
        tests: &[],
    },
    // A leaf: another protocol of the server, behind a feature of the program.
    Crate {
        package: GRPC,
        imports: &[SERVER],
        tests: &[UOP, RUNTIME, BACKEND, LLM],
    },
    Crate {
        package: "gristmill",
        imports: &[
            UOP, ENCODINGS, COMPILER, RUNTIME, BACKEND, TENSOR, LLM, PROFILE, HUB, SERVER, GRPC,
        ],
        tests: &[],
    },
    // A leaf: the Python module.
    Crate {
        package: "gristmill-python",
        imports: &[BACKEND, LLM, HUB, RUNTIME],
        tests: &[],
    },
    // A leaf: the program of a page.
    Crate {
        package: "gristmill-web",
        imports: &[BACKEND, LLM],
        tests: &[],
    },
    // The clock of `egg`, in place of the published crate.
    Crate {
        package: "quanta",
        imports: &[UOP],
        tests: &[],
    },
    // A leaf: it fuzzes the other crates, and no crate depends on it.
    Crate {
        package: "gristmill-fuzz",
        imports: &[
            UOP, ENCODINGS, COMPILER, RUNTIME, BACKEND, TENSOR, LLM, SERVER,
        ],
        tests: &[],
    },
    Crate {
        package: "xtask",
        imports: &[],
        tests: &[],
    },
];

/// Libraries that only one crate may depend on.
struct Only {
    libraries: &'static [&'static str],
    package: &'static str,
    hint: &'static str,
}

const ONLY: &[Only] = &[
    Only {
        libraries: &["axum", "hyper", "tower-http"],
        package: SERVER,
        hint: "only server knows HTTP",
    },
    Only {
        libraries: &["tonic", "tonic-prost"],
        package: GRPC,
        hint: "only grpc knows gRPC",
    },
    Only {
        libraries: &["ureq", "reqwest", "hf-hub"],
        package: HUB,
        hint: "only hub downloads files",
    },
    Only {
        libraries: &["libloading", "cudarc", "wgpu"],
        package: BACKEND,
        hint: "only backend opens devices",
    },
];

const ARROW_HINT: &str = "arrows run uop <- encodings, compiler, runtime <- backend <- tensor <- llm <- server <- cli; \
    move shared code into a lower crate, or change the tables in ARCHITECTURE.md and \
    xtask/src/tidy/arrows.rs";

/// Finds dependencies in manifests that [`CRATES`] does not allow.
pub fn manifests(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for manifest in manifests_of(tree, &mut found) {
        let Manifest {
            file,
            package,
            dependencies,
        } = manifest;
        let Some(row) = CRATES.iter().find(|c| c.package == package) else {
            let hint =
                "add it to the crate table in ARCHITECTURE.md and to xtask/src/tidy/arrows.rs";
            found.push(finding(
                file,
                1,
                format!("{package} is not a crate of the picture"),
                hint,
            ));
            continue;
        };
        for Dependency { name, test, line } in dependencies {
            let ours = CRATES.iter().any(|c| c.package == name);
            let may =
                row.imports.contains(&name.as_str()) || test && row.tests.contains(&name.as_str());
            if ours && !may {
                found.push(finding(
                    file,
                    line,
                    format!("{package} may not depend on {name}"),
                    ARROW_HINT,
                ));
            }
        }
    }
    found
}

/// Finds paths into crates that [`CRATES`] does not allow. Manifests alone
/// do not show paths in macros and tests.
pub fn imports(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    let manifests = manifests_of(tree, &mut vec![]);
    for file in &tree.files {
        let Some(row) = crate_of(&manifests, file) else {
            continue;
        };
        for (token, word) in file.code() {
            let name = word.replace('_', "-");
            let ours = word.starts_with("gristmill_") && CRATES.iter().any(|c| c.package == name);
            let test = file.test || token.test;
            let may = name == row.package
                || row.imports.contains(&name.as_str())
                || test && row.tests.contains(&name.as_str());
            if ours && !may {
                found.push(finding(
                    file,
                    token.line,
                    format!("{} may not import {word}", row.package),
                    ARROW_HINT,
                ));
            }
        }
    }
    found
}

/// Finds dependencies on libraries of [`ONLY`] outside their crate.
pub fn libraries(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for Manifest {
        file,
        package,
        dependencies,
    } in manifests_of(tree, &mut vec![])
    {
        for Dependency { name, line, .. } in dependencies {
            for only in ONLY
                .iter()
                .filter(|only| only.libraries.contains(&name.as_str()) && only.package != package)
            {
                found.push(finding(
                    file,
                    line,
                    format!("{package} may not depend on {name}"),
                    only.hint,
                ));
            }
        }
    }
    found
}

/// Folders that may name GGUF: `llm`, these checks, and the fuzz targets that write GGUF files.
const GGUF_HOMES: &[&str] = &["llm/", "xtask/", "fuzz/"];

/// Finds identifiers that contain GGUF outside [`GGUF_HOMES`].
pub fn gguf(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree
        .files
        .iter()
        .filter(|file| !GGUF_HOMES.iter().any(|home| file.path.starts_with(home)))
    {
        for (token, word) in file.shipped() {
            if token.kind == super::lexer::TokenKind::Ident
                && word.to_ascii_lowercase().contains("gguf")
            {
                let hint = "only llm knows the file format: let it export this under a name without the format";
                found.push(finding(
                    file,
                    token.line,
                    format!("`{word}` outside llm"),
                    hint,
                ));
            }
        }
    }
    found
}

struct Manifest<'t> {
    file: &'t File,
    package: String,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    /// Name of the package, regardless of renames.
    name: String,
    /// Whether it is a dev-dependency.
    test: bool,
    line: usize,
}

/// Parses the manifests of all packages; parse errors become findings.
fn manifests_of<'t>(tree: &'t Tree, found: &mut Vec<Finding>) -> Vec<Manifest<'t>> {
    let mut out = vec![];
    let mut parsed = vec![];
    for file in tree
        .files
        .iter()
        .filter(|file| file.path.split('/').next_back() == Some("Cargo.toml"))
    {
        match DeTable::parse(&file.text) {
            Ok(table) => parsed.push((file, table.into_inner())),
            Err(error) => {
                let line = error.span().map_or(1, |span| file.line_at(span.start));
                found.push(finding(
                    file,
                    line,
                    error.message().to_owned(),
                    "cargo rejects this manifest too",
                ));
            }
        }
    }
    // `x.workspace = true` may refer to a renamed package of the root's table.
    let shared = parsed
        .iter()
        .find(|(file, _)| file.path == "Cargo.toml")
        .and_then(|(_, table)| {
            let workspace = table.get("workspace")?.get_ref().as_table()?;
            workspace.get("dependencies")?.get_ref().as_table().cloned()
        });
    for (file, table) in &parsed {
        let package = table
            .get("package")
            .and_then(|p| p.get_ref().as_table())
            .and_then(|p| p.get("name"));
        let Some(package) = package.and_then(|name| name.get_ref().as_str()) else {
            continue;
        };
        let mut dependencies = vec![];
        sections(table, &mut |section, test| {
            for (key, value) in section {
                let renamed = |value: &Spanned<DeValue>| {
                    value
                        .get_ref()
                        .as_table()?
                        .get("package")?
                        .get_ref()
                        .as_str()
                        .map(str::to_owned)
                };
                let inherited = || renamed(shared.as_ref()?.get(key.get_ref().as_ref())?);
                let name = renamed(value)
                    .or_else(inherited)
                    .unwrap_or_else(|| key.get_ref().to_string());
                dependencies.push(Dependency {
                    name,
                    test,
                    line: file.line_at(key.span().start),
                });
            }
        });
        out.push(Manifest {
            file,
            package: package.to_owned(),
            dependencies,
        });
    }
    out
}

/// Visits `[dependencies]`, `[build-dependencies]` and `[dev-dependencies]`,
/// including those under `[target.…]`.
fn sections<'d>(table: &DeTable<'d>, visit: &mut dyn FnMut(&DeTable<'d>, bool)) {
    for (key, value) in table {
        let Some(value) = value.get_ref().as_table() else {
            continue;
        };
        match key.get_ref().as_ref() {
            "dependencies" | "build-dependencies" => visit(value, false),
            "dev-dependencies" => visit(value, true),
            "target" => value
                .iter()
                .filter_map(|(_, t)| t.get_ref().as_table())
                .for_each(|t| sections(t, visit)),
            _ => {}
        }
    }
}

/// Returns the row of the package that contains the file; the innermost if packages nest.
fn crate_of(manifests: &[Manifest], file: &File) -> Option<&'static Crate> {
    let folder = |m: &&Manifest| m.file.path.len() - "Cargo.toml".len();
    let holds = |m: &&Manifest| file.path.starts_with(&m.file.path[..folder(m)]);
    let package = &manifests.iter().filter(holds).max_by_key(folder)?.package;
    CRATES.iter().find(|c| c.package == package)
}

fn finding(file: &File, line: usize, message: String, hint: &'static str) -> Finding {
    Finding {
        path: file.path.clone(),
        line,
        message,
        hint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: (&str, &str) = (
        "Cargo.toml",
        "[workspace.dependencies]\nlow = { package = \"gristmill-llm\" }\n",
    );
    const RUN: &str = "[package]\nname = \"gristmill-runtime\"\n";

    fn at(found: Vec<Finding>) -> Vec<(String, usize)> {
        found.into_iter().map(|f| (f.path, f.line)).collect()
    }

    fn manifest(check: fn(&Tree) -> Vec<Finding>, text: &str) -> Vec<(String, usize)> {
        at(check(&Tree::from_files(&[
            ROOT,
            ("runtime/Cargo.toml", text),
        ])))
    }

    fn below() -> Vec<(String, usize)> {
        vec![("runtime/Cargo.toml".to_owned(), 4)]
    }

    #[test]
    fn manifests_in_the_picture_pass() {
        assert_eq!(
            manifest(
                manifests,
                &format!("{RUN}[dependencies]\ngristmill-uop.workspace = true\nlibc = \"0\"")
            ),
            []
        );
    }

    #[test]
    fn a_sibling_fails_in_every_section() {
        for section in [
            "dependencies",
            "dev-dependencies",
            "build-dependencies",
            "target.'cfg(unix)'.dependencies",
        ] {
            let text = format!("{RUN}[{section}]\ngristmill-compiler.workspace = true");
            assert_eq!(manifest(manifests, &text), below(), "{section}");
        }
    }

    #[test]
    fn a_rename_does_not_hide_a_crate() {
        assert_eq!(
            manifest(
                manifests,
                &format!("{RUN}[dependencies]\nlow.workspace = true")
            ),
            below()
        );
        assert_eq!(
            manifest(
                manifests,
                &format!("{RUN}[dependencies]\nx = {{ package = \"gristmill-llm\" }}")
            ),
            below()
        );
    }

    #[test]
    fn a_crate_outside_the_picture_fails() {
        let tree = Tree::from_files(&[("new/Cargo.toml", "[package]\nname = \"gristmill-new\"")]);
        assert_eq!(at(manifests(&tree)), [("new/Cargo.toml".to_owned(), 1)]);
    }

    #[test]
    fn a_broken_manifest_fails() {
        assert_eq!(
            manifest(manifests, "[package]\nname = "),
            [("runtime/Cargo.toml".to_owned(), 2)]
        );
    }

    fn source(package: &str, text: &str) -> Vec<(String, usize)> {
        let manifest = format!("[package]\nname = \"{package}\"");
        at(imports(&Tree::from_files(&[
            ("x/Cargo.toml", &manifest),
            ("x/src/lib.rs", text),
        ])))
    }

    #[test]
    fn paths_follow_the_arrows() {
        let bad = vec![("x/src/lib.rs".to_owned(), 2)];
        assert_eq!(
            source(
                "gristmill-compiler",
                "use gristmill_uop::A; // gristmill_runtime\nfn gristmill_entry() {}"
            ),
            []
        );
        assert_eq!(
            source("gristmill-compiler", "\nuse gristmill_runtime::Buffer;"),
            bad
        );
        assert_eq!(
            source(
                "gristmill-runtime",
                "\nfn f() { gristmill_compiler::lower() }"
            ),
            bad
        );
        assert_eq!(
            source("gristmill-encodings", "\nuse gristmill_llm::File;"),
            bad
        );
        assert_eq!(
            source("gristmill-profile", "\nuse gristmill_tensor::Tensor;"),
            bad
        );
        assert_eq!(source("xtask", "\nuse gristmill_uop::A;"), bad);
    }

    #[test]
    fn the_compiler_may_use_formats_in_tests_only() {
        assert_eq!(
            source(
                "gristmill-compiler",
                "\n#[cfg(test)] mod t { use gristmill_encodings::TABLE; }"
            ),
            []
        );
        assert_eq!(
            source("gristmill-compiler", "\nuse gristmill_encodings::TABLE;"),
            [("x/src/lib.rs".to_owned(), 2)]
        );
    }

    #[test]
    fn a_library_has_one_home() {
        assert_eq!(
            manifest(
                libraries,
                &format!("{RUN}[dependencies]\nlibloading = \"0\"")
            ),
            below()
        );
        assert_eq!(
            manifest(
                libraries,
                &format!("{RUN}[dependencies]\naxum.workspace = true")
            ),
            below()
        );
        let backend = "[package]\nname = \"gristmill-backend\"\n[dependencies]\nlibloading = \"0\"";
        assert_eq!(manifest(libraries, backend), []);
    }

    #[test]
    fn gguf_stays_in_llm() {
        let tree = |path| {
            Tree::from_files(&[(
                path,
                "// gguf\nfn read_gguf() { \"gguf\" }\n#[cfg(test)] mod t { fn gguf() {} }",
            )])
        };
        assert_eq!(
            at(gguf(&tree("cli/src/a.rs"))),
            [("cli/src/a.rs".to_owned(), 2)]
        );
        assert_eq!(at(gguf(&tree("llm/src/a.rs"))), []);
    }
}
