//! Device buffers of batched sampling: parameters in, candidates out.

use super::candidates::Candidates;
use super::candidates_function::{MAX_CHANGED_LOGITS, mask_words};
use super::row_sampling::{CandidateSet, RowSampling};
use super::sampling_method::{MAX_CANDIDATES, REQUEST_PARAMS};
use super::tokens::TokenSet;
use gristmill_runtime::{Buffer, Device, Error, Memory};

/// Sampling parameters of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowParams {
    /// Grammar mask: ids that may come next; `None` for all.
    pub allowed: Option<TokenSet>,
    /// Distinct ids with logits that the host changes, at most [`MAX_CHANGED_LOGITS`]. Their
    /// logits are returned unranked.
    pub changed: Vec<u32>,
    /// Parameters for sampling on the device if all ids remain.
    pub sampling: RowSampling,
    /// Position of the row in its sequence.
    pub position: usize,
}

/// Parameter and candidate buffers of all rows.
pub(crate) struct DeviceSampler {
    bits: Buffer,
    numbers: Buffer,
    random: Buffer,
    changed: Buffer,
    raw: Buffer,
    ids: Buffer,
    values: Buffer,
    total: Buffer,
    sound: Buffer,
    drawn: Buffer,
    vocabulary: usize,
    /// Ranked ids of each row, as last written.
    written: Vec<Option<TokenSet>>,
    /// Ids of changed logits, of all rows.
    changed_ids: Vec<u32>,
}

impl DeviceSampler {
    /// Allocates buffers for at most `max_rows` rows of logits.
    pub fn new(
        device: &dyn Device,
        vocabulary: usize,
        max_rows: usize,
    ) -> Result<DeviceSampler, Error> {
        let of = |each: usize, bytes: usize, memory| device.alloc(max_rows * each * bytes, memory);
        let [asked, told] = [Memory::Scratch, Memory::Readback];
        let (bits, numbers) = (
            of(mask_words(vocabulary), 4, asked)?,
            of(REQUEST_PARAMS, 4, asked)?,
        );
        let (random, changed) = (of(1, 4, asked)?, of(MAX_CHANGED_LOGITS, 4, asked)?);
        let (raw, ids, values) = (
            of(MAX_CHANGED_LOGITS, 4, told)?,
            of(MAX_CANDIDATES, 4, told)?,
            of(MAX_CANDIDATES, 4, told)?,
        );
        let (total, sound, drawn) = (of(1, 8, told)?, of(1, 4, told)?, of(1, 4, told)?);
        Ok(DeviceSampler::from_buffers(
            [
                bits, numbers, random, changed, raw, ids, values, total, sound, drawn,
            ],
            vocabulary,
            max_rows,
        ))
    }
    /// Uses these buffers, in the order of the slots of
    /// [`candidates_function`](super::candidates_function) after the logits.
    pub fn from_buffers(
        buffers: [Buffer; 10],
        vocabulary: usize,
        max_rows: usize,
    ) -> DeviceSampler {
        let [
            bits,
            numbers,
            random,
            changed,
            raw,
            ids,
            values,
            total,
            sound,
            drawn,
        ] = buffers;
        let (written, asked) = (vec![None; max_rows], vec![0; max_rows * MAX_CHANGED_LOGITS]);
        DeviceSampler {
            bits,
            numbers,
            random,
            changed,
            raw,
            ids,
            values,
            total,
            sound,
            drawn,
            vocabulary,
            written,
            changed_ids: asked,
        }
    }
    /// Returns the buffers in the order of the function's slots.
    pub fn buffers(&self) -> [&Buffer; 10] {
        let DeviceSampler {
            bits,
            numbers,
            random,
            changed,
            raw,
            ids,
            values,
            total,
            sound,
            drawn,
            ..
        } = self;
        [
            bits, numbers, random, changed, raw, ids, values, total, sound, drawn,
        ]
    }
    /// Writes the parameters of each row. A row with `None` keeps its old mask.
    pub fn write(
        &mut self,
        device: &dyn Device,
        row_params: &[Option<RowParams>],
    ) -> Result<(), Error> {
        for (row, ask) in row_params.iter().enumerate() {
            let Some(RowParams {
                allowed, changed, ..
            }) = ask
            else {
                continue;
            };
            let mut ranked = allowed
                .clone()
                .unwrap_or_else(|| TokenSet::all(self.vocabulary));
            changed.iter().for_each(|&id| ranked.remove(id));
            if self.written[row].as_ref() != Some(&ranked) {
                let mut words = ranked.words().to_vec();
                words.resize(self::mask_words(self.vocabulary), 0);
                device.write(
                    &self.bits,
                    row * words.len() * 4,
                    bytemuck::cast_slice(&words),
                )?;
                self.written[row] = Some(ranked);
            }
            self.changed_ids[row * MAX_CHANGED_LOGITS..][..changed.len()].copy_from_slice(changed);
        }
        let draws = |ask: &Option<RowParams>| match ask {
            Some(RowParams {
                sampling: draws,
                position,
                ..
            }) => (draws.numbers, draws.random.at(*position)),
            None => Default::default(),
        };
        let (numbers, random): (Vec<_>, Vec<_>) = row_params.iter().map(draws).unzip();
        device.write(&self.numbers, 0, bytemuck::cast_slice(&numbers))?;
        device.write(&self.random, 0, bytemuck::cast_slice(&random))?;
        match row_params
            .iter()
            .flatten()
            .all(|ask| ask.changed.is_empty())
        {
            true => Ok(()),
            false => device.write(
                &self.changed,
                0,
                bytemuck::cast_slice(&self.changed_ids[..row_params.len() * MAX_CHANGED_LOGITS]),
            ),
        }
    }
    /// Reads the candidates of the rows.
    pub fn read(
        &self,
        device: &dyn Device,
        row_params: &[Option<RowParams>],
    ) -> Result<Vec<Option<Candidates>>, Error> {
        let n = row_params.len();
        let (mut ids, mut values) = (
            vec![0u32; n * MAX_CANDIDATES],
            vec![0f32; n * MAX_CANDIDATES],
        );
        let (mut total, mut sound, mut drawn) = (vec![0i64; n], vec![0i32; n], vec![0i32; n]);
        device.read(&self.ids, 0, bytemuck::cast_slice_mut(&mut ids))?;
        device.read(&self.values, 0, bytemuck::cast_slice_mut(&mut values))?;
        device.read(&self.total, 0, bytemuck::cast_slice_mut(&mut total))?;
        device.read(&self.sound, 0, bytemuck::cast_slice_mut(&mut sound))?;
        device.read(&self.drawn, 0, bytemuck::cast_slice_mut(&mut drawn))?;
        let changed = row_params
            .iter()
            .flatten()
            .any(|ask| !ask.changed.is_empty());
        let mut raw = vec![0f32; if changed { n * MAX_CHANGED_LOGITS } else { 0 }];
        device.read(&self.raw, 0, bytemuck::cast_slice_mut(&mut raw))?;
        let told = |(row, ask): (usize, &Option<RowParams>)| {
            let ask = ask.as_ref()?;
            let own = row * MAX_CANDIDATES..(row + 1) * MAX_CANDIDATES;
            // −0 becomes 0.
            let all = ids[own.clone()]
                .iter()
                .copied()
                .zip(values[own].iter().map(|value| value + 0.0));
            let first: Vec<_> = all
                .take_while(|&(_, logit)| logit > f32::NEG_INFINITY)
                .collect();
            let raw = raw
                .iter()
                .skip(row * MAX_CHANGED_LOGITS)
                .take(ask.changed.len())
                .copied()
                .collect();
            let (complete, total, sound) =
                (first.len() < MAX_CANDIDATES, total[row], sound[row] != 0);
            let drawn = u32::try_from(drawn[row])
                .ok()
                .filter(|_| ask.sampling.candidate_set() == CandidateSet::All);
            Some(Candidates {
                vocabulary: self.vocabulary,
                first,
                complete,
                total,
                sound,
                drawn,
                raw,
            })
        };
        Ok(row_params.iter().enumerate().map(told).collect())
    }
}
