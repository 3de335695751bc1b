//! Driver-compiled pipelines, kept in the kernel store.
//!
//! An entry covers the kernels that are loaded together, so that unused ones are evicted like
//! others. It is verified when read, and a driver that rejects it compiles again.

use super::context::WgpuContext;
use super::dialect::PRELUDE;
use crate::text::KernelText;
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store};
use wgpu::{Features, PipelineCache, PipelineCacheDescriptor};

/// Pipeline cache of a set of kernels.
pub struct CachedPipelines {
    cache: Option<PipelineCache>,
    key: Key,
    /// Size of the stored entry in bytes; 0 if there is none.
    had: usize,
}

impl CachedPipelines {
    /// Opens the cache of these kernels, if the backend supports it (Vulkan does).
    pub fn new(
        context: &WgpuContext,
        store: &Store,
        texts: &[&KernelText],
    ) -> Result<CachedPipelines, Error> {
        let about = [
            "pipelines",
            env!("CARGO_PKG_VERSION"),
            &context.title,
            &context.driver,
            PRELUDE,
        ];
        let names = texts.iter().map(|text| text.symbol.as_str());
        let key = Key::from_parts(about.into_iter().chain(names));
        if texts.is_empty() || !context.features.contains(Features::PIPELINE_CACHE) {
            return Ok(CachedPipelines {
                cache: None,
                key,
                had: 0,
            });
        }
        let data = store.get(&key)?;
        let descriptor = PipelineCacheDescriptor {
            label: None,
            data: data.as_deref(),
            fallback: true,
        };
        // SAFETY: the store returns unmodified data that a cache of the same driver produced.
        let make = || unsafe { context.device.create_pipeline_cache(&descriptor) };
        let cache = Some(context.scoped("kept pipelines", make)?);
        Ok(CachedPipelines {
            cache,
            key,
            had: data.map_or(0, |data| data.len()),
        })
    }
    /// Returns the cache to use when pipelines are created.
    pub fn cache(&self) -> Option<&PipelineCache> {
        self.cache.as_ref()
    }
    /// Stores the cache if it has grown.
    pub fn store(&self, store: &Store) {
        let data = self.cache.as_ref().and_then(PipelineCache::get_data);
        if let Some(data) = data.filter(|data| data.len() > self.had) {
            store.put_or_warn(&self.key, &data);
        }
    }
}
