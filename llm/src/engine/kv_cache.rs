//! The KV cache of an engine: tensors of every layer in page pools, and recurrent states.

use super::graph_key::CacheShape;
use super::pages::{PageCopy, Pages};
use crate::arch::{CacheTensor, CacheType, Model, Options};
use crate::error::Error;
use gristmill_runtime::{Buffer, Device, Memory};
use gristmill_uop::dtype::Scalar;
use std::sync::Arc;

/// Bytes per write when a benchmark fills the tensors.
const FILL_CHUNK_BYTES: usize = 1 << 20;

/// The e4m3 code of a quarter, the bound of magnitudes that a benchmark fills tensors with.
const QUARTER: f32 = 40.0;

/// A tensor of the cache, its device and its buffer.
pub(super) struct CachedTensor<'c> {
    pub device: &'c Arc<dyn Device>,
    pub buffer: &'c Buffer,
    pub plane: &'c CacheTensor,
}

/// The cache tensors of all layers.
pub struct KvCache {
    /// Device of each layer.
    devices: Vec<Arc<dyn Device>>,
    shape: CacheShape,
    /// Window length in positions, if there are sliding-window layers.
    window: Option<usize>,
    /// Cache tensors of each layer, and their buffers.
    planes: Vec<Vec<CacheTensor>>,
    buffers: Vec<Vec<Buffer>>,
}

impl KvCache {
    /// Allocates an empty cache; `device` returns the device of a layer.
    ///
    /// # Errors
    /// When a device lacks the memory.
    pub(super) fn new(
        device: &dyn Fn(usize) -> Arc<dyn Device>,
        model: &dyn Model,
        shape: CacheShape,
    ) -> Result<KvCache, Error> {
        let planes = model.cache_tensors(shape.cache_type);
        let devices: Vec<_> = (0..planes.len()).map(device).collect();
        let of_layer = |(planes, device): (&Vec<CacheTensor>, &Arc<dyn Device>)| {
            let tensor = |plane: &CacheTensor| {
                device.alloc(plane.bytes(shape.tensor_rows(plane)), Memory::State)
            };
            planes.iter().map(tensor).collect::<Result<_, _>>()
        };
        let layers = planes.iter().zip(&devices);
        let buffers = layers.map(of_layer).collect::<Result<_, _>>()?;
        Ok(KvCache {
            devices,
            shape,
            window: model.window(),
            planes,
            buffers,
        })
    }
    /// Rows, pools and element type.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }
    /// Number of pages in the pool.
    pub fn pages(&self) -> usize {
        self.shape.pools.pages
    }
    /// Number of pages in the window pool; `None` if sliding-window layers share the pool.
    pub fn window_pages(&self) -> Option<usize> {
        self.shape.pools.windows
    }
    /// Returns the window length in positions if sliding-window layers have their own pool.
    pub(super) fn window(&self) -> Option<usize> {
        self.window.filter(|_| self.shape.pools.windows.is_some())
    }
    /// Number of recurrent-state rows; 0 if the model has no recurrent states.
    pub fn state_rows(&self) -> usize {
        self.shape.pools.states
    }
    /// Returns the bytes of a page over all layers, without sliding-window layers if these
    /// have their own pool.
    pub fn page_bytes(&self) -> usize {
        let windows = self.shape.pools.windows.is_some();
        let of = |plane: &&CacheTensor| !(plane.is_state() || windows && plane.window().is_some());
        self.planes
            .iter()
            .flatten()
            .filter(of)
            .map(|plane| plane.bytes(Options::PAGE))
            .sum()
    }
    /// Returns the bytes of a page of the window pool; 0 if there is none.
    pub fn window_page_bytes(&self) -> usize {
        let of = |plane: &&CacheTensor| plane.window().is_some();
        let windowed = self.planes.iter().flatten().filter(of);
        self.shape.pools.windows.map_or(0, |_| {
            windowed.map(|plane| plane.bytes(Options::PAGE)).sum()
        })
    }
    /// Returns the bytes that a sequence of `tokens` tokens takes.
    pub fn sequence_bytes(&self, tokens: usize) -> usize {
        let rows = |plane: &CacheTensor| match plane.is_state() {
            true => 1,
            false => tokens.min(self.shape.tensor_rows(plane)),
        };
        self.planes
            .iter()
            .flatten()
            .map(|plane| plane.bytes(rows(plane)))
            .sum()
    }
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.buffers.iter().flatten()
    }
    pub(super) fn buffer(&self, layer: usize, plane: usize) -> &Buffer {
        &self.buffers[layer][plane]
    }
    /// Returns a tensor's buffer for a contiguous step; for a recurrent state, the
    /// slice of one row.
    pub(super) fn sequence_buffer(&self, layer: usize, plane: usize, state_row: u32) -> Buffer {
        let (buffer, of) = (&self.buffers[layer][plane], &self.planes[layer][plane]);
        if !of.is_state() {
            return buffer.clone();
        }
        let bytes = of.bytes(1);
        let row = buffer.slice(state_row as usize * bytes, bytes);
        row.unwrap_or_else(|error| unreachable!("row {state_row} was checked: {error}"))
    }
    /// Returns all cache tensors with their devices and buffers.
    pub(super) fn tensors(&self) -> impl Iterator<Item = CachedTensor<'_>> {
        let layers = self.devices.iter().zip(&self.buffers).zip(&self.planes);
        layers.flat_map(|((device, buffers), planes)| {
            buffers
                .iter()
                .zip(planes)
                .map(move |(buffer, plane)| CachedTensor {
                    device,
                    buffer,
                    plane,
                })
        })
    }
    /// Returns the tensors that have a row for each position.
    fn paged_tensors(&self) -> impl Iterator<Item = CachedTensor<'_>> {
        self.tensors().filter(|of| !of.plane.is_state())
    }
    /// Checks page numbers against the pools.
    pub(super) fn check(&self, pages: Pages) -> Result<(), Error> {
        pages.check(self.shape.pools, self.shape.rows / Options::PAGE)
    }
    /// Reads a page of all layers into `rows`. Fails with a window pool, which
    /// `page` does not cover.
    pub(super) fn read_page(&self, page: u32, rows: &mut Vec<u8>) -> Result<(), Error> {
        self.check((&[page][..]).into())?;
        rows.resize(self.page_bytes(), 0);
        let mut at = 0;
        for CachedTensor {
            device,
            buffer,
            plane,
        } in self.paged_tensors()
        {
            let bytes = plane.bytes(Options::PAGE);
            device.read(buffer, page as usize * bytes, &mut rows[at..at + bytes])?;
            at += bytes;
        }
        Ok(())
    }
    /// Writes a page of all layers that [`KvCache::read_page`] read.
    pub(super) fn write_page(&self, page: u32, rows: &[u8]) -> Result<(), Error> {
        self.check((&[page][..]).into())?;
        let mut at = 0;
        for CachedTensor {
            device,
            buffer,
            plane,
        } in self.paged_tensors()
        {
            let bytes = plane.bytes(Options::PAGE);
            device.write(buffer, page as usize * bytes, &rows[at..at + bytes])?;
            at += bytes;
        }
        Ok(())
    }
    /// Copies a page, and a page of the window pool if `copy` names one.
    pub(super) fn copy_page(&self, copy: &PageCopy) -> Result<(), Error> {
        let windows = copy.windows.unwrap_or_default();
        for (nth, page) in [copy.from, copy.to].into_iter().enumerate() {
            let windows = if copy.windows.is_some() {
                &windows[nth..=nth]
            } else {
                &[]
            };
            self.check(Pages {
                all: &[page],
                windows,
                ..Pages::default()
            })?;
        }
        let mut rows = Vec::new();
        for CachedTensor {
            device,
            buffer,
            plane,
        } in self.paged_tensors()
        {
            let [from, to] = copy
                .windows
                .filter(|_| plane.window().is_some())
                .unwrap_or([copy.from, copy.to]);
            let bytes = plane.bytes(Options::PAGE);
            rows.resize(bytes, 0);
            device.read(buffer, from as usize * bytes, &mut rows)?;
            device.write(buffer, to as usize * bytes, &rows)?;
        }
        Ok(())
    }
    /// Writes zeros into these pages, and into these pages of the window pool.
    pub(super) fn clear(&self, pages: &[u32], windows: &[u32]) -> Result<(), Error> {
        for CachedTensor {
            device,
            buffer,
            plane,
        } in self.paged_tensors()
        {
            let bytes = plane.bytes(Options::PAGE);
            let own = plane.window().is_some() && self.window_pages().is_some();
            for &page in if own { windows } else { pages } {
                device.write(buffer, page as usize * bytes, &vec![0; bytes])?;
            }
        }
        Ok(())
    }
    /// Fills every row before `position` of every page pool with small random numbers, so that a
    /// benchmark reads a cache of that depth without a prefill.
    pub(super) fn fill_for_bench(&self, position: usize) -> Result<(), Error> {
        // xorshift64. Values are below 1/4 in magnitude, of either sign.
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let small = (seed >> 40) as f32 / (1u32 << 24) as f32;
            if seed & 1 == 0 { small } else { -small }
        };
        let is_fp8 = self.shape.cache_type == CacheType::Fp8;
        let most = match self.shape.cache_type.has_scales() {
            false => 0.25,
            true => 0.25 / 127.0,
        };
        for CachedTensor {
            device,
            buffer,
            plane,
        } in self.tensors()
        {
            let mut piece = Vec::with_capacity(FILL_CHUNK_BYTES);
            while piece.len() < FILL_CHUNK_BYTES {
                match plane.scalar {
                    Scalar::U8 if is_fp8 => {
                        let value = next();
                        let sign = if value < 0.0 { 0x80 } else { 0 };
                        piece.push((value.abs() * QUARTER) as u8 | sign);
                    }
                    Scalar::I8 | Scalar::U8 => piece.push((next() * 127.0) as i8 as u8),
                    Scalar::F16 => piece.extend(half::f16::from_f32(next() * most).to_le_bytes()),
                    _ => piece.extend((next() * most).to_le_bytes()),
                }
            }
            let rows = self.shape.tensor_rows(plane);
            let bytes = plane.bytes(if plane.is_state() {
                rows
            } else {
                position.min(rows)
            });
            for at in (0..bytes).step_by(piece.len()) {
                let n = piece.len().min(bytes - at);
                device.write(buffer, at, &piece[..n])?;
            }
        }
        Ok(())
    }
}
