//! Results of a run as tables, read from its records (`tensor/tests/conformance/progress.rs`).

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Counts, decisions and failures of a run.
#[derive(Default)]
pub struct TestResults {
    /// Per test: cases, schedules planned, distinct schedules run, and kernels; then milliseconds
    /// for reference results, planning, compiling and running.
    tests: BTreeMap<String, ([u64; 4], [u64; 4])>,
    /// Times offered and taken, by target, kind of decision and alternative.
    decided: BTreeMap<(String, String, String), [u64; 2]>,
    /// Test and message of each failure; the message names the way and its seed.
    pub wrong: Vec<(String, String)>,
}

impl TestResults {
    /// Reads all records of a folder.
    pub fn read(folder: &Path) -> Result<TestResults> {
        let mut found = TestResults::default();
        for entry in
            fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
        {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "tsv") {
                continue;
            }
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .replacen('-', "::", 1);
            let test = name.split('@').next().unwrap_or_default();
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            found
                .add(test, &text)
                .with_context(|| format!("in {}", path.display()))?;
        }
        Ok(found)
    }
    /// Whether no case has run.
    pub fn is_empty(&self) -> bool {
        self.tests.values().all(|(counts, _)| counts[0] == 0) && self.wrong.is_empty()
    }
    /// Adds the record of one test.
    fn add(&mut self, test: &str, text: &str) -> Result<()> {
        let number = |text: &str| {
            text.parse::<u64>()
                .with_context(|| format!("no number: {text}"))
        };
        let (counts, times) = self.tests.entry(test.into()).or_default();
        // An unterminated line was being written when its process was killed.
        for line in text
            .split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n'))
        {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["case", _, planned, run, texts] => {
                    counts[0] += 1;
                    for (sum, text) in counts[1..].iter_mut().zip([planned, run, texts]) {
                        *sum += number(text)?;
                    }
                }
                ["time", truth, plan, compile, run] => {
                    for (sum, text) in times.iter_mut().zip([truth, plan, compile, run]) {
                        *sum += number(text)?;
                    }
                }
                ["decided", target, kind, alternative, offered, taken] => {
                    let key = (target.into(), kind.into(), alternative.into());
                    let count = self.decided.entry(key).or_default();
                    count[0] += number(offered)?;
                    count[1] += number(taken)?;
                }
                ["fatal", schedule, how] => self.wrong.push((
                    test.into(),
                    format!("{schedule}: ended its process ({how})"),
                )),
                ["wrong", message] => self.wrong.push((test.into(), message.into())),
                _ => bail!("no line of a record: {line}"),
            }
        }
        Ok(())
    }
    /// Lists alternatives that were offered but never taken.
    pub fn never(&self) -> Vec<&(String, String, String)> {
        self.decided
            .iter()
            .filter(|(_, [_, taken])| *taken == 0)
            .map(|(key, _)| key)
            .collect()
    }
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<20} {:<10} {:<24} {:>10} {:>10}\n",
            "target", "decision", "alternative", "offered", "taken"
        );
        for ((target, kind, alternative), [offered, taken]) in &self.decided {
            out +=
                &format!("{target:<20} {kind:<10} {alternative:<24} {offered:>10} {taken:>10}\n");
        }
        out += &format!(
            "\n{:<34} {:>6} {:>9} {:>9} {:>9}",
            "test", "cases", "schedules", "distinct", "kernels"
        );
        out += &format!(
            " {:>8} {:>8} {:>8} {:>8}\n",
            "truth s", "plan s", "C s", "run s"
        );
        let mut all = ([0; 4], [0; 4]);
        let line = |name: &str, (counts, times): &([u64; 4], [u64; 4])| {
            let [cases, planned, run, texts] = counts;
            let [truth, plan, compile, ran] = times.map(|ms| ms as f64 / 1e3);
            let times = format!("{truth:>8.1} {plan:>8.1} {compile:>8.1} {ran:>8.1}");
            format!("{name:<34} {cases:>6} {planned:>9} {run:>9} {texts:>9} {times}\n")
        };
        for (test, of) in &self.tests {
            out += &line(test, of);
            all.0.iter_mut().zip(of.0).for_each(|(sum, n)| *sum += n);
            all.1.iter_mut().zip(of.1).for_each(|(sum, n)| *sum += n);
        }
        out + &line("all", &all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unassigned_cases_are_found() {
        let mut found = TestResults::default();
        found
            .add("cpu::a", "decided\tcpu\tplace\tfuse\t3\t1\ndecided\tcpu\tplace\tbuffer\t3\t0\ncase\tone\t9\t8\t7\n")
            .unwrap();
        found
            .add("cpu::b", "decided\tgpu\tplace\tbuffer\t2\t2\ndecided\tcpu\tplace\tfuse\t4\t4\ntime\t1\t2\t3\t4\n")
            .unwrap();
        assert_eq!(
            found.never(),
            [&("cpu".to_owned(), "place".to_owned(), "buffer".to_owned())]
        );
        assert_eq!(
            found.decided[&("cpu".to_owned(), "place".to_owned(), "fuse".to_owned())],
            [7, 5]
        );
        assert_eq!(
            (found.tests["cpu::a"].0, found.tests["cpu::b"].1),
            ([1, 9, 8, 7], [1, 2, 3, 4])
        );
        assert!(found.table().ends_with(&format!(
            "{:>6} {:>9} {:>9} {:>9}      0.0      0.0      0.0      0.0\n",
            1, 9, 8, 7
        )));
        found
            .add("cpu::a", "wrong\tone / interp, seed 3: element 1\n")
            .unwrap();
        found
            .add(
                "cpu::a",
                "fatal\ttwo / cpu, seed 4\trun, signal: 11\nwrong\tits end is mis",
            )
            .unwrap();
        assert_eq!(found.wrong.len(), 2);
        assert!(
            found.wrong[1]
                .1
                .contains("seed 4: ended its process (run, signal: 11)")
                && !found.is_empty()
        );
        assert!(
            found.add("x", "decided\tcpu\tplace\tfuse\t3\n").is_err()
                && found.add("x", "case\tone\tx\t1\t1\n").is_err()
        );
    }
}
