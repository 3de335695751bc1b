//! Generated pages are current: benchmarks, ablation, quality, and the index of experiments.

use super::finding::Finding;
use super::tree::Tree;
use crate::generated_page::GeneratedPage;
use crate::{ablation, benchmarks as measured, experiments, quality};

const PAGES: &[GeneratedPage] = &[
    measured::PAGE,
    ablation::PAGE,
    experiments::INDEX,
    quality::PAGE,
];

const STALE: &str = "`cargo xtask benchmarks`, `ablation`, `quality` or `experiments` writes the page; change its files";

pub fn benchmarks(tree: &Tree) -> Vec<Finding> {
    PAGES.iter().flat_map(|page| found(tree, page)).collect()
}

fn found(tree: &Tree, page: &GeneratedPage) -> Option<Finding> {
    let finding = |path: &str, line, message, hint| Finding {
        path: path.to_owned(),
        line,
        message,
        hint,
    };
    let files = tree.files.iter().filter_map(|file| {
        let name = file.path.strip_prefix(page.folder)?;
        page.is_source(name).then_some((name, file.text.as_str()))
    });
    let files: Vec<_> = files.collect();
    let committed = tree.files.iter().find(|file| file.path == page.path);
    if files.is_empty() && committed.is_none() {
        return None;
    }
    let committed = committed.map(|file| file.text.as_str());
    match (page.format)(files) {
        Ok(text) if committed == Some(&text) => None,
        Ok(text) => {
            let lines = text.lines().zip(committed.unwrap_or_default().lines());
            let same = lines.take_while(|(a, b)| a == b).count();
            let message = format!("is not generated from the files under {}", page.folder);
            Some(finding(page.path, same + 1, message, STALE))
        }
        Err(error) => {
            let message = format!("{error:#}").replace('\n', "; ");
            Some(finding(page.folder, 1, message, page.source_hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::report;

    #[test]
    fn an_edited_page_fails() {
        let json = serde_json::to_string(&report::tests::example()).unwrap();
        let ablation =
            serde_json::to_string(&ablation::report::tests::example("cpu", &["x"])).unwrap();
        let of = ["docs/benchmarks/", "docs/ablation/"];
        for ((page, json), folder) in PAGES.iter().zip([&json, &ablation]).zip(of) {
            let name = format!("{folder}a.json");
            let good = (page.format)(vec![("a.json", json)]).unwrap();
            let lines = |files: &[(&str, &str)]| {
                benchmarks(&Tree::from_files(files))
                    .iter()
                    .map(|f| f.line)
                    .collect::<Vec<_>>()
            };
            let a = (name.as_str(), json.as_str());
            assert_eq!(lines(&[a, (page.path, &good)]), [0; 0]);
            assert_eq!(
                lines(&[
                    a,
                    (
                        page.path,
                        &good.replace("| abc |", "| abd |").replace("20.00", "21.00")
                    )
                ])
                .len(),
                1
            );
            assert_eq!(
                lines(&[a, (page.path, &format!("{good}more\n"))]),
                [good.lines().count() + 1]
            );
            assert_eq!(lines(&[a]), [1]);
            assert_eq!(lines(&[(page.path, &good)]).len(), 1);
            assert_eq!(lines(&[(&name, "{}"), (page.path, &good)]), [1]);
        }
    }
}
