//! Results of the tuner by machine, kept in the kernel store.
//!
//! The key is [`Device::tuned_as`](gristmill_runtime::Device::tuned_as). A missing, damaged or
//! foreign entry counts as the default.

use gristmill_compiler::check_plan;
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store};
use gristmill_uop::target::{PARAMETERS, Tuning};
use std::collections::BTreeMap;

/// Version of the parameters' meaning, part of the key.
const VERSION: &str = "tuning 1";
/// Version of the plans' meaning, part of the key.
const PLANS: &str = "plans 2";

/// Plans of kernels as text, by the decision that they answer.
pub type Plans = BTreeMap<String, String>;

fn key(machine: &str) -> Key {
    Key::from_parts([VERSION, machine])
}

/// Formats the parameters: `groups 2, prefetch 1, …`
pub fn text(tuning: Tuning) -> String {
    let mut t = tuning;
    PARAMETERS
        .iter()
        .map(|p| format!("{} {}", p.name, (p.field)(&mut t)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Parses the parameters; None if a name or a value is unknown.
fn parse(text: &str) -> Option<Tuning> {
    let mut tuning = Tuning::default();
    for part in text.split(", ") {
        let (name, value) = part.split_once(' ')?;
        let parameter = PARAMETERS.iter().find(|p| p.name == name)?;
        let value = value
            .parse()
            .ok()
            .filter(|v| parameter.values.contains(v))?;
        *(parameter.field)(&mut tuning) = value;
    }
    Some(tuning)
}

/// Reads the tuned parameters of a machine; None if there are none.
pub fn read(store: &Store, machine: &str) -> Option<Tuning> {
    parse(std::str::from_utf8(&store.get(&key(machine)).ok()??).ok()?)
}

/// Stores the tuned parameters of a machine.
pub fn write(store: &Store, machine: &str, tuning: Tuning) -> Result<(), Error> {
    store.put(&key(machine), text(tuning).as_bytes())
}

/// Formats plans: a line each, the plan first, then its decision.
fn lines(plans: &Plans) -> String {
    plans
        .iter()
        .map(|(decision, plan)| format!("{plan}\t{decision}\n"))
        .collect()
}

/// Parses plans. One invalid line makes the whole record an error.
fn parse_plans(record: &str) -> Result<Plans, Error> {
    let damaged = |line: &str, why: &str| Error::Setting {
        setting: format!("the tuner's plan `{line}`"),
        message: why.to_string(),
        hint: "no plan of the tuner is used; `gristmill tune --reset` forgets them".into(),
    };
    let mut plans = Plans::new();
    for line in record.lines() {
        let (plan, decision) = line
            .split_once('\t')
            .ok_or_else(|| damaged(line, "it says no kernel"))?;
        check_plan(plan).map_err(|e| damaged(line, &e.to_string()))?;
        plans.insert(decision.to_string(), plan.to_string());
    }
    Ok(plans)
}

/// Reads the tuned plans of a machine; empty if there are none.
///
/// # Errors
/// [`Error::Setting`] if the stored text contains an invalid plan.
pub fn read_plans(store: &Store, machine: &str) -> Result<Plans, Error> {
    let Ok(Some(bytes)) = store.get(&Key::from_parts([PLANS, machine])) else {
        return Ok(Plans::new());
    };
    parse_plans(&String::from_utf8_lossy(&bytes))
}

/// Reads parameters and plans of a machine. Invalid plans are dropped with a warning.
pub fn load(store: &Store, machine: &str) -> (Tuning, Plans) {
    let plans = read_plans(store, machine).unwrap_or_else(|error| {
        store.warn(error);
        Plans::new()
    });
    (read(store, machine).unwrap_or_default(), plans)
}

/// Formats the line of `gristmill devices` about tuning.
pub fn describe(store: &Store, machine: &str, plans: &Plans) -> String {
    match read(store, machine) {
        Some(found) if plans.is_empty() => format!("tuned: {}", text(found)),
        Some(found) => format!("tuned: {}, plans of {} kernels", text(found), plans.len()),
        None => "not tuned: `gristmill tune MODEL` tries what suits this machine".into(),
    }
}

/// Stores the tuned plans of a machine.
pub fn write_plans(store: &Store, machine: &str, plans: &Plans) -> Result<(), Error> {
    store.put(&Key::from_parts([PLANS, machine]), lines(plans).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: &str = "this, 2 cores";

    #[test]
    fn plans_round_trip_and_other_text_is_rejected() {
        let place = std::env::temp_dir().join(format!("gristmill-plans-{}", std::process::id()));
        let store = Store::open(&place, 1 << 20).unwrap();
        assert!(read_plans(&store, THIS).unwrap().is_empty());
        let found = Plans::from([
            (
                "workgroup moe ffn_up · SwiGLU [1, 64]".to_string(),
                "workgroup: a1 global, a1 upcast 4".to_string(),
            ),
            (
                "nest moe ffn_up nest 0".to_string(),
                "vectors: fused, sum alone, copies 4".to_string(),
            ),
            (
                "layout q4_0 [64, 256]".to_string(),
                "layout: rows 8".to_string(),
            ),
        ]);
        write_plans(&store, THIS, &found).unwrap();
        assert_eq!(read_plans(&store, THIS).unwrap(), found);
        assert!(read_plans(&store, "another").unwrap().is_empty());
        for record in [
            "workgroup: a1 sideways\tkernel",
            "layout: rows 70000\tweights",
            "workgroup: whole",
            "nonsense\tkernel",
        ] {
            store
                .put(&Key::from_parts([PLANS, THIS]), record.as_bytes())
                .unwrap();
            assert!(read_plans(&store, THIS).is_err(), "{record}");
        }
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn an_answer_is_this_machines_and_whole() {
        let place = std::env::temp_dir().join(format!("gristmill-tuning-{}", std::process::id()));
        let store = Store::open(&place, 1 << 20).unwrap();
        let found = Tuning {
            groups: 4,
            tokens: 8,
            prefetch: 0,
        };
        assert_eq!(read(&store, THIS), None);
        write(&store, THIS, found).unwrap();
        assert_eq!(read(&store, THIS), Some(found));
        // Entries of other machines.
        assert_eq!(read(&store, "another"), None);
        assert_eq!(read(&store, "this, more cores"), None);
        // Texts that the tuner never writes.
        for text in ["groups 2, speed 9", "groups 77", "groups", "", "groups two"] {
            store.put(&key(THIS), text.as_bytes()).unwrap();
            assert_eq!(read(&store, THIS), None, "{text}");
        }
        write(&store, THIS, found).unwrap();
        // A flipped bit in the file.
        for entry in std::fs::read_dir(&place).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let mut bytes = std::fs::read(&path).unwrap();
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
        }
        assert_eq!(read(&store, THIS), None);
        std::fs::remove_dir_all(place).unwrap();
    }
}
