//! What dialects of threads write alike: bodies of a launch side by side, nests over whose threads ranges are counted, folds over lanes. How their language
//! declares and converts is theirs, and so is what touches memory.

use crate::names::{Names, unprintable};
use gristmill_compiler::lower::{Code, Statement, ThreadIndex};
use gristmill_uop::Id;
use std::fmt::Write;

/// The text of a kernel of threads, as far as it is written.
#[derive(Default)]
pub struct SimtText<'a> {
    /// The text.
    pub out: String,
    /// How the threads of the open nest are counted.
    pub threads: &'a [ThreadIndex],
}

/// A writer of a language of threads.
pub trait Simt<'a> {
    /// What ends an unsigned literal.
    const UNSIGNED: &'static str;

    /// What is written.
    fn text(&mut self) -> &mut SimtText<'a>;
    /// The values' names.
    fn names(&self) -> &Names<'a>;
    /// A value's type.
    fn type_of(&self, id: Id) -> String;
    /// An index expression, written out.
    fn index(&self, id: Id) -> String;
    /// A value as another type.
    fn converted(&self, t: &str, value: &str) -> String;
    /// The index of a range as that type.
    fn range(&self, name: &str, t: &str, value: &str) -> String;
    /// The index of a range that is counted over threads.
    fn range_of_threads(&self, name: &str, t: &str, value: &str) -> String {
        self.range(name, t, value)
    }
    /// An unsigned quotient of which further quotients and remainders are made.
    fn quotient(&self, of: &str, by: &str) -> String;
    /// The workgroup's number among those of the body of that number and all behind it, as an unsigned one.
    fn workgroup(&self, body: usize) -> String;
    /// The head of that body, whose number of workgroups is `count`, and of what those do that are its own.
    fn head(&self, body: usize, count: Id) -> String;
    /// What ends both.
    fn tail(&self, body: usize) -> String;
    /// How a workgroup ends.
    fn leave(&self) -> String;
    /// A statement.
    fn statement(&mut self, s: &'a Statement);
    /// Statements in their order.
    fn statements(&mut self, all: &'a [Statement]) {
        all.iter().for_each(|s| self.statement(s));
    }

    /// Writes a line.
    fn line(&mut self, text: std::fmt::Arguments) {
        let out = &mut self.text().out;
        let _ = out.write_fmt(text);
        out.push('\n');
    }
    /// A body: the indices of its workgroups, and what these do.
    fn body(&mut self, number: usize, code: &'a Code) {
        let head = self.head(number, self.names().signature.groups[number]);
        self.line(format_args!("{head}"));
        let mut rest = self.workgroup(number);
        for (i, &r) in code.globals.iter().enumerate().rev() {
            let (t, name) = (self.type_of(r), self.names().name(r));
            let mut value = rest.clone();
            if i > 0 {
                let bound = self.converted("u32", &self.index(self.names().g[r].src[0]));
                value = format!("{rest} % {bound}");
                rest = self.quotient(&rest, &bound);
            }
            let index = self.range(&name, &t, &value);
            self.line(format_args!("{index}"));
        }
        if let Some(skip) = code.skip {
            let (skip, leave) = (self.index(skip), self.leave());
            self.line(format_args!("if ({skip}) {{ {leave} }}"));
        }
        self.statements(&code.statements);
        let tail = self.tail(number);
        self.line(format_args!("{tail}"));
    }
    /// Blocks: nests, whose ranges are counted over the threads, what is done under a condition, and their ends. Is it one of those?
    fn block(&mut self, s: &'a Statement) -> bool {
        match s {
            Statement::End => self.line(format_args!("}}")),
            Statement::Unless(condition) => {
                let condition = self.index(*condition);
                self.line(format_args!("if (!({condition})) {{"));
            }
            Statement::Nest { threads, .. } | Statement::Threads(threads) => {
                if s.opens() {
                    self.line(format_args!("{{"));
                }
                self.text().threads = threads;
                for of in threads {
                    let part = |sign: &str, by: Option<i64>| {
                        by.map_or(String::new(), |by| format!(" {sign} {by}{}", Self::UNSIGNED))
                    };
                    let value = format!("thread{}{}", part("/", of.divide), part("%", of.modulo));
                    let (t, name) = (self.type_of(of.range), self.names().name(of.range));
                    let index = self.range_of_threads(&name, &t, &value);
                    self.line(format_args!("{index}"));
                }
            }
            _ => return false,
        }
        true
    }
    /// Over how many lanes a fold goes, and how many threads are from one to the next.
    fn lanes(&mut self, fold: Id) -> [i64; 2] {
        let range = self.names().g[fold].src[1];
        let stride = self.text().threads.iter().find(|t| t.range == range).map(ThreadIndex::stride);
        let g = self.names().g;
        match (g.int_value(g[range].src[0]), stride) {
            (Some(lanes), Some(stride)) => [lanes, stride],
            _ => unprintable(g, fold),
        }
    }
}
