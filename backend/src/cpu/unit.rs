//! Compiles programs in translation units and loads them as functions.

use super::cc::Cc;
use super::isa::Isa;
use crate::text::KernelText;
use gristmill_runtime::Error;
use gristmill_runtime::image::Image;
use gristmill_runtime::store::{Key, Store};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::error::Error as _;
use std::sync::Arc;

/// A kernel's function: `buffers`, `vars`, `first`, `end`, `scratch`,
/// `staged`, as `Program` specifies.
pub type Function = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64, *mut u8, bool);

/// A function of a loaded unit.
pub struct CpuCode {
    pub(super) function: Function,
    /// Keeps the function loaded.
    pub(super) _library: Arc<LoadedUnit>,
}

/// Maximum kernels of a unit. gcc takes 60 ms for the prelude and 20 to 600 ms for a kernel, so a
/// unit takes about half a second: the granularity of progress and of the balance between cores.
const UNIT_KERNELS: usize = 8;
/// Maximum bytes of a unit's kernels, unless a single kernel is longer; bounds
/// the compiler's time and memory.
const UNIT_BYTES: usize = 48 << 10;

/// Divides kernels of these lengths among at least `least` units of about equal length.
///
/// Returns the indices of the kernels in each unit.
pub fn partition(lengths: &[usize], least: usize) -> Vec<Vec<usize>> {
    let bytes: usize = lengths.iter().sum();
    let count = least
        .max(lengths.len().div_ceil(UNIT_KERNELS))
        .max(bytes.div_ceil(UNIT_BYTES))
        .min(lengths.len());
    let mut units: Vec<(usize, Vec<usize>)> = vec![(0, vec![]); count];
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lengths[i]), i));
    for i in order {
        // `count` units of UNIT_KERNELS hold all kernels, so one has room.
        let room = units.iter_mut().filter(|u| u.1.len() < UNIT_KERNELS);
        let unit = room.min_by_key(|u| u.0).expect("a unit with room");
        unit.0 += lengths[i];
        unit.1.push(i);
    }
    units.into_iter().map(|u| u.1).collect()
}

/// A translation unit of several kernels.
pub struct Unit<'a> {
    texts: Vec<&'a KernelText>,
    source: String,
}

impl<'a> Unit<'a> {
    /// Creates a unit of these texts, sorted by key so that its own key does not
    /// depend on their order.
    pub fn new(prelude: &str, mut texts: Vec<&'a KernelText>) -> Unit<'a> {
        texts.sort_by_key(|t| t.key);
        let mut source = format!("{prelude}\n");
        for text in &texts {
            // So that errors refer to a kernel and its line.
            source += &format!("#line 1 \"{}\"\n{}\n", text.symbol, text.source);
        }
        Unit { texts, source }
    }

    fn describe(&self) -> String {
        match &self.texts[..] {
            [one] => one.name.clone(),
            [first, rest @ ..] => format!("{} (or one of {} others)", first.name, rest.len()),
            [] => "(none)".into(),
        }
    }

    /// Returns the store's key of the compiled library.
    pub fn key(&self, cc: &Cc, isa: Isa) -> Key {
        cc.key(&self.source, isa)
    }

    /// Compiles the unit and returns the bytes of the library.
    pub fn compile(&self, cc: &Cc, isa: Isa, store: &Store) -> Result<Vec<u8>, Error> {
        let place = store.temporary()?;
        cc.compile(&self.describe(), &self.source, isa, &place)
            .map_err(|e| self.with_names(e))
    }

    /// Loads the library, from the store or compiled. Returns whether it was compiled.
    pub(super) fn load(
        &self,
        cc: &Cc,
        isa: Isa,
        store: &Store,
    ) -> Result<(LoadedUnit, bool), Error> {
        let key = self.key(cc, isa);
        if let Some(bytes) = store.get(&key)? {
            // An entry that does not load (another system's symbols) is compiled again.
            if let Ok(loaded) = LoadedUnit::new(&bytes, store) {
                return Ok((loaded, false));
            }
            store.remove(&key);
        }
        let bytes = self.compile(cc, isa, store)?;
        let loaded =
            LoadedUnit::new(&bytes, store).map_err(|message| match message.contains("ELF") {
                // The compiler's target is not this machine: `CC="gcc -m32"`, or a cross compiler.
                true => Error::NoCompiler(format!(
                    "{} makes libraries that cannot be loaded here: {message}",
                    cc.describe()
                )),
                false => Error::Compile {
                    kernel: self.describe(),
                    message,
                },
            })?;
        store.put_or_warn(&key, &bytes);
        Ok((loaded, true))
    }

    /// Replaces symbols in a compiler's message by the kernels' names.
    fn with_names(&self, error: Error) -> Error {
        let Error::Compile {
            kernel,
            mut message,
        } = error
        else {
            return error;
        };
        let blamed: Vec<&str> = self
            .texts
            .iter()
            .filter(|t| message.contains(&t.symbol))
            .map(|t| t.name.as_str())
            .collect();
        let kernel = if blamed.is_empty() {
            kernel
        } else {
            blamed.join(", ")
        };
        for text in &self.texts {
            message = message.replace(&text.symbol, &text.name);
        }
        Error::Compile { kernel, message }
    }
}

/// A compiled unit loaded into this process.
pub struct LoadedUnit {
    // Before the image, so that it is closed first.
    library: Library,
    _image: Image,
}

impl LoadedUnit {
    /// Loads the bytes of a compiled library.
    pub(super) fn new(bytes: &[u8], store: &Store) -> Result<LoadedUnit, String> {
        let image = Image::new(bytes, store).map_err(|e| e.to_string())?;
        // RTLD_NOW makes a missing symbol an error here instead of a crash at the first call.
        // SAFETY: the bytes were compiled from our text, by this process or another of this user
        // that can write to the private store, and have no constructors.
        let library = unsafe { Library::open(Some(image.path()), RTLD_NOW | RTLD_LOCAL) }
            // The loader's message is the source of libloading's error.
            .map_err(|e| {
                e.source()
                    .map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}"))
            })?;
        Ok(LoadedUnit {
            library,
            _image: image,
        })
    }

    /// Returns a kernel's function, valid while this library lives.
    pub fn function(&self, text: &KernelText) -> Result<Function, Error> {
        // SAFETY: each kernel's text defines a function of this type under its symbol.
        unsafe { self.library.get::<Function>(text.symbol.as_bytes()) }
            .map(|symbol| *symbol)
            .map_err(|e| Error::Compile {
                kernel: text.name.clone(),
                message: format!("its text does not define it: {e}"),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_bounded_balanced_and_complete() {
        for (lengths, least, units) in [
            (vec![], 2, 0),
            (vec![10], 4, 1),
            (vec![10; 5], 2, 2),
            (vec![100; 49], 2, 7),
            (vec![36 << 10; 4], 1, 3),
            (vec![1, 60 << 10], 1, 2),
        ] {
            let parts = partition(&lengths, least);
            assert_eq!(parts.len(), units, "{lengths:?}");
            let mut all: Vec<usize> = parts.concat();
            all.sort();
            assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            assert!(
                parts
                    .iter()
                    .all(|p| !p.is_empty() && p.len() <= UNIT_KERNELS)
            );
        }
        let parts = partition(&[60, 10, 20, 30, 50, 40], 2);
        let sums: Vec<usize> = parts
            .iter()
            .map(|p| p.iter().map(|&i| [60, 10, 20, 30, 50, 40][i]).sum())
            .collect();
        assert!(sums.iter().all(|&s| (90..=120).contains(&s)), "{sums:?}");
    }
}
