//! What the tuner found, by machine: an entry of the kernel store under the processor's model, the instruction set and the number of cores.
//! Whatever is missing, damaged or another machine's counts as the default.

use super::isa::Isa;
use gristmill_compiler::check_plan;
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store};
use gristmill_uop::target::{PARAMETERS, Tuning};
use std::collections::BTreeMap;

/// Changes when what the parameters mean does.
const VERSION: &str = "tuning 1";
/// Changes when what plans of kernels mean does.
const PLANS: &str = "plans 1";

/// Plans of kernels, as texts, by the decisions that they answer.
pub type Plans = BTreeMap<String, String>;

/// The machine, in words: what an answer holds for.
pub fn machine(isa: Isa) -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    format!("{}, {}, {cores} cores", model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()), isa.name())
}

/// The processor's model, from the system's description of it.
fn model(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let of = |line: &str| line.split_once(':').map(|(k, v)| (k.trim().to_string(), v.trim().to_string()));
        cpuinfo.lines().filter_map(of).find(|(k, _)| k == name).map(|x| x.1)
    };
    // An ARM processor has numbers, which differ as names do; models of one name differ in their number too.
    let names = ["model name", "cpu family", "model", "CPU implementer", "CPU part"];
    let all: Vec<String> = names.iter().filter_map(|n| field(n)).collect();
    if all.is_empty() { std::env::consts::ARCH.into() } else { all.join(" ") }
}

fn key(machine: &str) -> Key {
    Key::of([VERSION, machine])
}

/// `groups 2, prefetch 1, …`
pub fn text(tuning: Tuning) -> String {
    let mut t = tuning;
    PARAMETERS.iter().map(|p| format!("{} {}", p.name, (p.field)(&mut t))).collect::<Vec<_>>().join(", ")
}

/// What is written; nothing that is unknown or of no use is taken.
fn parse(text: &str) -> Option<Tuning> {
    let mut tuning = Tuning::default();
    for part in text.split(", ") {
        let (name, value) = part.split_once(' ')?;
        let parameter = PARAMETERS.iter().find(|p| p.name == name)?;
        let value = value.parse().ok().filter(|v| parameter.values.contains(v))?;
        *(parameter.field)(&mut tuning) = value;
    }
    Some(tuning)
}

fn read_for(store: &Store, machine: &str) -> Option<Tuning> {
    parse(std::str::from_utf8(&store.get(&key(machine)).ok()??).ok()?)
}

/// What was found for this machine with that instruction set.
pub fn read(store: &Store, isa: Isa) -> Option<Tuning> {
    read_for(store, &machine(isa))
}

/// Keeps it.
pub fn write(store: &Store, isa: Isa, tuning: Tuning) -> Result<(), Error> {
    store.put(&key(&machine(isa)), text(tuning).as_bytes())
}

/// The record of plans: a line for each, the plan before its decision.
fn lines(plans: &Plans) -> String {
    plans.iter().map(|(decision, plan)| format!("{plan}\t{decision}\n")).collect()
}

/// Plans from their record. One line that is none makes all of it one that nobody can trust.
fn parse_plans(record: &str) -> Result<Plans, Error> {
    let damaged = |line: &str, why: &str| Error::Setting {
        setting: format!("the tuner's plan `{line}`"),
        message: why.to_string(),
        hint: "no plan of the tuner is used; `gristmill tune --reset` forgets them".into(),
    };
    let mut plans = Plans::new();
    for line in record.lines() {
        let (plan, decision) = line.split_once('\t').ok_or_else(|| damaged(line, "it says no kernel"))?;
        check_plan(plan).map_err(|e| damaged(line, &e.to_string()))?;
        plans.insert(decision.to_string(), plan.to_string());
    }
    Ok(plans)
}

/// The plans that were found for this machine with that instruction set.
///
/// # Errors
/// [`Error::Setting`] if what is stored are no plans.
pub fn read_plans(store: &Store, isa: Isa) -> Result<Plans, Error> {
    let Ok(Some(bytes)) = store.get(&Key::of([PLANS, &machine(isa)])) else { return Ok(Plans::new()) };
    parse_plans(&String::from_utf8_lossy(&bytes))
}

/// Keeps them.
pub fn write_plans(store: &Store, isa: Isa, plans: &Plans) -> Result<(), Error> {
    store.put(&Key::of([PLANS, &machine(isa)]), lines(plans).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_as_they_were_written_and_nothing_else_is_a_plan() {
        let place = std::env::temp_dir().join(format!("gristmill-plans-{}", std::process::id()));
        let store = Store::open(&place, 1 << 20).unwrap();
        assert!(read_plans(&store, Isa::Plain).unwrap().is_empty());
        let found = Plans::from([
            ("workgroup moe ffn_up · SwiGLU [1, 64]".to_string(), "workgroup: a1 global, a1 upcast 4".to_string()),
            ("nest moe ffn_up nest 0".to_string(), "vectors: fused, sum alone, copies 4".to_string()),
        ]);
        write_plans(&store, Isa::Plain, &found).unwrap();
        assert_eq!(read_plans(&store, Isa::Plain).unwrap(), found);
        assert!(read_plans(&store, Isa::Avx2).unwrap().is_empty());
        for record in ["workgroup: a1 sideways\tkernel", "workgroup: whole", "nonsense\tkernel"] {
            store.put(&Key::of([PLANS, &machine(Isa::Plain)]), record.as_bytes()).unwrap();
            assert!(read_plans(&store, Isa::Plain).is_err(), "{record}");
        }
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn an_answer_is_this_machines_and_whole() {
        let place = std::env::temp_dir().join(format!("gristmill-tuning-{}", std::process::id()));
        let store = Store::open(&place, 1 << 20).unwrap();
        let found = Tuning { groups: 4, tokens: 8, prefetch: 0 };
        assert_eq!(read(&store, Isa::Plain), None);
        write(&store, Isa::Plain, found).unwrap();
        assert_eq!(read(&store, Isa::Plain), Some(found));
        // Another instruction set, another machine.
        assert_eq!(read(&store, Isa::Avx2), None);
        assert_eq!(read_for(&store, &machine(Isa::Plain).replace("cores", "more cores")), None);
        // What no tuner would say.
        for text in ["groups 2, speed 9", "groups 77", "groups", "", "groups two"] {
            store.put(&key(&machine(Isa::Plain)), text.as_bytes()).unwrap();
            assert_eq!(read(&store, Isa::Plain), None, "{text}");
        }
        write(&store, Isa::Plain, found).unwrap();
        // Damaged.
        for entry in std::fs::read_dir(&place).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let mut bytes = std::fs::read(&path).unwrap();
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
        }
        assert_eq!(read(&store, Isa::Plain), None);
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_processor_has_a_name() {
        assert_eq!(
            model("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Fast CPU @ 3\n\nmodel\t: 18\n"),
            "Fast CPU @ 3 17"
        );
        assert_eq!(model("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n"), "0x41 0xd40");
        assert_eq!(model(""), std::env::consts::ARCH);
    }
}
