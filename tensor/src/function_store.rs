//! Persistent cache of compiled functions in the device's store.
//!
//! Planning the functions of a model takes about a second; reading them back takes milliseconds.

use crate::function::Key as Content;
use gristmill_compiler::{Compiled, Decision, record};
use gristmill_runtime::store::{Key, Store};
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;

/// Hash of the compiler's source; see `build_id.rs`.
const BUILD: &str = env!("GRISTMILL_COMPILER_BUILD");

/// Reads and writes functions compiled for one device and target.
pub struct FunctionStore<'a> {
    /// The store that the device provides.
    pub store: &'a Store,
    /// The device's name, which determines the kernel dialect.
    pub device: &'a str,
    /// The machine description that kernels are compiled for.
    pub target: &'a Target,
}

impl FunctionStore<'_> {
    /// Hashes every input of the compilation, and the names that kernels and decisions get.
    fn key(&self, build: &str, function: &Function, content: Content) -> Key {
        // All fields of the target, except plans of other functions. `Debug` text of a float
        // round-trips.
        let name = function.full_name();
        let is_own = |plan: &(&String, &String)| Decision::is_of(plan.0, &name);
        let plans = self
            .target
            .plans
            .iter()
            .filter(is_own)
            .map(|(key, plan)| (key.clone(), plan.clone()))
            .collect();
        let target = format!(
            "{:?}",
            Target {
                plans,
                ..self.target.clone()
            }
        );
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
    /// Returns the compiled function if it is stored; removes the entry if it is corrupt.
    pub fn get(&self, function: &Function, content: Content) -> Option<Compiled> {
        let key = self.key(BUILD, function, content);
        let bytes = self.store.get(&key).ok()??;
        let compiled = record::read(&bytes, function);
        if compiled.is_none() {
            self.store.remove(&key);
        }
        compiled
    }
    /// Stores a compiled function.
    pub fn put(&self, function: &Function, content: Content, compiled: &Compiled) {
        self.store.put_or_warn(
            &self.key(BUILD, function, content),
            &record::write(compiled),
        );
    }
}

#[cfg(test)]
mod tests;
