//! The compiler describes devices by tables of machine properties: it names no vendor, API or
//! kernel language, in code or comments. Machines on which a figure was measured may be named.

use super::finding::Finding;
use super::tree::Tree;

/// Folder without names of vendors.
const HOME: &str = "compiler/";

/// Vendors, APIs and languages, in lower case.
const NAMES: &[&str] = &[
    "amd", "apple", "cublas", "cuda", "d3d12", "direct3d", "directx", "dx12", "hip", "hlsl", "intel", "lavapipe",
    "llvmpipe", "mesa", "metal", "msl", "naga", "nvcc", "nvidia", "nvrtc", "opencl", "ptx", "radeon", "rocm", "spirv",
    "sycl", "vulkan", "webgpu", "wgpu", "wgsl",
];

pub fn vendors(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| file.path.starts_with(HOME)) {
        for (line, text) in file.lines() {
            if let Some(name) = named(text) {
                let message = format!("`{name}` in the compiler");
                let hint = "express it as a machine property (uop/src/machine.rs) or as an input of the dialect";
                found.push(Finding { path: file.path.clone(), line, message, hint });
            }
        }
    }
    found
}

/// Returns the name that a line contains as a word or as a part of an identifier.
fn named(line: &str) -> Option<&'static str> {
    let line = line.to_ascii_lowercase().replace("spir-v", "spirv");
    let word = |word: &str| NAMES.iter().find(|name| **name == word).copied();
    line.split(|c: char| !c.is_ascii_alphanumeric()).find_map(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        vendors(&Tree::from_files(&[(path, text)])).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn names_fail_in_code_strings_and_comments() {
        for text in ["/// As CUDA does.", "let is_nvidia = 1;", "f(\"wgsl\")", "// SPIR-V says so", "fn of_vulkan() {}"]
        {
            assert_eq!(lines("compiler/src/a.rs", &format!("\n{text}")), [2], "{text}");
            assert_eq!(lines("backend/src/a.rs", text), [0; 0], "{text}");
        }
    }

    #[test]
    fn machines_and_other_words_pass() {
        for text in ["// 62 us on an H200", "/// ships of metals, intelligent", "let chip = amdahl;", "// AMX, AVX2"] {
            assert_eq!(lines("compiler/src/a.rs", text), [0; 0], "{text}");
        }
    }
}
