//! Costs of the link between the main device and another one: measured once and stored.

use gristmill_backend::Opened;
use gristmill_backend::cost_store::CostStore;
use gristmill_runtime::{Buffer, Device, Error as DeviceError, Memory, Replay};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::{Call, Jit};
use gristmill_uop::clock::Instant;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::link::DeviceLink;
use std::sync::Arc;

/// Bytes of an upload: 10 ms at 6 GB/s.
const UPLOAD_BYTES: usize = 64 << 20;
/// Bytes of a download, as many as a device stages at once.
const DOWNLOAD_BYTES: usize = 4 << 20;
/// Elements that are handed over: a few rows of a model.
const ROWS: usize = 4096;
/// Copies of each kind, then series of hand-overs, of which the best counts.
const PASSES: usize = 5;
/// Hand-overs of a series: 2 ms.
const HANDOVERS: usize = 32;

/// Measures the link from `main` to `other`, in less than a second: that with the host's memory, or
/// that between two GPUs which queue copies. It is stored by [`renew_link`].
///
/// # Errors
/// When a device fails or lacks memory.
pub fn measure_link(main: &Opened, other: &Opened) -> Result<DeviceLink, DeviceError> {
    let [from, to] = [main, other].map(|of| &*of.device);
    let is_queued = to.queues_copies_from(from) && from.queues_copies_from(to);
    let (upload, download) = match is_queued {
        true => (queued(from, to)?, queued(to, from)?),
        false => (upload(from)?, download(from)?),
    };
    Ok(DeviceLink {
        upload: Some(upload),
        download: Some(download),
        handover: Some(handover(main, other, is_queued)?),
    })
}

/// Measures the link and stores it for later starts.
///
/// # Errors
/// When a device fails or lacks memory, or no figure is plausible.
pub fn renew_link(main: &Opened, other: &Opened) -> Result<DeviceLink, DeviceError> {
    match link_store(main, other) {
        Some(store) => store.renew(|| measure_link(main, other)),
        None => measure_link(main, other),
    }
}

/// Returns the stored link, if it was measured.
pub fn stored_link(main: &Opened, other: &Opened) -> Option<DeviceLink> {
    link_store(main, other)?.read()
}

/// Returns the stored link, or measures and stores it; [`DeviceLink::ASSUMED`] for devices that
/// hold no data, without a store, or if measuring fails.
///
/// # Errors
/// When a device is lost.
pub(super) fn link(main: &Opened, other: &Opened) -> Result<DeviceLink, DeviceError> {
    let holds_data = main.device.holds_data() && other.device.holds_data();
    let store = link_store(main, other).filter(|_| holds_data);
    let found = store.map(|of| of.read_or_measure(|| measure_link(main, other)));
    let found = found.transpose()?.flatten();
    Ok(found.unwrap_or(DeviceLink::ASSUMED))
}

/// Returns the entry of the link's costs. It is no part of a machine description, on which
/// compiled kernels depend.
fn link_store<'a>(main: &'a Opened, other: &'a Opened) -> Option<CostStore<'a, DeviceLink>> {
    let store = main.device.store().or(other.device.store())?;
    let text = |of: &Opened| {
        let machine = of.device.tuned_as();
        let machine = machine.unwrap_or_else(|| of.target.name.to_string());
        // The name has the number of a card: two of a kind may have different slots.
        format!("{} ({machine})", of.device.name())
    };
    let devices = format!("{} and {}", text(main), text(other));
    Some(CostStore::new(store, &devices, ""))
}

/// Returns the least seconds of several runs.
fn best(mut run: impl FnMut() -> Result<f64, DeviceError>) -> Result<f64, DeviceError> {
    (0..PASSES).try_fold(f64::INFINITY, |least, _| Ok(least.min(run()?)))
}

/// Returns the bytes per second of copies from pinned memory to the device.
fn upload(device: &dyn Device) -> Result<f64, DeviceError> {
    let room = device.available().map_or(UPLOAD_BYTES as u64, |n| n / 4);
    let bytes = usize::try_from(room).map_or(UPLOAD_BYTES, |n| n.min(UPLOAD_BYTES));
    let buffer = device.alloc(bytes / 4 * 4, Memory::Weights)?;
    let kept = device.keep(&buffer)?;
    let seconds = best(|| {
        let start = Instant::now();
        device.restore(&*kept, 0..buffer.len(), &buffer, 0)?;
        // The copy may not have ended yet: a read of what it writes waits.
        device.read(&buffer, 0, &mut [0; 4])?;
        Ok(start.elapsed().as_secs_f64())
    })?;
    Ok(buffer.len() as f64 / seconds)
}

/// Returns the bytes per second of copies from the device to memory that stages writes, which is
/// pinned: a large copy less a small one.
fn download(device: &dyn Device) -> Result<f64, DeviceError> {
    let from = device.alloc(DOWNLOAD_BYTES, Memory::Weights)?;
    let to = device.alloc(DOWNLOAD_BYTES, Memory::Weights)?;
    let mut staged = device.stage(&to, 0, DOWNLOAD_BYTES)?;
    let mut seconds = |bytes: usize| {
        best(|| {
            let start = Instant::now();
            device.read(&from, 0, &mut staged.bytes()[..bytes])?;
            Ok(start.elapsed().as_secs_f64())
        })
    };
    let small = ROWS * size_of::<f32>();
    // The first copy is a warm-up.
    seconds(DOWNLOAD_BYTES)?;
    let difference = seconds(DOWNLOAD_BYTES)? - seconds(small)?;
    Ok((DOWNLOAD_BYTES - small) as f64 / difference)
}

/// Returns the bytes per second of copies between two devices that queue them.
fn queued(from: &dyn Device, to: &dyn Device) -> Result<f64, DeviceError> {
    let [source, target] = [from, to].map(|of| of.alloc(DOWNLOAD_BYTES, Memory::Scratch));
    let (source, target) = (source?, target?);
    let seconds = best(|| {
        let start = Instant::now();
        to.copy_queued(from, &source, &target, DOWNLOAD_BYTES)?;
        to.settle()?;
        Ok(start.elapsed().as_secs_f64())
    })?;
    Ok(DOWNLOAD_BYTES as f64 / seconds)
}

/// A device's side of a hand-over: a step of one small kernel, its input and output.
struct HandoverSide<'a> {
    device: &'a dyn Device,
    step: Box<dyn Replay>,
    input: Buffer,
    output: Buffer,
}

impl HandoverSide<'_> {
    fn new(opened: &Opened) -> Result<HandoverSide<'_>, DeviceError> {
        let device = &*opened.device;
        let c = Capture::new("hand_over");
        let x = c.input("x", dims![ROWS], Scalar::F32);
        c.output("y", x + x);
        let mut jit = Jit::new(opened.clone());
        let ready = jit.prepare(&[Arc::new(c.finish())], &|_, _| ())?;
        let Some(function) = ready.into_iter().next() else {
            unreachable!("one function was asked for")
        };
        let rows = || device.alloc(ROWS * size_of::<f32>(), Memory::Scratch);
        let (input, output) = (rows()?, rows()?);
        let arena = device.alloc(function.compiled.arena.max(64), Memory::Scratch)?;
        let args = vec![input.clone(), output.clone()];
        let step = jit.capture(&[Call { function, args }], &arena)?;
        Ok(HandoverSide {
            device,
            step,
            input,
            output,
        })
    }
    /// Computes, and copies the result to the other side; nothing is waited for if the copy
    /// `is_queued`.
    fn hand_to(&mut self, other: &HandoverSide, is_queued: bool) -> Result<(), DeviceError> {
        if is_queued {
            self.step.start(&[])?;
            let bytes = self.output.len();
            return (other.device).copy_queued(self.device, &self.output, &other.input, bytes);
        }
        self.step.replay(&[])?;
        let mut staged = other.device.stage(&other.input, 0, self.output.len())?;
        self.device.read(&self.output, 0, staged.bytes())?;
        staged.send()
    }
}

/// Returns the seconds of a hand-over and back.
fn handover(main: &Opened, other: &Opened, is_queued: bool) -> Result<f64, DeviceError> {
    let (mut main, mut other) = (HandoverSide::new(main)?, HandoverSide::new(other)?);
    let seconds = best(|| {
        let start = Instant::now();
        for _ in 0..HANDOVERS {
            main.hand_to(&other, is_queued)?;
            other.hand_to(&main, is_queued)?;
        }
        for _ in 0..if is_queued { HANDOVERS } else { 0 } {
            main.step.wait()?;
            other.step.wait()?;
        }
        Ok(start.elapsed().as_secs_f64())
    })?;
    Ok(seconds / HANDOVERS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_backend::{Options, open};
    use gristmill_uop::measured::Measured;

    #[test]
    fn a_link_between_any_two_devices_is_measured() {
        let opened = |name| open(name, &Options::default()).expect("a device");
        let (cpu, interp) = (opened("cpu"), opened("interp"));
        for (main, other) in [(&cpu, &interp), (&interp, &cpu), (&cpu, &cpu)] {
            let found = measure_link(main, other).expect("a link");
            let text = found.rounded().text();
            for part in ["upload ", "download ", "hand-over "] {
                assert!(text.contains(part), "{found:?}");
            }
        }
        let null = opened("null:gpu");
        assert_eq!(link(&null, &cpu).expect("a link"), DeviceLink::ASSUMED);
    }
}
