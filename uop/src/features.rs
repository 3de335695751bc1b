//! Features of a kernel's modelled time, and the coefficients of a machine that turn them into
//! seconds.
//!
//! A kernel takes `fixed + max(memory, compute)` seconds. Each part is a sum of amounts times the
//! machine's seconds per unit of that amount ([`Coefficients`]). The compiler counts the amounts
//! from a kernel's nests (`compiler/src/cost.rs`); the coefficients follow from a machine's
//! description. `cargo xtask fit` compares them with measured times.

use crate::facts::values;
use crate::machine::{Machine, MachineKind};
use std::ops::{Add, AddAssign, Mul};

/// What a kernel's time is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Launches, each of which waits for the one before.
    Launch,
    /// Bytes of packed weights from memory.
    Memory,
    /// Bytes through the cache that all processor units share.
    Cache,
    /// f32 operations; a multiply-add counts as two.
    Operation,
    /// f32 operations in stages, where a GPU rarely uses multiply-adds.
    Staged,
    /// Terms of matrix products, in f32 operations at the rate of the fragment.
    Matrix,
    /// Terms that a GPU thread dequantises one by one to multiply them in half precision.
    UnpackedTerm,
    /// Terms that a GPU thread dequantises and adds one by one.
    LoneTerm,
    /// Products of packed words that a CPU loads one by one, times the lanes of a vector.
    LoneWord,
    /// Jumps of a CPU core to another address of a weight, divided by the number of cores.
    Jump,
    /// Memory latencies that nothing overlaps.
    Wait,
    /// Barriers between a stage and its readers.
    Barrier,
    /// Latencies of the cache that all processor units share, which nothing overlaps.
    CacheWait,
    /// Latencies of a GPU's workgroup memory.
    StageWait,
    /// Exchanges between the threads of a subgroup.
    Exchange,
    /// Cycles of a GPU's scheduler that instructions take.
    Cycle,
    /// Instructions that wait for the result of the one before.
    Result,
}

impl Feature {
    /// Every feature, in the order of [`Amounts`].
    pub const ALL: [Feature; 17] = [
        Feature::Launch,
        Feature::Memory,
        Feature::Cache,
        Feature::Operation,
        Feature::Staged,
        Feature::Matrix,
        Feature::UnpackedTerm,
        Feature::LoneTerm,
        Feature::LoneWord,
        Feature::Jump,
        Feature::Wait,
        Feature::Barrier,
        Feature::CacheWait,
        Feature::StageWait,
        Feature::Exchange,
        Feature::Cycle,
        Feature::Result,
    ];
    /// Name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Launch => "launch",
            Feature::Memory => "memory",
            Feature::Cache => "cache",
            Feature::Operation => "operation",
            Feature::Staged => "staged",
            Feature::Matrix => "matrix",
            Feature::UnpackedTerm => "unpacked term",
            Feature::LoneTerm => "lone term",
            Feature::LoneWord => "lone word",
            Feature::Jump => "jump",
            Feature::Wait => "wait",
            Feature::Barrier => "barrier",
            Feature::CacheWait => "cache wait",
            Feature::StageWait => "stage wait",
            Feature::Exchange => "exchange",
            Feature::Cycle => "cycle",
            Feature::Result => "result",
        }
    }
    /// An amount of this feature, and none of the others.
    pub fn times(self, amount: f64) -> Amounts {
        let mut all = Amounts::default();
        all.0[self as usize] = amount;
        all
    }
}

/// An amount of each [`Feature`].
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Amounts(pub [f64; Feature::ALL.len()]);

impl Amounts {
    /// The amount of one feature.
    pub fn get(&self, feature: Feature) -> f64 {
        self.0[feature as usize]
    }
    /// Seconds of these amounts.
    pub fn seconds(&self, by: &Coefficients) -> f64 {
        self.0.iter().zip(&by.0).map(|(n, each)| n * each).sum()
    }
    /// f32 operations that take as long.
    pub fn operations(&self, by: &Coefficients) -> f64 {
        let one = by.get(Feature::Operation);
        let all = self.0.iter().zip(&by.0);
        all.map(|(n, each)| n * (each / one)).sum()
    }
    /// The amounts that take longer; the first of equal ones.
    #[must_use]
    pub fn longer(self, other: Amounts, by: &Coefficients) -> Amounts {
        if other.seconds(by) > self.seconds(by) {
            other
        } else {
            self
        }
    }
    /// The amounts of the instructions of a stage: plain operations become staged ones, and all
    /// others take as much longer.
    #[must_use]
    pub fn staged(mut self, by: &Coefficients) -> Amounts {
        let slower = by.get(Feature::Staged) / by.get(Feature::Operation);
        let plain = self.get(Feature::Operation) + self.get(Feature::Matrix);
        for term in [Feature::UnpackedTerm, Feature::LoneTerm, Feature::LoneWord] {
            self.0[term as usize] *= slower;
        }
        self.0[Feature::Operation as usize] = 0.0;
        self.0[Feature::Matrix as usize] = 0.0;
        self.0[Feature::Staged as usize] += plain;
        self
    }
}

impl Add for Amounts {
    type Output = Amounts;
    fn add(mut self, other: Amounts) -> Amounts {
        self += other;
        self
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Amounts) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }
}

impl Mul<f64> for Amounts {
    type Output = Amounts;
    fn mul(mut self, by: f64) -> Amounts {
        self.0.iter_mut().for_each(|n| *n *= by);
        self
    }
}

/// Features of a launch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Features {
    /// Launches and stages: what nothing overlaps.
    pub fixed: Amounts,
    /// Packed weights, read from memory once.
    pub memory: Amounts,
    /// Instructions, and bytes through the cache.
    pub compute: Amounts,
}

impl Features {
    /// Modelled seconds of the launch.
    pub fn seconds(&self, by: &Coefficients) -> f64 {
        self.fixed.seconds(by) + self.memory.seconds(by).max(self.compute.seconds(by))
    }
    /// The amounts that the time consists of: with memory or compute, whichever takes longer.
    pub fn decisive(&self, by: &Coefficients) -> Amounts {
        self.fixed + self.memory.longer(self.compute, by)
    }
    /// The three parts, in a fixed order.
    pub fn parts(&self) -> [Amounts; 3] {
        [self.fixed, self.memory, self.compute]
    }
    /// Features from their parts.
    pub fn from_parts([fixed, memory, compute]: [Amounts; 3]) -> Features {
        Features {
            fixed,
            memory,
            compute,
        }
    }
}

impl AddAssign for Features {
    fn add_assign(&mut self, other: Features) {
        self.fixed += other.fixed;
        self.memory += other.memory;
        self.compute += other.compute;
    }
}

/// Seconds per unit of each [`Feature`] on a machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Coefficients(pub [f64; Feature::ALL.len()]);

impl Coefficients {
    /// Seconds per unit of one feature.
    pub fn get(&self, feature: Feature) -> f64 {
        self.0[feature as usize]
    }
    /// The coefficients that follow from a machine's description.
    pub fn from_machine(m: &Machine) -> Coefficients {
        let operation = 1.0 / m.operations;
        let (is_gpu, facts) = (m.kind == MachineKind::Gpu, m.gpu_facts());
        let each = |feature| match feature {
            Feature::Launch => m.launch,
            Feature::Memory => 1.0 / m.bandwidth,
            Feature::Cache => 1.0 / m.cache_bandwidth,
            Feature::Operation | Feature::Matrix => operation,
            Feature::Staged if is_gpu => facts.staged_operations * operation,
            Feature::Staged => operation,
            Feature::UnpackedTerm => facts.unpacked_term_operations * operation,
            Feature::LoneTerm => facts.lone_term_operations * operation,
            Feature::LoneWord => m.cpu_facts().lone_word_operations * operation,
            Feature::Jump => m.jump,
            Feature::Wait => m.latency,
            Feature::Barrier => m.barrier,
            _ => 0.0,
        };
        Coefficients(Feature::ALL.map(each))
    }
}

/// Coefficients of an H200 for linear code: a line each, the feature's name and its seconds.
const MEASURED: &str = include_str!("coefficients/h200.txt");

/// The features and seconds of [`MEASURED`].
fn measured_coefficients() -> impl Iterator<Item = (Feature, f64)> {
    values(MEASURED).into_iter().filter_map(|(name, seconds)| {
        let feature = Feature::ALL.into_iter().find(|of| of.name() == name)?;
        Some((feature, seconds))
    })
}

impl Machine {
    /// Seconds per unit of each feature of linear code on a GPU: those measured on an H200, scaled
    /// by what the machine's description says of latencies, bandwidth and clock.
    pub fn code_coefficients(&self) -> Coefficients {
        let mut by = self.coefficients();
        let Some(measured) = Machine::named("h200") else {
            return by;
        };
        let cycle = |m: &Machine| m.units as f64 * m.rate / m.operations;
        let cycles = cycle(self) / cycle(&measured);
        for (feature, seconds) in measured_coefficients() {
            let scale = match feature {
                Feature::Launch => self.launch / measured.launch,
                Feature::Wait | Feature::CacheWait => self.latency / measured.latency,
                Feature::Cache => measured.cache_bandwidth / self.cache_bandwidth,
                _ => cycles,
            };
            by.0[feature as usize] = seconds * scale;
        }
        by
    }
    /// Seconds per unit of each feature of a kernel's modelled time.
    pub fn coefficients(&self) -> Coefficients {
        Coefficients::from_machine(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> Coefficients {
        Coefficients::from_machine(&Machine::named("h200").unwrap())
    }

    #[test]
    fn the_longer_of_memory_and_compute_counts() {
        let by = h200();
        let of = |memory: f64, compute: f64| Features {
            fixed: Feature::Launch.times(1.0),
            memory: Feature::Memory.times(memory),
            compute: Feature::Operation.times(compute),
        };
        let launch = by.get(Feature::Launch);
        let bytes = of(4.6e6, 0.0).seconds(&by);
        assert!((bytes - launch - 1e-6).abs() < 1e-9, "{bytes}");
        assert_eq!(of(4.6e6, 1.0).seconds(&by), bytes);
        assert!(of(4.6e6, 1e9).seconds(&by) > bytes);
        assert_eq!(of(1.0, 1e9).decisive(&by).get(Feature::Memory), 0.0);
    }

    #[test]
    fn every_line_of_measured_coefficients_is_read() {
        let lines = MEASURED.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(measured_coefficients().count(), lines.count());
        let (h200, h100) = ["h200", "h100"]
            .map(|name| Machine::named(name).unwrap().code_coefficients())
            .into();
        let wait = |by: Coefficients| by.get(Feature::Wait);
        assert!(wait(h200) > 0.0 && wait(h100) > 0.0);
    }

    #[test]
    fn operations_of_a_stage_take_longer() {
        let by = h200();
        let plain = Feature::Operation.times(3.0) + Feature::LoneTerm.times(1.0);
        let staged = plain.staged(&by).seconds(&by);
        assert!((staged / plain.seconds(&by) - 2.0).abs() < 1e-12);
    }
}
