//! Compiled functions in the store of their device: planning a model takes a second, reading what was planned some milliseconds.

use crate::function::Key as Content;
use gristmill_compiler::{Compiled, Decision, record};
use gristmill_runtime::store::{Key, Store};
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;

/// The build of the compiler: see `build_id.rs`.
const BUILD: &str = env!("GRISTMILL_COMPILER_BUILD");

/// Where functions that are compiled for a device are kept.
pub struct FunctionStore<'a> {
    /// The device's store.
    pub store: &'a Store,
    /// The device's name, which tells its dialect.
    pub device: &'a str,
    /// The machine that kernels are written for.
    pub target: &'a Target,
}

impl FunctionStore<'_> {
    /// Everything that decides what a function is compiled to, and what its kernels and decisions are called.
    fn key(&self, build: &str, function: &Function, content: Content) -> Key {
        // All fields of a target, those that are yet to come too, but plans of other functions. A float's text is read back as the same float.
        let name = function.full_name();
        let is_own = |plan: &(&String, &String)| Decision::is_of(plan.0, &name);
        let plans = self.target.plans.iter().filter(is_own).map(|(key, plan)| (key.clone(), plan.clone())).collect();
        let target = format!("{:?}", Target { plans, ..self.target.clone() });
        let names = function.slots.iter().map(|slot| slot.name.as_bytes());
        let parts: [&[u8]; 6] = [
            b"plan",
            build.as_bytes(),
            self.device.as_bytes(),
            target.as_bytes(),
            &content.0,
            function.name.as_bytes(),
        ];
        Key::from_parts(parts.into_iter().chain(names))
    }
    /// The compiled function, if it is there. What is damaged, or is none, is removed.
    pub fn get(&self, function: &Function, content: Content) -> Option<Compiled> {
        let key = self.key(BUILD, function, content);
        let bytes = self.store.get(&key).ok()??;
        let compiled = record::read(&bytes, function);
        if compiled.is_none() {
            self.store.remove(&key);
        }
        compiled
    }
    /// Keeps a function that was compiled.
    pub fn put(&self, function: &Function, content: Content, compiled: &Compiled) {
        self.store.put_or_warn(&self.key(BUILD, function, content), &record::write(compiled));
    }
}

#[cfg(test)]
mod tests;
