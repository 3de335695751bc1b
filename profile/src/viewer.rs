//! HTML rendering of a [`Compilation`]: graphs after every pass, rules, decisions and kernels in
//! one self-contained file.

use crate::compilation::Compilation;
use crate::html::{self, COMMON_SCRIPT, COMMON_STYLE, PageParts};
use serde_json::Value;

/// Script files in dependency order; the entry point is last.
const SCRIPTS: &[&str] = &[
    COMMON_SCRIPT,
    include_str!("viewer/graph.js"),
    include_str!("viewer/layout.js"),
    include_str!("viewer/state.js"),
    include_str!("viewer/list.js"),
    include_str!("viewer/drawing.js"),
    include_str!("viewer/graphs.js"),
    include_str!("viewer/rules.js"),
    include_str!("viewer/decisions.js"),
    include_str!("viewer/kernels.js"),
    include_str!("viewer/search.js"),
    include_str!("viewer/main.js"),
];

/// Renders a compilation as an HTML page.
///
/// # Errors
/// If the compilation cannot be serialised, which does not happen for strings and finite numbers.
pub fn html(compilation: &Compilation) -> Result<String, serde_json::Error> {
    let data: Value = serde_json::to_value(compilation)?;
    Ok(html::render_page(&PageParts {
        body: include_str!("viewer/body.html"),
        title: &format!("{}: kernels", compilation.model),
        styles: &[COMMON_STYLE, include_str!("viewer/style.css")],
        data: &data,
        scripts: SCRIPTS,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compilation::{
        AlternativeRecord, DecisionRecord, Function, KernelRecord, NodeRecord, Pass, RuleRecord,
    };
    use crate::recording::StageText;

    fn compilation() -> Compilation {
        let node = |number, op, argument: &str, sources: &[u32]| NodeRecord {
            number,
            op,
            dtype: "f32".into(),
            shape: "[8]".into(),
            argument: argument.into(),
            sources: sources.into(),
        };
        let option = |name, seconds| AlternativeRecord {
            name,
            plan: String::new(),
            seconds,
        };
        let stage = |name, text: &str| StageText {
            name,
            text: text.into(),
        };
        Compilation {
            model: "<b>@DATA@</b>".into(),
            machine: "cpu: 2 workers".into(),
            ops: vec![["Param", "Source", "a slot"], ["Exp", "Elementwise", "e^x"]],
            passes: vec![["captured", "as it was written"], ["map", "ranges"]],
            functions: vec![Function {
                name: "f".into(),
                calls: 2,
                seconds: 1e-6,
                arena: 0,
                slots: vec!["x".into()],
                nodes: vec![node(0, 0, "slot=0", &[]), node(1, 1, "", &[0])],
                passes: vec![Pass {
                    pass: 0,
                    roots: vec![1],
                    rules: vec![RuleRecord {
                        name: "x + 0 -> x",
                        times: 1,
                        examples: vec![["(x + 0)".into(), "x".into()]],
                    }],
                }],
                decisions: vec![DecisionRecord {
                    kind: "place",
                    site: "f %1".into(),
                    margin: 0.0,
                    chosen: 0,
                    asked: true,
                    options: vec![option("fused", 1e-6), option("buffer", 2e-6)],
                }],
                kernels: vec![KernelRecord {
                    name: "e_1".into(),
                    level: 0,
                    about: "exp".into(),
                    seconds: 1e-6,
                    weight_bytes: 0.0,
                    other_bytes: 64.0,
                    operations: 8.0,
                    plans: vec![],
                    stages: vec![stage("source", "void e_1() {}</script><!--")],
                }],
                stages: vec![stage("tensor", "%0 = Param")],
            }],
        }
    }

    #[test]
    fn the_page_is_whole_and_fetches_nothing() {
        let page = html(&compilation()).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        assert_eq!(
            (
                page.matches("</script").count(),
                page.matches("<script").count()
            ),
            (2, 2)
        );
        assert_eq!(html::outside(&page), [""; 0]);
        let (_, rest) = page.split_once("type=\"application/json\">").unwrap();
        let data: Value = serde_json::from_str(rest.split_once("</script").unwrap().0).unwrap();
        assert_eq!(data["model"], "<b>@DATA@</b>");
        assert_eq!(
            data["functions"][0]["nodes"][1],
            serde_json::json!([1, 1, "f32", "[8]", "", [0]])
        );
        assert_eq!(
            data["functions"][0]["kernels"][0]["stages"][0]["text"],
            "void e_1() {}</script><!--"
        );
    }
}
