//! Servers in this process, on the demo model.

use crate::client::Client;
use gristmill_backend::Opened;
use gristmill_backend::cpu::{Cc, CpuDevice, Isa, dialect};
use gristmill_llm::chat::Isolation;
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::file::ModelFile;
use gristmill_llm::language;
use gristmill_runtime::store::Store;
use gristmill_server::{Condition, Config, Server, Text};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A server in this process.
pub struct Running {
    pub client: Client,
    pub condition: Condition,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The demo model, on the device that is made of this one.
fn demo(device: impl FnOnce(Opened) -> Opened) -> (Text, Engine) {
    // Kernels are compiled once, by whoever comes first.
    static LOADING: Mutex<()> = Mutex::new(());
    let _turn = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo-glm-Q4_0.gguf");
    let file = ModelFile::open(&demo).expect("the demo model");
    let store = Store::open(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"), 1 << 28).expect("a store");
    let isa = Isa::parse("auto").expect("an instruction set");
    let processor = CpuDevice::with(2, isa, Cc::find().expect("a C compiler"), store).expect("a processor");
    let opened = device(Opened::new(Arc::new(processor), Some(&dialect::C)));
    let engine = Engine::load(&file, opened, Settings::default(), &|_| ()).expect("an engine");
    let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
    let (template, _) = language::template(file.metadata(), &tokenizer, &Isolation::InProcess).expect("a template");
    let (sampling, _) = language::sampling(file.metadata());
    (Text { name: "demo".into(), tokenizer, template, sampling }, engine)
}

/// Starts one.
pub fn start(config: Config) -> Running {
    start_on(config, |processor| processor)
}

/// Starts one on the device that is made of this processor.
pub fn start_on(config: Config, device: impl FnOnce(Opened) -> Opened + Send + 'static) -> Running {
    let key = config.api_key.clone();
    let server = Server::bind(Config { port: 0, ..config }).expect("a port");
    let client = Client { address: server.address(), key };
    let condition = server.condition();
    let (end, ended) = oneshot::channel::<()>();
    let (is_ready, ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let ended = async {
            let _ = ended.await;
        };
        let (text, engine) = demo(device);
        server.run_until(text, engine, || is_ready.send(()).expect("somebody waits"), ended).expect("it serves");
    });
    ready.recv().expect("it is ready");
    Running { client, condition, end: Some(end), thread: Some(thread) }
}

impl Running {
    /// Tells it to end, and does not wait for that.
    pub fn end(&mut self) {
        drop(self.end.take());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}
