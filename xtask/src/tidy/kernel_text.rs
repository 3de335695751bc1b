//! No kernel source text outside renderers: kernels are generated from the graph, and a dialect is
//! the only place that knows a language.

use super::finding::{Allow, Finding, allowed};
use super::lexer::TokenKind;
use super::tree::Tree;

/// Strings that occur in C, CUDA C, Metal or WGSL source.
const SIGNS: &[&str] = &[
    "__builtin_",
    "__attribute__",
    "extern \"C\"",
    "typedef ",
    "static inline",
    "#include",
    "#pragma",
    "__global__",
    "__shared__",
    "__device__",
    "__restrict__",
    "__syncthreads",
    "asm volatile",
    "#include <metal",
    "@compute",
    "var<storage",
    "var<workgroup",
];

/// Extensions of kernel source files.
const ENDINGS: &[&str] = &["c", "h", "cc", "cpp", "hpp", "cu", "cuh", "ptx", "metal", "wgsl", "cl", "ll", "s"];

const ALLOWED: &[Allow] = &[
    Allow { glob: "backend/src/*/dialect**", because: "a device's language" },
    Allow { glob: "backend/src/**/render**", because: "what dialects share" },
    Allow { glob: "compiler/src/render**", because: "what dialects share, without a device" },
    Allow { glob: "tensor/examples/custom_kernel.rs", because: "shows a kernel of one's own" },
    Allow { glob: "tensor/examples/fused_kernel.rs", because: "shows what is fused into one" },
    Allow { glob: "xtask/src/tidy/kernel_text.rs", because: "the signs to look for" },
];

const HINT: &str = "express it as ops and let the dialect render it; a custom kernel belongs in a test";

pub fn kernel_text(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| !allowed(ALLOWED, &file.path)) {
        for (token, word) in file.shipped().filter(|(token, _)| token.kind == TokenKind::Text && !token.attribute) {
            let raw = word.trim_start_matches(['b', 'c']).starts_with('r');
            let text = if raw { word.to_owned() } else { word.replace("\\\"", "\"") };
            if let Some((at, sign)) = sign(&text) {
                let line = token.line + text[..at].matches('\n').count();
                let message = format!("kernel source text in a string: `{}`", sign.trim_end());
                found.push(Finding { path: file.path.clone(), line, message, hint: HINT });
            }
        }
    }
    found
}

pub fn kernel_files(tree: &Tree) -> Vec<Finding> {
    let kernel = |path: &str| path.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending));
    let elsewhere = tree.files.iter().filter(|file| kernel(&file.path) && !file.test && !allowed(ALLOWED, &file.path));
    let finding =
        |path: &String| Finding { path: path.clone(), line: 1, message: "a kernel source file".into(), hint: HINT };
    elsewhere.map(|file| finding(&file.path)).collect()
}

fn sign(text: &str) -> Option<(usize, &'static str)> {
    let fixed = SIGNS.iter().find_map(|sign| Some((text.find(sign)?, *sign)));
    fixed.or_else(|| Some((void(text)?, "void")))
}

/// Finds `void name(` or `void *`, where the name may contain a
/// format placeholder; "void" in prose does not match.
fn void(text: &str) -> Option<usize> {
    text.match_indices("void").map(|(at, _)| at).find(|&at| {
        let name = |c: char| c.is_alphanumeric() || "_{}:".contains(c);
        let rest = &text[at + "void".len()..];
        let after = rest.trim_start();
        let function = after.trim_start_matches(name);
        let spaced = rest.len() > after.len() && function.len() < after.len() && function.starts_with('(');
        !text[..at].ends_with(name) && (spaced || after.starts_with('*'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        kernel_text(&Tree::from_files(&[(path, text)])).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn source_in_strings_fails() {
        for text in [
            r#""\n__builtin_shufflevector(a, b)""#,
            r#"f("extern \"C\" int x;")"#,
            r##"r#"extern "C" int x;"#"##,
            r#"format!("void {name}(float *x)")"#,
            r#""static void *p""#,
            r#""__attribute__((vector_size(64)))""#,
        ] {
            assert_eq!(lines("compiler/src/lower.rs", text), [1], "{text}");
        }
        assert_eq!(lines("backend/src/cpu/device.rs", "let x = \"\nvoid f(int)\";"), [2]);
    }

    #[test]
    fn other_text_passes() {
        for text in [
            "extern \"C\" fn f() {}",
            "// __builtin_x\nfn f() {}",
            "\"avoid (this)\"",
            "\"void of meaning (as they say)\"",
            "#[cfg(test)] mod t { const K: &str = \"void f(int)\"; }",
        ] {
            assert_eq!(lines("compiler/src/lower.rs", text), [0; 0], "{text}");
        }
    }

    #[test]
    fn renderers_pass() {
        let text = "const K: &str = \"__builtin_x\";";
        for path in [
            "backend/src/cpu/dialect.rs",
            "backend/src/cuda/dialect/mma.rs",
            "backend/src/render.rs",
            "compiler/src/render/c.rs",
        ] {
            assert_eq!(lines(path, text), [0; 0], "{path}");
        }
        assert_eq!(lines("backend/src/cpu/queue.rs", text), [1]);
    }

    #[test]
    fn source_files_fail() {
        let tree = Tree::from_files(&[
            ("llm/src/k.cu", ""),
            ("backend/src/cuda/dialect/head.cu", ""),
            ("a/c", ""),
            ("b.rs", ""),
        ]);
        assert_eq!(kernel_files(&tree).into_iter().map(|f| f.path).collect::<Vec<_>>(), ["llm/src/k.cu"]);
    }
}
