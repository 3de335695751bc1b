//! What an adapter's driver compiled, kept in the store of kernels: an entry for the kernels that are loaded together, so that what is no longer asked for
//! leaves the store as other entries do. It is verified when it is read, and a driver that cannot use it compiles anew.

use super::context::WgpuContext;
use super::dialect::PRELUDE;
use crate::text::KernelText;
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store};
use wgpu::{Features, PipelineCache, PipelineCacheDescriptor};

/// What is kept of the pipelines of some kernels.
pub struct CachedPipelines {
    cache: Option<PipelineCache>,
    key: Key,
    /// Bytes that the store had.
    had: usize,
}

impl CachedPipelines {
    /// Of these kernels: what the store has, if the interface hands out what it compiled (Vulkan's does).
    pub fn new(context: &WgpuContext, store: &Store, texts: &[&KernelText]) -> Result<CachedPipelines, Error> {
        let about = ["pipelines", env!("CARGO_PKG_VERSION"), &context.title, &context.driver, PRELUDE];
        let names = texts.iter().map(|text| text.symbol.as_str());
        let key = Key::of(about.into_iter().chain(names));
        if texts.is_empty() || !context.features.contains(Features::PIPELINE_CACHE) {
            return Ok(CachedPipelines { cache: None, key, had: 0 });
        }
        let data = store.get(&key)?;
        let descriptor = PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: the store gives back, to the bit, what such a cache of this driver's gave it.
        let make = || unsafe { context.device.create_pipeline_cache(&descriptor) };
        let cache = Some(context.scoped("kept pipelines", make)?);
        Ok(CachedPipelines { cache, key, had: data.map_or(0, |data| data.len()) })
    }
    /// Where compiled kernels are looked for, and left.
    pub fn cache(&self) -> Option<&PipelineCache> {
        self.cache.as_ref()
    }
    /// Keeps what has come since.
    pub fn store(&self, store: &Store) {
        let data = self.cache.as_ref().and_then(PipelineCache::get_data);
        if let Some(data) = data.filter(|data| data.len() > self.had) {
            store.keep(&self.key, &data);
        }
    }
}
