//! A wrapper around a device that runs steps as late as possible: not when they are started,
//! but when one of them is waited for. A step therefore reads anything the host has written to
//! its buffers in between.

use gristmill_backend::{Opened, Options, open};
use gristmill_runtime::staging::StagedWrite;
use gristmill_runtime::{Buffer, Device, DeviceId, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

type Inner = Arc<Mutex<Box<dyn Replay>>>;

/// A step that was started but has not run.
struct Started {
    step: Inner,
    variables: Vec<(String, i64)>,
    number: u64,
}

/// Started steps, in order.
#[derive(Default)]
struct Queue {
    started: VecDeque<Started>,
    last: u64,
}

struct Late {
    inner: Arc<dyn Device>,
    queue: Arc<Mutex<Queue>>,
}

/// Opens the CPU device with late steps.
pub fn late() -> Opened {
    let opened = open(
        "cpu",
        &Options {
            quick: true,
            ..Options::default()
        },
    )
    .expect("a device");
    let device = Late {
        inner: opened.device.clone(),
        queue: Arc::default(),
    };
    Opened {
        device: Arc::new(device),
        ..opened
    }
}

impl Device for Late {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn id(&self) -> DeviceId {
        self.inner.id()
    }
    fn target(&self) -> &Target {
        self.inner.target()
    }
    fn overlaps(&self) -> bool {
        true
    }
    fn describe(&self) -> Vec<String> {
        self.inner.describe()
    }
    fn available(&self) -> Option<u64> {
        self.inner.available()
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        self.inner.alloc(bytes, memory)
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.inner.write(to, offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.inner.read(from, offset, data)
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        self.inner.stage(to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        self.inner.load(programs, progress)
    }
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        let inner = Arc::new(Mutex::new(self.inner.capture(launches)?));
        Ok(Box::new(Step {
            inner,
            queue: self.queue.clone(),
            starts: VecDeque::new(),
        }))
    }
    fn capture_alone(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        self.inner.capture_alone(launches)
    }
}

struct Step {
    inner: Inner,
    queue: Arc<Mutex<Queue>>,
    /// Numbers of its starts that were not waited for.
    starts: VecDeque<u64>,
}

impl Replay for Step {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        let mut queue = self.queue.lock().expect("nobody panicked");
        queue.last += 1;
        let (number, step) = (queue.last, self.inner.clone());
        let variables = vars
            .iter()
            .map(|&(name, value)| (name.to_string(), value))
            .collect();
        queue.started.push_back(Started {
            step,
            variables,
            number,
        });
        self.starts.push_back(number);
        Ok(())
    }
    fn wait(&mut self) -> Result<(), Error> {
        let Some(number) = self.starts.pop_front() else {
            return Ok(());
        };
        loop {
            let next = {
                let mut queue = self.queue.lock().expect("nobody panicked");
                let due = queue
                    .started
                    .front()
                    .is_some_and(|one| one.number <= number);
                if due { queue.started.pop_front() } else { None }
            };
            let Some(Started {
                step, variables, ..
            }) = next
            else {
                return Ok(());
            };
            let vars: Vec<(&str, i64)> = variables
                .iter()
                .map(|(name, value)| (name.as_str(), *value))
                .collect();
            step.lock().expect("nobody panicked").replay(&vars)?;
        }
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        self.inner
            .lock()
            .expect("nobody panicked")
            .replay_timed(vars)
    }
}
