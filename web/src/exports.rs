//! Functions that the page's worker calls, and those that it gives.
//!
//! Texts are UTF-8 in this module's memory, allocated with [`allocate`]. Events are JSON.

use crate::event::{Ask, PageEvent, PageFailure};
use crate::model::OpenModel;
use gristmill_backend::Options;
use gristmill_llm::file::{ByteSource, ModelFile};
use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::io;

#[link(wasm_import_module = "gristmill")]
unsafe extern "C" {
    /// Milliseconds since some moment.
    safe fn now() -> f64;
    /// Copies bytes of the opened file to memory; returns 0 if they are not all there.
    fn read_file(offset: f64, to: *mut u8, len: usize) -> u32;
    /// Passes an event to the page, as JSON of `len` bytes.
    fn tell(json: *const u8, len: usize);
}

thread_local! {
    static MODEL: RefCell<Option<OpenModel>> = const { RefCell::new(None) };
}

/// Largest alignment of memory for the page.
const ALIGNMENT: usize = 16;

/// The file that the user opened, read by ranges.
struct PageFile(u64);

impl ByteSource for PageFile {
    fn size(&self) -> u64 {
        self.0
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        // SAFETY: as many bytes are there.
        match unsafe { read_file(offset as f64, out.as_mut_ptr(), out.len()) } {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn send(event: &PageEvent) {
    let json = serde_json::to_vec(event).unwrap_or_default();
    // SAFETY: the bytes of the text, which are only read.
    unsafe { tell(json.as_ptr(), json.len()) };
}

fn send_failure(failure: PageFailure) {
    send(&failure.event());
}

fn seconds() -> f64 {
    now() / 1e3
}

/// Allocates memory for the page.
#[unsafe(no_mangle)]
pub extern "C" fn allocate(len: usize) -> *mut u8 {
    match Layout::from_size_align(len.max(1), ALIGNMENT) {
        // SAFETY: the size is not zero.
        Ok(layout) => unsafe { alloc(layout) },
        Err(_) => std::ptr::null_mut(),
    }
}

/// Frees memory of [`allocate`] with that length.
///
/// # Safety
/// The memory must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn release(start: *mut u8, len: usize) {
    if let Ok(layout) = Layout::from_size_align(len.max(1), ALIGNMENT) {
        // SAFETY: allocated with this layout, as the caller guarantees.
        unsafe { dealloc(start, layout) }
    }
}

/// Prepares the module: a panic becomes an event.
#[unsafe(no_mangle)]
pub extern "C" fn begin() {
    std::panic::set_hook(Box::new(|info| {
        let hint = "this is a fault of the program; reload the page";
        send_failure(PageFailure::new(info, hint));
    }));
}

/// Opens the model in the file of that size on a device; returns whether it is open.
///
/// # Safety
/// The name of the device must be text of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(size: f64, device: *const u8, len: usize) -> u32 {
    // SAFETY: as the caller guarantees.
    let device = unsafe { text(device, len) };
    let opened = || -> Result<OpenModel, PageFailure> {
        let file = ModelFile::from_source(Box::new(PageFile(size as u64)))?;
        let opened = gristmill_backend::open(&device, &Options::default());
        let opened = opened.map_err(|error| {
            let hint = error.hint().unwrap_or_default();
            PageFailure::new(error, hint)
        })?;
        OpenModel::open(&file, opened, &|event| send(&event))
    };
    match opened() {
        Ok(model) => {
            MODEL.with_borrow_mut(|place| *place = Some(model));
            1
        }
        Err(failure) => {
            send_failure(failure);
            0
        }
    }
}

/// Begins an answer to a conversation in JSON; returns whether it has begun.
///
/// # Safety
/// The request must be text of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ask(json: *const u8, len: usize) -> u32 {
    // SAFETY: as the caller guarantees.
    let json = unsafe { text(json, len) };
    let begun = with_model(|model| {
        let ask: Ask = serde_json::from_str(&json)
            .map_err(|error| PageFailure::new(error, "reload the page"))?;
        model.ask(&ask)
    });
    match begun {
        Ok(()) => 1,
        Err(failure) => {
            send_failure(failure);
            0
        }
    }
}

/// Runs a step of the answer; returns whether more steps follow.
#[unsafe(no_mangle)]
pub extern "C" fn step() -> u32 {
    match with_model(|model| model.step(seconds)) {
        Ok((events, more)) => {
            events.iter().for_each(send);
            u32::from(more)
        }
        Err(failure) => {
            send_failure(failure);
            0
        }
    }
}

/// Stops the present answer, which keeps its text so far.
#[unsafe(no_mangle)]
pub extern "C" fn stop() {
    match with_model(|model| Ok(model.stop())) {
        Ok(events) => events.iter().for_each(send),
        Err(failure) => send_failure(failure),
    }
}

fn with_model<T>(
    work: impl FnOnce(&mut OpenModel) -> Result<T, PageFailure>,
) -> Result<T, PageFailure> {
    MODEL.with_borrow_mut(|model| match model {
        Some(model) => work(model),
        None => Err(PageFailure::new("no model is open", "open one")),
    })
}

/// Copies text of the page.
///
/// # Safety
/// As many bytes must be there.
unsafe fn text(start: *const u8, len: usize) -> String {
    // SAFETY: as the caller guarantees.
    let bytes = unsafe { std::slice::from_raw_parts(start, len) };
    String::from_utf8_lossy(bytes).into_owned()
}
