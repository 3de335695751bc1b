//! Integer arithmetic: what bounds make safe, and sums in the order of the loops.

use super::Nest;
use crate::interp::code::{Bank, Instr, InstrKind, Reg};
use crate::interp::fault::Fault;
use gristmill_uop::Id;
use gristmill_uop::op::Op;

impl Nest<'_, '_> {
    /// Do bounds show that an integer result fits its type, and that a shift or division is by a valid number?
    pub(super) fn safe(&self, id: Id) -> bool {
        let (g, node) = (self.c.g, &self.c.g[id]);
        let (Some(a), Some(b)) =
            (node.src.first().and_then(|&s| g.bounds(s)), node.src.get(1).and_then(|&s| g.bounds(s)))
        else {
            return false;
        };
        let (Some(whole), shift) = (node.dtype.scalar.range(), b.0 >= 0 && b.1 < 63) else { return false };
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

    /// A register that always holds this number.
    pub(super) fn number(&mut self, v: i64) -> Reg {
        let found = self.c.code.ints.iter().find(|n| n.1 == v);
        found.map(|n| n.0).unwrap_or_else(|| {
            let reg = self.c.register();
            self.c.code.ints.push((reg, v));
            self.c.everywhere.insert(reg);
            reg
        })
    }

    /// An integer sum. Its terms are added from the outermost loop to the innermost, so that of an address only what
    /// changes is added in the inner loop; integer addition wraps, so any order gives the same.
    pub(super) fn sum(&mut self, at: usize, id: Id) -> Result<Reg, Fault> {
        let g = self.c.g;
        let scalar = g.scalar(id);
        let (mut terms, mut open) = (Vec::new(), vec![id]);
        while let Some(n) = open.pop() {
            // A sum that is needed further out anyway is one term.
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
                    let instr = Instr { kind, safe, dtype: scalar, out, src: [0; 3] };
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
