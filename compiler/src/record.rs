//! Serialises a compiled function for a persistent cache: numbers, length-prefixed strings, and
//! graphs in the text form of [`gristmill_uop::text`].
//!
//! The format is specific to one build of the program and carries no version, so the cache key must
//! identify the build. Reading restores the compiled function except for its logs (decisions,
//! rules); graph nodes get new numbers.

use crate::ir::layout::Layout;
use crate::pipeline::Compiled;
use crate::plan::{KernelPlan, TilePlan};
use gristmill_uop::features::{Amounts, Features};
use gristmill_uop::function::{Function, Storage};
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::program::{
    Access, BodySize, Estimate, Extent, KernelContext, Param, Program, When,
};
use gristmill_uop::{Id, text};
use std::sync::Arc;

/// Serialises a compiled function.
pub fn write(compiled: &Compiled) -> Vec<u8> {
    let mut out = Writer(Vec::new());
    out.list(&compiled.levels, |out, &level| out.count(level));
    out.list(&compiled.layouts, |out, &(slot, layout)| {
        out.count(slot as usize);
        out.number(number_of(layout));
    });
    out.list(&compiled.temps, |out, &(bytes, at)| {
        out.count(bytes);
        out.count(at);
    });
    out.count(compiled.arena);
    out.float(compiled.seconds);
    out.count(compiled.partial);
    out.list(&compiled.plans, |out, plan| {
        out.list(&plan.bodies, |out, body| out.text(&body.to_string()))
    });
    out.list(&compiled.programs, |out, program| out.program(program));
    out.0
}

/// Deserialises the compiled form of `function`; `None` if the bytes are not a record.
pub fn read(bytes: &[u8], function: &Function) -> Option<Compiled> {
    let mut of = Reader {
        rest: bytes,
        function,
    };
    let levels = of.list(Reader::count)?;
    let layouts = of.list(|of| Some((of.slot()?, layout_of(of.number()?)?)))?;
    let temps = of.list(|of| Some((of.count()?, of.count()?)))?;
    let (arena, seconds, partial) = (of.count()?, of.float()?, of.count()?);
    let bodies = of.list(|of| of.list(|of| of.text()?.parse().ok()))?;
    let programs = of.list(|of| of.program().map(Arc::new))?;
    let plan = |(bodies, program): (Vec<TilePlan>, &Arc<Program>)| KernelPlan {
        bodies,
        launch: program.context.plan,
    };
    let count = bodies.len();
    let plans = bodies.into_iter().zip(&programs).map(plan).collect();
    let whole = of.rest.is_empty() && levels.len() == programs.len() && count == programs.len();
    let (decisions, rules) = (Vec::new(), Vec::new());
    whole.then_some(Compiled {
        programs,
        levels,
        layouts,
        temps,
        arena,
        plans,
        decisions,
        rules,
        seconds,
        partial,
    })
}

const FILE: i64 = 0;
const PLANES: i64 = -1;

/// A layout as a number: the count of interleaved rows, or `FILE` or `PLANES`.
fn number_of(layout: Layout) -> i64 {
    match layout {
        Layout::File => FILE,
        Layout::Planes => PLANES,
        Layout::Rows(n) => i64::from(n),
    }
}

fn layout_of(number: i64) -> Option<Layout> {
    match number {
        FILE => Some(Layout::File),
        PLANES => Some(Layout::Planes),
        n => u16::try_from(n).ok().map(Layout::Rows),
    }
}

/// Access modes by their number in a record.
const ACCESSES: [Access; 3] = [Access::Read, Access::Write, Access::ReadWrite];

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, n: i64) {
        self.0.extend(n.to_le_bytes());
    }
    /// Writes a count or a byte size. A value beyond `i64` round-trips, too.
    fn count(&mut self, n: usize) {
        self.0.extend((n as u64).to_le_bytes());
    }
    fn flag(&mut self, yes: bool) {
        self.count(usize::from(yes));
    }
    fn float(&mut self, v: f64) {
        self.0.extend(v.to_bits().to_le_bytes());
    }
    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend(text.as_bytes());
    }
    fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Writer, &T)) {
        self.count(items.len());
        items.iter().for_each(|i| item(self, i));
    }
    fn program(&mut self, program: &Program) {
        // Destructured completely, so that adding a field without writing it fails to compile.
        let Program {
            name,
            source,
            graph,
            root,
            params,
            vars,
            context,
            groups,
            bodies,
            threads,
            scratch,
            estimate,
            seconds,
            features,
            title,
            notes,
        } = program;
        let KernelContext {
            when,
            plan,
            streams,
        } = context;
        let texts = [name, source, title];
        texts.into_iter().for_each(|text| self.text(text));
        let conditions = when.iter().flat_map(|w| [w.skip, w.prologue]).flatten();
        let of_bodies = bodies.iter().map(|body| body.groups);
        let roots: Vec<Id> = [*root, *groups]
            .into_iter()
            .chain(conditions)
            .chain(of_bodies)
            .collect();
        self.text(&text::print(graph, &roots));
        self.list(when, |out, w| {
            [w.skip.is_some(), w.prologue.is_some(), w.exclusive]
                .into_iter()
                .for_each(|yes| out.flag(yes))
        });
        self.list(bodies, |out, body| out.float(body.seconds));
        // A CPU program has no launch plan.
        self.text(&if *plan == LaunchPlan::default() {
            String::new()
        } else {
            plan.to_string()
        });
        self.list(streams, |out, &slot| out.count(slot as usize));
        self.list(params, Writer::param);
        self.list(vars, |out, name| out.text(name));
        self.count(*threads);
        self.count(*scratch);
        let Estimate {
            weight_bytes,
            other_bytes,
            operations,
        } = *estimate;
        let estimate = [weight_bytes, other_bytes, operations, *seconds];
        let features = features.parts().into_iter().flat_map(|part| part.0);
        for v in estimate.into_iter().chain(features) {
            self.float(v);
        }
        self.list(notes, |out, note| out.text(note));
    }
    fn param(&mut self, param: &Param) {
        self.count(param.slot as usize);
        self.count(
            ACCESSES
                .iter()
                .position(|&a| a == param.access)
                .unwrap_or(ACCESSES.len()),
        );
        match &param.extent {
            Extent::Fixed(bytes) => {
                self.text("");
                self.count(*bytes);
            }
            Extent::Per { variable, bytes } => {
                self.text(variable);
                self.count(*bytes);
            }
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    function: &'a Function,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self) -> Option<[u8; 8]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }
    fn number(&mut self) -> Option<i64> {
        self.bytes().map(i64::from_le_bytes)
    }
    fn count(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.bytes()?)).ok()
    }
    fn slot(&mut self) -> Option<u32> {
        u32::try_from(self.count()?).ok()
    }
    fn flag(&mut self) -> Option<bool> {
        match self.count()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
    fn float(&mut self) -> Option<f64> {
        Some(f64::from_bits(u64::from_le_bytes(self.bytes()?)))
    }
    fn text(&mut self) -> Option<&'a str> {
        let length = self.count()?;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        std::str::from_utf8(text).ok()
    }
    fn owned(&mut self) -> Option<String> {
        self.text().map(String::from)
    }
    fn list<T>(&mut self, mut item: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        // No capacity is reserved: a corrupt count could be arbitrarily large, and iteration stops
        // where the bytes end.
        let count = self.count()?;
        (0..count).map(|_| item(self)).collect()
    }
    fn program(&mut self) -> Option<Program> {
        let (name, source, title) = (self.owned()?, self.owned()?, self.owned()?);
        let function = self.function;
        let stored = |name: &str| {
            function.slots.iter().find_map(|slot| match slot.storage {
                Storage::Packed(e) if e.name == name => Some(e),
                _ => None,
            })
        };
        let (graph, roots) = text::parse(self.text()?, &stored).ok()?;
        let mut roots = roots.into_iter();
        let (root, groups) = (roots.next()?, roots.next()?);
        let mut condition = |is_there: bool| {
            if is_there {
                roots.next().map(Some)
            } else {
                Some(None)
            }
        };
        let when = self.list(|of| {
            let (skip, prologue, exclusive) = (of.flag()?, of.flag()?, of.flag()?);
            Some(When {
                skip: condition(skip)?,
                prologue: condition(prologue)?,
                exclusive,
            })
        })?;
        let bodies = self.list(|of| {
            Some(BodySize {
                seconds: of.float()?,
                groups: roots.next()?,
            })
        })?;
        let plan = match self.text()? {
            "" => LaunchPlan::default(),
            plan => plan.parse().ok()?,
        };
        let context = KernelContext {
            when,
            plan,
            streams: self.list(Reader::slot)?,
        };
        let params = self.list(Reader::param)?;
        let vars = self.list(|of| of.text().map(Arc::from))?;
        let (threads, scratch) = (self.count()?, self.count()?);
        let estimate = Estimate {
            weight_bytes: self.float()?,
            other_bytes: self.float()?,
            operations: self.float()?,
        };
        let seconds = self.float()?;
        let features = Features::from_parts([self.amounts()?, self.amounts()?, self.amounts()?]);
        let notes = self.list(Reader::owned)?;
        let graph = Arc::new(graph);
        Some(Program {
            name,
            source,
            graph,
            root,
            params,
            vars,
            context,
            groups,
            bodies,
            threads,
            scratch,
            estimate,
            seconds,
            features,
            title,
            notes,
        })
    }
    fn amounts(&mut self) -> Option<Amounts> {
        let mut all = Amounts::default();
        for amount in &mut all.0 {
            *amount = self.float()?;
        }
        Some(all)
    }
    fn param(&mut self) -> Option<Param> {
        let (slot, access) = (self.slot()?, *ACCESSES.get(self.count()?)?);
        let (variable, bytes) = (self.text()?, self.count()?);
        let extent = match variable {
            "" => Extent::Fixed(bytes),
            name => Extent::Per {
                variable: name.into(),
                bytes,
            },
        };
        Some(Param {
            slot,
            access,
            extent,
        })
    }
}
