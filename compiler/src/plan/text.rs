//! The text form of plans: `workgroup: a1 global, a0 upcast 4; threads: along sum, lanes 32, sum 4
//! x 2`. Every plan prints as a text that parses to the same plan.
//!
//! `stages: banks 64, staged, in place` follows the workgroup if the kernel has fused nodes. A part
//! consists of an axis, a kind and a count; no count means the rest of the axis. ` by N` follows if
//! the stride is not the product of the counts of later parts of the same axis.

use super::{Accumulators, Threads, TilePlan, Vectors, Warps, Workgroup};
use super::{
    Along, AxisPart, BANKS, Counted, NestPlan, OutputLanes, StagePlan, SumLanes, ThreadSum,
};
use crate::ir::parse::{ParseError, bad, count};
use gristmill_uop::RangeKind;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// Kinds of range that a part may have.
const KINDS: [RangeKind; 5] = [
    RangeKind::Global,
    RangeKind::Loop,
    RangeKind::Upcast,
    RangeKind::Vector,
    RangeKind::Tile,
];

impl Workgroup {
    /// The default stride of a part, used if the text has none.
    fn usual(&self, at: usize) -> i64 {
        let axis = self.parts[at].axis;
        self.parts[at + 1..]
            .iter()
            .filter(|p| p.axis == axis)
            .filter_map(|p| p.count)
            .product()
    }
}

impl Display for Workgroup {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("workgroup:")?;
        if self.parts.is_empty() {
            f.write_str(" whole")?;
        }
        for (i, part) in self.parts.iter().enumerate() {
            write!(
                f,
                "{} a{} {}",
                if i > 0 { "," } else { "" },
                part.axis,
                part.kind.name()
            )?;
            if let Some(n) = part.count {
                write!(f, " {n}")?;
            }
            if part.stride != self.usual(i) {
                write!(f, " by {}", part.stride)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Workgroup {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Workgroup, ParseError> {
        let Some(rest) = text.trim().strip_prefix("workgroup:") else {
            return bad(text);
        };
        let mut workgroup = Workgroup::default();
        if rest.trim() == "whole" {
            return Ok(workgroup);
        }
        // Stride 0 marks a stride that the text leaves out.
        for words in rest.split(',') {
            let mut of = words.split_whitespace();
            let axis = of
                .next()
                .and_then(|w| w.strip_prefix('a'))
                .and_then(|w| w.parse().ok());
            let kind = of
                .next()
                .and_then(|w| KINDS.into_iter().find(|k| k.name() == w));
            let (Some(axis), Some(kind)) = (axis, kind) else {
                return bad(words);
            };
            let mut part = AxisPart {
                axis,
                kind,
                count: None,
                stride: 0,
            };
            let mut next = of.next();
            if let Some(word) = next.filter(|&w| w != "by") {
                part.count = Some(count(word)?);
                next = of.next();
            }
            if next == Some("by") {
                part.stride = count(of.next().unwrap_or_default())?;
                next = of.next();
            }
            if next.is_some() {
                return bad(words);
            }
            workgroup.parts.push(part);
        }
        for i in 0..workgroup.parts.len() {
            if workgroup.parts[i].stride == 0 {
                workgroup.parts[i].stride = workgroup.usual(i);
            }
        }
        Ok(workgroup)
    }
}

impl Display for StagePlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let banks = self.banks.map(|begin| format!("banks {begin}"));
        let places = self
            .staged
            .iter()
            .map(|&staged| if staged { "staged" } else { "in place" }.to_string());
        write!(
            f,
            "stages: {}",
            banks
                .into_iter()
                .chain(places)
                .collect::<Vec<_>>()
                .join(", ")
        )
    }
}

impl FromStr for StagePlan {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<StagePlan, ParseError> {
        let Some(rest) = text.trim().strip_prefix("stages:") else {
            return bad(text);
        };
        let mut plan = StagePlan::default();
        for item in rest
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            match item.split_whitespace().collect::<Vec<_>>()[..] {
                ["banks", n] => {
                    let begin = n
                        .parse()
                        .ok()
                        .filter(|begin| (0..BANKS).contains(begin) && begin % 16 == 0);
                    plan.banks = Some(begin.map_or_else(|| bad(item), Ok)?);
                }
                ["staged"] => plan.staged.push(true),
                ["in", "place"] => plan.staged.push(false),
                _ => return bad(item),
            }
        }
        Ok(plan)
    }
}

impl Display for NestPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            NestPlan::Serial => f.write_str("serial:"),
            NestPlan::Tiles => f.write_str("tiles:"),
            NestPlan::Vectors(v) => v.fmt(f),
            NestPlan::Threads(t) => t.fmt(f),
            NestPlan::Counted(Counted { lanes, steps }) => {
                let lanes = (*lanes > 1).then(|| format!("lanes {lanes}"));
                let items: Vec<String> = lanes
                    .into_iter()
                    .chain(steps.iter().map(|n| format!("steps {n}")))
                    .collect();
                write!(
                    f,
                    "counted:{}{}",
                    if items.is_empty() { "" } else { " " },
                    items.join(", ")
                )
            }
            NestPlan::Accumulators(s) => {
                write!(f, "accumulators: rows {}, wide {}", s.rows, s.wide)
            }
            NestPlan::Warps(w) => {
                let apart = if w.batch_warps { " apart," } else { "" };
                let groups = if w.groups { " groups," } else { "" };
                write!(
                    f,
                    "warps:{groups}{apart} rows {}, columns {}, wide {}, tall {}",
                    w.rows, w.columns, w.wide, w.tall
                )
            }
        }
    }
}

impl Display for Vectors {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.fused {
            "vectors: fused"
        } else {
            "vectors: apart"
        })?;
        if let Some(OutputLanes { at, lanes, copies }) = self.output {
            write!(f, ", output loop {at} lanes {lanes} copies {copies}")?;
        }
        for sum in &self.sums {
            match sum {
                Some(SumLanes { at, lanes, unroll }) => {
                    write!(f, ", sum loop {at} lanes {lanes} unroll {unroll}")?
                }
                None => f.write_str(", sum alone")?,
            }
        }
        self.copies
            .iter()
            .try_for_each(|n| write!(f, ", copies {n}"))
    }
}

impl Display for Threads {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let along = match self.along {
            Along::Output => "output",
            Along::Reduction => "sum",
        };
        write!(
            f,
            "threads: along {along}, lanes {}, width {}",
            self.lanes, self.width
        )?;
        for at in &self.copies {
            write!(f, ", copies of loop {at}")?;
        }
        for ThreadSum {
            common,
            terms,
            steps,
        } in &self.sums
        {
            match common {
                Some(lanes) => write!(f, ", common sum {lanes} x {terms} x {steps}")?,
                None => write!(f, ", sum {terms} x {steps}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for NestPlan {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<NestPlan, ParseError> {
        let Some((name, rest)) = text.trim().split_once(':') else {
            return bad(text);
        };
        let items: Vec<Vec<&str>> = match rest.trim() {
            "" => vec![],
            rest => rest
                .split(',')
                .map(|words| words.split_whitespace().collect())
                .collect(),
        };
        match name {
            "serial" if items.is_empty() => Ok(NestPlan::Serial),
            "tiles" if items.is_empty() => Ok(NestPlan::Tiles),
            "counted" => counted(&items).map(NestPlan::Counted),
            "vectors" => vectors(&items).map(NestPlan::Vectors),
            "threads" => threads(&items).map(NestPlan::Threads),
            "accumulators" => accumulators(&items).map(NestPlan::Accumulators),
            "warps" => warps(&items).map(NestPlan::Warps),
            _ => bad(text),
        }
    }
}

fn counted(items: &[Vec<&str>]) -> Result<Counted, ParseError> {
    let mut plan = Counted {
        lanes: 1,
        steps: vec![],
    };
    for words in items {
        match words[..] {
            ["lanes", n] => plan.lanes = count(n)?,
            ["steps", n] => plan.steps.push(count(n)?),
            _ => return bad(&words.join(" ")),
        }
    }
    Ok(plan)
}

fn vectors(items: &[Vec<&str>]) -> Result<Vectors, ParseError> {
    let mut v = Vectors::default();
    let place = |word: &str| word.parse::<usize>().or_else(|_| bad(word));
    for words in items {
        match words[..] {
            ["fused"] => v.fused = true,
            ["apart"] => v.fused = false,
            ["output", "loop", at, "lanes", lanes, "copies", copies] => {
                v.output = Some(OutputLanes {
                    at: place(at)?,
                    lanes: count(lanes)?,
                    copies: count(copies)?,
                })
            }
            ["sum", "loop", at, "lanes", lanes, "unroll", unroll] => v.sums.push(Some(SumLanes {
                at: place(at)?,
                lanes: count(lanes)?,
                unroll: count(unroll)?,
            })),
            ["sum", "alone"] => v.sums.push(None),
            ["copies", n] => v.copies.push(count(n)?),
            _ => return bad(&words.join(" ")),
        }
    }
    Ok(v)
}

fn threads(items: &[Vec<&str>]) -> Result<Threads, ParseError> {
    let mut t = Threads {
        along: Along::Output,
        lanes: 1,
        width: 1,
        copies: vec![],
        sums: vec![],
    };
    for words in items {
        match words[..] {
            ["along", "output"] => t.along = Along::Output,
            ["along", "sum"] => t.along = Along::Reduction,
            ["lanes", n] => t.lanes = count(n)?,
            ["width", n] => t.width = count(n)?,
            ["copies", "of", "loop", at] => match at.parse() {
                Ok(at) => t.copies.push(at),
                Err(_) => return bad(at),
            },
            ["sum", terms, "x", steps] => t.sums.push(ThreadSum {
                common: None,
                terms: count(terms)?,
                steps: count(steps)?,
            }),
            ["common", "sum", lanes, "x", terms, "x", steps] => t.sums.push(ThreadSum {
                common: Some(count(lanes)?),
                terms: count(terms)?,
                steps: count(steps)?,
            }),
            _ => return bad(&words.join(" ")),
        }
    }
    Ok(t)
}

fn accumulators(items: &[Vec<&str>]) -> Result<Accumulators, ParseError> {
    let mut s = Accumulators { rows: 1, wide: 1 };
    for words in items {
        match words[..] {
            ["rows", n] => s.rows = count(n)?,
            ["wide", n] => s.wide = count(n)?,
            _ => return bad(&words.join(" ")),
        }
    }
    Ok(s)
}

fn warps(items: &[Vec<&str>]) -> Result<Warps, ParseError> {
    let mut w = Warps {
        batch_warps: false,
        rows: 1,
        columns: 1,
        wide: 1,
        tall: 1,
        groups: false,
    };
    for words in items {
        match words[..] {
            ["apart"] => w.batch_warps = true,
            ["groups"] => w.groups = true,
            ["rows", n] => w.rows = count(n)?,
            ["columns", n] => w.columns = count(n)?,
            ["wide", n] => w.wide = count(n)?,
            ["tall", n] => w.tall = count(n)?,
            _ => return bad(&words.join(" ")),
        }
    }
    Ok(w)
}

impl Display for TilePlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.workgroup.fmt(f)?;
        if self.stages != StagePlan::default() {
            write!(f, "; {}", self.stages)?;
        }
        self.nests.iter().try_for_each(|n| write!(f, "; {n}"))
    }
}

impl FromStr for TilePlan {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<TilePlan, ParseError> {
        let mut parts = text.split(';').peekable();
        let workgroup = parts.next().unwrap_or_default().parse()?;
        let stages = parts.next_if(|part| part.trim_start().starts_with("stages:"));
        let stages = stages.map_or_else(|| Ok(StagePlan::default()), str::parse)?;
        let nests = parts.map(str::parse).collect::<Result<_, _>>()?;
        Ok(TilePlan {
            workgroup,
            stages,
            nests,
        })
    }
}
