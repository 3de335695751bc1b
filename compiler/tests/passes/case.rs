//! Parses a case's file: a comment, a header, the input, `---`, the expected output.
//!
//! ```text
//! # What the case demonstrates, and why.
//! target: cpu-avx512vnni workers=4 off=fusion
//! KEY: VALUE
//!
//! %0 = Param f32 8:i64 slot=0
//! return %0
//! ---
//! the expected output
//! ```

use gristmill_uop::adapter::Adapter;
use gristmill_uop::machine::Machine;
use gristmill_uop::target::{FLAGS, Target};
use gristmill_uop::{Graph, Id, text};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Separates the input from the expected output.
const LINE: &str = "---\n";

/// A parsed case file, with the header keys that were read.
pub struct Case {
    path: PathBuf,
    /// Name of the pass, which is the name of the folder.
    pub pass: String,
    header: BTreeMap<String, String>,
    /// Header keys that the pass has read.
    read: RefCell<BTreeSet<String>>,
    /// The text of the file up to and including the separator.
    before: String,
    pub input: String,
    expected: String,
}

/// A graph, its roots, and its nodes by their numbers in the text.
pub struct Parsed {
    pub graph: Graph,
    pub roots: Vec<Id>,
    pub numbers: BTreeMap<u32, Id>,
}

impl Case {
    pub fn read(path: &Path) -> Result<Case, String> {
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        let (before, expected) = match text.split_once(&format!("\n{LINE}")) {
            Some((before, expected)) => (format!("{before}\n"), expected.to_string()),
            None => (text, String::new()),
        };
        let comment: Vec<&str> = before.lines().take_while(|l| l.starts_with('#')).collect();
        if !comment.last().is_some_and(|l| l.ends_with('.')) {
            return Err(
                "begins with no comment of whole sentences that says what it shows, and why".into(),
            );
        }
        let rest = before.lines().skip(comment.len());
        let mut header = BTreeMap::new();
        for line in rest.clone().take_while(|l| !l.is_empty()) {
            let (key, value) = line
                .split_once(':')
                .ok_or_else(|| format!("`{line}` is not `key: value`"))?;
            if header
                .insert(key.to_string(), value.trim().to_string())
                .is_some()
            {
                return Err(format!("`{key}` stands twice"));
            }
        }
        let input = rest
            .skip_while(|l| !l.is_empty())
            .collect::<Vec<_>>()
            .join("\n");
        let parent = path.parent().and_then(|p| p.file_name()).expect("a folder");
        let (path, pass) = (path.to_path_buf(), parent.to_string_lossy().into_owned());
        Ok(Case {
            path,
            pass,
            header,
            read: RefCell::default(),
            before,
            input,
            expected,
        })
    }

    /// Returns a value of the header, and marks its key as read.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.read.borrow_mut().insert(key.to_string());
        self.header.get(key).map(String::as_str)
    }
    /// Parses a value of the header.
    pub fn parsed<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, String> {
        self.get(key)
            .map(|v| {
                v.parse()
                    .map_err(|_| format!("`{key}: {v}` cannot be read"))
            })
            .transpose()
    }
    /// Fails if the header has a key that the pass has not read.
    pub fn all_read(&self) -> Result<(), String> {
        match self
            .header
            .keys()
            .find(|k| !self.read.borrow().contains(*k))
        {
            Some(key) => Err(format!("`{key}` is nothing that {} reads", self.pass)),
            None => Ok(()),
        }
    }

    /// The target: a machine of the list below with overrides, and optimisations switched off.
    pub fn target(&self) -> Result<Target, String> {
        let line = self.get("target").ok_or("no `target`")?;
        // The workers come first, because other facts of a CPU depend on their number.
        let workers = line
            .split_once("workers=")
            .and_then(|(_, w)| w.split(' ').next()?.parse().ok())
            .unwrap_or(2);
        let mut words = line.split_whitespace();
        let mut target = match words.next() {
            Some("cpu-avx512vnni") => Target::cpu("avx512vnni", 16, workers),
            Some("cpu-avx2") => Target::new(Machine {
                pairs: true,
                signed_bytes: true,
                ..Machine::cpu("avx2", 8, workers)
            }),
            Some("cpu-neon") => Target::new(Machine {
                signed_bytes: true,
                ..Machine::cpu("neon", 4, workers)
            }),
            Some("cpu-plain") => Target::cpu("plain", 1, workers),
            Some(gpu) if gpu.strip_prefix("gpu-").and_then(Machine::named).is_some() => {
                Target::named(&gpu[4..])
            }
            Some(name) if let Some(of) = name.strip_prefix("adapter-").and_then(Adapter::named) => {
                Target::new(of.machine())
            }
            other => return Err(format!("no target is called {other:?}")),
        };
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("`{word}` is not `key=value`"))?;
            if key == "off" {
                let flag = FLAGS
                    .iter()
                    .find(|f| f.name == value)
                    .ok_or_else(|| format!("no flag `{value}`"))?;
                (flag.off)(&mut target);
                continue;
            }
            let n: usize = value
                .parse()
                .map_err(|_| format!("`{word}` is no number"))?;
            let field = match key {
                "workers" => &mut target.machine.units,
                "threads" => &mut target.threads,
                "registers" => &mut target.registers,
                "least" => &mut target.machine.least_bytes,
                "shared" => &mut target.machine.shared_per_workgroup,
                "bindings" => &mut target.machine.most_bindings,
                _ => return Err(format!("no field `{key}`")),
            };
            *field = n;
        }
        Ok(target)
    }

    /// The input as a graph, interned as it is written.
    pub fn graph(&self) -> Result<Parsed, String> {
        let numbers: Vec<u32> = self
            .input
            .lines()
            .filter_map(|l| l.trim().strip_prefix('%')?.split_once(" =")?.0.parse().ok())
            .collect();
        // All nodes are added as roots, to learn their ids.
        let all: String = numbers.iter().map(|n| format!(" %{n}")).collect();
        let input: String = self
            .input
            .lines()
            .map(|l| {
                if l.starts_with("return") {
                    format!("{l}{all}\n")
                } else {
                    format!("{l}\n")
                }
            })
            .collect();
        let (graph, mut roots) = text::parse(&input, &gristmill_encodings::by_name)
            .map_err(|e| format!("the input: {e}"))?;
        let nodes = roots.split_off(roots.len() - numbers.len());
        Ok(Parsed {
            graph,
            roots,
            numbers: numbers.into_iter().zip(nodes).collect(),
        })
    }

    /// Compares the pass's output with the file; blessing rewrites the file instead.
    pub fn compare(&self, found: &str, bless: bool) -> Result<(), String> {
        if found == self.expected {
            return Ok(());
        }
        if bless {
            return std::fs::write(&self.path, format!("{}{LINE}{found}", self.before))
                .map_err(|e| e.to_string());
        }
        Err(format!(
            "differs from what the file expects (-) in what was found (+)\n{}hint: where the change is meant, \
             `cargo xtask bless -- -p gristmill-compiler --test passes` rewrites the file",
            difference(&self.expected, found)
        ))
    }
}

impl Parsed {
    /// The nodes that a value of the header lists: `%3 %5`.
    pub fn named(&self, words: &str) -> Result<Vec<Id>, String> {
        let one = |w: &str| -> Option<Id> {
            self.numbers
                .get(&w.strip_prefix('%')?.parse().ok()?)
                .copied()
        };
        words
            .split_whitespace()
            .map(|w| one(w).ok_or_else(|| format!("`{w}` is no node of the input")))
            .collect()
    }
}

/// Line diff of two texts by their longest common subsequence; common lines begin with a space.
fn difference(old: &str, new: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut longest = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i][j] = match a[i] == b[j] {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, String::new());
    while i < a.len() || j < b.len() {
        let (sign, line) = if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
            (' ', a[i - 1])
        } else if j == b.len() || i < a.len() && longest[i + 1][j] >= longest[i][j + 1] {
            i += 1;
            ('-', a[i - 1])
        } else {
            j += 1;
            ('+', b[j - 1])
        };
        let _ = writeln!(out, "{sign} {line}");
    }
    out
}
