//! Integer arithmetic: checks by bounds, and sums ordered by loop.

use super::Nest;
use crate::interp::code::{Bank, Instr, InstrKind, Reg};
use crate::interp::fault::Fault;
use gristmill_uop::Id;
use gristmill_uop::op::Op;

impl Nest<'_, '_> {
    /// Returns whether bounds prove that the result fits its type and the second operand is valid.
    pub(super) fn safe(&self, id: Id) -> bool {
        let (g, node) = (self.c.g, &self.c.g[id]);
        let (Some(a), Some(b)) = (
            node.src.first().and_then(|&s| g.bounds(s)),
            node.src.get(1).and_then(|&s| g.bounds(s)),
        ) else {
            return false;
        };
        let (Some(whole), shift) = (node.dtype.scalar.range(), b.0 >= 0 && b.1 < 63) else {
            return false;
        };
        let corners = |f: fn(i64, i64) -> Option<i64>| {
            let fits = |v: Option<i64>| v.is_some_and(|v| v >= whole.0 && v <= whole.1);
            fits(f(a.0, b.0)) && fits(f(a.0, b.1)) && fits(f(a.1, b.0)) && fits(f(a.1, b.1))
        };
        match node.op {
            Op::Add => corners(i64::checked_add),
            Op::Mul => corners(i64::checked_mul),
            Op::Shl => shift && corners(|x, n| x.checked_mul(1i64.checked_shl(n as u32)?)),
            Op::Shr => shift,
            Op::IDiv | Op::Mod => b.0 > 0,
            _ => false,
        }
    }

    /// Returns a register that always holds this number.
    pub(super) fn number(&mut self, v: i64) -> Reg {
        let found = self.c.code.ints.iter().find(|n| n.1 == v);
        found.map(|n| n.0).unwrap_or_else(|| {
            let reg = self.c.register();
            self.c.code.ints.push((reg, v));
            self.c.everywhere.insert(reg);
            reg
        })
    }

    /// Compiles an integer sum, adding terms from the outermost loop to the innermost.
    ///
    /// The inner loop then adds only the part of an address that changes in it. Integer addition
    /// wraps, so any order gives the same result.
    pub(super) fn sum(&mut self, at: usize, id: Id) -> Result<Reg, Fault> {
        let g = self.c.g;
        let scalar = g.scalar(id);
        let (mut terms, mut open) = (Vec::new(), vec![id]);
        while let Some(n) = open.pop() {
            // A partial sum that belongs to an outer loop is one term.
            if g[n].op == Op::Add && self.frame_of(n)? == at {
                open.extend(g[n].src.iter().rev());
            } else {
                terms.push((self.frame_of(n)?, n));
            }
        }
        terms.sort_by_key(|t| t.0);
        let safe = terms.len() == 2 && self.safe(id);
        let mut total: Option<(usize, Reg)> = None;
        for (level, term) in terms {
            let term = self.value(term)?;
            total = Some(match total {
                None => (level, term),
                Some((_, sum)) => {
                    let out = self.c.register();
                    let kind = InstrKind::Apply(Op::Add, Bank::Int);
                    let instr = Instr {
                        kind,
                        safe,
                        dtype: scalar,
                        out,
                        src: [0; 3],
                    };
                    self.instr(level, instr, &[(sum, Bank::Int), (term, Bank::Int)]);
                    (level, out)
                }
            });
        }
        match total {
            Some((_, sum)) => Ok(sum),
            None => self.c.reject(id, "a sum of nothing"),
        }
    }
}
