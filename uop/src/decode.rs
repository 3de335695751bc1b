//! Evaluates an [`Encoding`]'s expression into nodes of a graph.

use crate::dtype::Scalar;
use crate::encoding::{Block, Encoding, Nodes};
use crate::graph::Graph;
use crate::id::Id;
use crate::op::Op;
use std::cell::RefCell;
use std::rc::Rc;

impl Nodes for RefCell<Graph> {
    fn scalar(&self, x: Id) -> Scalar {
        self.borrow().scalar(x)
    }
    fn int(&self, value: i64) -> Id {
        self.borrow_mut().int_of(Scalar::I32, value)
    }
    fn constant(&self, scalar: Scalar, value: f64) -> Id {
        self.borrow_mut().constant(scalar, value)
    }
    fn load(&self, buffer: Id, at: Id, stored: Scalar) -> Id {
        self.borrow_mut().load(buffer, at, stored)
    }
    fn cast(&self, x: Id, to: Scalar) -> Id {
        self.borrow_mut().cast(x, to)
    }
    fn bitcast(&self, x: Id, to: Scalar) -> Id {
        self.borrow_mut().bitcast(x, to)
    }
    fn table(&self, x: Id, table: &[i32]) -> Id {
        self.borrow_mut().table(x, table)
    }
    fn binary(&self, op: Op, a: Id, b: Id) -> Id {
        match op {
            Op::Sub => self.borrow_mut().sub(a, b),
            _ => self.borrow_mut().binary(op, a, b),
        }
    }
    fn select(&self, condition: Id, a: Id, b: Id) -> Id {
        self.borrow_mut().select(condition, a, b)
    }
}

impl Encoding {
    /// Builds the f32 value of element `k` of a block as a node of `g`.
    ///
    /// `k` is an index expression from 0 to `elements`; the block begins at
    /// byte `base` of `buffer`.
    pub fn decode(&self, g: &mut Graph, buffer: Id, base: Id, k: Id) -> Id {
        let graph = Rc::new(RefCell::new(std::mem::take(g)));
        let value = {
            let block = Block {
                nodes: graph.clone(),
                buffer,
                base,
                k,
            };
            (self.value)(&block).as_f32().id
        };
        *g = Rc::into_inner(graph)
            .expect("the block was the only other owner")
            .into_inner();
        value
    }
}
