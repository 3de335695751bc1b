//! An open adapter: queue, waits with a timeout, and error reporting.
//!
//! An asynchronous error (a lost device, an error in a callback) is stored and returned
//! by the next call.

use super::adapters::{Limited, WANTED};
use super::block_on::block_on;
use gristmill_runtime::Error;
use gristmill_runtime::lease::Owner;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wgpu::{
    Adapter, Device, DeviceDescriptor, DeviceLostReason, ErrorFilter, ExperimentalFeatures,
    Features, Limits, MemoryHints, PollError, PollType, Queue, SubmissionIndex, Trace,
};

/// Timeout of a wait, after which the device counts as lost: no step or copy takes two minutes.
const WAIT: Duration = Duration::from_secs(120);

/// Errors that were reported asynchronously.
#[derive(Default)]
struct Failed {
    /// Message about the loss of the device, which is permanent.
    lost: Option<String>,
    /// First error outside any error scope.
    other: Option<wgpu::Error>,
}

pub struct WgpuContext {
    /// Identity as an owner of memory.
    pub owner: Owner,
    /// Adapter's name and backend.
    pub title: String,
    /// Driver's name and version.
    pub driver: String,
    pub device: Device,
    pub queue: Queue,
    /// Enabled features, among the wanted ones.
    pub features: Features,
    /// Limits of the adapter.
    pub limits: Limits,
    failed: Arc<Mutex<Failed>>,
    wait: Mutex<Duration>,
}

impl WgpuContext {
    /// Opens an adapter with artificial limits.
    pub fn open(adapter: &Adapter, limited: &Limited) -> Result<WgpuContext, Error> {
        let info = adapter.get_info();
        let title = format!("{} ({})", info.name, info.backend);
        let (features, limits) = (limited.features(adapter) & WANTED, limited.limits(adapter));
        let descriptor = DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: limits.clone(),
            // SAFETY: the only experimental feature used is cooperative matrices; kernels with them
            // stay within buffers as others do.
            experimental_features: unsafe { ExperimentalFeatures::enabled() },
            memory_hints: MemoryHints::Performance,
            trace: Trace::Off,
        };
        let (device, queue) =
            block_on(adapter.request_device(&descriptor)).map_err(|error| Error::Lacking {
                device: "wgpu".into(),
                message: format!("{title} does not open: {error}"),
                hint: "`gristmill devices` lists others; a newer driver may help".into(),
            })?;
        let failed: Arc<Mutex<Failed>> = Arc::default();
        let keep = failed.clone();
        device.on_uncaptured_error(Arc::new(move |error| {
            keep.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .other
                .get_or_insert(error);
        }));
        let keep = failed.clone();
        device.set_device_lost_callback(move |reason, message| {
            if reason != DeviceLostReason::Destroyed {
                keep.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .lost
                    .get_or_insert(message);
            }
        });
        let driver = format!("{} {}", info.driver, info.driver_info);
        let (owner, wait) = (Owner::new(), Mutex::new(WAIT));
        Ok(WgpuContext {
            owner,
            title,
            driver,
            device,
            queue,
            features,
            limits,
            failed,
            wait,
        })
    }

    /// Sets the timeout of waits, after which the device counts as lost.
    pub fn limit_waits(&self, limit: Duration) {
        *self.wait.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }

    /// Returns the error since the last call, if any; a lost device is an error each time.
    pub fn check(&self, what: &str) -> Result<(), Error> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = &failed.lost {
            return Err(self.lost(message.clone()));
        }
        failed
            .other
            .take()
            .map_or(Ok(()), |error| Err(self.error(what, error)))
    }

    fn lost(&self, what: String) -> Error {
        Error::Lost {
            device: format!("wgpu, {}", self.title),
            what,
            hint: "start again; if it happens again, `--device cpu` does without, and please report it with the driver's version".into(),
        }
    }

    /// Converts an error of wgpu.
    fn error(&self, what: &str, error: wgpu::Error) -> Error {
        let device = format!("wgpu, {}", self.title);
        match error {
            wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory {
                what: what.into(),
                wanted: 0,
                free: None,
                device,
            },
            other => Error::Driver {
                device,
                what: what.into(),
                message: other.to_string(),
                hint: "please report this with the driver's version; `--device cpu` does without"
                    .into(),
            },
        }
    }

    /// Calls `make` in error scopes and returns its result unless wgpu reports an error.
    pub fn scoped<T>(&self, what: &str, make: impl FnOnce() -> T) -> Result<T, Error> {
        self.check(what)?;
        let scopes = [
            ErrorFilter::OutOfMemory,
            ErrorFilter::Validation,
            ErrorFilter::Internal,
        ]
        .map(|filter| self.device.push_error_scope(filter));
        let made = make();
        let mut found = None;
        for scope in scopes.into_iter().rev() {
            found = found.or(block_on(scope.pop()));
        }
        match found {
            Some(error) => Err(self
                .check(what)
                .err()
                .unwrap_or_else(|| self.error(what, error))),
            None => self.check(what).map(|()| made),
        }
    }

    /// Waits for a submission and all earlier ones.
    pub fn wait(&self, what: &str, index: SubmissionIndex) -> Result<(), Error> {
        let timeout = *self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        let polled = self.device.poll(PollType::Wait {
            submission_index: Some(index),
            timeout: Some(timeout),
        });
        if let Err(PollError::Timeout) = polled {
            let message = format!("{what} has not ended after {} s", timeout.as_secs_f32());
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.lost.get_or_insert(message);
        }
        self.check(what)?;
        polled.map(drop).map_err(|error| Error::Driver {
            device: format!("wgpu, {}", self.title),
            what: what.into(),
            message: error.to_string(),
            hint: "please report this with the driver's version".into(),
        })
    }
}
