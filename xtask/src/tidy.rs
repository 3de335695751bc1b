//! `xtask tidy`: checks the boundaries of the workspace, each stated as an absence.
//!
//! A check is a function over the [`Tree`] and a row of
//! [`CHECKS`]; its tests show that it can fail.

mod arrows;
mod benchmarks;
mod circles;
mod circumstances;
mod cited;
mod comments;
mod commits;
mod dialects;
mod finding;
mod fitted;
mod folders;
mod formats;
mod house;
mod kernel_text;
mod language;
mod lexer;
mod long_functions;
mod pure;
mod tree;
mod vendors;

use crate::shell;
use anyhow::Result;
use finding::Finding;
use tree::Tree;

#[derive(clap::Args)]
pub struct Options {
    /// List the checks and exit
    #[arg(long)]
    list: bool,
    /// Run only the named checks
    checks: Vec<String>,
}

struct Check {
    name: &'static str,
    /// Description of the absence, for --list.
    absent: &'static str,
    run: fn(&Tree) -> Vec<Finding>,
}

const CHECKS: &[Check] = &[
    Check {
        name: "manifests",
        absent: "a dependency that the crate table forbids",
        run: arrows::manifests,
    },
    Check {
        name: "imports",
        absent: "a path into a crate that the crate table forbids",
        run: arrows::imports,
    },
    Check {
        name: "circles",
        absent: "a dependency cycle between files of a crate",
        run: circles::circles,
    },
    Check {
        name: "folders",
        absent: "a dependency cycle between top-level modules",
        run: folders::folders,
    },
    Check {
        name: "libraries",
        absent: "HTTP outside server, device libraries outside backend",
        run: arrows::libraries,
    },
    Check {
        name: "pure",
        absent: "files, processes and sockets in uop, encodings and compiler",
        run: pure::pure,
    },
    Check {
        name: "gguf",
        absent: "GGUF outside llm",
        run: arrows::gguf,
    },
    Check {
        name: "formats",
        absent: "a format's name outside the table of formats",
        run: formats::formats,
    },
    Check {
        name: "kernel-text",
        absent: "kernel source text outside renderers",
        run: kernel_text::kernel_text,
    },
    Check {
        name: "kernel-files",
        absent: "kernel source files outside renderers",
        run: kernel_text::kernel_files,
    },
    Check {
        name: "dialects",
        absent: "a machine property or a fallback text in a dialect",
        run: dialects::dialects,
    },
    Check {
        name: "vendors",
        absent: "a device vendor, API or kernel language in the compiler",
        run: vendors::vendors,
    },
    Check {
        name: "fitted",
        absent: "more than ten numbers in code that a machine or model justifies",
        run: fitted::fitted,
    },
    Check {
        name: "globs",
        absent: "glob imports outside tests, and from the crate root anywhere",
        run: house::globs,
    },
    Check {
        name: "unfinished",
        absent: "todo, unimplemented, dbg, ignored tests",
        run: house::unfinished,
    },
    Check {
        name: "long-files",
        absent: "a Rust file of more than 800 lines",
        run: house::long_files,
    },
    Check {
        name: "long-functions",
        absent: "a function of more than 60 lines outside tests",
        run: long_functions::long_functions,
    },
    Check {
        name: "big-files",
        absent: "a file of more than 16 MiB",
        run: house::big_files,
    },
    Check {
        name: "machine-paths",
        absent: "an absolute path of one machine",
        run: house::machine_paths,
    },
    Check {
        name: "registry-hosts",
        absent: "a package registry's host",
        run: house::registry_hosts,
    },
    Check {
        name: "pages",
        absent: "an unclosed code block, or a heading right after text",
        run: house::pages,
    },
    Check {
        name: "cited",
        absent: "a page that cites a missing source file",
        run: cited::cited,
    },
    Check {
        name: "circumstances",
        absent: "issue and session numbers, and outside documents, in pages and comments",
        run: circumstances::circumstances,
    },
    Check {
        name: "experiments",
        absent: "a citation of an experiment without a file",
        run: cited::experiments,
    },
    Check {
        name: "mannerisms",
        absent: "a mannerism above its maximum rate",
        run: language::mannerisms,
    },
    Check {
        name: "phrases",
        absent: "a project-specific phrase for a term of the field",
        run: language::phrases,
    },
    Check {
        name: "terms",
        absent: "a term of the field that no comment or page uses",
        run: language::terms,
    },
    Check {
        name: "comment-widths",
        absent: "a comment wider than 100 columns",
        run: comments::widths,
    },
    Check {
        name: "echoes",
        absent: "a doc comment of three words or fewer",
        run: comments::echoes,
    },
    Check {
        name: "names",
        absent: "a type name defined twice in a crate, a constructor `of`",
        run: comments::names,
    },
    Check {
        name: "commits",
        absent: "a commit subject without area and imperative",
        run: commits::commits,
    },
    Check {
        name: "page-sizes",
        absent: "a page for newcomers above its maximum size",
        run: comments::page_sizes,
    },
    Check {
        name: "benchmarks",
        absent: "a generated page that is not current",
        run: benchmarks::benchmarks,
    },
];

/// Returns true if there are no findings.
pub fn run(options: &Options) -> Result<bool> {
    if options.list {
        CHECKS
            .iter()
            .for_each(|check| println!("{:<15} absent: {}", check.name, check.absent));
        return Ok(true);
    }
    if let Some(unknown) = options
        .checks
        .iter()
        .find(|name| CHECKS.iter().all(|check| check.name != **name))
    {
        anyhow::bail!("no check is named {unknown}\nhint: `cargo xtask tidy --list`");
    }
    let tree = Tree::read(&shell::root()?)?;
    let chosen = |check: &&Check| {
        options.checks.is_empty() || options.checks.iter().any(|name| name == check.name)
    };
    let (mut checks, mut found) = (0, 0);
    for check in CHECKS.iter().filter(chosen) {
        checks += 1;
        for Finding {
            path,
            line,
            message,
            hint,
        } in (check.run)(&tree)
        {
            found += 1;
            println!("{path}:{line}: {message} [{}]\n  hint: {hint}", check.name);
        }
    }
    eprintln!(
        "tidy: {checks} checks over {} files: {found} findings",
        tree.files.len()
    );
    Ok(found == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (at, check) in CHECKS.iter().enumerate() {
            assert!(
                CHECKS[..at].iter().all(|other| other.name != check.name),
                "{}",
                check.name
            );
        }
    }

    #[test]
    fn an_empty_tree_is_tidy() {
        for check in CHECKS {
            assert_eq!((check.run)(&Tree::from_files(&[])), [], "{}", check.name);
        }
    }
}
