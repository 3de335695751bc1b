//! Instruction sets: detection, compiler flags, and the target for the compiler.

use gristmill_runtime::Error;
use gristmill_uop::fragment::{AMX_BF16, Fragment};
use gristmill_uop::machine::Machine;
use gristmill_uop::target::Target;

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Isa {
    /// As [`Isa::Avx512Vnni`], with AVX512-BF16 and AMX tiles of bf16.
    Amx,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
    Avx512Vnni,
    /// x86-64 with AVX2, FMA, F16C and 256-bit AVX-VNNI: as [`Isa::Avx2`] with `vpdpbusd`.
    AvxVnni,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// 64-bit ARM with the dot product instructions.
    Neon,
    /// Baseline of this architecture.
    Plain,
}

/// A row of the table of instruction sets.
pub struct IsaInfo {
    /// Instruction set of the row.
    pub isa: Isa,
    /// Name for the option `--isa`.
    pub name: &'static str,
    /// f32 lanes of a vector register.
    pub lanes: usize,
    /// Flags for gcc and clang, including those of the subsets first.
    ///
    /// They never contain `native`, so that a stored kernel runs on any machine with the set.
    pub flags: &'static [&'static [&'static str]],
}

/// `-march=x86-64` overrides a distribution's default.
const AVX2: &[&str] = &[
    "-march=x86-64",
    "-mavx2",
    "-mfma",
    "-mf16c",
    "-mbmi",
    "-mbmi2",
];
/// Flags in addition to those of AVX2. By default compilers prefer 256-bit vectors, which use half
/// of the memory bandwidth.
const AVX512_VNNI: &[&str] = &[
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx512vnni",
    "-mprefer-vector-width=512",
];

/// All instruction sets, best first.
pub const TABLE: &[IsaInfo] = &[
    IsaInfo {
        isa: Isa::Amx,
        name: "amx",
        lanes: 16,
        flags: &[
            AVX2,
            AVX512_VNNI,
            &["-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
        ],
    },
    IsaInfo {
        isa: Isa::Avx512Vnni,
        name: "avx512vnni",
        lanes: 16,
        flags: &[AVX2, AVX512_VNNI],
    },
    IsaInfo {
        isa: Isa::AvxVnni,
        name: "avxvnni",
        lanes: 8,
        flags: &[AVX2, &["-mavxvnni"]],
    },
    IsaInfo {
        isa: Isa::Avx2,
        name: "avx2",
        lanes: 8,
        flags: &[AVX2],
    },
    IsaInfo {
        isa: Isa::Neon,
        name: "neon",
        lanes: 4,
        flags: &[&["-march=armv8.2-a+dotprod"]],
    },
    IsaInfo {
        isa: Isa::Plain,
        name: "plain",
        lanes: 4,
        flags: if cfg!(target_arch = "x86_64") {
            &[&["-march=x86-64"]]
        } else {
            &[]
        },
    },
];

impl Isa {
    /// Returns its row of the table.
    pub fn info(self) -> &'static IsaInfo {
        TABLE
            .iter()
            .find(|row| row.isa == self)
            .expect("every set has a row")
    }
    /// Returns the name for `--isa`, also part of the target's name.
    pub fn name(self) -> &'static str {
        self.info().name
    }
    /// Returns the f32 lanes of a vector register.
    pub fn lanes(self) -> usize {
        self.info().lanes
    }
    /// Returns the flags for the C compiler.
    pub fn flags(self) -> impl Iterator<Item = &'static &'static str> {
        self.info().flags.iter().copied().flatten()
    }
    /// Returns the flags for `zig cc`, which has its own names of processors.
    ///
    /// Like the others they describe no machine: a target without a C library, and a baseline.
    pub fn zig_flags(self) -> impl Iterator<Item = &'static str> {
        let target: &[&str] = match (std::env::consts::OS, std::env::consts::ARCH) {
            ("linux", "x86_64") => &["-target", "x86_64-linux-none"],
            ("linux", "aarch64") => &["-target", "aarch64-linux-none"],
            _ => &[],
        };
        let processor = match self {
            Isa::Neon => "-mcpu=generic+v8_2a+dotprod",
            _ => "-mcpu=baseline",
        };
        let sets = self
            .flags()
            .copied()
            .filter(|flag| !flag.starts_with("-march"));
        target.iter().copied().chain([processor]).chain(sets)
    }
    /// Returns whether this machine supports it.
    pub fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512Vnni.available() && super::amx::permitted(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                use std::arch::is_x86_feature_detected as has;
                Isa::Avx2.available()
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512vl")
                    && has!("avx512dq")
                    && has!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.available() && std::arch::is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                use std::arch::is_x86_feature_detected as has;
                has!("avx2") && has!("fma") && has!("f16c") && has!("bmi1") && has!("bmi2")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            Isa::Plain => true,
            #[cfg(not(all(target_arch = "x86_64", target_arch = "aarch64")))]
            _ => false,
        }
    }
    /// Returns the sets that this machine supports, best first.
    pub fn all_available() -> Vec<Isa> {
        TABLE
            .iter()
            .map(|row| row.isa)
            .filter(|isa| isa.available())
            .collect()
    }
    /// Parses `--isa text`: a name of the table, or `auto` or empty for the best available set.
    pub fn parse(text: &str) -> Result<Isa, Error> {
        let isa = Isa::named(text)?;
        if isa.available() {
            Ok(isa)
        } else {
            Err(refused(
                text,
                "this machine does not have that instruction set",
            ))
        }
    }
    /// Parses a name as [`Isa::parse`] does, but accepts sets that this machine does not support.
    pub fn named(text: &str) -> Result<Isa, Error> {
        if text.is_empty() || text == "auto" {
            return Ok(Isa::all_available()[0]);
        }
        let row = TABLE.iter().find(|row| row.name == text);
        row.map(|row| row.isa)
            .ok_or_else(|| refused(text, "no such instruction set"))
    }
    /// Returns the target with this set and as many workers as the machine has cores.
    ///
    /// It is independent of the number of threads, and so are kernels and their results.
    pub fn target(self) -> Target {
        self.target_of(std::thread::available_parallelism().map_or(1, |n| n.get()))
    }
    /// Returns the target of a CPU with that number of workers.
    pub fn target_of(self, workers: usize) -> Target {
        let signed_bytes = matches!(self, Isa::Avx2 | Isa::Neon);
        let cpu = Machine::cpu(self.name(), self.lanes(), workers);
        let fragments: &[Fragment] = if self == Isa::Amx { &[AMX_BF16] } else { &[] };
        Target::new(Machine {
            pairs: self == Isa::Avx2,
            signed_bytes,
            fragments,
            ..cpu
        })
    }
}

/// Returns the error for an unusable `--isa text`.
fn refused(text: &str, message: &str) -> Error {
    let names: Vec<&str> = Isa::all_available().iter().map(|isa| isa.name()).collect();
    Error::Setting {
        setting: format!("--isa {text}"),
        message: message.into(),
        hint: format!(
            "this machine has {}; `auto` takes the best",
            names.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_the_best_there_is() {
        let best = Isa::parse("auto").unwrap();
        assert!(best.available());
        assert_eq!(Isa::all_available()[0], best);
        assert_eq!(*Isa::all_available().last().unwrap(), Isa::Plain);
        assert_eq!(Isa::parse("plain").unwrap(), Isa::Plain);
        assert_eq!(best.target().name, format!("cpu-{}", best.name()));
    }

    #[test]
    fn unknown_and_missing_sets_are_refused_with_what_there_is() {
        let missing = TABLE
            .iter()
            .find(|row| !row.isa.available())
            .map(|row| row.name);
        for name in ["avx1024", "AVX2 "].into_iter().chain(missing) {
            let error = Isa::parse(name).unwrap_err();
            assert!(
                matches!(error, Error::Setting { .. }) && error.hint().unwrap().contains("plain"),
                "{error}"
            );
        }
        // For planning, a set only has to be known.
        assert!(Isa::named("avx1024").is_err());
        assert!(
            TABLE
                .iter()
                .all(|row| Isa::named(row.name).is_ok_and(|isa| isa == row.isa))
        );
    }
}
