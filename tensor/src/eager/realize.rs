//! Realizes lazy tensors: captures all pending expressions as one function, compiles and runs it.

use super::node::{Copied, State, Tensor};
use super::values::Element;
use crate::capture::Capture;
use crate::jit::{Call, Jit, Ready};
use crate::tensor::Tensor as Captured;
use gristmill_backend::{Opened, Options};
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::{Buffer, Device, Error, Memory};
use gristmill_uop::function::Storage;
use rustc_hash::{FxHashMap, FxHashSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The jit of the current device, with its compiled functions; `None` until first use.
static JIT: Mutex<Option<Jit>> = Mutex::new(None);

/// Locks the jit. A poisoned lock is ignored: after a panic the cache only lacks entries.
fn jit() -> MutexGuard<'static, Option<Jit>> {
    JIT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the device for all threads; values on another device are copied when used.
pub fn set_device(opened: Opened) {
    *jit() = Some(Jit::new(opened));
}

/// Opens a device by name (`cpu`, `cuda`, `cuda:1`, `interp`) and sets it for all threads.
///
/// # Errors
/// If there is no such device, or a requirement of it is missing.
pub fn use_device(name: &str) -> Result<(), Error> {
    set_device(gristmill_backend::open(name, &Options::default())?);
    Ok(())
}

/// The device that tensors are realized on; opens the best available if none was set.
///
/// # Errors
/// If it cannot be opened.
pub fn device() -> Result<Arc<dyn Device>, Error> {
    with_jit(|jit| Ok(jit.device().clone()))
}

fn with_jit<T>(of: impl FnOnce(&mut Jit) -> Result<T, Error>) -> Result<T, Error> {
    let mut held = jit();
    let known = match held.take() {
        Some(known) => known,
        None => Jit::new(gristmill_backend::best(&Options::default())?.0),
    };
    of(held.insert(known))
}

/// Computes these tensors and all their pending sources in one step.
///
/// Tensors that already have values are not recomputed.
///
/// # Errors
/// Errors of the device, such as lack of memory or of a compiler.
pub fn realize(tensors: &[&Tensor]) -> Result<(), Error> {
    let mut seen = FxHashSet::default();
    let is_new = |t: &&&Tensor| {
        matches!(*t.0.state.borrow(), State::Deferred(_)) && seen.insert(Rc::as_ptr(&t.0))
    };
    let roots: Vec<&Tensor> = tensors.iter().filter(is_new).copied().collect();
    if roots.is_empty() {
        Ok(())
    } else {
        with_jit(|jit| computed(&roots, jit))
    }
}

impl Tensor {
    /// Computes this tensor and all its pending sources, and returns a clone of it.
    ///
    /// # Errors
    /// Errors of the device, such as lack of memory or of a compiler.
    pub fn realize(&self) -> Result<Tensor, Error> {
        realize(&[self])?;
        Ok(self.clone())
    }
    /// Returns the elements, row-major; computes them first if necessary.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// If the elements have another type; convert them with [`Tensor::cast`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        let wanted = Storage::Plain(T::SCALAR);
        assert!(
            self.0.storage == wanted,
            "elements of {self:?} are no {}",
            T::SCALAR.name()
        );
        realize(&[self])?;
        Ok(host(self)?
            .chunks_exact(T::SCALAR.bytes())
            .map(T::get)
            .collect())
    }
}

/// The bytes of a tensor that has values.
fn host(tensor: &Tensor) -> Result<Rc<[u8]>, Error> {
    match &*tensor.0.state.borrow() {
        State::Host(bytes, _) => Ok(bytes.clone()),
        State::Computed(device, buffer) => {
            let mut bytes = vec![0; tensor.0.bytes()];
            device.read(buffer, 0, &mut bytes)?;
            Ok(bytes.into())
        }
        State::Deferred(_) => unreachable!("{tensor:?} has been realized"),
    }
}

/// A capture over realized tensors (`leaves`), in the order of its slots.
struct Captures<'g> {
    capture: &'g Capture,
    leaves: Vec<Tensor>,
    known: FxHashMap<*const (), Captured<'g>>,
}

fn key(tensor: &Tensor) -> *const () {
    Rc::as_ptr(&tensor.0).cast()
}

impl<'g> Captures<'g> {
    /// Captures a tensor after its sources; iterative, since chains of expressions may be long.
    fn tensor(&mut self, root: &Tensor) -> Captured<'g> {
        let mut stack = vec![root.clone()];
        while let Some(at) = stack.pop() {
            if self.known.contains_key(&key(&at)) {
                continue;
            }
            let deferred = match &*at.0.state.borrow() {
                State::Deferred(deferred) => Some(deferred.clone()),
                _ => None,
            };
            let value = match deferred {
                None => {
                    let value = at.0.slot(self.capture, &format!("x{}", self.leaves.len()));
                    self.leaves.push(at.clone());
                    value
                }
                Some(deferred) => {
                    let missing = |s: &&Tensor| !self.known.contains_key(&key(s));
                    let missing: Vec<Tensor> =
                        deferred.sources.iter().filter(missing).cloned().collect();
                    if !missing.is_empty() {
                        stack.push(at);
                        stack.extend(missing);
                        continue;
                    }
                    let sources: Vec<Captured> = deferred
                        .sources
                        .iter()
                        .map(|s| self.known[&key(s)])
                        .collect();
                    (deferred.body)(self.capture, &sources)
                }
            };
            self.known.insert(key(&at), value);
        }
        self.known[&key(root)]
    }
}

/// Computes deferred tensors, each once.
fn computed(roots: &[&Tensor], jit: &mut Jit) -> Result<(), Error> {
    let capture = Capture::new("eager");
    let leaves = {
        let mut captures = Captures {
            capture: &capture,
            leaves: Vec::new(),
            known: FxHashMap::default(),
        };
        let values: Vec<Captured> = roots.iter().map(|root| captures.tensor(root)).collect();
        for value in values {
            capture.output("y", value);
        }
        captures.leaves
    };
    let ready = jit
        .prepare(&[Arc::new(capture.finish())], &|_, _| ())?
        .swap_remove(0);
    let mut args = Vec::new();
    for (slot, leaf) in leaves.iter().enumerate() {
        args.push(on_device(leaf, layout(&ready, slot), jit)?);
    }
    let device = jit.device().clone();
    for root in roots {
        args.push(device.alloc(root.0.bytes(), Memory::Scratch)?);
    }
    jit.run(
        &[Call {
            function: ready,
            args: args.clone(),
        }],
        &[],
    )?;
    for (root, buffer) in roots.iter().zip(&args[leaves.len()..]) {
        root.0
            .state
            .replace(State::Computed(device.clone(), buffer.clone()));
    }
    Ok(())
}

/// The layout that a compiled function expects of a slot.
fn layout(ready: &Ready, slot: usize) -> Layout {
    let layouts = &ready.compiled.layouts;
    layouts
        .iter()
        .find(|l| l.0 as usize == slot)
        .map_or(Layout::File, |l| l.1)
}

/// The device buffer of a realized tensor in the given layout; copies and repacks if needed.
fn on_device(tensor: &Tensor, layout: Layout, jit: &mut Jit) -> Result<Buffer, Error> {
    let device = jit.device().clone();
    match &*tensor.0.state.borrow() {
        State::Computed(owner, buffer) if owner.id() == device.id() => return Ok(buffer.clone()),
        State::Host(_, copies) => {
            if let Some(found) = copies
                .iter()
                .find(|c| c.device == device.id() && c.layout == layout)
            {
                return Ok(found.buffer.clone());
            }
        }
        _ => {}
    }
    let bytes = host(tensor)?;
    let file = device.alloc(bytes.len(), Memory::Scratch)?;
    device.write(&file, 0, &bytes)?;
    let buffer = match tensor.0.storage {
        Storage::Packed(encoding) if layout != Layout::File => {
            let columns = tensor.dims()[tensor.dims().len() - 1];
            let dims: Vec<i64> = tensor.dims().iter().map(|&d| d as i64).collect();
            let size = layout
                .bytes(encoding, &dims)
                .unwrap_or_else(|| unreachable!("{tensor:?} has been compiled so"));
            let packed = device.alloc(size, Memory::Weights)?;
            jit.prepare_packers(&[(encoding, layout, columns)])?;
            let rows = tensor.dims()[..tensor.dims().len() - 1].iter().product();
            jit.packer((encoding, layout, columns))?
                .pack(&file, &packed, rows)?;
            packed
        }
        _ => file,
    };
    let copied = Copied {
        device: device.id(),
        layout,
        buffer: buffer.clone(),
    };
    match &mut *tensor.0.state.borrow_mut() {
        State::Host(_, copies) => copies.push(copied),
        computed => *computed = State::Host(bytes, vec![copied]),
    }
    Ok(buffer)
}
