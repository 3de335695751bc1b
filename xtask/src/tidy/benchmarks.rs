//! The page of benchmarks is what its files give.

use super::finding::Finding;
use super::tree::Tree;
use crate::benchmarks::{FOLDER, PAGE, page};

pub fn benchmarks(tree: &Tree) -> Vec<Finding> {
    let finding = |path: &str, line, message, hint| Finding { path: path.to_owned(), line, message, hint };
    let files = tree.files.iter().filter_map(|file| {
        let name = file.path.strip_prefix(FOLDER)?;
        name.ends_with(".json").then_some((name, file.text.as_str()))
    });
    let files: Vec<_> = files.collect();
    let there = tree.files.iter().find(|file| file.path == PAGE).map(|file| file.text.as_str());
    if files.is_empty() && there.is_none() {
        return vec![];
    }
    match page(files) {
        Ok(text) if there == Some(&text) => vec![],
        Ok(text) => {
            let there = there.unwrap_or_default();
            let same = text.lines().zip(there.lines()).take_while(|(a, b)| a == b).count();
            let hint = "`cargo xtask benchmarks` writes the page; change the files, not the page";
            vec![finding(PAGE, same + 1, format!("not what the files under {FOLDER} give"), hint)]
        }
        Err(error) => {
            let hint = "`cargo xtask bench-peer -o` writes such files";
            vec![finding(FOLDER, 1, format!("{error:#}").replace('\n', "; "), hint)]
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
        let good = page(vec![("a.json", &json)]).unwrap();
        let lines = |files: &[(&str, &str)]| benchmarks(&Tree::of(files)).iter().map(|f| f.line).collect::<Vec<_>>();
        let a = ("docs/benchmarks/a.json", json.as_str());
        assert_eq!(lines(&[a, (PAGE, &good)]), [0; 0]);
        assert_eq!(lines(&[a, (PAGE, &good.replace("20.00", "21.00"))]).len(), 1);
        assert_eq!(lines(&[a, (PAGE, &format!("{good}more\n"))]), [good.lines().count() + 1]);
        assert_eq!(lines(&[a]), [1]);
        assert_eq!(lines(&[(PAGE, &good)]).len(), 1);
        assert_eq!(lines(&[("docs/benchmarks/a.json", "{}"), (PAGE, &good)]), [1]);
    }
}
