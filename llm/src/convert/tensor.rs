//! Tensors of the converted model, each made of tensors of the checkpoint when it is read.

use super::checkpoint::{Checkpoint, Source};
use super::error::ConvertError;
use crate::gguf::{TensorData, TensorDecl, tensor_bytes};
use crate::safetensors_file::decode;
use gristmill_uop::encoding::EncodingRef;
use half::{bf16, f16};
use safetensors::tensor::Dtype;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Elements of a block of an MXFP4 tensor, and its bytes: a scale and two elements a byte.
const MX_ELEMENTS: usize = 32;
const MX_BYTES: usize = 1 + MX_ELEMENTS / 2;

/// Some rows or columns of a matrix, in an order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Picks {
    /// `count` of them, from `begin` in steps of `step`.
    Range {
        begin: usize,
        step: usize,
        count: usize,
    },
    /// Their numbers, in any order.
    List(Arc<[u32]>),
}

impl Picks {
    /// The first `count` of them.
    pub fn all(count: usize) -> Picks {
        Picks::range(0..count)
    }
    /// A part of them.
    pub fn range(range: Range<usize>) -> Picks {
        Picks::Range {
            begin: range.start,
            step: 1,
            count: range.len(),
        }
    }
    /// Number of picked rows or columns.
    pub fn count(&self) -> usize {
        match self {
            Picks::Range { count, .. } => *count,
            Picks::List(list) => list.len(),
        }
    }
    fn get(&self, at: usize) -> usize {
        match self {
            Picks::Range { begin, step, .. } => begin + at * step,
            Picks::List(list) => list[at] as usize,
        }
    }
    /// Largest number among them.
    fn last(&self) -> Option<usize> {
        match self {
            Picks::Range { count: 0, .. } => None,
            Picks::Range { begin, step, count } => {
                let offset = (count - 1).saturating_mul(*step);
                Some(begin.saturating_add(offset))
            }
            Picks::List(list) => list.iter().max().map(|&n| n as usize),
        }
    }
    /// The smallest and the largest number of a range of them.
    fn bounds(&self, range: Range<usize>) -> [usize; 2] {
        let numbers = range.map(|at| self.get(at));
        numbers.fold([usize::MAX, 0], |[least, most], n| {
            [least.min(n), most.max(n)]
        })
    }
}

/// A matrix of the converted model: rows and columns of a tensor of the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    pub source: Source,
    /// Scales of blocks of the source's rows and columns, and the size of a block.
    pub scales: Option<(Source, [usize; 2])>,
    pub rows: Picks,
    pub columns: Picks,
    /// Whether the picked rows become columns.
    pub transposed: bool,
}

impl Matrix {
    /// All rows and columns of a tensor, as they are.
    pub fn whole(source: Source) -> Matrix {
        Matrix {
            rows: Picks::all(source.rows),
            columns: Picks::all(source.columns),
            source,
            scales: None,
            transposed: false,
        }
    }
    /// Rows, and elements of a row.
    pub fn shape(&self) -> [usize; 2] {
        let (rows, columns) = (self.rows.count(), self.columns.count());
        match self.transposed {
            true => [columns, rows],
            false => [rows, columns],
        }
    }
    /// Checks that all picks are within the source.
    fn check(&self) -> Result<(), ConvertError> {
        let Source { rows, columns, .. } = self.source;
        let inside = |picks: &Picks, count: usize| picks.last().is_some_and(|last| last < count);
        let scaled = self.scales.as_ref().is_none_or(|(scales, block)| {
            let blocks = [
                rows.div_ceil(block[0].max(1)),
                columns.div_ceil(block[1].max(1)),
            ];
            scales.size == 4 && [scales.rows, scales.columns] == blocks
        });
        match inside(&self.rows, rows) && inside(&self.columns, columns) && scaled {
            true => Ok(()),
            false => Err(ConvertError::tensor(
                &self.source.name,
                format!("{rows} x {columns} elements are not those of the model"),
            )),
        }
    }
    /// Place of an element of the output in the source.
    fn place(&self, row: usize, column: usize) -> [usize; 2] {
        match self.transposed {
            true => [self.rows.get(column), self.columns.get(row)],
            false => [self.rows.get(row), self.columns.get(column)],
        }
    }
    /// Bytes of the source's elements, in the order of these rows.
    fn bytes(&self, from: &Checkpoint, rows: Range<usize>) -> io::Result<Vec<u8>> {
        let size = self.source.size;
        let width = self.shape()[1];
        let mut out = vec![0; rows.len() * width * size];
        if self.transposed {
            // A part of each row of the source, which becomes a column.
            let [least, most] = self.columns.bounds(rows.clone());
            let mut part = vec![0; (most - least + 1) * size];
            for column in 0..width {
                let at = self.rows.get(column) * self.source.columns + least;
                from.read(&self.source, at as u64, &mut part)?;
                for (number, row) in rows.clone().enumerate() {
                    let of = (self.columns.get(row) - least) * size;
                    let to = (number * width + column) * size;
                    out[to..to + size].copy_from_slice(&part[of..of + size]);
                }
            }
            return Ok(out);
        }
        let plain = self.columns == Picks::all(self.source.columns);
        let mut row_bytes = vec![0; self.source.columns * size];
        let (mut at, end) = (rows.start, rows.end);
        while at < end {
            let first = self.rows.get(at);
            let run = (at..end).take_while(|&row| self.rows.get(row) == first + row - at);
            let run = if plain { run.count() } else { 1 };
            let begin = (first * self.source.columns) as u64;
            let to = (at - rows.start) * width * size;
            if plain {
                let bytes = run * width * size;
                from.read(&self.source, begin, &mut out[to..to + bytes])?;
            } else {
                from.read(&self.source, begin, &mut row_bytes)?;
                for column in 0..width {
                    let of = self.columns.get(column) * size;
                    let to = to + column * size;
                    out[to..to + size].copy_from_slice(&row_bytes[of..of + size]);
                }
            }
            at += run;
        }
        Ok(out)
    }
    /// Values of rows, multiplied by their scales.
    fn values(&self, from: &Checkpoint, rows: Range<usize>) -> io::Result<Vec<f32>> {
        let bytes = self.bytes(from, rows.clone())?;
        let values = decode(self.source.dtype, &bytes);
        let mut values = values.ok_or(io::ErrorKind::InvalidData)?;
        let Some((source, block)) = &self.scales else {
            return Ok(values);
        };
        let mut bytes = vec![0; source.rows * source.columns * source.size];
        from.read(source, 0, &mut bytes)?;
        let scales = decode(source.dtype, &bytes).ok_or(io::ErrorKind::InvalidData)?;
        let width = self.shape()[1];
        for (number, value) in values.iter_mut().enumerate() {
            let [row, column] = self.place(rows.start + number / width, number % width);
            *value *= scales[row / block[0] * source.columns + column / block[1]];
        }
        Ok(values)
    }
}

/// Arithmetic of a conversion on the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    No,
    /// Adds 1 to every element.
    AddOne,
    /// Replaces every element `x` by `-exp(x)`.
    NegatedExp,
}

/// Origin of a tensor's data.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    /// Matrices of the same shape, one after the other.
    Matrices(Vec<Matrix>, Change),
    /// Rows of MXFP4 blocks: elements, scales, and the rows of one matrix.
    Packed([Source; 2], Vec<Picks>),
    /// Numbers that follow from the configuration, or token ids.
    Numbers(Vec<f32>),
}

/// A tensor of the converted model.
pub(super) struct ConvertedTensor {
    pub name: String,
    /// Sizes, the contiguous one first.
    pub dims: Vec<u64>,
    pub encoding: EncodingRef,
    data: Data,
    bytes: u64,
    from: Arc<Checkpoint>,
}

impl ConvertedTensor {
    /// Checks the origin of a tensor against its sizes.
    pub fn new(
        name: String,
        dims: Vec<u64>,
        encoding: EncodingRef,
        data: Data,
        from: &Arc<Checkpoint>,
    ) -> Result<ConvertedTensor, ConvertError> {
        let bytes = tensor_bytes(&name, &dims, encoding)?;
        let elements: usize = match &data {
            Data::Matrices(all, _) => {
                all.iter().try_for_each(Matrix::check)?;
                all.iter()
                    .map(|m| m.shape().iter().product::<usize>())
                    .sum()
            }
            Data::Packed([elements, scales], rows) => {
                let blocks = elements.columns / (MX_BYTES - 1) * (elements.rows / scales.rows);
                let fits = elements.dtype == Dtype::U8
                    && scales.dtype == Dtype::U8
                    && elements.columns == MX_BYTES - 1
                    && elements.rows == scales.rows * scales.columns
                    && blocks == scales.columns
                    && rows
                        .iter()
                        .all(|r| r.last().is_some_and(|last| last < scales.rows));
                if !fits {
                    let problem = "its blocks and scales do not fit each other";
                    return Err(ConvertError::tensor(&elements.name, problem));
                }
                let rows: usize = rows.iter().map(Picks::count).sum();
                rows * scales.columns * MX_ELEMENTS
            }
            Data::Numbers(numbers) => numbers.len(),
        };
        if elements as u64 != dims.iter().product::<u64>() {
            let problem = format!("{elements} elements for {dims:?}");
            return Err(ConvertError::tensor(&name, problem));
        }
        Ok(ConvertedTensor {
            name,
            dims,
            encoding,
            data,
            bytes,
            from: from.clone(),
        })
    }
    /// Encoded bytes of rows.
    fn rows(&self, rows: Range<usize>) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        match &self.data {
            Data::Numbers(numbers) => out = encoded(self.encoding, numbers),
            Data::Matrices(all, change) => {
                let height = all[0].shape()[0];
                for (matrix, rows) in split(rows, height) {
                    let matrix = &all[matrix];
                    if is_copied(self.encoding, matrix, *change) {
                        out.extend(matrix.bytes(&self.from, rows)?);
                        continue;
                    }
                    let mut values = matrix.values(&self.from, rows)?;
                    match change {
                        Change::No => {}
                        Change::AddOne => values.iter_mut().for_each(|v| *v += 1.0),
                        Change::NegatedExp => values.iter_mut().for_each(|v| *v = -v.exp()),
                    }
                    out.extend(encoded(self.encoding, &values));
                }
            }
            Data::Packed(sources, matrices) => {
                for (matrix, rows) in split(rows, matrices[0].count()) {
                    for row in rows {
                        let row = matrices[matrix].get(row);
                        packed_row(&self.from, sources, row, &mut out)?;
                    }
                }
            }
        }
        Ok(out)
    }
}

/// Parts of a range of rows in matrices of `height` rows: numbers of matrices, and rows in them.
fn split(rows: Range<usize>, height: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let last = rows.end.saturating_sub(1) / height;
    (rows.start / height..=last).map(move |matrix| {
        let begin = matrix * height;
        let from = rows.start.max(begin) - begin;
        (matrix, from..rows.end.min(begin + height) - begin)
    })
}

/// Whether bytes of a matrix are written as they are.
fn is_copied(encoding: EncodingRef, matrix: &Matrix, change: Change) -> bool {
    let same = encoding_of(matrix.source.dtype) == Some(encoding.name);
    same && change == Change::No && matrix.scales.is_none()
}

/// Name of the encoding of a checkpoint's type.
pub(super) fn encoding_of(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::F32 => Some("f32"),
        Dtype::F16 => Some("f16"),
        Dtype::BF16 => Some("bf16"),
        _ => None,
    }
}

fn encoded(encoding: EncodingRef, values: &[f32]) -> Vec<u8> {
    match encoding.name {
        "f16" => {
            let all = values.iter().map(|&v| f16::from_f32(v).to_le_bytes());
            all.flatten().collect()
        }
        "bf16" => {
            let all = values.iter().map(|&v| bf16::from_f32(v).to_le_bytes());
            all.flatten().collect()
        }
        "i32" => {
            let all = values.iter().map(|&v| (v as i32).to_le_bytes());
            all.flatten().collect()
        }
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// Appends a row of MXFP4 blocks. Byte `j` of a block has elements `2j` and `2j + 1` in
/// checkpoints, `j` and `j + 16` in GGUF files.
fn packed_row(
    from: &Checkpoint,
    [elements, scales]: &[Source; 2],
    row: usize,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let blocks = scales.columns;
    let mut exponents = vec![0; blocks];
    let mut bytes = vec![0; blocks * (MX_BYTES - 1)];
    from.read(scales, (row * blocks) as u64, &mut exponents)?;
    from.read(elements, (row * bytes.len()) as u64, &mut bytes)?;
    for (exponent, block) in exponents
        .iter()
        .zip(bytes.as_chunks::<{ MX_BYTES - 1 }>().0)
    {
        let element = |n: usize| block[n / 2] >> (4 * (n % 2)) & 15;
        out.push(*exponent);
        let half = MX_ELEMENTS / 2;
        out.extend((0..half).map(|n| element(n) | element(n + half) << 4));
    }
    Ok(())
}

impl TensorData for ConvertedTensor {
    fn declaration(&self) -> TensorDecl<'_> {
        TensorDecl {
            name: &self.name,
            dims: &self.dims,
            encoding: self.encoding,
        }
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn fill(&self, block: u64, out: &mut [u8]) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let row_blocks = self.dims[0] as usize / self.encoding.elements;
        let row_bytes = row_blocks * self.encoding.bytes;
        let begin = block as usize * self.encoding.bytes;
        let rows = begin / row_bytes..(begin + out.len()).div_ceil(row_bytes);
        let rows = match self.data {
            Data::Numbers(_) => 0..1,
            _ => rows,
        };
        let start = begin - rows.start * row_bytes;
        let bytes = self.rows(rows).map_err(|error| {
            io::Error::new(error.kind(), format!("tensor {}: {error}", self.name))
        })?;
        out.copy_from_slice(&bytes[start..start + out.len()]);
        Ok(())
    }
}
