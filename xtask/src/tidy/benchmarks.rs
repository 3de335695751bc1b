//! Generated pages are current: benchmarks, ablation, and the index of experiments.

use super::finding::Finding;
use super::tree::Tree;
use crate::{ablation, benchmarks as measured, experiments};
use anyhow::Result;

/// A generated page, its source folder, and the function that formats it from names and contents.
/// `write` is the hint for a stale page, `measure` the one for an invalid source file.
struct Made {
    page: &'static str,
    folder: &'static str,
    /// Extension of the source files.
    ending: &'static str,
    make: fn(Vec<(&str, &str)>) -> Result<String>,
    write: &'static str,
    measure: &'static str,
}

const MADE: &[Made] = &[
    Made {
        page: measured::PAGE,
        folder: measured::FOLDER,
        ending: ".json",
        make: measured::page,
        write: "`cargo xtask benchmarks` writes the page; change the files, not the page",
        measure: "`cargo xtask bench-peer -o` writes such files",
    },
    Made {
        page: ablation::PAGE,
        folder: ablation::FOLDER,
        ending: ".json",
        make: ablation::page,
        write: "`cargo xtask ablation` writes the page; change the files, not the page",
        measure: "`cargo xtask ablation -o` writes such files",
    },
    Made {
        page: experiments::INDEX,
        folder: experiments::FOLDER,
        ending: ".md",
        make: experiments::index,
        write: "`cargo xtask experiments` writes the index; change the files, not the index",
        measure: "CONTRIBUTING.md has the form of an experiment",
    },
];

pub fn benchmarks(tree: &Tree) -> Vec<Finding> {
    MADE.iter().flat_map(|made| found(tree, made)).collect()
}

fn found(tree: &Tree, made: &Made) -> Option<Finding> {
    let finding = |path: &str, line, message, hint| Finding { path: path.to_owned(), line, message, hint };
    let files = tree.files.iter().filter_map(|file| {
        let name = file.path.strip_prefix(made.folder)?;
        (name.ends_with(made.ending) && file.path != made.page).then_some((name, file.text.as_str()))
    });
    let files: Vec<_> = files.collect();
    let there = tree.files.iter().find(|file| file.path == made.page).map(|file| file.text.as_str());
    if files.is_empty() && there.is_none() {
        return None;
    }
    match (made.make)(files) {
        Ok(text) if there == Some(&text) => None,
        Ok(text) => {
            let there = there.unwrap_or_default();
            let same = text.lines().zip(there.lines()).take_while(|(a, b)| a == b).count();
            Some(finding(made.page, same + 1, format!("not what the files under {} give", made.folder), made.write))
        }
        Err(error) => Some(finding(made.folder, 1, format!("{error:#}").replace('\n', "; "), made.measure)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::report;

    #[test]
    fn an_edited_page_fails() {
        let json = serde_json::to_string(&report::tests::example()).unwrap();
        let ablation = serde_json::to_string(&ablation::report::tests::example("cpu", &["x"])).unwrap();
        let of = ["docs/benchmarks/", "docs/ablation/"];
        for ((made, json), folder) in MADE.iter().zip([&json, &ablation]).zip(of) {
            let name = format!("{folder}a.json");
            let good = (made.make)(vec![("a.json", json)]).unwrap();
            let lines = |files: &[(&str, &str)]| {
                benchmarks(&Tree::from_files(files)).iter().map(|f| f.line).collect::<Vec<_>>()
            };
            let a = (name.as_str(), json.as_str());
            assert_eq!(lines(&[a, (made.page, &good)]), [0; 0]);
            assert_eq!(
                lines(&[a, (made.page, &good.replace("| abc |", "| abd |").replace("20.00", "21.00"))]).len(),
                1
            );
            assert_eq!(lines(&[a, (made.page, &format!("{good}more\n"))]), [good.lines().count() + 1]);
            assert_eq!(lines(&[a]), [1]);
            assert_eq!(lines(&[(made.page, &good)]).len(), 1);
            assert_eq!(lines(&[(&name, "{}"), (made.page, &good)]), [1]);
        }
    }
}
