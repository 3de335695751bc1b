//! Ops that read or write rows by index: gather, assign, scatter and scatter-add.

use super::{Step, Tensor};
use gristmill_uop::fold::{self, Value};
use gristmill_uop::{Op, Scalar};

impl Step<'_> {
    pub(super) fn gather(&self) -> Tensor {
        let (x, index) = (&self.src[0], &self.src[1]);
        let Some((&rows, rest)) = x.dims.split_first() else {
            self.fail("a scalar has no rows")
        };
        let row: usize = rest.iter().product();
        let dims: Vec<usize> = index.dims.iter().chain(rest).copied().collect();
        let starts: Vec<usize> = (0..index.len())
            .map(|i| match usize::try_from(index.get(i).int()) {
                Ok(r) if r < rows => r * row,
                _ => self.fail(&format!("there is no row {}", index.get(i).int())),
            })
            .collect();
        x.choose(dims, starts.into_iter().flat_map(|s| s..s + row))
    }

    pub(super) fn assign(&self) -> Tensor {
        let (state, value) = (&self.src[0], &self.src[1]);
        if let Some(numbers) = self.src.get(2).filter(|start| !start.dims.is_empty()) {
            return self.scatter(numbers);
        }
        let start = if self.src.len() > 2 { self.size(2) } else { 0 };
        let fits = !state.dims.is_empty()
            && value.dims.len() == state.dims.len()
            && value.dims[1..] == state.dims[1..];
        self.ensure(
            fits && start + value.dims[0] <= state.dims[0],
            &format!("rows from {start} do not fit"),
        );
        let row: usize = state.dims[1..].iter().product();
        let (from, to) = (start * row, start * row + value.len());
        let element = |i| {
            if (from..to).contains(&i) {
                value.get(i - from)
            } else {
                state.get(i)
            }
        };
        Tensor::new(
            state.dims.clone(),
            self.node.dtype.scalar,
            (0..state.len()).map(element),
        )
    }

    /// The state with row `numbers[i]` replaced by row `i` of the value.
    fn scatter(&self, numbers: &Tensor) -> Tensor {
        let (state, value) = (&self.src[0], &self.src[1]);
        let fits = value.dims[..1] == numbers.dims[..] && value.dims[1..] == state.dims[1..];
        self.ensure(fits, "a row number for each row");
        let row: usize = state.dims[1..].iter().product();
        let mut from: Vec<Option<usize>> = vec![None; state.dims[0]];
        for i in 0..numbers.len() {
            let number = numbers.get(i).int();
            match usize::try_from(number).ok().and_then(|n| from.get_mut(n)) {
                Some(from) => self.ensure(
                    from.replace(i).is_none(),
                    &format!("row {number} is written twice"),
                ),
                None => self.fail(&format!("there is no row {number}")),
            }
        }
        let element = |i: usize| match from[i / row] {
            Some(of) => value.get(of * row + i % row),
            None => state.get(i),
        };
        Tensor::new(
            state.dims.clone(),
            self.node.dtype.scalar,
            (0..state.len()).map(element),
        )
    }

    /// The first source with row `i` of the second added to its row `index[i]`, in order of `i`.
    pub(super) fn scatter_add(&self) -> Tensor {
        let [x, value, index] = self.src else {
            self.fail("needs a tensor, rows and their numbers")
        };
        let fits = !x.dims.is_empty()
            && value.dims[..1] == index.dims[..]
            && value.dims[1..] == x.dims[1..];
        self.ensure(fits, "a number for each row, and rows that fit");
        let (row, scalar) = (
            x.dims[1..].iter().product::<usize>(),
            self.node.dtype.scalar,
        );
        // Floats are accumulated in f64 and not rounded; integers wrap to their type.
        let held = if scalar.is_float() {
            Scalar::F64
        } else {
            scalar
        };
        let mut all: Vec<Value> = (0..x.len()).map(|i| x.get(i)).collect();
        for i in 0..index.len() {
            let number = index.get(i).int();
            let Some(to) = usize::try_from(number).ok().filter(|&n| n < x.dims[0]) else {
                self.fail(&format!("there is no row {number}"))
            };
            for j in 0..row {
                let sum = &mut all[to * row + j];
                *sum = fold::apply(Op::Add, &[*sum, value.get(i * row + j)], held).unwrap_or(*sum);
            }
        }
        Tensor::new(x.dims.clone(), scalar, all.into_iter())
    }
}
